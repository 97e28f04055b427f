"""What engines have in common: which ranges are left, how far each is, and who lost it."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from robustness.context import Trial
from robustness.ranges import Task, is_done, range_cost

ATTEMPTS = 3
"""A range that ended so many workers is not given to another."""


class WorkerDied(ChildProcessError):
    """A range of inputs ended every worker that tried it."""


@dataclass(slots=True, kw_only=True)
class Job:
    """One range on its way through workers.

    Attributes:
        trial: the model's part of the evaluation.
        task: the range.
        attempts: workers it was given to.
        counted: model evaluations of it that the meter knows of; a second attempt, which finds
            the files of the first, does not count them again.
    """

    trial: Trial
    task: Task
    attempts: int = 0
    counted: int = 0

    def tell(self, done: int, stage: str) -> None:
        """Pass on how far a worker is."""
        self.trial.meter.stage = stage
        self.trial.meter.after(max(0, done - self.counted))
        self.counted = max(self.counted, done)

    def finish(self) -> None:
        """Count all of it as done."""
        self.tell(range_cost(self.trial, self.task), self.trial.meter.stage)

    def lose(self, how: str) -> None:
        """Note that the worker which had it is gone.

        Raises:
            WorkerDied: it was not the first one.
        """
        if self.attempts >= ATTEMPTS:
            first, last = self.task.start + 1, self.task.start + len(self.task.inputs)
            raise WorkerDied(
                f"inputs {first} to {last} of {self.trial.target.name!r} ended {self.attempts} "
                f"workers, the last one {how}; is there memory enough for so many workers?"
            )


def unfinished(trials: Sequence[Trial], tasks: Iterable[Task]) -> Iterator[Job]:
    """The ranges whose files are not all there; the others count as done."""
    for task in tasks:
        job = Job(trial=trials[task.model], task=task)
        if is_done(job.trial, task):
            job.finish()
        else:
            yield job
