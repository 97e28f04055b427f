"""The process in which one evaluation runs: `python -m service.jobs.child`.

The only place of the service that imports torch and the robustness engine. It reports its own
outcome to the table; when it cannot, the evaluator that started it gives the job back.
"""

import argparse
import errno
import json
import logging
import os
import signal
import sys
import time
import traceback
from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy.exc import DBAPIError

from core.files import find_by_digest
from core.starter import end_with_starter
from data.errors import DataError
from robustness.kinds import NotPossible
from robustness.progress import Cancelled, Spent
from robustness.remote.connection import EndpointError
from robustness.spec import EvaluationSpec
from runtimes.artifact import MANIFEST, Artifact, ArtifactError, open_artifact
from service.jobs.process import ADDRESS
from service.jobs.queue import JobStore
from service.jobs.table import Job
from service.jobs.targets import RemoteTarget, read_targets
from service.jobs.uploads import REPORT, drop_inputs, evaluations_folder, open_inputs
from service.processes import watch_parent
from service.tracing import Stages, span, start_tracing, stop_tracing

if TYPE_CHECKING:
    from robustness.evaluation import Executor
    from robustness.progress import Progress
    from robustness.target import Target

logger = logging.getLogger(__name__)

_NICENESS = 19
_OOM_SCORE = "500"  # of 1000: when memory runs out, this process goes before those that serve
_REPORT_EVERY_S = 0.5
_POLL_EVERY_S = 0.2
_ETA_WINDOW_S = 20.0


class ModelGone(Exception):
    """The model that the evaluation was accepted for is no longer there."""


_TOLD = {
    ModelGone: "model_gone",
    NotPossible: "not_possible",
    EndpointError: "endpoint_failed",
    Spent: "queries_spent",
}
"""Errors whose message is fit for a user."""


class ProgressReporter:
    """Carries progress to the table and the wish to stop back, both at a bounded rate."""

    def __init__(self, store: JobStore, job_id: str, worker: str) -> None:
        self._store = store
        self._job_id = job_id
        self._worker = worker
        self._reported = self._polled = -1e9
        self._stop = False
        self._recent: deque[tuple[float, int]] = deque()
        self.stages = Stages()

    def on_progress(self, progress: "Progress") -> None:
        """Report how far the evaluation is."""
        self.stages.enter(progress.stage)
        now = time.monotonic()
        if now - self._reported < _REPORT_EVERY_S and progress.done < progress.total:
            return
        self._reported = now
        # The rate of the last seconds, because finished shards of an earlier attempt go by fast.
        self._recent.append((now, progress.done))
        while now - self._recent[0][0] > _ETA_WINDOW_S:
            self._recent.popleft()
        with suppress(DBAPIError):  # a full disk, a restart; the next report may succeed
            self._store.progress(
                self._job_id,
                self._worker,
                done=progress.done,
                total=progress.total,
                stage=progress.stage,
                eta=self._eta(progress.total),
            )

    def should_stop(self) -> bool:
        """Whether the evaluation was cancelled, or belongs to another worker by now."""
        now = time.monotonic()
        if not self._stop and now - self._polled >= _POLL_EVERY_S:
            self._polled = now
            with suppress(DBAPIError):  # the evaluator ends this process if it lasts
                self._stop = self._store.should_stop(self._job_id, self._worker)
        return self._stop

    def _eta(self, total: int) -> float | None:
        (first, before), (last, done) = self._recent[0], self._recent[-1]
        return (total - done) * (last - first) / (done - before) if done > before else None


def main(argv: Sequence[str] | None = None) -> int:
    """Run one claimed evaluation and store its outcome; 0 when one was stored."""
    options = _options(argv)
    end_with_starter()
    if options.armed is not None:
        os.close(options.armed)  # from now on this process may be stopped
    watch_parent(parent=options.parent, grace=0)
    start_tracing("assay-evaluation")
    _lower_priority()
    store = JobStore(os.environ[ADDRESS])
    job = store.get(options.job)
    if job is None:
        return 1
    watch = ProgressReporter(store, job.id, options.worker)
    try:
        whole = span("evaluation", continuing=job.traceparent or "", evaluation=job.id)
        with whole, closing(watch.stages):
            result = _evaluate(job, options, watch)
    except Exception as error:  # whatever it is, whoever waits is told
        stored = _store_failure(store, job, options.worker, error)
    else:
        stored = store.finish(job.id, options.worker, result)
        if stored:
            drop_inputs(evaluations_folder(options.state) / job.id)
    store.close()
    stop_tracing()
    return 0 if stored else 1


def _evaluate(job: Job, options: argparse.Namespace, watch: ProgressReporter) -> dict[str, Any]:
    folder = evaluations_folder(options.state) / job.id
    found = [_find(model, options) for model in job.models]
    spec = EvaluationSpec.model_validate(job.spec)
    inputs = open_inputs(folder, found[0].labels)

    from robustness.evaluation import evaluate  # brings torch: seconds, and hundreds of megabytes
    from robustness.executors import run_inline

    with ExitStack() as opened:
        models: list[Artifact | Target] = []
        executor: Executor = run_inline
        for one in found:
            if isinstance(one, RemoteTarget):
                target, executor = _reach(one, folder / REPORT, opened)
                models.append(target)
            else:
                models.append(one)
        evaluate(
            spec,
            models,
            inputs,
            folder / REPORT,
            on_progress=watch.on_progress,
            should_stop=watch.should_stop,
            threads=options.threads,
            executor=executor,
        )
    return json.loads((folder / REPORT / "report.json").read_bytes())["summary"]


def _find(model: dict[str, str], options: argparse.Namespace) -> Artifact | RemoteTarget:
    """The very artifact or endpoint that was named, whatever lies beside it by now."""
    if manifest := find_by_digest(options.models, MANIFEST, model["digest"]):
        return open_artifact(manifest.parent)
    remote = read_targets(options.targets).get(model["name"])
    if remote is not None and remote.digest == model["digest"]:
        return remote
    name = f"{model['name']}:{model['version']}".rstrip(":")
    raise ModelGone(f"the model {name} is no longer served")


def _reach(remote: RemoteTarget, folder: Path, opened: ExitStack) -> "tuple[Target, Executor]":
    """A listed endpoint, closed by `opened`, with its ledger in a folder; and who asks it.

    Raises:
        NotPossible: it is not what the operator says.
        EndpointError: it does not answer as it should.
    """
    from robustness.executors import ThreadExecutor, run_inline
    from robustness.remote.arguments import open_target
    from robustness.remote.target import Asked, runtime_of

    shows, best = remote.shows
    most = remote.entry.max_queries
    try:
        target = open_target(
            remote.entry.url,
            remote.entry.model,
            folder,
            asked=Asked(shows=shows, best=best, labels=remote.labels, max_queries=most),
            manners=remote.manners,
            key=remote.key(),
            mapping=remote.mapping,
            beside=remote.beside,
            output=remote.entry.output_tensor,
            surrogate=remote.surrogate,
        )
    except ValueError as error:
        raise NotPossible(f"{remote.name}: {error}") from error
    runtime = runtime_of(target)
    opened.callback(runtime.close)
    if runtime.model.image_spec != remote.image_spec:
        told, listed = runtime.model.image_spec, remote.image_spec
        raise NotPossible(f"{remote.name} reads {told or 'texts'}, listed is {listed or 'texts'}")
    target = replace(target, name=remote.name)
    if remote.surrogate is not None:  # whose gradients one thread takes at a time
        return target, run_inline
    connection = runtime.model.connection
    return target, ThreadExecutor(connection.manners.concurrency, connection.stopped)


def _store_failure(store: JobStore, job: Job, worker: str, error: Exception) -> bool:
    if isinstance(error, Cancelled) and not isinstance(error, Spent):
        return store.cancelled(job.id, worker)
    # No message: it may hold the name of an upload.
    where = "".join(traceback.format_tb(error.__traceback__))
    logger.error("Evaluation %s failed with %s at\n%s", job.id, type(error).__name__, where)
    return store.fail(job.id, worker, *_explain(error))


def _explain(error: Exception) -> tuple[str, str]:
    """Code and message for a user; the message of an unknown error may hold paths."""
    for kind, code in _TOLD.items():
        if isinstance(error, kind):
            return code, str(error)
    if isinstance(error, ArtifactError):
        return "broken_artifact", "the artifact of the model does not match its manifest"
    if isinstance(error, DataError):
        return "unreadable_inputs", "the stored inputs can no longer be read"
    if isinstance(error, MemoryError):
        return "out_of_memory", "the evaluation needs more memory than there is"
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "disk_full", "the disk of the service is full"
    return "internal_error", "the evaluation failed unexpectedly; the reason was logged"


def _lower_priority() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the evaluator, which decides
    os.nice(_NICENESS)
    with suppress(OSError):  # only Linux has it
        Path("/proc/self/oom_score_adj").write_text(_OOM_SCORE)


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="service.jobs.child", description=__doc__)
    parser.add_argument("--job", required=True)
    parser.add_argument("--worker", required=True)
    parser.add_argument("--parent", type=int, required=True, help="process to end with")
    parser.add_argument("--armed", type=int, help="to close when it ends with its parent")
    parser.add_argument("--state", type=Path, required=True)
    parser.add_argument("--models", type=Path, nargs="+", required=True)
    parser.add_argument("--targets", type=Path)
    parser.add_argument("--threads", type=int, default=1)
    return parser.parse_args(argv)


if __name__ == "__main__":
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s")
    sys.exit(main())
