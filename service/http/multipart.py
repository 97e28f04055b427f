"""Cuts a multipart/form-data body into its parts, strictly (RFC 7578).

The body is in memory already, so that a few searches in C are enough.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from python_multipart.multipart import parse_options_header

from service.http.errors import ApiError

_BOUNDARY = re.compile(r"[0-9A-Za-z'()+_,\-./:=? ]{0,69}[0-9A-Za-z'()+_,\-./:=?]")  # RFC 2046
_MAX_HEADER_BYTES = 8192


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
    dashes = b"--" + boundary
    if body.startswith(dashes):
        position = len(dashes)
    else:  # a preamble, which nobody reads
        position = body.find(b"\r\n" + dashes) + len(dashes) + 2
        if position < len(dashes) + 2:
            raise malformed("The body does not begin with its boundary")
    delimiter = b"\r\n" + dashes
    while not body.startswith(b"--", position):
        start = _after_line(body, position)
        head = body.find(b"\r\n\r\n", start, start + _MAX_HEADER_BYTES)
        end = -1 if head < 0 else body.find(delimiter, head + 4)
        if end < 0:
            raise malformed("The multipart body ends too early")
        name, filename = _disposition(body[start:head])
        yield Part(name, filename, body[head + 4 : end])
        position = end + len(delimiter)


def malformed(reason: str) -> ApiError:
    """The refusal of a body that is no form."""
    return ApiError(400, "malformed_multipart", f"{reason}.")


def _after_line(body: bytes, position: int) -> int:
    """Where the line that holds a boundary ends; nothing but blanks may follow the boundary."""
    end = body.find(b"\r\n", position, position + _MAX_HEADER_BYTES)
    if end < 0 or body[position:end].strip(b" \t"):
        raise malformed("A boundary is not alone on its line")
    return end + 2


def _disposition(head: bytes) -> tuple[str, str | None]:
    """Name and file name of a part, from its header lines."""
    for line in head.split(b"\r\n"):
        key, _, value = line.partition(b":")
        if key.strip().lower() == b"content-disposition":
            kind, options = parse_options_header(value.strip())
            name, filename = options.get(b"name"), options.get(b"filename")
            if kind == b"form-data" and name:
                return _text(name), None if filename is None else _text(filename)
    raise malformed("A part has no Content-Disposition with a name")


def _text(value: bytes) -> str:
    return value.decode("utf-8", errors="replace")
