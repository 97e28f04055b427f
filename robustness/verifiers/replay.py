"""What an outside verifier answered, held against the served model and our attacks.

A counterexample counts only if it lies in the box and misleads the served model, in float32. A
proof is recorded as what it is: of the graph, in exact arithmetic, by that verifier.
"""

import csv
import gzip
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from core.files import sha256
from core.json import read_json
from core.tables import table
from robustness.attacks.base import TOLERANCE
from robustness.logits import label_rank, margin
from robustness.report.schema import AttackFlags, Part
from robustness.target import open_scorer
from robustness.verifiers.properties import INDEX, Images, Properties, Property, box, read_images
from runtimes.base import Runtime

OUTCOMES = "outcomes.json"
Answer = Literal["sat", "unsat", "unknown", "timeout"]
_WORDS: dict[str, Answer] = {
    "sat": "sat", "violated": "sat", "unsat": "unsat", "holds": "unsat", "unknown": "unknown",
    "error": "unknown", "timeout": "timeout", "timed-out": "timeout",
}  # fmt: skip
_PIXEL = re.compile(r"\(\s*X_(\d+)\s+([^\s()]+)\s*\)")
_TENSOR = re.compile(r"^X\s+\S+\s+\[([\d,\s]*)\]\s*$", re.MULTILINE)
SEMANTICS = (
    "unsat is a proof by the named verifier about the ONNX file that was written, in exact "
    "arithmetic: the served model rounds to float32"
)


class Witness(Part):
    """A counterexample of one property; `reason` says why it is none for the served model.

    `margin` is the served model's logit of the label minus the largest other one, there.
    """

    file: str
    reproduced: bool
    reason: str
    margin: float | None


class Clash(Part):
    """A property that the verifier proved, and what misleads the served model in its box."""

    file: str
    sample: int
    eps: str
    by: str


class Counts(Part):
    """What is known of one model within one radius; the first three counts add up to `inputs`.

    An attack or a counterexample within a smaller radius breaks an input, too, and a proof within a
    larger one proves it. `frozen` counts those proved with m frozen, which proves nothing of the
    model.
    """

    model: str
    eps: str
    inputs: int
    broken: int
    proved: int
    open: int
    frozen: int


class Outcomes(Part):
    """What came of the properties of a folder."""

    verifier: str
    semantics: str = SEMANTICS
    report: str
    counts: list[Counts]
    answers: dict[str, Answer]
    witnesses: list[Witness]
    contradictions: list[Clash]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """What is known of the images of one model: radii, by image."""

    proved: np.ndarray  # (N,) largest radius proved, -inf without
    frozen: np.ndarray  # (N,) the same with m frozen
    broken: np.ndarray  # (N,) smallest radius that is broken, inf without
    by: list[str]  # what broke it there


def replay(
    report: Path,
    folder: Path,
    results: Path,
    *,
    verifier: str,
    folders: Sequence[Path] | None = None,
) -> Outcomes:
    """Read a verifier's answers, and try its counterexamples on the served models.

    Args:
        report: that the properties were written from.
        folder: of the properties.
        results: a csv as VNN-COMP writes it: each row names a property file and an answer.
            Counterexamples lie in the same folder or below, named `PROPERTY.counterexample` or
            `GRAPH_PROPERTY.counterexample`, also as .gz, in the form of VNN-COMP or VNN-LIB 2.0.
        verifier: its name and version, which is recorded.
        folders: artifacts, or folders of them; `artifacts` when not given.

    Raises:
        OSError: a file is missing.
        ValueError: folder and report do not belong together, a file of the folder was changed, or
            the results name none of its properties.
    """
    known, models = _read_folder(folder), read_images(report, folders)
    if known.report != models[1]:
        raise ValueError(f"{folder.name} holds properties of another report than {report.name}")
    answers = _answers(results, known)
    runtimes = {one.figures.digest: open_scorer(one.artifact, 1) for one in models[2]}
    images = {one.figures.digest: one for one in models[2]}
    witnesses = {
        one.file: _tried(one, results.parent, images[one.model], runtimes[one.model])
        for one in known.properties
        if answers.get(one.file) == "sat"
    }
    counts, clashes = [], []
    for model in models[2]:
        own = [one for one in known.properties if one.model == model.figures.digest]
        found = _found(model, own, answers, witnesses)
        counts += list(_counts(model, own, found))
        clashes += list(_clashes(own, answers, found))
    return Outcomes(
        verifier=verifier,
        report=known.report,
        counts=counts,
        answers=answers,
        witnesses=list(witnesses.values()),
        contradictions=clashes,
    )


def lines(found: Outcomes) -> list[str]:
    """Outcomes as text for a terminal."""
    head = ("model", "eps", "inputs", "broken", "proved", "open", "proved with m frozen")
    rows = [
        (one.model, one.eps, one.inputs, one.broken, one.proved, one.open, one.frozen)
        for one in found.counts
    ]
    told = [f"{found.verifier}: {found.semantics}", "", table(head, rows), ""]
    told += [
        f"NOT REPRODUCED {one.file}: {one.reason}" for one in found.witnesses if not one.reproduced
    ]
    told += [
        f"CONTRADICTED {one.file}: proved within {one.eps}, and {one.by} misleads the model"
        for one in found.contradictions
    ]
    return told


def _read_folder(folder: Path) -> Properties:
    """The index of a folder whose files are still those that were written."""
    found = Properties.model_validate(read_json((folder / INDEX).read_bytes()))
    digests: dict[str, str] = {}
    for one in found.properties:
        for name, digest in zip((one.file, one.onnx), one.digests, strict=True):
            if digests.setdefault(name, sha256(folder / name)) != digest:
                raise ValueError(f"{name} was changed: an answer to it is about something else")
    return found


def _answers(results: Path, known: Properties) -> dict[str, Answer]:
    """The answer to each property that a file of results names."""
    files = {Path(one.file).name: one.file for one in known.properties}
    found: dict[str, Answer] = {}
    with results.open(newline="", encoding="utf-8") as file:
        for row in csv.reader(file):
            cells = [cell.strip() for cell in row]
            named = {Path(cell.removesuffix(".gz")).name for cell in cells} & files.keys()
            words: list[Answer] = [_WORDS[cell.lower()] for cell in cells if cell.lower() in _WORDS]
            for name in named:
                found[files[name]] = words[0] if words else "unknown"
    if not found:
        raise ValueError(f"{results.name} names none of the properties")
    return found


def _tried(one: Property, folder: Path, images: Images, runtime: Runtime) -> Witness:
    """Whether the counterexample of a property misleads the served model."""
    try:
        pixels = _pixels(_witness_file(one, folder), images.pixels.shape[1:])
    except (OSError, ValueError) as error:
        return Witness(file=one.file, reproduced=False, reason=str(error), margin=None)
    low, high = box(images.pixels[one.sample], one.eps_value)
    outside = float(np.maximum(low - pixels, pixels - high).max())
    logits = np.asarray(runtime.predict(pixels.clip(0, 1)[None]))
    label = np.array([one.label])
    left = float(margin(logits, label)[0])
    reason = "misleads the served model"
    if not outside <= TOLERANCE:
        reason = f"lies outside the box by {outside:.3g}"
    elif label_rank(logits, label)[0] == 0:
        reason = f"the served model keeps its label there, by {left:.3g}"
    held = reason == "misleads the served model"
    return Witness(
        file=one.file, reproduced=held, reason=reason, margin=left if np.isfinite(left) else None
    )


def _witness_file(one: Property, folder: Path) -> str:
    """The text of a property's counterexample."""
    stem = Path(one.file).stem
    for path in sorted(folder.rglob(f"*{stem}.counterexample*")):
        content = path.read_bytes()
        return (gzip.decompress(content) if path.suffix == ".gz" else content).decode()
    raise ValueError("there is no file of its counterexample")


def _pixels(text: str, shape: tuple[int, ...]) -> np.ndarray:
    """The image (C, H, W) float32 of a counterexample, in either form."""
    size = int(np.prod(shape))
    header = _TENSOR.search(text)
    if header is None:
        values = {int(place): float(value) for place, value in _PIXEL.findall(text)}
        if sorted(values) != list(range(size)):
            raise ValueError(f"the counterexample must have the values X_0 to X_{size - 1}")
        found = [values[place] for place in range(size)]
    else:
        found = [float(word) for word in text[header.end() :].split()[:size]]
        if np.prod([int(n) for n in header[1].split(",")]) != size or len(found) != size:
            raise ValueError(f"the counterexample must have {size} values of X")
    return np.array(found, np.float32).reshape(shape)


def _found(
    model: Images,
    own: Sequence[Property],
    answers: Mapping[str, Answer],
    witnesses: Mapping[str, Witness],
) -> _Found:
    """The radii within which images are proved, and those from which they are broken."""
    proved, frozen = np.full((2, len(model.pixels)), -np.inf)
    broken, by = np.full(len(model.pixels), np.inf), [""] * len(model.pixels)
    for sample, radius, what in _breaks(model, own, witnesses):
        if radius < broken[sample]:
            broken[sample], by[sample] = radius, what
    for one in own:
        if answers.get(one.file) == "unsat":
            kind = proved if one.metric == "computed" else frozen
            kind[one.sample] = max(kind[one.sample], one.eps_value)
    return _Found(proved=proved, frozen=frozen, broken=broken, by=by)


def _breaks(
    model: Images, own: Sequence[Property], witnesses: Mapping[str, Witness]
) -> Iterator[tuple[int, float, str]]:
    """Each image that something misleads, with the radius, and what it is."""
    for place, flags in enumerate(model.flags):
        if not flags.clean.correct:
            yield place, 0.0, "the unchanged image"
        for attack in flags.attacks:
            if attack.norm == "Linf" and _misled(attack):
                yield place, attack.eps_value, f"{attack.name} within {attack.eps}"
    for one in own:
        if one.file in witnesses and witnesses[one.file].reproduced:
            yield one.sample, one.eps_value, f"the counterexample of {one.file}"


def _misled(attack: AttackFlags) -> bool:
    return not (attack.robust and attack.confirmed)


def _counts(model: Images, own: Sequence[Property], found: _Found) -> Iterator[Counts]:
    """One row for each radius, ascending."""
    radii = {one.eps_value: one.eps for one in own}
    for value in sorted(radii):
        broken = found.broken <= value
        proved, frozen = found.proved >= value, found.frozen >= value
        yield Counts(
            model=model.figures.name,
            eps=radii[value],
            inputs=len(broken),
            broken=int(broken.sum()),
            proved=int((proved & ~broken).sum()),
            open=int((~proved & ~broken).sum()),
            frozen=int((frozen & ~broken).sum()),
        )


def _clashes(
    own: Sequence[Property], answers: Mapping[str, Answer], found: _Found
) -> Iterator[Clash]:
    """Proofs of the model in whose box something misleads it."""
    for one in own:
        proved = answers.get(one.file) == "unsat" and one.metric == "computed"
        if proved and found.broken[one.sample] <= one.eps_value:
            by = found.by[one.sample]
            yield Clash(file=one.file, sample=one.sample, eps=one.eps, by=by)
