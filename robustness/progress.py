"""Counting model evaluations, and stopping between two of them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass


class Cancelled(Exception):
    """The caller's `should_stop` answered yes; whatever shards are finished stay on disk."""


class Spent(Cancelled):
    """As many queries as were allowed have been asked; their answers stay on disk."""


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
        self._ceiling = total
        self._on_progress = on_progress
        self._should_stop = should_stop

    def before(self) -> None:
        """Raise `Cancelled` when the caller wants to stop."""
        if self._should_stop is not None and self._should_stop():
            raise Cancelled(f"stopped at {self.done} of {self.total} model evaluations")

    def after(self, evaluations: int) -> None:
        """Count finished model evaluations and tell the caller."""
        self._reach(min(self.done + evaluations, self._ceiling))

    @contextmanager
    def allot(self, evaluations: int) -> Iterator[None]:
        """Let the block use up to so many evaluations; what it leaves counts as done at its end."""
        before = self._ceiling
        self._ceiling = self.done + evaluations
        try:
            yield
            self._reach(self._ceiling)
        finally:
            self._ceiling = before

    def _reach(self, done: int) -> None:
        self.done = done
        if self._on_progress is not None:
            self._on_progress(Progress(done=done, total=self.total, stage=self.stage))
