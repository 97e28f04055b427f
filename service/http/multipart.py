"""Cuts a multipart/form-data body into its parts (RFC 7578), with the parser of python-multipart.

Starlette's own use of that parser writes files and counts parts only when all have been read; here
whoever takes the parts may stop at any of them.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, MultipartState, parse_options_header

from service.http.errors import ApiError

_BOUNDARY = re.compile(r"[0-9A-Za-z'()+_,\-./:=? ]{0,69}[0-9A-Za-z'()+_,\-./:=?]")  # RFC 2046
_STEP = 1 << 16  # bytes read before the parts in them are handed out


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a form; `filename` is None for a text field."""

    name: str
    filename: str | None
    content: bytes


def boundary_of(content_type: str) -> bytes:
    """The boundary that a content type names.

    Raises:
        ApiError: 400 malformed_multipart.
    """
    boundary = parse_options_header(content_type)[1].get(b"boundary", b"")
    if not _BOUNDARY.fullmatch(boundary.decode("latin-1")):
        raise malformed("The content type must name a boundary of 1 to 70 characters")
    return boundary


def parts(body: bytes, boundary: bytes) -> Iterator[Part]:
    """The parts of a body in order.

    Args:
        body: the whole of it.
        boundary: from `boundary_of`.

    Raises:
        ApiError: 400 malformed_multipart.
    """
    reader = _Reader()
    parser = MultipartParser(boundary, reader.callbacks())
    try:
        for start in range(0, len(body), _STEP):
            parser.write(body[start : start + _STEP])
            yield from reader.take()
    except FormParserError as error:
        raise malformed("The multipart body cannot be read") from error
    if parser.state != MultipartState.END:
        raise malformed("The multipart body ends too early")


def malformed(reason: str) -> ApiError:
    """The refusal of a body that is no form."""
    return ApiError(400, "malformed_multipart", f"{reason}.")


class _Reader:
    """Collects what the parser reports of a part, until it is complete."""

    def __init__(self) -> None:
        self._complete: list[Part] = []
        self._headers: dict[bytes, bytes] = {}
        self._field, self._value = bytearray(), bytearray()
        self._content: list[bytes] = []

    def callbacks(self) -> Any:
        """What the parser calls."""
        return {
            "on_part_begin": self._begin,
            "on_header_field": lambda data, start, end: self._field.extend(data[start:end]),
            "on_header_value": lambda data, start, end: self._value.extend(data[start:end]),
            "on_header_end": self._header,
            "on_part_data": lambda data, start, end: self._content.append(data[start:end]),
            "on_part_end": self._end,
        }

    def take(self) -> list[Part]:
        """The parts that are complete and were not taken yet."""
        complete, self._complete = self._complete, []
        return complete

    def _begin(self) -> None:
        self._headers, self._content = {}, []

    def _header(self) -> None:
        self._headers.setdefault(bytes(self._field).strip().lower(), bytes(self._value).strip())
        self._field, self._value = bytearray(), bytearray()

    def _end(self) -> None:
        kind, options = parse_options_header(self._headers.get(b"content-disposition", b""))
        name, filename = options.get(b"name"), options.get(b"filename")
        if kind != b"form-data" or not name:
            raise malformed("A part has no Content-Disposition with a name")
        shown = None if filename is None else _text(filename)
        self._complete.append(Part(_text(name), shown, b"".join(self._content)))


def _text(value: bytes) -> str:
    return value.decode("utf-8", errors="replace")
