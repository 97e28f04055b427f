"""Batches inputs across requests: whatever waits when the runtime becomes free is its next batch.

A request is alone in it when the service is idle; nothing ever waits for company. A batcher knows
how long an input takes lately, so that it refuses at once what could not be answered in time, and
takes no more into a batch than the oldest request can wait for.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import Any

import numpy as np

from service.metrics import SILENT, Observer
from service.predictions.admission import (
    Admission,
    CapacityLimiter,
    Limits,
    Rows,
    Totals,
    Waiting,
    concatenate,
    late,
    overloaded,
)

logger = logging.getLogger(__name__)

_Batch = list[tuple[Waiting, Rows]]

_HEADROOM = 0.8  # share of the time left that estimates may fill
_SHARE = 0.25  # of the deadline, that one batch may take by estimate
_MEMORY = 0.8  # weight of earlier batches in the estimated time of an input


class MicroBatcher:
    """A bounded queue with a deadline before one runtime; belongs to one event loop.

    Args:
        predict: joined inputs to outputs, one row each, run in `executor`.
        executor: where `predict` runs; one worker thread keeps runtimes from competing.
        limits: how much it takes on.
        join: makes parts of requests what `predict` reads.
        model: its name, under which `observer` is told of batches and of the queue.
    """

    def __init__(
        self,
        predict: Callable[[Any], np.ndarray],
        executor: Executor,
        limits: Limits,
        *,
        join: Callable[[Sequence[Any]], Any] = concatenate,
        model: str = "",
        observer: Observer = SILENT,
    ) -> None:
        self.totals = Totals()
        self.limits = limits
        # A batch is read while the one before is computed.
        self.capacity = CapacityLimiter(2 * limits.batch_max)
        self._predict, self._join, self._executor = predict, join, executor
        self._model, self._observer = model, observer
        self._admitted = 0
        self._pace_s, self._ended = 0.0, 0.0  # seconds per input of the latest batches; their end
        self._queue = deque[Waiting]()
        self._drain: asyncio.Task[None] | None = None

    def check_room(self, count: int = 1, *, left_s: float | None = None) -> None:
        """Refuse `count` inputs that have no place, or would not be answered within `left_s`.

        Raises:
            ApiError: 503 overloaded.
        """
        wait_s = self._pace_s * self._admitted
        left_s = self.limits.timeout_s if left_s is None else left_s
        # An oversized request still gets in when nobody else is here, or it never would.
        full = self._admitted + count > self.limits.queue_max
        if self._admitted and (full or wait_s > min(self.limits.wait_s, _HEADROOM * left_s)):
            raise overloaded(wait_s)

    def admission(self, count: int, *, arrived: float | None = None) -> Admission:
        """Admission of `count` inputs, as a context to `predict` inside; see `Turn`."""
        return Admission(self, count, arrived)

    def admit(self, change: int) -> None:
        """Count inputs that came in, or went out."""
        self._admitted += change
        self._observer.queued(self._model, self._admitted)

    def enqueue(self, request: Waiting) -> None:
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

    def _next_batch(self) -> _Batch:
        batch: _Batch = []
        now, room = asyncio.get_running_loop().time(), self.limits.batch_max
        while self._queue and room > 0:
            request = self._queue[0]
            if not request.future.done() and now > request.until:
                request.deliver(late())
            if not request.future.done():  # cancelled by its client, or failed in a part
                if not batch and self._pace_s:
                    left_s = min(_HEADROOM * (request.until - now), _SHARE * self.limits.timeout_s)
                    room = min(room, max(1, int(left_s / self._pace_s)))
                part = request.take(room, now)
                batch.append((request, part))
                room -= len(part)
            if request.future.done() or request.is_taken():
                self._queue.popleft()
        return batch

    async def _compute_alone(self, batch: _Batch, error: Exception) -> None:
        """Repeat a failed batch request by request, so that only the guilty one fails."""
        logger.warning("A batch of %d requests failed: %r", len(batch), error)
        if len(batch) == 1:
            batch[0][0].deliver(error)
            return
        for request, inputs in batch:
            if request.future.done():  # nobody waits any more
                continue
            try:
                request.deliver(await self._compute([(request, inputs)]))
            except Exception as own:
                request.deliver(own)

    async def _compute(self, batch: _Batch) -> np.ndarray:
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
        self.totals.add(count, began - oldest, now - began)
        self._observer.batch(self._model, count, began - oldest, now - began)
        return outputs
