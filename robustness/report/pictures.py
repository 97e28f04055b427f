"""Pictures of one judged image: unchanged, attacked, and what was added. Needs no torch."""

from pathlib import Path
from typing import Any, Literal

import numpy as np

from data.images import to_png
from robustness.report.flags import AttackFlags
from robustness.report.lookup import NoSuchSample, choose_attack, find_sample, model_position
from robustness.report.stored import InputLost, adversarial_input, cell_of, clean_input
from robustness.spec import EvaluationSpec

Kind = Literal["clean", "adversarial", "perturbation"]


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
    and white are -eps and +eps; for l2 they are the largest change of any pixel.

    Args:
        folder: what `robustness.evaluation.evaluate` left behind.
        index: which image.
        kind: "clean", "adversarial" or "perturbation".
        attack: name of the attack.
        eps: radius; see `robustness.report.lookup.choose_attack`.
        model: name of the model; the one on trial when not given.

    Raises:
        NoSuchSample: there is no such picture; the message names the argument.
    """
    if kind not in ("clean", "adversarial", "perturbation"):
        raise NoSuchSample(f"kind must be clean, adversarial or perturbation, got {kind!r}")
    report = find_sample(folder, index, "image")
    sample = report["sample"]
    position = model_position(sample, model)
    digest = report["summary"]["models"][position]["digest"]
    try:
        clean = clean_input(folder, digest, index)
        if kind == "clean":
            return to_png(_pixels(clean))
        flags = choose_attack(sample["models"][position]["attacks"], attack, eps)
        adversarial = _adversarial(folder, report, digest, flags, index)
    except InputLost as error:
        raise NoSuchSample(str(error)) from None
    if kind == "adversarial":
        return to_png(adversarial)
    return to_png(amplified(_pixels(clean), adversarial, most=_most(flags)))


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


def _most(flags: dict[str, Any]) -> float | None:
    """An l-infinity radius bounds each pixel's change; another norm does not."""
    return flags["eps_value"] if flags["norm"] == "Linf" else None


def _pixels(stored: np.ndarray | str) -> np.ndarray:
    if isinstance(stored, str):
        raise InputLost("the stored inputs of this sample are texts")
    return stored


def _adversarial(
    folder: Path, report: dict[str, Any], digest: str, flags: dict[str, Any], index: int
) -> np.ndarray:
    parsed = AttackFlags.model_validate(flags)
    cell = cell_of(EvaluationSpec.model_validate(report["spec"]), parsed)
    part, variant = parsed.part, parsed.variant
    found = adversarial_input(folder, digest, index, cell=cell, part=part, variant=variant)
    return _pixels(found)
