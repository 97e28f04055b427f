"""What executors share: the chunks that are missing, and doing one away from the evaluation."""

import pickle
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from robustness.chunks import Chunk, chunk_cost, chunk_steps, is_done
from robustness.context import EvaluationContext
from robustness.progress import Meter, Progress
from robustness.spec import EvaluationSpec
from robustness.target import open_target, torch_threads
from robustness.text_target import open_text_target
from runtimes.artifact import open_artifact

ATTEMPTS = 3
"""Workers that one chunk may kill."""


class WorkerDied(ChildProcessError):
    """A chunk killed every worker that tried it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelReference:
    """An evaluated model, to be opened by a worker.

    Attributes:
        folder: its artifact.
        digest: what the artifact's must be.
        name: its name in the report.
    """

    folder: Path
    digest: str
    name: str

    @property
    def key(self) -> str:
        """Distinguishes it from all models of all evaluations."""
        return f"{self.digest}:{self.name}"

    @property
    def is_open(self) -> bool:
        """Whether this worker opened it before."""
        return self.key in _OPENED


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerContext:
    """All that a worker has to know beside its chunk.

    Attributes:
        spec: what was asked for.
        models: in the order of the evaluation.
        folder: where shards go.
        threads: of torch and of the runtime.
    """

    spec: EvaluationSpec
    models: tuple[ModelReference, ...]
    folder: Path
    threads: int


@dataclass(slots=True, kw_only=True)
class PendingChunk:
    """One chunk on its way through workers.

    Attributes:
        context: the model's part of the evaluation.
        chunk: what is to be done.
        deaths: workers that died of it, perhaps by chance.
        counted: its model evaluations that the meter knows of; a second attempt, which finds the
            files of the first, does not count them again.
    """

    context: EvaluationContext
    chunk: Chunk
    deaths: int = 0
    counted: int = 0

    def report(self, done: int, stage: str) -> None:
        """Pass on how far a worker is."""
        self.context.meter.stage = stage or self.context.meter.stage
        self.context.meter.after(max(0, done - self.counted))
        self.counted = max(self.counted, done)

    def finish(self) -> None:
        """Count all of it as done."""
        self.report(chunk_cost(self.context, self.chunk), "")

    def lose(self, how: str, *, workers: int) -> None:
        """Note that the worker which had it died.

        Args:
            how: a signal, an exit status or an error.
            workers: how many there are, for the advice.

        Raises:
            WorkerDied: it was one too many.
        """
        self.deaths += 1
        if self.deaths < ATTEMPTS:
            return
        first, last = self.chunk.start + 1, self.chunk.start + len(self.chunk.inputs)
        message = f"inputs {first}-{last} of {self.context.target.name!r} killed {self.deaths} "
        message += f"workers ({how})"
        if how in ("SIGKILL", "MemoryError", "OutOfMemoryError"):
            message += ", probably out of memory" + ("; try --workers 1" if workers > 1 else "")
        raise WorkerDied(message)


def pending_chunks(
    contexts: Sequence[EvaluationContext], chunks: Iterable[Chunk]
) -> Iterator[PendingChunk]:
    """The chunks whose files are not all there; the others count as done."""
    for chunk in chunks:
        found = PendingChunk(context=contexts[chunk.model], chunk=chunk)
        if is_done(found.context, chunk):
            found.finish()
        else:
            yield found


def run_inline(contexts: Sequence[EvaluationContext], chunks: Iterable[Chunk]) -> None:
    """Do every chunk in this process, one after another.

    Args:
        contexts: one per model.
        chunks: taken one at a time.

    Raises:
        Cancelled: the caller wants to stop; finished files stay.
    """
    for chunk in chunks:
        for _ in chunk_steps(contexts[chunk.model], chunk):
            pass


def worker_context(contexts: Sequence[EvaluationContext], folders: Sequence[Path]) -> WorkerContext:
    """What the workers of an evaluation have to know.

    Args:
        contexts: one per model.
        folders: the artifact of each.

    Raises:
        ValueError: there are not as many folders as models.
    """
    if len(folders) != len(contexts):
        raise ValueError(f"folders must be one per model ({len(contexts)}), got {len(folders)}")
    models = [
        ModelReference(folder=folder.absolute(), digest=t.target.digest, name=t.target.name)
        for t, folder in zip(contexts, folders, strict=True)
    ]
    return WorkerContext(
        spec=contexts[0].spec,
        models=tuple(models),
        folder=contexts[0].folder.absolute(),
        threads=contexts[0].threads,
    )


_OPENED: dict[
    str, EvaluationContext
] = {}  # of this worker, by the digest and the name of the model


def work(
    context: WorkerContext,
    chunk: Chunk,
    *,
    on_progress: Callable[[Progress], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> Iterator[Progress]:
    """Do one chunk in a worker, which keeps the models that it opened; yields at each stored file.

    Args:
        context: what the evaluation's chunks have in common.
        chunk: what is to be done.
        on_progress: called after every batch, with the model evaluations of this chunk.
        should_stop: called before every model evaluation.

    Raises:
        Cancelled: `should_stop` said so; finished files stay.
        ValueError: an artifact is broken, or another than the evaluation began with.
    """
    meter = Meter(0, on_progress=on_progress, should_stop=should_stop)
    model = context.models[chunk.model]
    if not model.is_open:
        _OPENED[model.key] = _open(context, model)
    opened = replace(_OPENED[model.key], spec=context.spec, folder=context.folder, meter=meter)
    meter.total = chunk_cost(opened, chunk)
    # In every call, because torch counts the threads of each calling thread.
    with torch_threads(context.threads):
        for _ in chunk_steps(opened, chunk):
            yield Progress(done=meter.done, total=meter.total, stage=meter.stage)


def _open(context: WorkerContext, model: ModelReference) -> EvaluationContext:
    artifact = open_artifact(model.folder)
    if artifact.digest != model.digest:
        raise ValueError(
            f"the artifact of {model.name!r} must not change during an evaluation: expected "
            f"digest {model.digest[:16]}, got {artifact.digest[:16]}"
        )
    opened = open_text_target if context.spec.on_texts else open_target
    return EvaluationContext(
        spec=context.spec,
        target=replace(opened(artifact, threads=context.threads), name=model.name),
        folder=context.folder,
        meter=Meter(0),
        threads=context.threads,
    )


def portable(error: Exception) -> Exception:
    """An error that can be sent: itself where pickle manages, else one with its type and text."""
    error.add_note("".join(traceback.format_exception(error)))
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # errors with arguments of their own fail in many ways
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error
