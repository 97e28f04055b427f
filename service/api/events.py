"""`GET /v1/evaluations/{id}/events`: progress as server-sent events."""

import json
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from service.api.event_stream import Feed
from service.api.evidence import find_job
from service.http.errors import ApiError
from service.http.openapi import describe
from service.jobs.job import Job
from service.jobs.queue import JobStore

_MEDIA_TYPE = "text/event-stream"
_HEARTBEAT_S = 15.0
_LOOK_S = 0.5  # how soon a stopping server ends the stream
_RETRY_AFTER_S = 5
_RECONNECT_MS = 2000
# A proxy must pass each event on at once, and nobody may keep it.
_HEADERS = {"cache-control": "no-store", "x-accel-buffering": "no"}


class Events:
    """Streams of this process.

    Args:
        store: the table of evaluations.
        feed: tells of changes.
        most: streams at a time.
        render: the JSON object of an evaluation, as `GET /v1/evaluations/{id}` answers it.
    """

    def __init__(
        self, store: JobStore, feed: Feed, most: int, render: Callable[[Job], dict[str, Any]]
    ) -> None:
        self._store = store
        self._feed = feed
        self._most = most
        self._render = render
        self._open = 0

    @describe(media_type=_MEDIA_TYPE, errors=(404, 410, 422, 503))
    async def stream(self, request: Request) -> Response:
        """Progress of an evaluation as server-sent events."""
        job = await find_job(self._store, request)
        if request.method == "HEAD":
            return Response(media_type=_MEDIA_TYPE, headers=_HEADERS)
        if self._open >= self._most:
            message = f"{self._most} clients follow evaluations already; ask for the state instead."
            headers = {"Retry-After": str(_RETRY_AFTER_S)}
            raise ApiError(503, "too_many_streams", message, headers=headers)
        self._open += 1
        return _Stream(self._events(request, job.id), self._close)

    def _close(self) -> None:
        self._open -= 1

    async def _events(self, request: Request, job_id: str) -> AsyncIterator[str]:
        """`progress` at once and on every change, `end` when there will be none."""
        yield f"retry: {_RECONNECT_MS}\n\n"
        with self._feed.follow(job_id) as follower:
            shown, said = "", time.monotonic()
            while not getattr(request.app.state, "leaving", False):
                job = await follower.next(_LOOK_S)
                text = shown if job is None else json.dumps(self._render(job))
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
        super().__init__(events, media_type=_MEDIA_TYPE, headers=_HEADERS)
        self._close = close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events until the end, or until the client leaves."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._close()
