"""Clients that leave before they are answered: nothing goes on for them."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from starlette.requests import Request

from service.http.refusal import ApiError

_MOMENT_S = 0.05  # in which most predictions are answered; a task for each would cost time


@asynccontextmanager
async def watching(
    request: Request, on_left: Callable[[], object], *, after: float = 0
) -> AsyncIterator[None]:
    """Call `on_left` when the client leaves inside the block, whose body has been read before.

    Args:
        request: of the client.
        on_left: called in the event loop.
        after: seconds, before which nobody looks.
    """
    task: asyncio.Task[None] | None = None

    async def watch() -> None:
        """Wait for it."""
        while (await request.receive())["type"] != "http.disconnect":
            pass
        on_left()

    def begin() -> None:
        """Start to wait."""
        nonlocal task
        task = asyncio.create_task(watch())

    timer = asyncio.get_running_loop().call_later(after, begin)
    try:
        yield
    finally:
        timer.cancel()
        if task is not None:
            task.cancel()


@asynccontextmanager
async def while_connected(request: Request) -> AsyncIterator[None]:
    """Cancel the block when the client leaves inside it; the body has been read before.

    Raises:
        ApiError: 499 client_left, which is for the log: nobody reads the answer.
    """
    scope, now = asyncio.timeout(None), asyncio.get_running_loop().time
    try:
        async with scope, watching(request, lambda: scope.reschedule(now()), after=_MOMENT_S):
            yield
    except TimeoutError as error:
        if not scope.expired():
            raise
        raise client_left() from error


def client_left() -> ApiError:
    """The answer that nobody reads."""
    return ApiError(499, "client_left", "The client has left.")
