"""One version of a model, opened: its runtime, its batcher, its tokenizer, its explainer."""

import asyncio
import logging
import math
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from data.token_set import Ragged
from data.tokenizer import TextTokenizer
from export.preflight import first_problem
from export.select import cached_selection, open_selected
from runtimes.artifact import Artifact
from runtimes.base import Inputs, InvalidInputs, Runtime, blank_inputs
from runtimes.registry import RUNTIMES
from runtimes.tasks import TASKS
from runtimes.threads import available_cores
from service.http.refusal import ApiError
from service.metrics import Metrics
from service.predictions.attention import AttentionMaps
from service.predictions.batcher import MicroBatcher, concatenate
from service.settings import Settings
from service.start import is_worker

logger = logging.getLogger(__name__)

_LOST_S = 60.0  # a device that has failed for so long does not come back to this process


class Monitored:
    """A runtime that knows how its last prediction ended.

    Args:
        runtime: the runtime.
        probe: inputs that ask whether it answers.
        on_loss: called once it has done nothing but fail for a minute, the probe included.

    Attributes:
        name: see `Runtime.name`.
        precision: see `Runtime.precision`.
        failed: whether the last prediction failed through no fault of its inputs.
    """

    def __init__(
        self, runtime: Runtime, probe: Inputs, *, on_loss: Callable[[], object] = lambda: None
    ) -> None:
        self.name, self.precision = runtime.name, runtime.precision
        self._runtime, self._probe, self._on_loss = runtime, probe, on_loss
        self._began: float | None = None
        self._failing_since: float | None = None
        self.failed = False

    @property
    def busy_s(self) -> float:
        """Seconds since the running prediction began; 0 when none is running."""
        began = self._began
        return 0.0 if began is None else time.monotonic() - began

    def predict(self, inputs: Inputs) -> np.ndarray:
        """See `Runtime.predict`.

        Raises:
            ApiError: 422 invalid_inputs; 503 runtime_failed, when the inputs were right: also
                for logits that are no numbers, as a faulty device gives.
        """
        self._began = began = time.monotonic()
        try:
            logits = self._finite(inputs)
        except InvalidInputs as error:
            raise ApiError(422, "invalid_inputs", f"The {error}.") from error
        except Exception as error:  # engines share no base class of their errors
            self.failed = True
            logger.exception("The runtime %s has failed", self.name)
            self._failing_since = self._failing_since or began
            if time.monotonic() - self._failing_since >= _LOST_S and self._is_lost():
                self._on_loss()
            message = "The model's runtime has failed; another host may answer."
            raise ApiError(503, "runtime_failed", message, headers={"retry-after": "5"}) from error
        finally:
            self._began = None
        self.failed, self._failing_since = False, None
        return logits

    def _finite(self, inputs: Inputs) -> np.ndarray:
        logits = self._runtime.predict(inputs)
        if not np.isfinite(logits).all():
            raise ArithmeticError("the logits are not finite")
        return logits

    def _is_lost(self) -> bool:
        """Whether inputs that it once answered fail as well."""
        try:
            self._finite(self._probe)
        except Exception:
            return True
        self._failing_since = None
        return False

    def check(self) -> None:
        """Predict the probe.

        Raises:
            ApiError: see `predict`.
        """
        self.predict(self._probe)


class Readiness:
    """Asks runtimes whether they answer, without standing in the way of predictions.

    Args:
        runtimes: gives all of them, which may be others each time.
        executor: where they predict, one at a time.
        timeout_s: seconds after which a prediction counts as stuck.
    """

    def __init__(
        self,
        runtimes: Callable[[], Sequence[Monitored]],
        executor: Executor,
        *,
        timeout_s: float,
    ) -> None:
        self._runtimes = runtimes
        self._executor = executor
        self._timeout_s = timeout_s
        self._asking: asyncio.Task[bool] | None = None

    async def ready(self) -> bool:
        """Whether all of them answer.

        While one of them predicts for a request, the last outcomes are the answer.
        """
        # One question at a time, however many ask: a device that hangs never answers any.
        if self._asking is None or self._asking.done():
            runtimes = self._runtimes()
            busy_s = max((runtime.busy_s for runtime in runtimes), default=0.0)
            if busy_s > 0:
                stuck = busy_s > self._timeout_s
                return not stuck and not any(runtime.failed for runtime in runtimes)
            self._asking = asyncio.create_task(self._ask())
        done, _ = await asyncio.wait({self._asking}, timeout=self._timeout_s)
        return bool(done) and self._asking.result()

    async def _ask(self) -> bool:
        loop = asyncio.get_running_loop()
        for runtime in self._runtimes():
            try:
                await loop.run_in_executor(self._executor, runtime.check)
            except ApiError:
                return False
        return True


def leave() -> None:
    """End a worker whose runtime is lost: CUDA gives a process no device back that has failed.

    The server starts another, which opens the models again. A process that no server started stays.
    """
    if is_worker():
        logger.critical("A runtime is lost: this worker ends, and another one opens the models")
        os._exit(1)  # an orderly end would close the socket that the other workers share


REFERENCE = "onnx-cpu"
"""The runtime on which the export scored every artifact; it opens in milliseconds."""

_LENGTHS = 8  # to which texts of language models are padded
_EXPLAINED_AT_ONCE = 4  # every layer's maps of a batch are in memory together


@dataclass(frozen=True, slots=True, eq=False)
class Served:
    """One version of a model, ready to predict.

    Attributes:
        artifact: what it was opened from.
        runtime: computes logits.
        batcher: the queue before the runtime.
        tokenizer: reads texts; None for a model of images.
        explainer: the queue before attention maps (N, h, w); None where there are none.
    """

    artifact: Artifact
    runtime: Monitored
    batcher: MicroBatcher
    tokenizer: TextTokenizer | None
    explainer: MicroBatcher | None


class Opener:
    """Opens artifacts as the settings say; used by the start and by every reload.

    Args:
        settings: runtime, precision and limits.
        metrics: counts every model's batches.
    """

    def __init__(self, settings: Settings, metrics: Metrics | None) -> None:
        self._settings, self._metrics = settings, metrics
        # One thread for all models: runtimes use every core themselves.
        self.executor = ThreadPoolExecutor(1, "runtime")
        self._explaining = ThreadPoolExecutor(1, "explain")

    def open(self, artifact: Artifact, *, at_once: bool = False) -> Served:
        """Open an artifact; takes long, and may run in any thread.

        Args:
            artifact: what to serve.
            at_once: measure and run nothing: where the fastest runtime is not known yet, take the
                one that every artifact was scored on.

        Raises:
            ValueError: its runtime cannot be opened, or its tokenizer not be read.
            ApiError: its runtime fails.
        """
        asked = selection_options(self._settings)
        if at_once and unmeasured(artifact, self._settings):
            asked |= {"name": REFERENCE, "mode": "exact"}
        opened = open_selected(artifact, **asked)
        runtime = Monitored(opened, blank_inputs(artifact, 1), on_loss=leave)
        texts = artifact.manifest.reads == "texts"
        batcher = MicroBatcher(
            runtime.predict,
            self.executor,
            self._settings,
            join=_joining(artifact),
            merge=_merging(artifact),
            model=artifact.name,
            metrics=self._metrics,
        )
        tokenizer = artifact.tokenizer() if texts else None
        served = Served(artifact, runtime, batcher, tokenizer, self._explainer(artifact))
        if not at_once:
            self.warm_up(served)
        return served

    def warm_up(self, served: Served) -> None:
        """Run a model once alone and once on a full batch, before the first request does.

        Raises:
            ApiError: its runtime fails.
        """
        for size in {1, self._settings.batch_max}:
            served.runtime.predict(blank_inputs(served.artifact, size))

    def close(self) -> None:
        """Let the running batch end and start no other."""
        for executor in (self.executor, self._explaining):
            executor.shutdown(cancel_futures=True)

    def _explainer(self, artifact: Artifact) -> MicroBatcher | None:
        if not AttentionMaps.may_have(artifact):
            return None
        return MicroBatcher(
            AttentionMaps(artifact).predict,
            self._explaining,
            self._settings,
            batch_max=_EXPLAINED_AT_ONCE,
        )


def unmeasured(artifact: Artifact, settings: Settings) -> bool:
    """Whether the fastest runtime is asked for and not known yet, and another can serve so long."""
    if settings.runtime != "auto" or not runs_on_reference(artifact):
        return False
    return cached_selection(artifact, **selection_options(settings)) is None


def selection_options(settings: Settings) -> dict[str, Any]:
    """What `export.select` is told: which runtime is wanted, and where selections are cached."""
    return {
        "name": settings.runtime,
        "mode": settings.precision,
        "threads": settings.predict_threads or available_cores(),
        "cache": settings.runtimes_folder,
    }


def runs_on_reference(artifact: Artifact) -> bool:
    """Whether ONNX Runtime's CPU engine runs an artifact in its own precision."""
    return bool(RUNTIMES[REFERENCE].precisions(artifact.manifest, "exact"))


def require_openable(artifacts: Sequence[Artifact], settings: Settings) -> None:
    """Open artifacts in another process, before this one does.

    Raises:
        ValueError: one of them cannot be opened, or its first prediction does not end in time.
    """
    # TensorRT builds for minutes, of the same graph.
    name = REFERENCE if settings.runtime in ("auto", "onnx-tensorrt") else settings.runtime
    threads = settings.predict_threads or available_cores()
    if problem := first_problem(artifacts, name=name, threads=threads):
        artifact, reason = problem
        raise ValueError(f"{artifact.name}: {reason}")


def _joining(artifact: Artifact) -> Callable[[Sequence[Any]], Any]:
    """What makes parts of requests what a model reads."""
    if artifact.manifest.reads == "images":
        return concatenate
    most = artifact.text_spec.max_len
    # Answers of language models are as long as their inputs: of a few lengths, as few shapes are
    # planned for.
    labeled = TASKS[artifact.manifest.task].labeled
    return partial(pad, step=1 if labeled else math.ceil(most / _LENGTHS), most=most)


def _merging(artifact: Artifact) -> Callable[[Sequence[np.ndarray]], np.ndarray]:
    """What makes parts of one answer, of several batches, a whole."""
    return concatenate if TASKS[artifact.manifest.task].labeled else stack_longest


def stack_longest(parts: Sequence[np.ndarray]) -> np.ndarray:
    """Join arrays (B, N, ...) of several N, with zeros behind the shorter ones."""
    longest = max(part.shape[1] for part in parts)
    if all(part.shape[1] == longest for part in parts):
        return concatenate(parts)
    rest = [(0, 0)] * (parts[0].ndim - 2)
    return np.concatenate(
        [np.pad(part, [(0, 0), (0, longest - part.shape[1]), *rest]) for part in parts]
    )


def pad(
    parts: Sequence[Sequence[np.ndarray]], *, step: int = 1, most: int
) -> dict[str, np.ndarray]:
    """Token ids of some requests, padded to the longest text: tokens and mask, (B, N) each.

    Args:
        parts: of each request, the ids of its texts.
        step: N is a multiple of it, or `most`.
        most: tokens that a model reads.
    """
    rows = Ragged.of([row for part in parts for row in part], np.uint32)
    longest = min(math.ceil(int(rows.lengths.max()) / step) * step, most)
    tokens, mask = rows.padded(longest, 0)  # the mask leaves out whatever pads
    return {"tokens": tokens, "mask": mask}
