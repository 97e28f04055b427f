"""Doing ranges far from the process that evaluates: all that has to be known there."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from robustness.context import Trial
from robustness.progress import Meter, Progress
from robustness.ranges import Task, range_cost, run_range
from robustness.spec import EvaluationSpec
from robustness.target import open_target, torch_threads
from robustness.text_target import open_text_target
from runtimes.artifact import open_artifact


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A model on trial, to be opened elsewhere.

    Attributes:
        folder: its artifact.
        digest: what the artifact's must be.
        name: its name in the report.
    """

    folder: Path
    digest: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Workplace:
    """All that is the same for every range of an evaluation.

    Attributes:
        spec: what was asked for.
        models: in the order of the trials.
        folder: where shards go.
        threads: of torch and of the runtime.
    """

    spec: EvaluationSpec
    models: tuple[Model, ...]
    folder: Path
    threads: int


class Desk:
    """Where one worker sits: it does any range, and opens a model when it first needs it.

    Args:
        workplace: what all ranges have in common.
    """

    def __init__(self, workplace: Workplace) -> None:
        self._workplace = workplace
        self._trials: dict[int, Trial] = {}

    def work(
        self,
        task: Task,
        *,
        on_progress: Callable[[Progress], None],
        should_stop: Callable[[], bool],
    ) -> None:
        """Do one range.

        Args:
            task: the range.
            on_progress: called after every batch, with the evaluations of this range.
            should_stop: called before every model evaluation.

        Raises:
            Cancelled: it is to stop; finished files stay.
            ValueError: an artifact is broken, or another than the evaluation began with.
        """
        if task.model not in self._trials:
            self._trials[task.model] = self._open(task.model)
        meter = Meter(0, on_progress=on_progress, should_stop=should_stop)
        trial = replace(self._trials[task.model], meter=meter)
        meter.total = range_cost(trial, task)
        # In every call, because torch counts the threads of each calling thread.
        with torch_threads(trial.threads):
            run_range(trial, task)

    def _open(self, position: int) -> Trial:
        place, model = self._workplace, self._workplace.models[position]
        artifact = open_artifact(model.folder)
        if artifact.digest != model.digest:
            raise ValueError(
                f"the artifact of {model.name!r} must not change during an evaluation: expected "
                f"digest {model.digest[:16]}, got {artifact.digest[:16]}"
            )
        opened = open_text_target if place.spec.on_texts else open_target
        target = opened(artifact, threads=place.threads)
        return Trial(
            spec=place.spec,
            target=replace(target, name=model.name),
            folder=place.folder,
            meter=Meter(0),
            threads=place.threads,
        )


def workplace(trials: Sequence[Trial], folders: Sequence[Path]) -> Workplace:
    """Describe the place of work of an evaluation's trials.

    Args:
        trials: one per model.
        folders: the artifact of each.

    Raises:
        ValueError: there are not as many folders as trials.
    """
    if len(folders) != len(trials):
        raise ValueError(f"folders must be one per model ({len(trials)}), got {len(folders)}")
    models = [
        Model(folder=folder.absolute(), digest=trial.target.digest, name=trial.target.name)
        for trial, folder in zip(trials, folders, strict=True)
    ]
    return Workplace(
        spec=trials[0].spec,
        models=tuple(models),
        folder=trials[0].folder.absolute(),
        threads=trials[0].threads,
    )
