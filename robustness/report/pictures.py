"""Pictures of one judged image: unchanged, attacked, and what was added. Needs no torch."""

import json
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np

from data.images import to_png
from robustness.report.schema import FILE
from robustness.shards import SHARD_SIZE, Shard, clean_path, read
from robustness.spec import EvaluationSpec, parse_eps

Kind = Literal["clean", "adversarial", "perturbation"]


class NoSuchSample(ValueError):
    """The report holds no such image, attack, radius or model."""


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
    and white are -eps and +eps.

    Args:
        folder: what `robustness.engine.evaluate` left behind.
        index: which image.
        kind: "clean", "adversarial" or "perturbation".
        attack: name of the attack.
        eps: radius, as the spec spells it or as an equal number.
        model: name of the model; the one on trial when not given.

    Raises:
        NoSuchSample: there is no such picture; the message names the argument.
    """
    if kind not in ("clean", "adversarial", "perturbation"):
        raise NoSuchSample(f"kind must be clean, adversarial or perturbation, got {kind!r}")
    report = _load(folder)
    samples = report["samples"]
    if not 0 <= index < len(samples):
        raise NoSuchSample(f"index must lie in [0, {len(samples)}), got {index}")
    position = _model_position(samples[index]["models"], model)
    digest = report["summary"]["models"][position]["digest"]
    clean = _tensor(clean_path(folder, digest, _start(index)), "clean", index)
    if kind == "clean":
        return to_png(clean)
    flags = _choose(samples[index]["models"][position]["attacks"], attack, eps)
    shard = _shard(report, digest, flags, index)
    adversarial = _tensor(shard.path(folder), "adversarial", index)
    if kind == "adversarial":
        return to_png(adversarial)
    return to_png(np.clip(0.5 + (adversarial - clean) / (2 * flags["eps_value"]), 0, 1))


def _load(folder: Path) -> dict[str, Any]:
    path = folder / FILE
    try:
        return _parse(path, path.stat().st_mtime_ns)
    except OSError:
        raise NoSuchSample("there is no report yet") from None


@lru_cache(maxsize=4)
def _parse(path: Path, changed: int) -> dict[str, Any]:
    """A page asks for many pictures of one report: parse it once per version of the file."""
    return json.loads(path.read_bytes())


def _model_position(models: list[dict[str, Any]], name: str | None) -> int:
    names = [model["name"] for model in models]
    if name is None:
        return 0
    if name not in names:
        raise NoSuchSample(f"model must be one of {names}, got {name[:60]!r}")
    return names.index(name)


def _choose(attacks: list[dict[str, Any]], name: str | None, eps: str | None) -> dict[str, Any]:
    if eps is not None:
        try:
            radius = parse_eps(eps)
        except ValueError as error:
            raise NoSuchSample(str(error)) from None
        attacks = [flags for flags in attacks if flags["eps_value"] == radius]
    if name is not None:
        attacks = [flags for flags in attacks if flags["name"] == name]
    if not attacks:
        raise NoSuchSample(f"attack and eps must be ones of this report, got {name!r}, {eps!r}")

    def strength(flags: dict[str, Any]) -> tuple[float, bool, float]:
        margin = flags["margin"]
        return flags["eps_value"], not flags["confirmed"], -margin if margin is not None else np.inf

    return max(attacks, key=strength)


def _shard(report: dict[str, Any], digest: str, flags: dict[str, Any], index: int) -> Shard:
    spec = EvaluationSpec.model_validate(report["spec"])
    attack = next(a for a, eps in spec.cells if (a.name, eps) == (flags["name"], flags["eps"]))
    start = _start(index)
    return Shard(
        model=digest,
        attack=attack,
        eps=flags["eps"],
        variant=flags["variant"],
        start=start,
        stop=min(start + SHARD_SIZE, len(report["samples"])),
        seed=spec.seed,
    )


def _start(index: int) -> int:
    return index - index % SHARD_SIZE


def _tensor(path: Path, name: str, index: int) -> np.ndarray:
    tensors = read(path)
    if tensors is None or name not in tensors:
        raise NoSuchSample("the stored inputs of this image are missing or damaged")
    return tensors[name][index % SHARD_SIZE]
