"""Which samples a report shows, and what it needs to show them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from robustness.report.flags import AttackFlags, ModelFlags, Sample

FALLEN, HELD = 12, 3  # how many of each are shown at most
BUDGET = 6 * 2**20  # bytes of pixels: an uncompressible picture is as large as these

Outcome = Literal["fallen", "held"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """One sample under one attack on the model on trial.

    Attributes:
        sample: the sample.
        clean: the model on it as it was.
        attack: the attack shown.
        outcome: whether the served model was misled.
    """

    sample: Sample
    clean: ModelFlags
    attack: AttackFlags
    outcome: Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Pixels:
    """The pictures of an example, and what the prediction draws on.

    Attributes:
        clean: (C, H, W) in [0, 1].
        adversarial: (C, H, W) in [0, 1].
        attention: maps (h, w) of attention, before and after; None where the model has none.
    """

    clean: np.ndarray
    adversarial: np.ndarray
    attention: tuple[np.ndarray, np.ndarray] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Texts:
    """An example's text, as it was and as the attack left it."""

    clean: str
    adversarial: str


def choose(samples: Sequence[Sample], *, pixel_bytes: int = 0) -> list[Example]:
    """The samples that say most: misled by the least change first, then those that barely held.

    Misled ones are taken from one class after the other, so that an easy class does not fill the
    page. Only confirmed successes count as such; a sample that was wrong unattacked shows nothing.

    Args:
        samples: all samples; the model on trial is their first.
        pixel_bytes: size of one input as 8-bit pixels, which limits how many are shown.
    """
    candidates = [s for s in samples if s.models[0].clean.correct and s.models[0].attacks]
    fallen = sorted(filter(None, map(_fall, candidates)), key=_ease)
    held = sorted(filter(None, map(_stand, candidates)), key=_lead)
    room = BUDGET // (3 * pixel_bytes) if pixel_bytes else FALLEN + HELD
    few = max(1, min(HELD, room // 4))
    return [*_by_turns(fallen, max(1, min(FALLEN, room - few))), *held[:few]]


def _fall(sample: Sample) -> Example | None:
    """The easiest confirmed success; one that survives a PNG where there is such a one."""
    model = sample.models[0]
    falls = [attack for attack in model.attacks if not attack.confirmed]
    if not falls:
        return None
    best = min(falls, key=lambda flags: (bool(flags.confirmed_8bit), flags.eps_value))
    return Example(sample=sample, clean=model, attack=best, outcome="fallen")


def _stand(sample: Sample) -> Example | None:
    """The closest call of a sample that no attack misled; None for the others."""
    model = sample.models[0]
    if not all(attack.confirmed for attack in model.attacks):
        return None
    last = max(attack.eps_value for attack in model.attacks)
    strongest = [attack for attack in model.attacks if attack.eps_value == last]
    return Example(sample=sample, clean=model, attack=min(strongest, key=_margin), outcome="held")


def _ease(example: Example) -> tuple[bool, float, int]:
    flags = example.attack
    return bool(flags.confirmed_8bit), flags.eps_value, example.sample.index


def _lead(example: Example) -> tuple[float, int]:
    return _margin(example.attack), example.sample.index


def _margin(flags: AttackFlags) -> float:
    return np.inf if flags.margin is None else flags.margin


def _by_turns(examples: Iterable[Example], number: int) -> list[Example]:
    """The first ones of each class in turn."""
    classes: dict[int, list[Example]] = {}
    for example in examples:
        classes.setdefault(example.clean.clean.index, []).append(example)
    longest = max(map(len, classes.values()), default=0)
    turns = (own[turn] for turn in range(longest) for own in classes.values() if turn < len(own))
    return [example for example, _ in zip(turns, range(number), strict=False)]
