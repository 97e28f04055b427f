"""Archives from strangers, refused before anything in them is unpacked; read by the child only."""

import io
import stat
import struct
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import PurePath, PurePosixPath
from typing import Any

from data.errors import ClassMismatch, DataError
from data.formats.csv import read_csv
from data.formats.folder import zipped_files
from data.formats.masks import zipped_masks
from data.images import ImageSpec, fit_mask
from data.labels import Classes
from data.sets import FileSet, MaskFiles, TextSet
from service.decoding.parquet_pages import MAGIC, check_footer, page_sizes
from service.http.refusal import ApiError, What, check_length, check_samples, class_mismatch

_END_OF_DIRECTORY = b"PK\x05\x06"
_LOCATOR_64 = b"PK\x06\x07"  # of the zip64 record, 56 bytes before it, which overrides the other
_END_SIZE = 56 + 20 + 22 + 65_535  # both records, and the longest comment behind them
# Bytes of directory per image: name, extra fields, and as much again for folders and side files.
_DIRECTORY_ENTRY = 1000

_LINES = 100  # of a csv file for each text, blank ones and those inside of texts included
_ROW = 4  # times the longest text, in characters: its quotes are doubled, and there are other cells
_MOST_COLUMNS = 100
_BATCH = 16_000_000  # bytes that rows of a parquet file may become before they are counted


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What an archive may hold.

    Attributes:
        samples: images or texts.
        text_chars: characters of one text.
        unpacked_mb: all of it, in MB.
        pixels: of a mask.
    """

    samples: int
    text_chars: int
    unpacked_mb: float
    pixels: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Unpacked:
    """The samples of an archive.

    Attributes:
        names: of the samples.
        labels: by index of the class, or None.
        classes: what the archive calls them; see `Origin`.
        files: image files, each behind its mask at all sizes, (H, W) uint8; or texts in UTF-8.
    """

    names: list[str]
    labels: list[int] | None
    classes: list[str] | None
    files: list[bytes]


def too_costly() -> ApiError:
    """The refusal of an archive whose reader was ended by its limits."""
    message = "Reading the archive takes more processor time or memory than it may."
    return ApiError(422, "archive_too_costly", message)


def unpack(
    content: bytes, what: What, classes: Classes, limits: Limits, specs: Sequence[ImageSpec] = ()
) -> Unpacked:
    """Read an archive: a zip of an image folder, parquet, or csv of texts.

    Args:
        content: of its file.
        what: it should hold.
        classes: of the model.
        limits: what it may hold.
        specs: sizes at which masks are wanted.

    Raises:
        ApiError: 415 not_an_archive, 413 archive_too_large, text_too_long, 422 unsafe_archive,
            broken_archive, invalid_archive, class_mismatch, too_many_images or too_many_texts.
        MemoryError: it needs more than there is.
    """
    try:
        with _reading("The archive"):
            found = _open(content, what, classes, limits)
            masks = _read_masks(found, specs, limits)
    except ClassMismatch as error:
        raise class_mismatch(error) from error
    except DataError as error:
        raise ApiError(422, "invalid_archive", f"The archive cannot be used: {error}.") from error
    if isinstance(found, TextSet):
        check_length(found, limits.text_chars)
        files = [text.encode() for text in found]
    else:
        files = [mask + _read_file(found, index) for index, mask in enumerate(masks)]
    labels = None if found.labels is None else found.labels.tolist()
    return Unpacked(names=found.names, labels=labels, classes=found.origin.classes, files=files)


def _open(content: bytes, what: What, classes: Classes, limits: Limits) -> FileSet | TextSet:
    """Tell by its first bytes what an archive is, and refuse a hostile one."""
    if content[:4] == MAGIC and what != "masks":
        return _open_parquet(content, what, classes, limits)
    zipped = content[:2] == b"PK"
    if what != "texts" and zipped:
        archive = _open_zip(content, limits, 2 if what == "masks" else 1)
        if what == "masks":
            names = classes.label_names or ()
            return zipped_masks(archive, "images.zip", names, max_pixels=limits.pixels)
        return zipped_files(archive, "images.zip", classes)
    if what == "texts" and not zipped:
        lines = _Lines(content, limits)
        return read_csv(lines, "texts.csv", classes, lines.end_row)
    message = "The archive is neither a zip nor a parquet file."
    if zipped:
        message = "An archive of texts must be a csv or parquet file, and this is a zip."
    if what == "masks":
        message = "An archive of images with masks must be a zip of the folders images and masks."
    raise ApiError(415, "not_an_archive", message)


def _read_masks(
    found: FileSet | TextSet, specs: Sequence[ImageSpec], limits: Limits
) -> list[bytes]:
    """For each sample its mask at all sizes, nothing where it has none."""
    if not isinstance(found, MaskFiles):
        return [b""] * len(found)
    _check_size(len(found) * sum(spec.height * spec.width for spec in specs), limits)
    masks = map(found.mask_reader, range(len(found)))
    return [b"".join(fit_mask(mask, spec).tobytes() for spec in specs) for mask in masks]


def _read_file(found: FileSet, index: int) -> bytes:
    with _reading(f"The archive is damaged at {found.names[index][:100]!r} and"):
        return found.read(index)


@contextmanager
def _reading(what: str) -> Iterator[None]:
    """Answer a sender whatever a library raises at a broken file; such errors share no class."""
    try:
        yield
    except (ApiError, DataError, MemoryError):
        raise
    except Exception as error:
        raise ApiError(422, "broken_archive", f"{what} cannot be read.") from error


class _Lines:
    """The lines of a csv file, neither too many nor too long for one row.

    Attributes:
        rows: that have ended, blank ones left out; the first is the header.
    """

    def __init__(self, content: bytes, limits: Limits) -> None:
        self._lines = io.TextIOWrapper(io.BytesIO(content), encoding="utf-8-sig", newline="")
        self._samples, self._most = limits.samples, _LINES * limits.samples
        self._longest = limits.text_chars
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
            ApiError: 413 archive_too_large, 422 too_many_texts.
        """
        if len(cells) > _MOST_COLUMNS:
            message = f"The csv file has more than {_MOST_COLUMNS} columns."
            raise ApiError(413, "archive_too_large", message)
        self._in_row = 0
        self.rows += bool(cells)
        if self.rows > self._samples + 1:
            message = f"More than {self._samples} texts are more than the {self._samples} allowed."
            raise ApiError(422, "too_many_texts", message, {"limit": self._samples})


def _open_parquet(
    content: bytes, what: What, classes: Classes, limits: Limits
) -> FileSet | TextSet:
    import pyarrow as pa  # 35 MB: only where somebody uploads parquet
    import pyarrow.parquet as pq

    from data.formats.parquet import columns_of, samples_of

    path, column = PurePath(f"{what}.parquet"), "image" if what == "images" else "text"
    with _reading("The parquet file"):
        check_footer(content)
        file = pq.ParquetFile(pa.BufferReader(content))
        columns = columns_of(file.schema_arrow, path.name, column)
        tables = {path: _read_table(content, file, columns, limits, what)}
    return samples_of(tables, column, classes)


def _read_table(content: bytes, file: Any, columns: list[str], limits: Limits, what: What) -> Any:
    """Some columns of a `pyarrow.parquet.ParquetFile`."""
    import pyarrow as pa

    found = file.metadata
    check_samples(found.num_rows, limits.samples, what)
    groups = map(found.row_group, range(found.num_row_groups))
    _check_size(sum(group.total_byte_size for group in groups), limits)
    # A page may say that it becomes larger than its column is, and memory is reserved for it.
    pages = list(page_sizes(content, found, columns))
    _check_size(sum(pages), limits)
    # A value that many rows share is stored once: only the rows tell how long they are.
    rows = max(1, _BATCH // max(pages, default=1))
    batches, size = [], 0
    for batch in file.iter_batches(batch_size=rows, columns=columns, use_threads=False):
        size += batch.nbytes
        _check_size(size, limits)
        batches.append(batch)
    schema = batches[0].schema if batches else file.schema_arrow
    table = pa.Table.from_batches(batches, schema)
    return table.replace_schema_metadata(file.schema_arrow.metadata)


def _open_zip(content: bytes, limits: Limits, per_sample: int) -> zipfile.ZipFile:
    """A zip that is safe to read, with so many files for each sample."""
    _check_directory_size(content[-_END_SIZE:], per_sample * limits.samples)
    with _reading("The zip file"):
        archive = zipfile.ZipFile(io.BytesIO(content))
        members = [member for member in archive.infolist() if not member.is_dir()]
    for member in members:
        _check_member(member)
    if len({member.filename for member in members}) < len(members):
        raise ApiError(422, "unsafe_archive", "The archive holds two files of the same name.")
    images = [member for member in members if not PurePosixPath(member.filename).name[0] == "."]
    check_samples(len(images) // per_sample, limits.samples, "images")
    _check_size(sum(member.file_size for member in members), limits)
    return archive


def _check_directory_size(tail: bytes, files: int) -> None:
    """Refuse a list of contents that alone would fill the memory."""
    position = tail.rfind(_END_OF_DIRECTORY)
    if position < 0 or len(tail) < position + 16:
        raise ApiError(422, "broken_archive", "The zip file is incomplete.")
    (size,) = struct.unpack_from("<L", tail, position + 12)
    if position >= 76 and tail[position - 20 :].startswith(_LOCATOR_64):
        (size,) = struct.unpack_from("<Q", tail, position - 36)
    if size > _DIRECTORY_ENTRY * (files + 100):
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


def _check_size(size: int, limits: Limits) -> None:
    if size > limits.unpacked_mb * 1_000_000:
        message = f"The archive unpacks to more than {limits.unpacked_mb} MB."
        raise ApiError(413, "archive_too_large", message)
