"""The one reader of bodies: bounded in size, in time and, over all requests, in memory.

FastAPI declares no body anywhere: it would read one before the key is checked, on the event loop.
"""

import asyncio
import errno
import re
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ValidationError, WithJsonSchema
from python_multipart.exceptions import FormParserError
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException
from starlette.requests import Request
from starlette.types import Message

from core.names import sentence
from service.http.documents import media_type, unhurried
from service.http.refusal import ApiError
from service.http.shares import Shares, fits, sharer_of
from service.processes import return_memory
from service.settings import Settings

_MAX_FIELDS = 64
_MAX_TEXT_FORM = 65_536  # bytes of a form without files; each of them costs much time
_MAX_TEXT = 8_000_000  # bytes of a text in a form with files: 2 MB of characters
_LEAST_RATE = 1000  # bytes per second
_BEHIND_S = 1.0  # so far behind that rate, a body gives way to others
_UPLOADS = 64  # bodies that are read at a time, besides those of predictions
_SLICE = 32_768  # bytes of a form that are parsed at a time; tiny parts cost a microsecond a byte
_LARGE, _TIDY_S = 1_000_000, 5.0  # bytes of a body that leaves memory behind, and how long
_TAIL = 4096  # bytes at the end of a form, in which its last boundary must be
_BOUNDARY = re.compile(  # RFC 2046
    r"""boundary=(?:"([\w'()+,./:=? -]{0,69}[\w'()+,./:=?-])"|([\w'()+,./:=?-]{1,70})(?:;|\s|$))""",
    re.ASCII | re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Upload:
    """A file of a form: the name its sender gave it, and its bytes."""

    name: str
    content: bytes


_BYTES = {"type": "string", "format": "binary", "contentMediaType": "application/octet-stream"}
File = Annotated[Upload, WithJsonSchema(_BYTES)]
"""A file in the model of a form."""

_Model = TypeVar("_Model", bound=BaseModel)


def _validated(model: type[_Model], fields: dict[str, Any]) -> _Model:
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        problem = error.errors(include_url=False, include_context=False)[0]
    field = str(problem["loc"][0])
    if problem["type"] in ("missing", "too_short"):
        message = f"The field {field!r} must hold something."
        raise ApiError(422, f"no_{field}", message)
    message = sentence(f"The field {field!r} is not acceptable: {problem['msg']}")
    raise ApiError(422, f"invalid_{field}", message)


class Body:
    """A body within limits.

    Args:
        request: its body is not read yet.
        max_bytes: of it.
        seconds: from now, in which it must be complete.
        stall_s: how long it may lag behind 1 kB/s.
        on_bytes: is called with the number of bytes of each part, and may raise.

    Attributes:
        sharer: who sends it, see `sharer_of`.
        arrived: time of the event loop from which the seconds count.
        complete: whether all of it was read.

    Raises:
        ApiError: 413 body_too_large, 415 compressed_body.
    """

    def __init__(
        self,
        request: Request,
        *,
        max_bytes: int,
        seconds: float,
        stall_s: float,
        on_bytes: Callable[[int], None],
    ) -> None:
        self._source, self._max_bytes, self._on_bytes = request, max_bytes, on_bytes
        self.sharer = sharer_of(request)
        self.arrived, self._seconds = asyncio.get_running_loop().time(), seconds
        self._stall_s, self._patience = stall_s, self.arrived + stall_s
        self._timeout: asyncio.Timeout | None = None  # of the part that is awaited
        self._gives_way = False
        self._received, self._tail = 0, b""
        self._unread = memoryview(b"")
        self._end = b""  # what the last bytes must hold: Starlette drops parts that are cut off
        self.complete = False
        _refuse_compressed(request)
        length = request.headers.get("content-length", "0")
        if length.isdigit() and int(length) > max_bytes:
            raise too_large(max_bytes)

    @property
    def reading(self) -> bool:
        """Whether more of it is awaited."""
        return not (self.complete or self._gives_way)

    def behind(self) -> float:
        """Seconds that it lags behind the least rate."""
        return asyncio.get_running_loop().time() + self._stall_s - self._patience

    def give_way(self) -> None:
        """End with 408: others need the place."""
        self._gives_way, self._patience = True, self.arrived
        if self._timeout is not None and not self._timeout.expired():
            self._timeout.reschedule(self.arrived)

    async def read(self) -> bytes:
        """All of it.

        Raises:
            ApiError: 400 incomplete_body, 408 upload_timeout, 413 body_too_large.
        """
        request = Request(self._source.scope, self._receive)
        parts = [part async for part in request.stream()]
        return await unhurried(self._received, partial(b"".join, parts))

    async def form(self, model: type[_Model], *, max_files: int) -> _Model:
        """A form with no other fields than a model's.

        Args:
            model: of its fields, a `list[File]` takes files alone, every other one a text that is
                given at most once; a file is taken as its text.
            max_files: files in the whole form.

        Raises:
            ApiError: as in `read`; 400 malformed_multipart; 415 not_multipart, not_a_file; 422
                too_many_images, too_many_fields, unknown_field, duplicate_field, invalid_text,
                ``no_FIELD``, ``invalid_FIELD``; 507 disk_full.
        """
        self._end = self._check_form()
        request = Request(self._source.scope, self._receive_slice)
        largest = _MAX_TEXT if self._end else _MAX_TEXT_FORM
        limits = {"max_fields": _MAX_FIELDS, "max_part_size": largest}
        try:
            async with request.form(max_files=max_files, **limits) as sent:
                return _validated(model, await _sorted(sent.multi_items(), model))
        except (HTTPException, MultiPartException, FormParserError) as error:
            raise _form_error(str(error), max_files, largest) from error
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            message = "The disk of the service is full; nothing was accepted."
            raise ApiError(507, "disk_full", message) from error

    def _check_form(self) -> bytes:
        """The line that ends the form; empty for one without files."""
        kind = media_type(self._source)
        if kind == "application/x-www-form-urlencoded":  # clients send it when they have no file
            self._max_bytes = min(self._max_bytes, _MAX_TEXT_FORM)
            return b""
        if kind == "multipart/form-data":
            found = _BOUNDARY.search(self._source.headers["content-type"])
            if found is None:
                raise malformed("The content type must name a boundary of 1 to 70 characters.")
            return f"--{found[1] or found[2]}--".encode()
        if not kind and self._source.headers.get("content-length", "0") == "0":
            return b""
        message = "The body must be multipart/form-data with the files in it."
        raise ApiError(415, "not_multipart", message)

    async def _receive_slice(self) -> Message:
        """The next bytes, so few that their parser lets others go on soon."""
        if self._unread:
            await asyncio.sleep(0)
        else:
            self._unread = memoryview((await self._receive()).get("body", b""))
        part, self._unread = self._unread[:_SLICE], self._unread[_SLICE:]
        more = bool(self._unread) or not self.complete
        return {"type": "http.request", "body": bytes(part), "more_body": more}

    async def _receive(self) -> Message:
        """The next part of the body, within the limits."""
        end = self.arrived + self._seconds
        until = None if self.complete else min(end, self._patience)
        try:
            async with asyncio.timeout_at(until) as self._timeout:
                message = await self._source.receive()
        except TimeoutError as error:
            late = f"was not complete after {self._seconds:g} s"
            slow = f"came too slowly, with less than {_LEAST_RATE / 1000:g} kB/s"
            text = f"The body {late if end <= self._patience else slow}."
            raise ApiError(408, "upload_timeout", text) from error
        finally:
            self._timeout = None
        if message["type"] == "http.disconnect" and not self.complete:  # nobody hears this
            raise ApiError(400, "incomplete_body", "The body is not complete.")
        part = message.get("body", b"")
        self._received += len(part)
        if self._received > self._max_bytes:
            raise too_large(self._max_bytes)
        self._on_bytes(len(part))
        full = asyncio.get_running_loop().time() + self._stall_s
        self._patience = min(self._patience + len(part) / _LEAST_RATE, full)
        self._tail = part[-_TAIL:] if len(part) >= _TAIL else (self._tail + part)[-_TAIL:]
        self.complete = not message.get("more_body", False)
        if self.complete and self._end not in self._tail:
            raise malformed("The multipart body ends too early.")
        return message


class Bodies:
    """What is held of all requests that are read or answered now; belongs to one event loop.

    Places and memory are shared fairly by sharers, see `Shares`. Where there is no place, a body
    that comes too slowly gives way.

    Args:
        settings: limits of one body.
        places: bodies that are read at a time.
        megabytes: of bodies in memory; two of the largest always fit.
        seconds: from its arrival, in which a body must be complete.
    """

    def __init__(
        self, settings: Settings, *, places: int, megabytes: float, seconds: float
    ) -> None:
        self._max_body, self._stall_s = settings.max_body_bytes, settings.body_stall_s
        self._places, self._seconds = places, seconds
        self._bytes = Shares(max(int(megabytes * 1_000_000), 2 * self._max_body))
        self._open: set[Body] = set()
        self._untidy = False

    @classmethod
    def of_predictions(cls, settings: Settings) -> "Bodies":
        """Those that are held until a model has answered."""
        seconds = min(settings.predict_timeout_s, settings.upload_timeout_s)
        places, megabytes = settings.predict_queue, settings.predict_bodies_mb
        return cls(settings, places=places, megabytes=megabytes, seconds=seconds)

    @classmethod
    def of_uploads(cls, settings: Settings) -> "Bodies":
        """Those that are held until they are stored."""
        seconds, megabytes = settings.upload_timeout_s, settings.upload_bodies_mb
        return cls(settings, places=_UPLOADS, megabytes=megabytes, seconds=seconds)

    @asynccontextmanager
    async def open(self, request: Request, *, max_bytes: int | None = None) -> AsyncIterator[Body]:
        """The body of a request that has just arrived, counted as held until the block ends.

        Args:
            request: its body is not read yet.
            max_bytes: of it, where that is less than any body may have.

        Raises:
            ApiError: 413 body_too_large, 415 compressed_body, 503 overloaded.
        """
        held = 0

        def hold(size: int) -> None:
            """Take notice of the next bytes."""
            nonlocal held
            if not self._bytes.take(body.sharer, size):
                self._make_room(body.sharer)  # for whoever comes next
                raise _busy()
            held += size

        body = Body(
            request,
            max_bytes=min(max_bytes or self._max_body, self._max_body),
            seconds=self._seconds,
            stall_s=self._stall_s,
            on_bytes=hold,
        )
        if not self._has_place(body.sharer) and not self._make_room(body.sharer):
            raise _busy()
        self._open.add(body)
        try:
            yield body
        finally:
            self._open.remove(body)
            self._bytes.give_back(body.sharer, held)
            if held > _LARGE and not self._untidy:
                self._untidy = True
                asyncio.get_running_loop().call_later(_TIDY_S, self._tidy)

    def _tidy(self) -> None:
        self._untidy = False
        asyncio.get_running_loop().run_in_executor(None, return_memory)

    def _has_place(self, sharer: str) -> bool:
        if 2 * len(self._open) < self._places:  # soon told, and mostly so
            return True
        reading = [body for body in self._open if body.reading]
        own = sum(body.sharer == sharer for body in reading)
        return fits(1, own=own, free=self._places - len(reading))

    def _make_room(self, sharer: str) -> bool:
        """Have the slowest body give way: of the same sharer, or of all when it reads none."""
        reading = [body for body in self._open if body.reading]
        own = [body for body in reading if body.sharer == sharer]
        slowest = max(own or reading, key=Body.behind, default=None)
        if slowest is None or slowest.behind() < _BEHIND_S:
            return False
        slowest.give_way()
        return True


def too_large(max_bytes: int, what: str = "This request's body") -> ApiError:
    """The refusal of a body, or of a part of one."""
    limit = f"{max_bytes / 1_000_000:g} MB"
    return ApiError(413, "body_too_large", f"{what} may have at most {limit}.")


def malformed(message: str) -> ApiError:
    """The refusal of a body that is not a form."""
    return ApiError(400, "malformed_multipart", message)


async def _sorted(
    items: Iterable[tuple[str, UploadFile | str]], model: type[BaseModel]
) -> dict[str, Any]:
    """The files in order, and the texts, by field."""
    known = model.model_fields
    files = {name: [] for name, field in known.items() if field.annotation == list[File]}
    texts: dict[str, str] = {}
    for name, value in items:
        if name in files:
            if isinstance(value, str):
                message = f"The field {name!r} takes files only; URLs and text are never fetched."
                raise ApiError(415, "not_a_file", message)
            if value.size or value.filename:  # else what a browser sends for a field left empty
                files[name].append(Upload(value.filename or "", await value.read()))
        elif name not in known:
            message = f"There is no field {name[:64]!r} here; known: {', '.join(known)}."
            raise ApiError(422, "unknown_field", message)
        elif name in texts:
            raise ApiError(422, "duplicate_field", f"The field {name!r} may be given once.")
        else:
            texts[name] = await _text(name, value)
    return files | texts


async def _text(name: str, value: UploadFile | str) -> str:
    if isinstance(value, str):
        return value
    if (value.size or 0) > _MAX_TEXT:
        raise too_large(_MAX_TEXT, "The texts of a form")
    try:
        return (await value.read()).decode()
    except UnicodeDecodeError as error:
        message = f"The field {name!r} must be UTF-8 text."
        raise ApiError(422, "invalid_text", message) from error


def _form_error(reason: str, max_files: int, max_part_size: int) -> ApiError:
    """What Starlette's parser refuses, told by the words of its message."""
    if "Too many files" in reason:
        message = f"At most {max_files} files may be sent at once."
        return ApiError(422, "too_many_images", message, {"limit": max_files})
    if "Too many fields" in reason:
        return ApiError(422, "too_many_fields", f"At most {_MAX_FIELDS} fields may be sent.")
    if "exceeded maximum size" in reason:
        return too_large(max_part_size, "The texts of a form")
    return malformed("The multipart body cannot be read.")


def _refuse_compressed(request: Request) -> None:
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("", "identity"):
        message = "A compressed body is not taken: send it as it is."
        headers = {"accept-encoding": "identity"}
        raise ApiError(415, "compressed_body", message, headers=headers)


def _busy() -> ApiError:
    message = "Too many requests are being read, or too many of yours; try again later."
    return ApiError(503, "overloaded", message, headers={"retry-after": "1"})
