"""Whether a model holds, and where the last bits of its logits decide."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from robustness.logits import label_rank, margin

_ERRORS = {"fp32": 1e-4}
_LOW_PRECISION_ERROR = 3e-2


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """Whether the label is before all other classes, for N inputs.

    Attributes:
        exact: (N,) bool, by the logits as they are.
        surely: (N,) bool, whatever another runtime or batch does to their last bits.
        possibly: (N,) bool, if those bits fall well.
    """

    exact: np.ndarray
    surely: np.ndarray
    possibly: np.ndarray

    def contradicts(self, told: np.ndarray) -> np.ndarray:
        """Where a report's flags (N,) cannot be right."""
        return (told & ~self.possibly) | (~told & self.surely)

    def flipped(self, told: np.ndarray) -> np.ndarray:
        """Where a report's flags (N,) differ, and precision explains it."""
        return (told != self.exact) & ~self.contradicts(told)


def held(logits: np.ndarray, labels: np.ndarray, *, error: float) -> Held:
    """Judge logits.

    Args:
        logits: (N, K).
        labels: (N,) in [0, K).
        error: of a difference of logits, as a share of the largest one.
    """
    found, slack = margin(logits, labels), _slack(logits, error)
    return Held(
        exact=label_rank(logits, labels) == 0, surely=found > slack, possibly=found >= -slack
    )


def all_held(several: Iterable[Held]) -> Held:
    """Holding under everything."""
    chosen = list(several)
    return Held(
        exact=np.logical_and.reduce([one.exact for one in chosen]),
        surely=np.logical_and.reduce([one.surely for one in chosen]),
        possibly=np.logical_and.reduce([one.possibly for one in chosen]),
    )


def names_best(logits: np.ndarray, index: np.ndarray, *, error: float) -> np.ndarray:
    """Where the class (N,) that a report names may be the one with the largest logit, (N,) bool."""
    told = np.take_along_axis(logits, index[:, None], axis=1)[:, 0]
    finite = np.isfinite(logits).all(axis=1)
    with np.errstate(invalid="ignore"):
        near = told >= logits.max(axis=1) - _slack(logits, error)
    return near | ~finite


def float_error(precision: str) -> float:
    """Error of a logit that batches, runtimes and kinds of processor make, as a share of it."""
    return _ERRORS.get(precision, _LOW_PRECISION_ERROR)


def _slack(logits: np.ndarray, error: float) -> np.ndarray:
    size = np.abs(logits.astype(np.float64)).max(axis=1)
    return error * np.where(np.isfinite(size), size, 0.0)
