"""Counting model evaluations, and stopping between two of them."""

from collections.abc import Callable
from dataclasses import dataclass


class Cancelled(Exception):
    """The caller's `should_stop` answered yes; whatever shards are finished stay on disk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far an evaluation is.

    Attributes:
        done: model evaluations so far, of samples (see `robustness.spec.cost`).
        total: model evaluations in all.
        stage: what is running, for people.
    """

    done: int
    total: int
    stage: str


class Meter:
    """Carries an evaluation's progress and its wish to stop through every model evaluation.

    Args:
        total: model evaluations expected.
        on_progress: called after each batch.
        should_stop: called before each batch, thus at least once per attack step.
    """

    def __init__(
        self,
        total: int,
        *,
        on_progress: Callable[[Progress], None] | None = None,
        should_stop: Callable[[], bool] | None = None,
    ) -> None:
        self.total = total
        self.done = 0
        self.stage = "starting"
        self._on_progress = on_progress
        self._should_stop = should_stop

    def before(self) -> None:
        """Raise `Cancelled` when the caller wants to stop."""
        if self._should_stop is not None and self._should_stop():
            raise Cancelled(f"stopped at {self.done} of {self.total} model evaluations")

    def after(self, evaluations: int) -> None:
        """Count finished model evaluations and tell the caller."""
        self.done += evaluations
        if self._on_progress is not None:
            self._on_progress(Progress(done=self.done, total=self.total, stage=self.stage))
