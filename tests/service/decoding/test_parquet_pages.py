"""Parquet files whose headers promise more than they hold."""

import io
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data.labels import Classes
from service.decoding.archives import Limits, Unpacked, unpack
from service.decoding.parquet_pages import page_sizes
from service.http.refusal import ApiError
from tests.service.front import PNG, Front, archive, check_error

LIMITS = Limits(samples=2000, text_chars=100_000, unpacked_mb=256, pixels=0)


def table(rows: int = 20) -> pa.Table:
    images = [{"bytes": PNG + bytes([i]), "path": f"{i}.png"} for i in range(rows)]
    return pa.table({"image": images, "label": [i % 3 for i in range(rows)]})


def written(content: pa.Table, **options: Any) -> bytes:
    stream = io.BytesIO()
    pq.write_table(content, stream, **options)
    return stream.getvalue()


def opened(content: bytes) -> Unpacked:
    return unpack(content, "images", Classes(), LIMITS)


def integer(number: int) -> bytes:
    """A field of a header, which comes right behind the field before it."""
    number, encoded = number << 1, bytearray(b"\x15")
    while number > 127:
        encoded.append(number & 127 | 128)
        number >>= 7
    return bytes([*encoded, number])


@pytest.mark.parametrize(
    ("compression", "version", "dictionary"),
    [("none", "1.0", True), ("snappy", "2.0", True), ("gzip", "1.0", False)],
)
def test_pages_of_real_files_are_read(compression: str, version: str, dictionary: bool) -> None:
    content = written(
        table(200),
        compression=compression,
        data_page_version=version,
        use_dictionary=dictionary,
        data_page_size=1000,
        row_group_size=77,
        write_statistics=True,
    )
    found = pq.ParquetFile(io.BytesIO(content)).metadata
    size = sum(page_sizes(content, found, {"image", "label"}))
    groups = [found.row_group(i) for i in range(found.num_row_groups)]
    # What the list of contents adds are the headers of the pages.
    total = sum(group.total_byte_size for group in groups)
    assert 0.5 * total < size <= total
    assert len(opened(content).files) == 200


def bomb() -> bytes:
    """A file of a few kilobytes whose first page says that it becomes a gigabyte."""
    rng = np.random.default_rng(0)
    images = pa.table({"image": pa.array([rng.bytes(300) for _ in range(4)], pa.binary())})
    content = written(images, compression="gzip", use_dictionary=False, store_schema=False)
    chunk = pq.ParquetFile(io.BytesIO(content)).metadata.row_group(0).column(0)
    place = content.index(b"\x15\x00\x15") + 2  # a data page; two bytes each, its sizes
    end = chunk.data_page_offset + chunk.total_compressed_size
    packed = (content[place + 4] & 127 | content[place + 5] << 7) >> 1
    sizes = integer(1_100_000_000) + integer(packed - 3)  # as much longer as the page is shorter
    return content[:place] + sizes + content[place + 6 : end - 3] + content[end:]


def test_a_page_that_promises_a_gigabyte_is_refused_before_memory_is_taken(front: Front) -> None:
    memory = pa.default_memory_pool()
    before = memory.max_memory()
    assert len(bomb()) < 5000
    check_error(front.post(archive(bomb())), 413, "archive_too_large", "256")
    assert memory.max_memory() < before + 100_000_000
    assert front.folders() == []


def test_headers_that_contradict_their_file_are_refused() -> None:
    content = written(table(100), compression="none", use_dictionary=False)
    chunk = pq.ParquetFile(io.BytesIO(content)).metadata.row_group(0).column(0)
    # Unpacked and packed size of its first page, which is not packed.
    sizes = range(chunk.total_compressed_size, 0, -1)
    size = next(size for size in sizes if 0 < content.find(2 * integer(size), 4, 40))
    for old, new in [
        (integer(100), integer(101)),  # more values than rows
        (2 * integer(size), integer(size) + integer(size - 50)),
    ]:
        assert 0 < content.find(old, 4, 40) and len(old) == len(new)  # in the first header
        with pytest.raises(ApiError, match="cannot be read"):
            opened(content.replace(old, new, 1))


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (3 * integer(0) + b"\x2c" + integer(0) + b"\0\0", "too many pages"),
        (integer(0), "header is too long"),
    ],
)
def test_endless_pages_and_headers_are_not_read_to_their_end(header: bytes, message: str) -> None:
    noise = np.random.default_rng(0).bytes(100_000)
    images = pa.table({"image": pa.array([noise], pa.binary())})
    content = written(images, compression="none", use_dictionary=False, store_schema=False)
    found = pq.ParquetFile(io.BytesIO(content)).metadata
    chunk = found.row_group(0).column(0)
    start, size = chunk.data_page_offset, chunk.total_compressed_size
    content = content[:start] + (header * size)[:size] + content[start + size :]
    with pytest.raises(ValueError, match=message):
        list(page_sizes(content, found, {"image"}))


def test_lists_and_long_lists_of_contents_are_refused(front: Front) -> None:
    for content in (
        pa.table({"image": [[PNG], [PNG]]}),
        table().replace_schema_metadata({"x": "y" * 2_000_000}),
    ):
        answer = front.post(archive(written(content)))
        check_error(answer, 422, "broken_archive", "parquet")


def test_damaged_headers_never_escape() -> None:
    content = bytearray(written(table(5)))
    rng = np.random.default_rng(0)
    refused = 0
    for _ in range(300):
        changed = bytearray(content)
        for place in rng.integers(4, len(content), 3):
            changed[place] = rng.integers(256)
        try:
            opened(bytes(changed))
        except ApiError as error:
            refused += 1
            assert error.status in (413, 422)
    assert refused > 50
