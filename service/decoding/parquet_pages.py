"""What the pages of a parquet file say that they become, read before pyarrow sees them."""

import struct
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyarrow.parquet import FileMetaData

MAGIC = b"PAR1"
"""How parquet files begin and end."""
_FOOTER = 8  # its length, and the magic number
# Of the list of contents: for thousands of rows a few kilobytes, unpacked many times as much.
_MAX_FOOTER = 1_000_000
_UNPACKED_SIZE, _PACKED_SIZE = 2, 3
_KINDS = (5, 7, 8)  # fields with the header of a data page, of a dictionary, of a data page v2
_NUM_VALUES = 1  # the first field of each of them
_INTEGERS, _BINARY, _STRUCT = (4, 5, 6), 8, 12  # Thrift's types
_WIDTHS = {1: 0, 2: 0, 3: 1, 7: 8}  # bytes of true, false, a byte and a double
_DEPTH = 8
_HEADER = 200  # bytes of numbers in a page's header, several times what its fields take
_PAGES = 8  # for each row: of three columns, with their dictionaries


def check_footer(content: bytes) -> None:
    """Refuse a list of contents that is not there, or that alone would fill the memory.

    Raises:
        ValueError: that is so.
    """
    if len(content) < 2 * _FOOTER or content[-4:] != MAGIC:
        raise ValueError("the file is incomplete")
    (length,) = struct.unpack_from("<L", content, len(content) - _FOOTER)
    if length > min(_MAX_FOOTER, len(content) - _FOOTER):
        raise ValueError("the list of contents is too long")


def page_sizes(content: bytes, metadata: "FileMetaData", columns: Collection[str]) -> Iterator[int]:
    """Bytes that each page of some top-level columns says it becomes.

    Raises:
        ValueError: a column is repeated within a row, a page says something impossible, or there
            are many more pages than rows.
    """
    pages = _PAGES * (metadata.num_rows + 100)
    for index in range(metadata.num_row_groups):
        group = metadata.row_group(index)
        for position in range(group.num_columns):
            chunk = group.column(position)
            if chunk.path_in_schema.partition(".")[0] not in columns:
                continue
            if metadata.schema.column(position).max_repetition_level:
                raise ValueError("a column holds lists")
            for unpacked, values in _pages(content, chunk):
                # Every value of a flat column, and every entry of its dictionary, is of a row.
                if values > group.num_rows:
                    raise ValueError("a page holds more values than rows")
                pages -= 1
                if pages < 0:
                    raise ValueError("there are too many pages")
                yield unpacked


def _pages(content: bytes, chunk: Any) -> Iterator[tuple[int, int]]:
    """Unpacked bytes and number of values of every page."""
    offsets = [chunk.data_page_offset]
    if chunk.has_dictionary_page and chunk.dictionary_page_offset:
        offsets.append(chunk.dictionary_page_offset)
    position, end = min(offsets), min(offsets) + chunk.total_compressed_size
    if not 0 <= position <= end <= len(content):
        raise ValueError("a column lies outside of the file")
    while position < end:
        reader = _Reader(content, position, end)
        header = reader.read_struct(0)
        kinds = [header[kind] for kind in _KINDS if isinstance(header.get(kind), dict)]
        values = [_count(kind.get(_NUM_VALUES)) for kind in kinds]
        position = reader.position + _count(header.get(_PACKED_SIZE))
        yield _count(header.get(_UNPACKED_SIZE)), max(values, default=0)
    if position != end:
        raise ValueError("a page lies outside of its column")


class _Reader:
    """Reads Thrift's compact protocol within bounds."""

    def __init__(self, content: bytes, position: int, end: int) -> None:
        self._content = content
        self.position = position
        self._end = end
        self._numbers = 0

    def read_struct(self, depth: int) -> dict[int, Any]:
        """Fields by number."""
        if depth > _DEPTH:
            raise ValueError("a page's header is nested too deeply")
        fields: dict[int, Any] = {}
        number = 0
        while head := self._byte():
            kind, step = head & 15, head >> 4
            number = number + step if step else self._signed()
            fields[number] = self._value(kind, depth)
        return fields

    def _value(self, kind: int, depth: int) -> Any:
        if kind in _INTEGERS:
            return self._signed()
        if kind == _STRUCT:
            return self.read_struct(depth + 1)
        if kind != _BINARY and kind not in _WIDTHS:  # lists and maps: no header of a page has one
            raise ValueError("a page's header cannot be read")
        self._skip(self._unsigned() if kind == _BINARY else _WIDTHS[kind])
        return None

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
        raise ValueError("a page's header holds an endless number")

    def _byte(self) -> int:
        self._skip(1)
        self._numbers += 1
        if self._numbers > _HEADER:
            raise ValueError("a page's header is too long")
        return self._content[self.position - 1]

    def _skip(self, count: int) -> None:
        self.position += count
        if self.position > self._end:
            raise ValueError("a page's header is incomplete")


def _count(value: object) -> int:
    if not isinstance(value, int) or value < 0:
        raise ValueError("a page's header does not tell its size")
    return value
