"""One model's part of an evaluation, as those look at it who doubt its figures."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from torch import nn

from models.attention.elliptical import is_randomised
from robustness.sanity.findings import Probe
from robustness.scoring import AttackVerdict, CleanVerdict, ModelVerdict
from robustness.spec import Cell, EvaluationSpec
from robustness.worst import attacked

REPEATABLE = 1e-4  # change of logits, relative to their spread, that no drawing would leave
COMPANY = 1e-3  # change of logits with the batch, relative to their spread, that rounding explains
COARSE_COMPANY = 0.05  # the same where the served model does not compute in fp32


@dataclass(frozen=True, slots=True, kw_only=True)
class Doubt:
    """A reason not to believe a figure.

    Attributes:
        code: a stable name.
        message: the reason in plain words.
    """

    code: str
    message: str


@dataclass(frozen=True, kw_only=True)
class Case:
    """What was asked for, and what was found."""

    spec: EvaluationSpec
    verdict: ModelVerdict

    @property
    def clean(self) -> CleanVerdict:
        """The model on clean inputs."""
        return self.verdict.clean

    @property
    def probe(self) -> Probe | None:
        """What the model said of itself, if it was asked."""
        return self.verdict.probe

    @property
    def thing(self) -> str:
        """What was judged, in the plural."""
        return "texts" if self.spec.on_texts else "images"

    @cached_property
    def attacks(self) -> list[tuple[Cell, AttackVerdict]]:
        """The cells that are attacks."""
        return attacked(self.spec, self.verdict)

    @property
    def uses_gradients(self) -> bool:
        """Whether any attack followed gradients."""
        return self.spec.uses_gradients

    @property
    def draws_at_random(self) -> bool:
        """Whether the twin is known to draw the metric of its attention at random."""
        twin = self.verdict.target.twin
        return isinstance(twin, nn.Module) and is_randomised(twin)

    @cached_property
    def steady(self) -> bool:
        """Whether the model answers the same input alike; else nothing finer can be asked."""
        repeat = np.zeros(1) if self.probe is None else np.nan_to_num(self.probe.twin_repeat)
        drawn = self.draws_at_random or bool((repeat > REPEATABLE).any())
        return not drawn and not self.clean.unsteady.any()

    @cached_property
    def moved_by_company(self) -> np.ndarray:
        """(n,) bool of those probed, whose scores change with what else is in the batch."""
        if self.probe is None or not self.steady:
            return np.zeros(0, bool)
        exact = self.verdict.target.runtime.precision == "fp32"
        served = self.probe.company > (COMPANY if exact else COARSE_COMPANY)
        return served | (self.probe.twin_company > COMPANY)  # NaN, not asked, is no change

    @property
    def followed(self) -> Probe | None:
        """The probe, where gradients were followed and each image answers for itself."""
        sound = self.uses_gradients and self.steady and not self.moved_by_company.any()
        return self.probe if sound else None

    def held(self) -> np.ndarray:
        """(N,) bool, right on the clean input and under every attack."""
        return np.maximum.reduce([self.clean.rank, *(one.robust for _, one in self.attacks)]) == 0

    def held_by_loss_alone(self) -> np.ndarray:
        """(N,) bool, held at a budget where all that followed gradients climbed cross-entropy.

        What follows the margin or differences of logits (apgd-t, fab-t) does not mind their scale.
        """
        places: dict[tuple[str, float], list[tuple[Cell, AttackVerdict]]] = {}
        for cell, one in self.attacks:
            place = cell.budget
            places.setdefault((place.kind, place.value), []).append((cell, one))
        found = np.zeros(len(self.clean.rank), bool)
        for pairs in places.values():
            used = [c.attack.info for c, _ in pairs if c.attack.info.access == "gradient"]
            if used and all(info.follows == "cross-entropy" for info in used):
                found |= np.maximum.reduce([self.clean.rank, *(o.robust for _, o in pairs)]) == 0
        return found

    def count(self, flags: np.ndarray) -> str:
        """How many of those judged, as in "3 of 40 images"."""
        return f"{int(flags.sum())} of {len(flags)} {self.thing}"


def many(flags: np.ndarray, share: float) -> bool:
    """Whether more than one flag, and more than a share of them, are set."""
    return int(flags.sum()) > max(1.0, share * len(flags))
