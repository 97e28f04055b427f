"""Archives from strangers, refused before anything in them is unpacked."""

import csv
import io
import stat
import struct
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Literal

from data.errors import DataError
from service.http.errors import ApiError
from service.settings import Settings

if TYPE_CHECKING:
    from pyarrow.parquet import FileMetaData

_MAGIC = b"PAR1"
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


def declared_size(content: bytes, metadata: "FileMetaData", columns: set[str]) -> int:
    """Bytes that some top-level columns say they become.

    Raises:
        ValueError: a column is repeated within a row, a page says something impossible, or there
            are many more pages than rows.
    """
    size = 0
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
                size += unpacked
    return size


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


_END_OF_DIRECTORY = b"PK\x05\x06"
_LOCATOR_64 = b"PK\x06\x07"  # of the zip64 record, 56 bytes before it, which overrides the other
_END_SIZE = 56 + 20 + 22 + 65_535  # both records, and the longest comment behind them
# Bytes of directory per image: name, extra fields, and as much again for folders and side files.
_DIRECTORY_ENTRY = 1000
_COLUMNS = ("image", "text", "label")  # of a parquet file, what is read

_LINES = 100  # of a csv file for each text, blank ones and those inside of texts included
_ROW = 4  # times the longest text, in characters: its quotes are doubled, and there are other cells
_MOST_COLUMNS = 100

What = Literal["images", "texts"]


@contextmanager
def reading(what: str) -> Iterator[None]:
    """Answer a sender whatever a library raises at a broken file; such errors share no class.

    Raises:
        ApiError: 422 broken_archive.
        DataError: our own readers say what is wrong.
    """
    try:
        yield
    except (ApiError, DataError):
        raise
    except Exception as error:
        raise ApiError(422, "broken_archive", f"{what} cannot be read.") from error


def check_archive(content: bytes, settings: Settings, what: What) -> str:
    """Tell what an archive is, by its first bytes, and refuse a hostile one.

    Returns:
        The suffix of its kind: parquet, zip for images, csv for texts.

    Raises:
        ApiError: 415 not_an_archive, 413 archive_too_large, 422 unsafe_archive, broken_archive,
            too_many_images or too_many_texts.
    """
    if content[:4] == _MAGIC:
        _check_parquet(content, settings, what)
        return "parquet"
    zipped = content[:2] == b"PK"
    if what == "images" and zipped:
        _check_zip(content, settings)
        return "zip"
    if what == "texts" and not zipped:
        _check_csv(content, settings)
        return "csv"
    message = "The archive is neither a zip nor a parquet file."
    if zipped:
        message = "An archive of texts must be a csv or parquet file, and this is a zip."
    raise ApiError(415, "not_an_archive", message)


def check_samples(count: int, settings: Settings, what: What) -> None:
    """Refuse more inputs than allowed.

    Raises:
        ApiError: 422 too_many_images or too_many_texts.
    """
    limit = settings.evaluation_max_samples
    if count > limit:
        message = f"{count} {what} are more than the {limit} allowed."
        raise ApiError(422, f"too_many_{what}", message, {"limit": limit})


class _Lines:
    """The lines of a csv file, neither too many nor too long for one row.

    Attributes:
        rows: that have ended, blank ones left out; the first is the header.
    """

    def __init__(self, content: bytes, settings: Settings) -> None:
        self._lines = io.TextIOWrapper(io.BytesIO(content), encoding="utf-8-sig", newline="")
        self._most = _LINES * settings.evaluation_max_samples
        self._longest = settings.max_text_chars
        self._count = self._in_row = 0
        self.rows = 0

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        """The next line.

        Raises:
            ApiError: 413 archive_too_large, text_too_long.
        """
        line = next(self._lines)
        self._count += 1
        self._in_row += len(line)
        if self._count > self._most:
            message = f"The csv file has more than {self._most:,} lines."
            raise ApiError(413, "archive_too_large", message)
        if self._in_row > _ROW * self._longest:
            message = f"Row {self.rows} of the csv file is longer than {_ROW * self._longest:,}"
            details = {"text": self.rows - 1, "limit": self._longest}
            message += f" characters; a text may have {self._longest:,}."
            raise ApiError(413, "text_too_long", message, details)
        return line

    def end_row(self, cells: list[str]) -> None:
        """Count a row.

        Raises:
            ApiError: 413 archive_too_large.
        """
        if len(cells) > _MOST_COLUMNS:
            message = f"The csv file has more than {_MOST_COLUMNS} columns."
            raise ApiError(413, "archive_too_large", message)
        self._in_row = 0
        self.rows += bool(cells)


def _check_csv(content: bytes, settings: Settings) -> None:
    """Refuse too many rows before they are kept in memory."""
    limit, lines = settings.evaluation_max_samples, _Lines(content, settings)
    try:
        for cells in csv.reader(lines, strict=True):
            lines.end_row(cells)
            if lines.rows > limit + 1:
                message = f"More than {limit} texts are more than the {limit} allowed."
                raise ApiError(422, "too_many_texts", message, {"limit": limit})
    except (csv.Error, UnicodeDecodeError):
        return  # whoever reads the rows says what is wrong with which


def _check_parquet(content: bytes, settings: Settings, what: What) -> None:
    import pyarrow as pa  # 35 MB: only for whoever uploads parquet
    import pyarrow.parquet as pq

    with reading("The parquet file"):
        _check_footer(content)
        parquet = pq.ParquetFile(pa.BufferReader(content))
        found = parquet.metadata
        check_samples(found.num_rows, settings, what)
        groups = map(found.row_group, range(found.num_row_groups))
        _check_size(sum(group.total_byte_size for group in groups), settings)
        # A page may say that it becomes larger than its column is, and memory is reserved for it.
        _check_size(declared_size(content, found, set(_COLUMNS)), settings)
        # A value that many rows share is stored once: only the rows tell how long they are.
        columns = [name for name in _COLUMNS if name in parquet.schema_arrow.names]
        size = 0
        for row in parquet.iter_batches(batch_size=1, columns=columns, use_threads=False):
            size += row.get_total_buffer_size()
            _check_size(size, settings)


def _check_footer(content: bytes) -> None:
    """Refuse a list of contents that is not there, or that alone would fill the memory."""
    if len(content) < 2 * _FOOTER or content[-4:] != _MAGIC:
        raise ValueError("the file is incomplete")
    (length,) = struct.unpack_from("<L", content, len(content) - _FOOTER)
    if length > min(_MAX_FOOTER, len(content) - _FOOTER):
        raise ValueError("the list of contents is too long")


def _check_zip(content: bytes, settings: Settings) -> None:
    _check_directory_size(content[-_END_SIZE:], settings)
    with reading("The zip file"), zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = [member for member in archive.infolist() if not member.is_dir()]
    for member in members:
        _check_member(member)
    if len({member.filename for member in members}) < len(members):
        raise ApiError(422, "unsafe_archive", "The archive holds two files of the same name.")
    images = [member for member in members if not PurePosixPath(member.filename).name[0] == "."]
    check_samples(len(images), settings, "images")
    _check_size(sum(member.file_size for member in members), settings)


def _check_directory_size(tail: bytes, settings: Settings) -> None:
    """Refuse a list of contents that alone would fill the memory."""
    position = tail.rfind(_END_OF_DIRECTORY)
    if position < 0 or len(tail) < position + 16:
        raise ApiError(422, "broken_archive", "The zip file is incomplete.")
    (size,) = struct.unpack_from("<L", tail, position + 12)
    if position >= 76 and tail[position - 20 :].startswith(_LOCATOR_64):
        (size,) = struct.unpack_from("<Q", tail, position - 36)
    if size > _DIRECTORY_ENTRY * (settings.evaluation_max_samples + 100):
        raise ApiError(413, "archive_too_large", "The zip file lists too many files.")


def _check_member(member: zipfile.ZipInfo) -> None:
    path = PurePosixPath(member.orig_filename)
    kind = stat.S_IFMT(member.external_attr >> 16)
    name = member.filename[:100]
    if (
        path.is_absolute()
        or ".." in path.parts
        or not path.parts
        or any(character in member.orig_filename for character in "\\\0")
        or kind not in (0, stat.S_IFREG)
    ):
        message = f"The archive holds {name!r}, which is no plain file below its folder."
        raise ApiError(422, "unsafe_archive", message)
    if member.flag_bits & 1 or member.compress_type not in (
        zipfile.ZIP_STORED,
        zipfile.ZIP_DEFLATED,
    ):
        message = f"The archive's {name!r} is encrypted or compressed in an unusual way."
        raise ApiError(422, "unsafe_archive", message)


def _check_size(size: int, settings: Settings) -> None:
    if size > settings.archive_max_mb * 1_000_000:
        message = f"The archive unpacks to more than {settings.archive_max_mb} MB."
        raise ApiError(413, "archive_too_large", message)
