"""One sample of a finished evaluation, and what an attack made of it. Needs no torch."""

import difflib
import json
import re
import threading
from collections import OrderedDict
from os.path import commonprefix
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from data.images import to_png
from robustness.attacks.base import LIMITS, Norm
from robustness.parsing import parse_eps
from robustness.report.schema import FILE, SCHEMA_VERSION, AttackFlags
from robustness.spec import ATTACKS, EvaluationSpec
from robustness.store import SHARD_SIZE, Shard, as_inputs, clean_path, read

Kind = Literal["clean", "adversarial", "perturbation"]
Change = Literal["same", "del", "ins"]

_LONGEST_TABLE = 4_000_000  # pairs of words to compare
_KEPT = 4
_parsed: OrderedDict[Path, tuple[int, dict[str, Any]]] = OrderedDict()  # time of change, report
_lock = threading.Lock()


class NoSuchSample(ValueError):
    """The report holds no such sample, attack, budget or model."""


class InputLost(NoSuchSample):
    """The stored inputs are missing or damaged."""


def picture(
    folder: Path,
    index: int,
    kind: Kind,
    *,
    attack: str | None = None,
    eps: str | None = None,
    model: str | None = None,
) -> bytes:
    """Draw one image of a finished evaluation as a PNG in the model's input size.

    What is not named is chosen as the worst case: the largest radius, then the attack that fooled
    the served model, or came nearest to it. A perturbation is drawn around mid-grey, where black
    and white are -eps and +eps; outside of l∞ they are the largest change of any pixel.

    Args:
        folder: what `robustness.evaluation.evaluate` left behind.
        index: which image.
        kind: "clean", "adversarial" or "perturbation".
        attack: name of the attack.
        eps: the point, as the spec spells it or as an equal number, behind its norm, as in "L2:1",
            where that matters; of corruptions "fog:3", name and severity; of smoothing its sigma.
        model: name of the model; the evaluated one when not given.

    Raises:
        NoSuchSample: there is no such picture; the message names the argument.
    """
    if kind not in get_args(Kind):
        raise NoSuchSample(f"kind must be clean, adversarial or perturbation, got {kind!r}")
    report, _, flagged = _find(folder, index, "image", model)
    clean = clean_input(folder, flagged["digest"], index)
    if kind == "clean":
        return to_png(clean)
    if attack in ATTACKS and ATTACKS[attack].info.role != "attack":
        most, adversarial = None, _redrawn(clean, report, attack, eps)
    else:
        found, adversarial = _attacked(folder, index, report, flagged, attack, eps)
        # An l-infinity radius bounds each pixel's change; another norm does not.
        most = found["eps_value"] if found["norm"] == "Linf" else None
    if kind == "adversarial":
        return to_png(adversarial.clip(0, 1))  # replications leave [0, 1]
    return to_png(amplified(clean, adversarial, most=most))


def _redrawn(clean: np.ndarray, report: dict[str, Any], name: str, point: str | None) -> np.ndarray:
    """An image (C, H, W) under a corruption or noise: nothing is stored of it."""
    spec = EvaluationSpec.model_validate(report["spec"])
    for cell in spec.cells:
        if (cell.attack.label, cell.budget.text) == (name, point):
            seeds = cell.attack.seeds(spec.seed, cell.budget, clean[None])
            return cell.attack.redrawn(clean[None], cell.budget, seeds)[0]
    got = point and point[:40]
    raise NoSuchSample(f"eps must be a point of {name} in this report, got {got!r}")


def amplified(clean: np.ndarray, adversarial: np.ndarray, *, most: float | None) -> np.ndarray:
    """What an attack added, around mid-grey: black and white are -most and +most.

    Args:
        clean: (C, H, W).
        adversarial: (C, H, W).
        most: the largest change that the attack may make; the largest that it made when None.

    Returns:
        (C, H, W) in [0, 1].
    """
    change = adversarial.astype(np.float64) - clean
    scale = float(np.abs(change).max()) if most is None else most
    return np.clip(0.5 + change / (2 * (scale or 1.0)), 0, 1)


def changed_text(
    folder: Path,
    index: int,
    *,
    attack: str | None = None,
    eps: str | None = None,
    model: str | None = None,
) -> dict[str, Any]:
    """A text of a finished evaluation, before and after an attack, with the model's answers.

    Args:
        folder: what `robustness.evaluation.evaluate` left behind.
        index: which text.
        attack: name of the attack; see `picture`. "none" is the text unchanged.
        eps: where it ran, a rate or a number of edits.
        model: name of the model; the evaluated one when not given.

    Returns:
        JSON values: index, name, label and model; `clean` and `adversarial`, each with its `text`
        and the flags of the report; `changes`, see `difference`. `adversarial` is None of "none".

    Raises:
        NoSuchSample: there is no such text; the message names the argument.
    """
    report, sample, flagged = _find(folder, index, "text", model)
    before = clean_input(folder, flagged["digest"], index)
    found, after = None, before
    if attack != "none":
        found, after = _attacked(folder, index, report, flagged, attack, eps)
    return {
        "index": index,
        "name": sample["name"],
        "label": sample["label"],
        "model": flagged["name"],
        "clean": {"text": before, **flagged["clean"]},
        "adversarial": found and {"text": after, **found},
        "changes": difference(before, after),
    }


def difference(old: str, new: str) -> list[tuple[Change, str]]:
    """Two texts as one, word by word: what stayed the same, was removed, and was inserted.

    Long texts are compared by their common ends alone where all between them would take long.
    """
    before, after = (re.findall(r"\s+|\S+", text) for text in (old, new))
    head = len(commonprefix([before, after]))
    tail = len(commonprefix([before[head:][::-1], after[head:][::-1]]))
    removed, inserted = before[head : len(before) - tail], after[head : len(after) - tail]
    steps = [("replace", 0, len(removed), 0, len(inserted))]
    if len(removed) * len(inserted) <= _LONGEST_TABLE:
        steps = difflib.SequenceMatcher(None, removed, inserted, autojunk=False).get_opcodes()
    parts: list[tuple[Change, str]] = [("same", "".join(before[:head]))]
    for kind, start, stop, from_, to in steps:
        kept = kind == "equal"
        parts.append(("same" if kept else "del", "".join(removed[start:stop])))
        parts.append(("ins", "" if kept else "".join(inserted[from_:to])))
    parts.append(("same", "".join(before[len(before) - tail :])))
    return [part for part in parts if part[1]]


def clean_input(folder: Path, digest: str, index: int) -> Any:
    """An input as it was scored: (C, H, W) float32 in [0, 1], or a text.

    Args:
        folder: of the evaluation.
        digest: of the model.
        index: of the sample.

    Raises:
        InputLost: its file is missing or damaged.
    """
    return _row(_tensors(clean_path(folder, digest, _start(index))), "clean", index)


def adversarial_input(
    folder: Path, digest: str, index: int, spec: EvaluationSpec, flags: AttackFlags
) -> Any:
    """An input as the attack left it that a sample's flags speak of; see `clean_input`."""
    asked = flags.name, flags.eps, flags.norm
    named = ((c.attack.label, c.budget.text, c.attack.norm_name) for c in spec.cells)
    cell = next(c for c, name in zip(spec.cells, named, strict=True) if name == asked)
    made_by = next(p for p in cell.attack.parts(num_classes=1000) if p.label == flags.part)
    shard = Shard(
        model=digest,
        attack=cell.attack.label,
        part=made_by,
        budget=made_by.searched(cell.budget),
        variant=flags.variant,
        start=_start(index),
    )
    tensors = _tensors(shard.path(folder))
    # One run of a minimum-norm attack serves every radius: what lies outside is not used.
    if "nearest" in tensors and tensors["nearest"][index % SHARD_SIZE] > cell.budget.value:
        return clean_input(folder, digest, index)
    return _row(tensors, "texts" if "texts" in tensors else "adversarial", index)


def _attacked(
    folder: Path,
    index: int,
    report: dict[str, Any],
    flagged: dict[str, Any],
    attack: str | None,
    eps: str | None,
) -> tuple[dict[str, Any], Any]:
    """The flags that are asked for, and the input that they speak of."""
    found = _choose(flagged["attacks"], attack, eps)
    spec, flags = EvaluationSpec.model_validate(report["spec"]), AttackFlags.model_validate(found)
    return found, adversarial_input(folder, flagged["digest"], index, spec, flags)


def _start(index: int) -> int:
    return index - index % SHARD_SIZE


def _tensors(path: Path) -> dict[str, np.ndarray]:
    tensors = read(path)
    if tensors is None:
        raise InputLost("the stored inputs of this sample are missing or damaged")
    return tensors


def _row(tensors: dict[str, np.ndarray], name: str, index: int) -> np.ndarray | str:
    return as_inputs(tensors[name])[index % SHARD_SIZE]


def _find(
    folder: Path, index: int, kind: str, name: str | None
) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """The report, a sample of it, and a model's flags on it with the model's digest."""
    path = folder / FILE
    try:
        report = _parse(path, path.stat().st_mtime_ns)
    except OSError:
        raise NoSuchSample("there is no report yet") from None
    if report["schema_version"] != SCHEMA_VERSION:
        version = report["schema_version"]
        raise NoSuchSample(f"the report has schema_version {version}, not {SCHEMA_VERSION}")
    samples, found = report["samples"], report["data"]["kind"]
    if not 0 <= index < len(samples):
        raise NoSuchSample(f"index must lie in [0, {len(samples)}), got {index}")
    if found != kind:
        raise NoSuchSample(f"this evaluation is of {found}s, not of {kind}s")
    models = samples[index]["models"]
    names = [model["name"] for model in models]
    if name is not None and name not in names:
        raise NoSuchSample(f"model must be one of {names}, got {name[:60]!r}")
    position = 0 if name is None else names.index(name)
    digest = report["summary"]["models"][position]["digest"]
    return report, samples[index], models[position] | {"digest": digest}


def _choose(attacks: list[dict[str, Any]], name: str | None, eps: str | None) -> dict[str, Any]:
    """The flags of one attack at one point; what is not named is chosen as the worst case."""
    wanted = attacks
    if eps is not None:
        norm, radius = _point(eps)
        wanted = [flags for flags in wanted if flags["eps_value"] == radius]
        wanted = [flags for flags in wanted if norm in (None, flags["norm"])]
    if name is not None:
        wanted = [flags for flags in wanted if flags["name"] == name]
    if not wanted:
        raise NoSuchSample(f"attack and eps must be ones of this report, got {name!r}, {eps!r}")

    def strength(flags: dict[str, Any]) -> tuple[float, bool, float]:
        """Larger for what shows more."""
        margin = flags["margin"]
        return flags["eps_value"], not flags["confirmed"], -margin if margin is not None else np.inf

    return max(wanted, key=strength)


def _point(eps: str) -> tuple[str | None, float]:
    norm, separator, number = eps.rpartition(":")
    try:
        radius = parse_eps(number, limit=max(LIMITS.values()))
    except ValueError as error:
        raise NoSuchSample(str(error)) from None
    if separator and norm not in get_args(Norm):
        known = ", ".join(get_args(Norm))
        raise NoSuchSample(f"eps must name one of {known} before a colon, got {norm[:20]!r}")
    return norm or None, radius


def forget_deleted() -> None:
    """Drop the parsed reports whose file is gone, so that nothing of a deleted one is kept."""
    with _lock:
        for path in [path for path in _parsed if not path.exists()]:
            del _parsed[path]


def _parse(path: Path, changed: int) -> dict[str, Any]:
    """A page asks for many samples of one report: parse it once per version of the file."""
    with _lock:
        if path in _parsed and _parsed[path][0] == changed:
            _parsed.move_to_end(path)
            return _parsed[path][1]
    report = json.loads(path.read_bytes())
    forget_deleted()
    with _lock:
        _parsed[path] = (changed, report)
        while len(_parsed) > _KEPT:
            _parsed.popitem(last=False)
    return report
