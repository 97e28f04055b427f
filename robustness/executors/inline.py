"""All ranges in this process, one after another."""

from collections.abc import Iterable, Sequence

from robustness.context import Trial
from robustness.ranges import Task, run_range


def run(trials: Sequence[Trial], tasks: Iterable[Task]) -> None:
    """Do every task.

    Args:
        trials: one per model on trial.
        tasks: the ranges; taken one at a time.

    Raises:
        Cancelled: the caller wants to stop; finished files stay.
    """
    for task in tasks:
        run_range(trials[task.model], task)
