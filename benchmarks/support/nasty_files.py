"""Pictures and archives that may cost more than their size suggests, each of any size.

A generator takes about how many bytes its file shall have, or how many pixels it shall announce.
"""

import io
import math
import struct
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple

from PIL import Image

Make = Callable[[int], bytes]
BODY = 60_000_000
"""Bytes that the largest body may have."""
_SIDE = 28
_SMALL = _SIDE**2
_PIXELS = 49_000_000  # of the largest picture


class Kind(NamedTuple):
    """What there is much of.

    Attributes:
        make: content of a size.
        limit: the largest size to try.
        pixels: that a picture of any size announces.
        unit: of sizes, "bytes" or "pixels".
        leaves: None waits for the answer; else the share of the request that is sent before its
            sender leaves.
    """

    make: Make
    limit: int = BODY
    pixels: int = 0
    unit: str = "bytes"
    leaves: float | None = None


def fill(piece: bytes, size: int) -> bytes:
    """A piece so often that it has about so many bytes."""
    return piece * max(1, size // len(piece))


@lru_cache(8)
def picture(kind: str, pixels: int = _SMALL, mode: str = "L", **options: Any) -> bytes:
    """A square picture of one color."""
    stream, side = io.BytesIO(), max(1, math.isqrt(pixels))
    Image.new(mode, (side, side)).save(stream, kind, **options)
    return stream.getvalue()


def zipped(files: Mapping[str, bytes]) -> bytes:
    """A zip file."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, content in files.items():
            archive.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED, 1)
    return stream.getvalue()


def parquet(columns: Mapping[str, Sequence[str]], metadata: bytes = b"", **options: Any) -> bytes:
    """A parquet file of texts, and what its metadata say to `huggingface`."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.table({name: pa.array(values, pa.string()) for name, values in columns.items()})
    stream = pa.BufferOutputStream()
    table = table.replace_schema_metadata({"huggingface": metadata} if metadata else None)
    pq.write_table(table, stream, **options)
    return stream.getvalue().to_pybytes()


def _png(kind: bytes, data: bytes, size: int) -> bytes:
    """Chunks behind the header."""
    body, whole = kind + data, picture("PNG")
    chunk = struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))
    return whole[:33] + fill(chunk, size) + whole[33:]


def _jpeg(segment: bytes, size: int) -> bytes:
    """Segments behind the first marker."""
    whole = picture("JPEG")
    return whole[:2] + fill(segment, size) + whole[2:]


def _scans(size: int) -> bytes:
    """A progressive JPEG that announces `_PIXELS`, and empty scans behind its own."""
    whole, side = picture("JPEG", progressive=True), math.isqrt(_PIXELS)
    at = whole.index(b"\xff\xc2") + 5
    whole = whole[:at] + struct.pack(">HH", side, side) + whole[at + 4 : -2]
    return whole + fill(b"\xff\xda\0\x08\x01\x01\0\x01\x3f\0", size) + b"\xff\xd9"


def _gif(blocks: bytes, *, frames: int = 1) -> bytes:
    whole = picture("GIF")
    start = 13 + 3 * 2 ** ((whole[10] & 7) + 1)
    return whole[:start] + blocks + whole[start:-1] * max(1, frames) + b";"


def _webp(size: int) -> bytes:
    """An animation of many frames."""
    stream, frames = io.BytesIO(), [Image.new("L", (_SIDE, _SIDE), color) for color in (0, 255)]
    frames[0].save(stream, "WEBP", save_all=True, append_images=frames[1:])
    whole = stream.getvalue()
    at = whole.rindex(b"ANMF")
    body = whole[8:at] + fill(whole[at:], size)
    return b"RIFF" + struct.pack("<I", len(body)) + body


def _tiff(strips: int, unknown: int = 0) -> bytes:
    """A picture of one column, each row in a strip of its own, and tags that nobody knows."""
    at = 14 + 12 * (9 + unknown)
    tags = [(256, 4, 1, 1), (257, 4, 1, strips), (258, 3, 1, 8), (259, 3, 1, 1), (262, 3, 1, 1)]
    tags += [(273, 4, strips, at), (277, 3, 1, 1), (278, 4, 1, 1)]
    tags += [(279, 4, strips, at + 4 * strips)]
    tags += [(min(40_000 + number, 65_535), 3, 1, 0) for number in range(unknown)]
    packed = b"".join(struct.pack("<HHII", *tag) for tag in tags)
    rows = struct.pack("<I", 8) * strips + struct.pack("<I", 1) * strips
    return b"II*\0\x08\0\0\0" + struct.pack("<H", len(tags)) + packed + bytes(4) + rows


def _bmp(size: int) -> bytes:
    """Run lengths, nearly all of which only end lines."""
    data, start = fill(b"\0\0", size) + b"\x1c\0\0\0" * _SIDE, 54 + 1024
    head = struct.pack("<2sIHHI", b"BM", start + len(data), 0, 0, start)
    head += struct.pack("<IiiHHIIiiII", 40, _SIDE, _SIDE, 1, 8, 1, len(data), 0, 0, 256, 0)
    return head + bytes(1024) + data


def _boxes(size: int) -> bytes:
    """JPEG 2000 with boxes before its header."""
    whole = picture("JPEG2000")
    at = whole.index(b"jp2h") - 4
    return whole[:at] + fill(b"\0\0\0\x08free", size) + whole[at:]


def _zip(name: str, size: int) -> bytes:
    """Many small entries."""
    count = size // (2 * len(name) + 170) + 1
    entries = {name % number: picture("PNG") for number in range(count)}
    return zipped({"a.png": picture("PNG"), **entries})


def _pages(size: int) -> bytes:
    """A parquet file with a page for each row."""
    texts = [f"{number:099d}" for number in range(size // 120 + 1)]
    options = {"data_page_size": 1, "write_batch_size": 1, "use_dictionary": False}
    return parquet({"text": texts}, compression="NONE", **options)


PICTURES = {
    "png chunks": Kind(partial(_png, b"teSt", b"")),
    "png data chunks": Kind(partial(_png, b"IDAT", b"")),
    "png text": Kind(partial(_png, b"tEXt", b"a\0b")),
    "png packed text": Kind(lambda n: _png(b"zTXt", b"a\0\0" + zlib.compress(bytes(n), 1), 1)),
    "png exif tags": Kind(lambda n: _png(b"eXIf", _tiff(1, n // 12), 1), 700_000),
    "jpeg scans": Kind(_scans, BODY, _PIXELS),
    "jpeg markers": Kind(partial(_jpeg, b"\xff\xe5\0\x02")),
    "jpeg comments": Kind(partial(_jpeg, b"\xff\xfe\0\x02")),
    "jpeg tables": Kind(partial(_jpeg, b"\xff\xdb\0\x43\0" + bytes([1] * 64))),
    "gif comment blocks": Kind(lambda n: _gif(b"!\xfe" + fill(b"\x01a", n) + b"\0")),
    "gif comments": Kind(lambda n: _gif(fill(b"!\xfe\x01a\0", n))),
    "gif frames": Kind(lambda n: _gif(b"", frames=n // 60)),
    "webp frames": Kind(_webp),
    "tiff strips": Kind(lambda n: _tiff(n // 8)),
    "tiff tags": Kind(lambda n: _tiff(1, n // 12), 700_000),
    "bmp runs": Kind(_bmp),
    "ppm comments": Kind(lambda n: b"P2 28 28 255\n" + fill(b"#\n", n) + b"0 " * _SMALL),
    "ppm head": Kind(lambda n: b"P5\n" + fill(b"#\n", n) + b"28 28 255\n" + bytes(_SMALL)),
    "jpeg 2000 boxes": Kind(_boxes),
}
"""Picture files by their bytes."""
LARGE = {
    name: Kind(partial(lambda kind, options, n: picture(kind, n, **options), *made), _PIXELS,
               unit="pixels")
    for name, made in {
        "png": ("PNG", {}),
        "jpeg": ("JPEG", {}),
        "progressive jpeg": ("JPEG", {"progressive": True}),
        "gif": ("GIF", {}),
        "tiff": ("TIFF", {"mode": "1", "compression": "group4"}),
        "webp": ("WEBP", {"lossless": True, "method": 0}),
        "avif": ("AVIF", {"speed": 10}),
        "jpeg 2000": ("JPEG2000", {}),
    }.items()
}  # fmt: skip
"""Picture files by their pixels."""
ZIPS = {
    "zip entries": Kind(partial(_zip, "%d.png"), 4_000_000),
    "zip hidden entries": Kind(partial(_zip, ".%d"), 4_000_000),
    "zip folders": Kind(partial(_zip, "%d/"), 4_000_000),
    "zip long names": Kind(partial(_zip, "a/" * 20_000 + "%d"), 4_000_000),
}
PARQUETS = {
    "columns": Kind(lambda n: parquet({"text": ["a"]} | {f"{i}": ["a"] for i in range(n // 200)}),
                    4_000_000),
    "row groups": Kind(lambda n: parquet({"text": ["a"] * (n // 150 + 1)}, row_group_size=1),
                       1_000_000),
    "pages": Kind(_pages, 4_000_000),
    "deep metadata": Kind(lambda n: parquet({"text": ["a"]}, b"[" * (n // 2)), 1_000_000),
    "a shared value": Kind(lambda n: parquet({"text": ["a" * n] * 100}), 4_000_000),
}  # fmt: skip
