"""Batches inputs across requests: whatever waits when the runtime becomes free is its next batch.

A request is alone in it when the service is idle; nothing ever waits for company. A batcher knows
how long an input takes lately, so that it refuses at once what could not be answered in time, and
takes no more into a batch than the oldest request can wait for.
"""

import asyncio
import logging
import math
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import Executor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import numpy as np

from service.http.refusal import ApiError
from service.metrics import Metrics
from service.settings import Settings
from service.tracing import span

logger = logging.getLogger(__name__)

Rows = Sequence[Any] | np.ndarray
"""Inputs of one request: an array, or anything that can be cut into parts."""

_RETRY_MAX_S = 30
_NEARLY_ALL = 0.9  # of the deadline: who waited for longer than the rest met an overload
_HEADROOM = 0.8  # share of the time left that estimates may fill
_SHARE = 0.25  # of the deadline, that one batch may take by estimate
_MEMORY = 0.8  # weight of earlier batches in the estimated time of an input


def concatenate(parts: Sequence[np.ndarray]) -> np.ndarray:
    """Join arrays of inputs; one alone is not copied."""
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


@dataclass(slots=True)
class Totals:
    """What a batcher has done since it was made; times in seconds.

    Attributes:
        inputs: inputs computed.
        batches: batches computed.
        queue_s: waiting of the oldest request, summed over batches.
        compute_s: computation, summed over batches.
        failures: turns that ended with an error.
    """

    inputs: int = 0
    batches: int = 0
    queue_s: float = 0.0
    compute_s: float = 0.0
    failures: int = 0


class CapacityLimiter:
    """A number of places that requests take in the order in which they ask.

    Args:
        count: how many there are; who asks for more takes all.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._free = asyncio.Semaphore(count)
        self._entry = asyncio.Lock()  # else two could each hold half for ever

    @asynccontextmanager
    async def acquired(self, count: int) -> AsyncIterator[None]:
        """Hold `count` places inside the block."""
        held, wanted = 0, min(count, self._count)
        try:
            async with self._entry:
                while held < wanted:
                    await self._free.acquire()
                    held += 1
            yield
        finally:
            for _ in range(held):
                self._free.release()


class Admission:
    """One request's way through a batcher, inside an `async with`.

    A request whose time went by with waiting is refused with 503, as if it had been refused at
    once; one that the runtime did not finish, although it had nearly all the time, ends with 504.

    Args:
        batcher: the model's.
        count: inputs of the request.
        arrived: time of the event loop from which the deadline counts; None is now.

    Attributes:
        came: when it asked for a place, by the event loop's clock.
        until: when nobody waits for it any more.
        began: when the runtime saw the first of its inputs.
        inputs: what was read for `predict`.
    """

    def __init__(self, batcher: "MicroBatcher", count: int, arrived: float | None) -> None:
        loop = asyncio.get_running_loop()
        self._batcher, self._count = batcher, count
        self.came, self.began = loop.time(), math.inf
        self.until = (self.came if arrived is None else arrived) + batcher.timeout_s
        self._deadline = asyncio.timeout_at(self.until)
        self.inputs: Rows = ()
        self._taken = 0
        self._parts: list[np.ndarray] = []
        self._outputs: asyncio.Future[np.ndarray] = loop.create_future()

    async def __aenter__(self) -> Self:
        """Admit the request, or refuse it with 503."""
        self._batcher.check_room(self._count, left_s=self.until - self.came)
        await self._deadline.__aenter__()
        self._batcher.admit(self._count)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        """Make room again; say with 503 or 504 what became of the deadline."""
        self._batcher.admit(-self._count)
        self._batcher.totals.failures += kind is not None
        try:
            return await self._deadline.__aexit__(kind, error, trace)
        except TimeoutError as end:
            if self.until - self.began < _NEARLY_ALL * self._batcher.timeout_s:
                raise late() from end
            message = f"The prediction took longer than {self._batcher.timeout_s:g} s."
            raise ApiError(504, "timeout", message) from end

    async def predict(self, read: Callable[[], Awaitable[Rows]]) -> np.ndarray:
        """Outputs (N, ...) of the request's inputs, computed together with those of others.

        Args:
            read: makes the inputs; called when there is a place for them, so that what waits long
                is small and what is refused late was never read.
        """
        # What went on before, such as tokenizing, says nothing of the runtime's pace.
        self.came = asyncio.get_running_loop().time()
        async with self._batcher.capacity.acquired(self._count):
            with span("decode", inputs=self._count):
                self.inputs = await read()
            with span("queue and batch", inputs=self._count):
                self._batcher.enqueue(self)
                return await self._outputs

    def take(self, room: int, now: float) -> Rows:
        """The next inputs, at most `room`, for a batch that begins now."""
        self.began = min(self.began, now)
        part = self.inputs[self._taken : self._taken + room]
        self._taken += len(part)
        return part

    def is_taken(self) -> bool:
        """Whether no input is left to take."""
        return self._taken == len(self.inputs)

    def is_over(self) -> bool:
        """Whether nobody waits for outputs: its client left, or a part failed."""
        return self._outputs.done()

    def deliver(self, part: np.ndarray | Exception) -> None:
        """Keep the next outputs; answer with the last of them or an error."""
        if self.is_over():
            return
        if isinstance(part, Exception):
            self._outputs.set_exception(part)
            return
        self._parts.append(part)
        if sum(map(len, self._parts)) == len(self.inputs):
            self._outputs.set_result(self._batcher.merge(self._parts))


class MicroBatcher:
    """A bounded queue with a deadline before one runtime; belongs to one event loop.

    Args:
        predict: joined inputs to outputs, one row each, run in `executor`.
        executor: where `predict` runs; one worker thread keeps runtimes from competing.
        settings: how much it takes on.
        batch_max: inputs that the model sees at once, if fewer than the settings say; a larger
            request is cut.
        join: makes parts of requests what `predict` reads.
        merge: makes the outputs of one request, from several batches, one array.
        model: its name in `metrics`.
        metrics: counts its batches and its queue.
    """

    def __init__(
        self,
        predict: Callable[[Any], np.ndarray],
        executor: Executor,
        settings: Settings,
        *,
        batch_max: int | None = None,
        join: Callable[[Sequence[Any]], Any] = concatenate,
        merge: Callable[[Sequence[np.ndarray]], np.ndarray] = concatenate,
        model: str = "",
        metrics: Metrics | None = None,
    ) -> None:
        self.totals = Totals()
        self.timeout_s = settings.predict_timeout_s  # from a request's arrival to its answer
        self._queue_max, self._wait_s = settings.predict_queue, settings.predict_wait_s
        self._batch_max = batch_max or settings.batch_max
        # A batch is read while the one before is computed.
        self.capacity = CapacityLimiter(2 * self._batch_max)
        self.merge = merge
        self._predict, self._join, self._executor = predict, join, executor
        self._model, self._metrics = model, metrics
        self._admitted = 0
        self._pace_s, self._ended = 0.0, 0.0  # seconds per input of the latest batches; their end
        self._queue = deque[Admission]()
        self._drain: asyncio.Task[None] | None = None

    def check_room(self, count: int = 1, *, left_s: float | None = None) -> None:
        """Refuse `count` inputs that have no place, or would not be answered within `left_s`.

        Raises:
            ApiError: 503 overloaded.
        """
        wait_s = self._pace_s * self._admitted
        left_s = self.timeout_s if left_s is None else left_s
        # An oversized request still gets in when nobody else is here, or it never would.
        full = self._admitted + count > self._queue_max
        if self._admitted and (full or wait_s > min(self._wait_s, _HEADROOM * left_s)):
            raise overloaded(wait_s)

    def admission(self, count: int, *, arrived: float | None = None) -> Admission:
        """Admission of `count` inputs, as a context to `predict` inside."""
        return Admission(self, count, arrived)

    def admit(self, change: int) -> None:
        """Count inputs that came in, or went out."""
        self._admitted += change
        if self._metrics is not None:
            self._metrics.queued(self._model, self._admitted)

    def enqueue(self, request: Admission) -> None:
        """Have a request computed, together with others."""
        self._queue.append(request)
        if self._drain is None or self._drain.done():
            self._drain = asyncio.get_running_loop().create_task(self._work())

    async def _work(self) -> None:
        while batch := self._next_batch():
            try:
                outputs = await self._compute(batch)
            except Exception as error:
                await self._compute_alone(batch, error)
                continue
            for request, inputs in batch:
                request.deliver(outputs[: len(inputs)])
                outputs = outputs[len(inputs) :]

    def _next_batch(self) -> list[tuple[Admission, Rows]]:
        batch: list[tuple[Admission, Rows]] = []
        now, room = asyncio.get_running_loop().time(), self._batch_max
        while self._queue and room > 0:
            request = self._queue[0]
            if not request.is_over() and now > request.until:
                request.deliver(late())
            if not request.is_over():
                if not batch and self._pace_s:
                    left_s = min(_HEADROOM * (request.until - now), _SHARE * self.timeout_s)
                    room = min(room, max(1, int(left_s / self._pace_s)))
                part = request.take(room, now)
                batch.append((request, part))
                room -= len(part)
            if request.is_over() or request.is_taken():
                self._queue.popleft()
        return batch

    async def _compute_alone(self, batch: list[tuple[Admission, Rows]], error: Exception) -> None:
        """Repeat a failed batch request by request, so that only the guilty one fails."""
        logger.warning("A batch of %d requests failed: %r", len(batch), error)
        if len(batch) == 1:
            batch[0][0].deliver(error)
            return
        for request, inputs in batch:
            if request.is_over():  # nobody waits any more
                continue
            try:
                request.deliver(await self._compute([(request, inputs)]))
            except Exception as own:
                request.deliver(own)

    async def _compute(self, batch: list[tuple[Admission, Rows]]) -> np.ndarray:
        loop = asyncio.get_running_loop()
        parts = [inputs for _, inputs in batch]
        count, began = sum(map(len, parts)), loop.time()
        outputs = await loop.run_in_executor(
            self._executor, lambda: self._predict(self._join(parts))
        )
        if len(outputs) != count:
            raise RuntimeError(f"{count} inputs gave {len(outputs)} outputs")
        oldest, now = min(request.came for request, _ in batch), loop.time()
        # With others waiting this is the time from batch to batch, whatever it was spent on.
        pace_s = (now - max(oldest, self._ended)) / count
        self._pace_s += (1 - _MEMORY if self._pace_s else 1) * (pace_s - self._pace_s)
        self._ended = now
        self._count(count, began - oldest, now - began)
        return outputs

    def _count(self, count: int, queue_s: float, compute_s: float) -> None:
        self.totals.inputs += count
        self.totals.batches += 1
        self.totals.queue_s += queue_s
        self.totals.compute_s += compute_s
        if self._metrics is not None:
            self._metrics.batch(self._model, count, queue_s, compute_s)


def overloaded(wait_s: float) -> ApiError:
    """The refusal of a request that has no place; `wait_s` is the estimated wait."""
    message = "Too many inputs are waiting for this model; try again later."
    retry = str(min(_RETRY_MAX_S, max(1, math.ceil(wait_s))))
    return ApiError(503, "overloaded", message, headers={"retry-after": retry})


def late() -> ApiError:
    """The refusal of a request that was not admitted in time."""
    message = "The model did not come to this request in time; try again later."
    return ApiError(503, "overloaded", message, headers={"retry-after": "1"})
