"""Reads the bodies of predictions: bounded in time and, over all requests, in number and bytes."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.requests import ClientDisconnect, Request

from service.http.errors import ApiError
from service.settings import Settings


class Bodies:
    """What is held of all requests that are read or answered now; belongs to one event loop."""

    def __init__(self, settings: Settings) -> None:
        self._max_bytes = int(settings.predict_bodies_mb * 1_000_000)
        self._max_count = settings.predict_queue
        self._timeout_s = settings.predict_timeout_s
        self._max_json = int(settings.max_json_mb * 1_000_000)
        self._bytes = 0
        self._reading = 0

    @asynccontextmanager
    async def read(self, request: Request, *, arrived: float) -> AsyncIterator[bytes]:
        """The body, counted as held until the block ends.

        Args:
            request: its body is read here.
            arrived: time of the event loop from which the deadline of the prediction counts.

        Raises:
            ApiError: 408 upload_timeout, 415 compressed_body, 503 overloaded.
        """
        _refuse_compressed(request)
        held = 0
        if self._reading >= self._max_count:
            raise _busy()
        self._reading += 1
        try:
            chunks = []
            try:
                async with asyncio.timeout_at(arrived + self._timeout_s):
                    async for chunk in request.stream():
                        held += len(chunk)
                        self._bytes += len(chunk)
                        # One alone is bounded by the limit of every body.
                        if self._bytes > self._max_bytes and self._bytes > held:
                            raise _busy()
                        chunks.append(chunk)
            except TimeoutError as error:
                message = f"The body was not complete after {self._timeout_s:g} s."
                raise ApiError(408, "upload_timeout", message) from error
            except ClientDisconnect as error:  # nobody hears this
                raise ApiError(400, "incomplete_body", "The body is not complete.") from error
            finally:
                self._reading -= 1
            yield b"".join(chunks)
        finally:
            self._bytes -= held

    def check_json(self, size: int) -> None:
        """Refuse JSON whose parsing would keep every other request waiting.

        Raises:
            ApiError: 413 body_too_large.
        """
        if size > self._max_json:
            limit = f"{self._max_json / 1_000_000:g} MB"
            message = f"The JSON of a prediction may have at most {limit}."
            raise ApiError(413, "body_too_large", message)


def _refuse_compressed(request: Request) -> None:
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("", "identity"):
        message = "A compressed body is not taken: send it as it is."
        headers = {"accept-encoding": "identity"}
        raise ApiError(415, "compressed_body", message, headers=headers)


def _busy() -> ApiError:
    message = "Too many requests are being read; try again later."
    return ApiError(503, "overloaded", message, headers={"retry-after": "1"})
