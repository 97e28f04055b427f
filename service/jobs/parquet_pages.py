"""The pages of a parquet file, read from their headers alone.

A page says how large it becomes and how many values it holds, and readers reserve memory for what
it says before they look at what follows. So this is checked first, without decoding anything.

Source: the Parquet format's parquet.thrift, in Thrift's compact protocol.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow.parquet as pq

_MAGIC = b"PAR1"
_FOOTER = 8  # its length, and the magic number
# Of the list of contents: for thousands of rows a few kilobytes, unpacked many times as much.
_MAX_FOOTER = 1_000_000
_UNPACKED_SIZE, _PACKED_SIZE = 2, 3
_KINDS = (5, 7, 8)  # fields with the header of a data page, of a dictionary, of a data page v2
_NUM_VALUES = 1  # the first field of each of them
_TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY = range(1, 9)
_STRUCT = 12
_DEPTH = 8


class BrokenPages(ValueError):
    """The headers contradict the file or themselves."""


@dataclass(frozen=True, slots=True)
class Page:
    """What a page says of itself: bytes packed and unpacked, and values."""

    packed: int
    unpacked: int
    values: int


def check_footer(content: bytes) -> None:
    """Refuse a list of contents that is not there, or that alone would fill the memory.

    Raises:
        BrokenPages: see above.
    """
    if len(content) < 2 * _FOOTER or content[-4:] != _MAGIC:
        raise BrokenPages("the file is incomplete")
    (length,) = struct.unpack_from("<L", content, len(content) - _FOOTER)
    if length > min(_MAX_FOOTER, len(content) - _FOOTER):
        raise BrokenPages("the list of contents is too long")


def declared_size(content: bytes, metadata: pq.FileMetaData, columns: set[str]) -> int:
    """Bytes that some columns say they become.

    Args:
        content: the file, whose footer was checked.
        metadata: its list of contents.
        columns: names of top-level columns; others are not looked at.

    Raises:
        BrokenPages: a column is repeated within a row, or a page says something impossible.
    """
    size = 0
    for index in range(metadata.num_row_groups):
        group = metadata.row_group(index)
        for position in range(group.num_columns):
            chunk = group.column(position)
            if chunk.path_in_schema.partition(".")[0] not in columns:
                continue
            if metadata.schema.column(position).max_repetition_level:
                raise BrokenPages("a column holds lists")
            for page in _pages(content, chunk):
                # Every value of a flat column, and every entry of its dictionary, is of a row.
                if page.values > group.num_rows:
                    raise BrokenPages("a page holds more values than rows")
                size += page.unpacked
    return size


def _pages(content: bytes, chunk: Any) -> Iterator[Page]:
    offsets = [chunk.data_page_offset]
    if chunk.has_dictionary_page and chunk.dictionary_page_offset:
        offsets.append(chunk.dictionary_page_offset)
    position, end = min(offsets), min(offsets) + chunk.total_compressed_size
    if not 0 <= position <= end <= len(content):
        raise BrokenPages("a column lies outside of the file")
    while position < end:
        reader = _Reader(content, position, end)
        page = reader.page()
        position = reader.position + page.packed
        yield page
    if position != end:
        raise BrokenPages("a page lies outside of its column")


class _Reader:
    """Reads Thrift's compact protocol within bounds."""

    def __init__(self, content: bytes, position: int, end: int) -> None:
        self._content = content
        self.position = position
        self._end = end

    def page(self) -> Page:
        """A page's header; the position is that of its content afterwards."""
        fields = self._struct(0)
        kinds = [fields[kind] for kind in _KINDS if isinstance(fields.get(kind), dict)]
        values = [_count(kind.get(_NUM_VALUES)) for kind in kinds]
        packed, unpacked = _count(fields.get(_PACKED_SIZE)), _count(fields.get(_UNPACKED_SIZE))
        return Page(packed, unpacked, max(values, default=0))

    def _struct(self, depth: int) -> dict[int, Any]:
        if depth > _DEPTH:
            raise BrokenPages("a page's header is nested too deeply")
        fields: dict[int, Any] = {}
        number = 0
        while head := self._byte():
            kind, step = head & 15, head >> 4
            number = number + step if step else self._signed()
            fields[number] = self._value(kind, depth)
        return fields

    def _value(self, kind: int, depth: int) -> Any:
        if kind in (_TRUE, _FALSE):
            return kind == _TRUE
        if kind in (_I16, _I32, _I64):
            return self._signed()
        if kind == _STRUCT:
            return self._struct(depth + 1)
        if kind in (_BYTE, _DOUBLE, _BINARY):
            self._skip({_BYTE: 1, _DOUBLE: 8}.get(kind) or self._unsigned())
            return None
        # Lists and maps: no header of a page has one.
        raise BrokenPages("a page's header cannot be read")

    def _signed(self) -> int:
        number = self._unsigned()
        return (number >> 1) ^ -(number & 1)

    def _unsigned(self) -> int:
        number = 0
        for shift in range(0, 70, 7):
            byte = self._byte()
            number |= (byte & 127) << shift
            if byte < 128:
                return number
        raise BrokenPages("a page's header holds an endless number")

    def _byte(self) -> int:
        self._skip(1)
        return self._content[self.position - 1]

    def _skip(self, count: int) -> None:
        self.position += count
        if self.position > self._end:
            raise BrokenPages("a page's header is incomplete")


def _count(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise BrokenPages("a page's header does not tell its size")
    return value
