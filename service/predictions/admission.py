"""What one request does before a micro-batcher: it is admitted, waits, and is answered in time."""

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Protocol, Self

import numpy as np

from service.http.errors import ApiError
from service.tracing import span

Rows = Sequence[Any] | np.ndarray
"""Inputs of one request: an array, or anything that can be cut into parts."""

_RETRY_MAX_S = 30
_NEARLY_ALL = 0.9  # of the deadline: who waited for longer than the rest met an overload


def concatenate(parts: Sequence[np.ndarray]) -> np.ndarray:
    """Join arrays of inputs; one alone is not copied."""
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a micro-batcher takes on.

    Attributes:
        batch_max: inputs that the model sees at once; a larger request is cut.
        queue_max: inputs admitted at a time, from their admission to their answer.
        wait_s: expected wait in seconds, above which a request is refused.
        timeout_s: seconds from a request's arrival to its answer.
    """

    batch_max: int
    queue_max: int
    wait_s: float
    timeout_s: float


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

    def add(self, count: int, queue_s: float, compute_s: float) -> None:
        """Count one batch."""
        self.inputs += count
        self.batches += 1
        self.queue_s += queue_s
        self.compute_s += compute_s


@dataclass(slots=True, eq=False, kw_only=True)
class Waiting:
    """A request in the queue.

    Attributes:
        came: when it was admitted, by the event loop's clock.
        began: when the runtime saw the first of it.
        until: when nobody waits for it any more.
    """

    inputs: Rows = field(kw_only=False)
    future: asyncio.Future[np.ndarray] = field(kw_only=False)
    came: float
    until: float
    began: float = math.inf
    _taken: int = 0
    _parts: list[np.ndarray] = field(default_factory=list)

    def take(self, room: int, now: float) -> Rows:
        """The next inputs, at most `room`, for a batch that begins now."""
        self.began = min(self.began, now)
        part = self.inputs[self._taken : self._taken + room]
        self._taken += len(part)
        return part

    def is_taken(self) -> bool:
        """Whether no input is left to take."""
        return self._taken == len(self.inputs)

    def deliver(self, part: np.ndarray | Exception) -> None:
        """Keep the next outputs; resolve the future with the last of them or an error."""
        if self.future.done():
            return
        if isinstance(part, Exception):
            self.future.set_exception(part)
            return
        self._parts.append(part)
        if sum(map(len, self._parts)) == len(self.inputs):
            self.future.set_result(concatenate(self._parts))


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


class Batcher(Protocol):
    """What an admission needs of a micro-batcher; see `MicroBatcher`."""

    limits: Limits
    capacity: CapacityLimiter
    totals: Totals

    def check_room(self, count: int = 1, *, left_s: float | None = None) -> None:
        """Refuse what has no place."""
        ...

    def admit(self, change: int) -> None:
        """Count inputs that came in, or went out."""
        ...

    def enqueue(self, request: Waiting) -> None:
        """Have a request computed."""
        ...


class Admission:
    """One request's way through a batcher, inside an `async with`.

    A request whose time went by with waiting is refused with 503, as if it had been refused at
    once; one that the runtime did not finish, although it had nearly all the time, ends with 504.

    Args:
        batcher: the model's.
        count: inputs of the request.
        arrived: time of the event loop from which the deadline counts; None is now.
    """

    def __init__(self, batcher: Batcher, count: int, arrived: float | None) -> None:
        self._batcher, self._count = batcher, count
        self._came = asyncio.get_running_loop().time()
        self._until = (self._came if arrived is None else arrived) + batcher.limits.timeout_s
        self._deadline = asyncio.timeout_at(self._until)
        self._request: Waiting | None = None

    async def __aenter__(self) -> Self:
        """Admit the request.

        Raises:
            ApiError: 503 overloaded.
        """
        self._batcher.check_room(self._count, left_s=self._until - self._came)
        await self._deadline.__aenter__()
        self._batcher.admit(self._count)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        """Make room again; say what became of the deadline.

        Raises:
            ApiError: 503 overloaded, 504 timeout.
        """
        self._batcher.admit(-self._count)
        self._batcher.totals.failures += kind is not None
        try:
            return await self._deadline.__aexit__(kind, error, trace)
        except TimeoutError as end:
            began = math.inf if self._request is None else self._request.began
            if self._until - began < _NEARLY_ALL * self._batcher.limits.timeout_s:
                raise late() from end
            message = f"The prediction took longer than {self._batcher.limits.timeout_s:g} s."
            raise ApiError(504, "timeout", message) from end

    async def predict(self, read: Callable[[], Awaitable[Rows]]) -> np.ndarray:
        """Outputs (N, ...) of the request's inputs, computed together with those of others.

        Args:
            read: makes the inputs; called when there is a place for them, so that what waits long
                is small and what is refused late was never read.
        """
        async with self._batcher.capacity.acquired(self._count):
            with span("decode", inputs=self._count):
                inputs = await read()
            future: asyncio.Future[np.ndarray] = asyncio.get_running_loop().create_future()
            self._request = Waiting(inputs, future, came=self._came, until=self._until)
            with span("queue and batch", inputs=self._count):
                self._batcher.enqueue(self._request)
                return await future


def overloaded(wait_s: float) -> ApiError:
    """The refusal of a request that has no place; `wait_s` is the estimated wait."""
    message = "Too many inputs are waiting for this model; try again later."
    retry = str(min(_RETRY_MAX_S, max(1, math.ceil(wait_s))))
    return ApiError(503, "overloaded", message, headers={"retry-after": retry})


def late() -> ApiError:
    """The refusal of a request that was not admitted in time."""
    message = "The model did not come to this request in time; try again later."
    return ApiError(503, "overloaded", message, headers={"retry-after": "1"})
