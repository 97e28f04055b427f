"""Small image files that cost much, and ordinary ones."""

import io
import struct
import zlib
from typing import Any

import numpy as np
from PIL import Image


def file_of(image: Image.Image, kind: str, **options: Any) -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def photo(width: int, height: int, mode: str = "RGB") -> Image.Image:
    """Waves with a little noise."""
    rows, columns = np.mgrid[0:height, 0:width]
    waves = np.stack([np.sin(rows / 7 + i) + np.cos(columns / (9 + i)) for i in range(3)], -1)
    noise = np.random.default_rng(0).normal(0, 4, waves.shape)
    return Image.fromarray((waves * 55 + 128 + noise).clip(0, 255).astype(np.uint8)).convert(mode)


def many_scans(count: int, side: int) -> bytes:
    """A progressive JPEG with scans of ten bytes that hold nothing."""
    content = file_of(Image.new("L", (16, 16), 100), "JPEG", progressive=True)
    frame = content.index(b"\xff\xc2")
    content = content[: frame + 5] + struct.pack(">HH", side, side) + content[frame + 9 :]
    second = content.index(b"\xff\xda", content.index(b"\xff\xda") + 2)
    return content[:second] + bytes.fromhex("ffda0008010100013f00") * count + b"\xff\xd9"


def many_segments(count: int) -> bytes:
    content = file_of(Image.new("L", (28, 28)), "JPEG")
    return content[:2] + b"\xff\xe5\x00\x02" * count + content[2:]


def png_with(*chunks: tuple[bytes, bytes], side: int = 28) -> bytes:
    """A PNG with more chunks before its pixels."""
    content = file_of(Image.new("L", (side, side)), "PNG")
    at = content.index(b"IDAT") - 4
    added = [
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        for kind, body in chunks
    ]
    return content[:at] + b"".join(added) + content[at:]


def many_chunks(count: int) -> bytes:
    return png_with(*[(b"prVt", b"")] * count)


def many_comments(count: int) -> bytes:
    """A GIF with comments in blocks of one byte."""
    content = file_of(Image.new("L", (28, 28)), "GIF")
    at = 13 + 3 * (2 << (content[10] & 7))
    return content[:at] + b"\x21\xfe" + b"\x01a" * count + b"\x00" + content[at:]


def plain_comments(count: int) -> bytes:
    """A plain PGM with comments, which Pillow reads in quadratic time."""
    return b"P2 28 28 255\n" + b"#\n" * count + b"1 " * 784


def many_strips(count: int) -> bytes:
    """A TIFF of one column, each row in a strip of its own."""
    tags = [(256, 4, 1, 1), (257, 4, 1, count), (258, 3, 1, 8), (262, 3, 1, 1)]
    tags += [(273, 4, count, 200), (278, 4, 1, 1), (279, 4, count, 200 + 4 * count)]
    packed = b"".join(struct.pack("<HHII", *tag) for tag in tags)
    head = (b"II*\0\x08\0\0\0" + struct.pack("<H", len(tags)) + packed).ljust(200, b"\0")
    return head + struct.pack("<I", 8) * count + struct.pack("<I", 1) * count


def large_tiff(count: int) -> bytes:
    """The head of a BigTIFF with so many tiles."""
    return b"II+\0\x08\0\0\0" + struct.pack("<QQHHQQ", 16, 1, 324, 16, count, 0)


def many_runs(count: int) -> bytes:
    """A BMP of 28 x 28 pixels with run lengths that end lines, and then its own."""
    runs, start = b"\0\0" * count + b"\x1c\0\0\0" * 28, 54 + 1024
    head = struct.pack("<2sIHHI", b"BM", start + len(runs), 0, 0, start)
    head += struct.pack("<IiiHHIIiiII", 40, 28, 28, 1, 8, 1, len(runs), 0, 0, 256, 0)
    return head + bytes(1024) + runs
