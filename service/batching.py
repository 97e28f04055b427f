"""Batches inputs across requests: whatever waits when the runtime becomes free is its next batch.

A request is alone in it when the service is idle; nothing ever waits for company.
"""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Executor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from service.errors import ApiError

logger = logging.getLogger(__name__)

Rows = Sequence[Any] | np.ndarray
"""Inputs of one request: an array, or anything that can be cut into parts."""


def concatenate(parts: Sequence[np.ndarray]) -> np.ndarray:
    """Join arrays of inputs; one alone is not copied."""
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


@dataclass(slots=True, eq=False)
class _Request:
    inputs: Rows
    future: asyncio.Future[np.ndarray]
    taken: int = 0
    parts: list[np.ndarray] = field(default_factory=list)

    def deliver(self, part: np.ndarray | Exception) -> None:
        """Keep the next outputs; resolve the future with the last of them or an error."""
        if self.future.done():
            return
        if isinstance(part, Exception):
            self.future.set_exception(part)
            return
        self.parts.append(part)
        if sum(map(len, self.parts)) == len(self.inputs):
            self.future.set_result(np.concatenate(self.parts))


class MicroBatcher:
    """A bounded queue with a deadline before one runtime; belongs to one event loop.

    Args:
        predict: joined inputs to (B, K) outputs, run in `executor`.
        executor: where `predict` runs; one worker thread keeps runtimes from competing.
        batch_max: inputs `predict` sees at once; a larger request is cut.
        queue_max: inputs admitted at a time, from `turn` to its end.
        timeout_s: seconds that a turn may last.
        join: makes parts of requests what `predict` reads.
    """

    def __init__(
        self,
        predict: Callable[[Any], np.ndarray],
        executor: Executor,
        *,
        batch_max: int,
        queue_max: int,
        timeout_s: float,
        join: Callable[[Sequence[Any]], Any] = concatenate,
    ) -> None:
        self._predict = predict
        self._join = join
        self._executor = executor
        self._batch_max = batch_max
        self._queue_max = queue_max
        self._timeout_s = timeout_s
        self._admitted = 0
        self._queue: deque[_Request] = deque()
        self._drain: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def turn(self, count: int) -> AsyncIterator[None]:
        """Admission of `count` inputs; decode and `predict` inside.

        Raises:
            ApiError: 503 when the queue is full, 504 when the turn outlasts the deadline.
        """
        # An oversized request still gets in when nobody else is here, or it never would.
        if self._admitted and self._admitted + count > self._queue_max:
            message = "Too many inputs are waiting for this model; try again later."
            raise ApiError(503, "overloaded", message, headers={"retry-after": "1"})
        self._admitted += count
        deadline = asyncio.timeout(self._timeout_s)
        try:
            async with deadline:
                yield
        except TimeoutError as error:
            if not deadline.expired():
                raise
            message = f"The prediction took longer than {self._timeout_s:g} s."
            raise ApiError(504, "timeout", message) from error
        finally:
            self._admitted -= count

    async def predict(self, inputs: Rows) -> np.ndarray:
        """Outputs (N, K) of N inputs, computed together with those of other requests."""
        request = _Request(inputs, asyncio.get_running_loop().create_future())
        self._queue.append(request)
        if self._drain is None or self._drain.done():
            self._drain = asyncio.create_task(self._work())
        return await request.future

    async def _work(self) -> None:
        while batch := self._next_batch():
            try:
                outputs = await self._compute([inputs for _, inputs in batch])
            except Exception as error:
                await self._compute_alone(batch, error)
                continue
            for request, inputs in batch:
                request.deliver(outputs[: len(inputs)])
                outputs = outputs[len(inputs) :]

    def _next_batch(self) -> list[tuple[_Request, Rows]]:
        batch: list[tuple[_Request, Rows]] = []
        room = self._batch_max
        while self._queue and room:
            request = self._queue[0]
            if not request.future.done():  # cancelled by its deadline, or failed in a part
                part = request.inputs[request.taken : request.taken + room]
                batch.append((request, part))
                request.taken += len(part)
                room -= len(part)
            if request.future.done() or request.taken == len(request.inputs):
                self._queue.popleft()
        return batch

    async def _compute_alone(self, batch: list[tuple[_Request, Rows]], error: Exception) -> None:
        """Repeat a failed batch request by request, so that only the guilty one fails."""
        logger.warning("A batch of %d requests failed: %r", len(batch), error)
        if len(batch) == 1:
            batch[0][0].deliver(error)
            return
        for request, inputs in batch:
            try:
                request.deliver(await self._compute([inputs]))
            except Exception as own:
                request.deliver(own)

    async def _compute(self, parts: list[Rows]) -> np.ndarray:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._executor, self._compute_now, parts)

    def _compute_now(self, parts: list[Rows]) -> np.ndarray:
        count = sum(map(len, parts))
        outputs = self._predict(self._join(parts))
        if len(outputs) != count:
            raise RuntimeError(f"{count} inputs gave {len(outputs)} outputs")
        return outputs
