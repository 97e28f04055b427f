"""`GET /v1/evaluations/{id}/events`: progress as server-sent events.

However many clients follow, the table is read by one task of the process, a few times a second.
"""

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from anyio import to_thread
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as AllConnectionsTakenError
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from service.api.evidence import find_job
from service.http.refusal import ApiError
from service.http.shares import Shares, sharer_of
from service.jobs.queue import JobStore
from service.jobs.table import Job

logger = logging.getLogger(__name__)

MEDIA_TYPE = "text/event-stream"
_POLL_S = 0.25
_HEARTBEAT_S = 15.0
_LOOK_S = 0.5  # how soon a stopping server ends the stream
_RETRY_AFTER_S = 5
_RECONNECT_MS = 2000
# A proxy must pass each event on at once, and nobody may keep it.
_HEADERS = {"cache-control": "no-store", "x-accel-buffering": "no"}


class Follower:
    """Sees the changes of one evaluation."""

    def __init__(self, job_id: str) -> None:
        self.job_id = job_id
        self._job: Job | None = None
        self._changed = asyncio.Event()

    async def next(self, timeout: float) -> Job | None:
        """The row when it has changed, at first always; None when it has not for some seconds."""
        try:
            async with asyncio.timeout(timeout):
                await self._changed.wait()
        except TimeoutError:
            return None
        self._changed.clear()
        return self._job

    def show(self, job: Job) -> None:
        """Take notice of the row as it is now."""
        if job != self._job:
            self._job = job
            self._changed.set()


class Feed:
    """Reads the rows that are followed."""

    def __init__(self, store: JobStore) -> None:
        self._store = store
        self._followers: set[Follower] = set()
        self._reading: asyncio.Task[None] | None = None

    @contextmanager
    def follow(self, job_id: str) -> Iterator[Follower]:
        """Follow an evaluation within the block."""
        follower = Follower(job_id)
        self._followers.add(follower)
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._read())
        try:
            yield follower
        finally:
            self._followers.discard(follower)

    async def _read(self) -> None:
        while self._followers:
            ids = {follower.job_id for follower in self._followers}
            try:
                found = await to_thread.run_sync(self._store.get_all, ids)
            except (DBAPIError, AllConnectionsTakenError):
                # It restarts, perhaps; whoever waits goes on waiting.
                logger.warning("The table of evaluations does not answer")
                found = {}
            for follower in self._followers:
                if follower.job_id in found:
                    follower.show(found[follower.job_id])
            await asyncio.sleep(_POLL_S)


@dataclass
class Events:
    """Streams of this process.

    Attributes:
        store: the table of evaluations.
        feed: reads it.
        places: for clients that follow.
        render: makes the JSON object of an evaluation, as `GET /v1/evaluations/{id}` answers it.
    """

    store: JobStore
    feed: Feed
    places: Shares
    render: Callable[[Job], dict[str, Any]]

    async def stream(self, request: Request, id: str) -> Response:
        """Progress of an evaluation as server-sent events."""
        job = await find_job(self.store, request, id)
        if request.method == "HEAD":
            return Response(media_type=MEDIA_TYPE, headers=_HEADERS)
        sharer = sharer_of(request)
        if not self.places.take(sharer):
            held = self.places.held(sharer)
            message = f"You follow {held} evaluations, your share; ask for the state instead."
            headers = {"Retry-After": str(_RETRY_AFTER_S)}
            raise ApiError(503, "too_many_streams", message, headers=headers)
        return _Stream(self._events(request, job.id), lambda: self.places.give_back(sharer))

    async def _events(self, request: Request, job_id: str) -> AsyncIterator[str]:
        """`progress` at once and on every change, `end` when there will be none."""
        yield f"retry: {_RECONNECT_MS}\n\n"
        with self.feed.follow(job_id) as follower:
            shown, said = "", time.monotonic()
            while not request.app.state.leaving:
                job = await follower.next(_LOOK_S)
                text = shown if job is None else json.dumps(self.render(job))
                if text != shown:
                    shown, said = text, time.monotonic()
                    yield f"event: progress\ndata: {text}\n\n"
                if job is not None and not job.active:
                    yield f"event: end\ndata: {text}\n\n"
                    return
                if time.monotonic() - said >= _HEARTBEAT_S:
                    said = time.monotonic()
                    yield ": still here\n\n"


class _Stream(StreamingResponse):
    """Calls `close` however it ends, also when the client left before the first event."""

    def __init__(self, events: AsyncIterator[str], close: Callable[[], None]) -> None:
        super().__init__(events, media_type=MEDIA_TYPE, headers=_HEADERS)
        self._close = close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events until the end, or until the client leaves."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._close()
