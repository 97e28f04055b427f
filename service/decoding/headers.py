"""What the structure of an image file tells before anything in it is decoded."""

import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice

from data.images import format_of

_CHEAP_PIXELS, _CHEAP_SIDE = 1_000_000, 4096
_CHEAP_BYTES = 4_000_000
_CHEAP_PARTS, _CHEAP_EXTRAS = 64, 65_536  # chunks or segments; their bytes, pixels left out
_CHEAP_SCANS = 4  # one for each color

MAX_SCANS = 100
MAX_PARTS = 10_000  # an encoder that writes 8 kB each makes 80 MB of them

_SCAN = b"\xff\xda"
_BASELINE = (0xC0, 0xC1)
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_BARE = frozenset({0x01, *range(0xD0, 0xD9)})  # markers without a length
_CHUNKS = frozenset(b"IHDR PLTE tRNS gAMA cHRM sRGB iCCP pHYs tIME bKGD sBIT tEXt eXIf".split())
_GIF_IMAGE, _GIF_EXTENSION = 0x2C, 0x21
_TIFF_OFFSETS = (273, 324)  # tags of strips and of tiles
_BMP_PACKED = (1, 2)  # run lengths of 8 and of 4 bits, which Pillow reads in Python

Part = tuple[bytes, int, int]
"""Kind of a part of a file, where its body begins, and how long the body is."""


def cheap_size(content: bytes) -> tuple[int, int] | None:
    """Width and height of a PNG, baseline JPEG or lossy WebP that is provably cheap, else None.

    It has at most a million pixels, 4 MB and 64 parts, and nothing but pixels is large in it.
    """
    if len(content) > _CHEAP_BYTES:
        return None
    kind = format_of(content[:32])
    size = _CHEAP[kind](content) if kind in _CHEAP else None
    if size is None or not 0 < size[0] * size[1] <= _CHEAP_PIXELS or max(size) > _CHEAP_SIDE:
        return None
    return size


def has_too_many_parts(content: bytes) -> bool:
    """Whether a file has more scans, chunks, blocks, strips or runs than images that people send.

    Broken files may have any number, as far as it can be told.
    """
    kind = format_of(content[:32])
    if kind == "JPEG" and content.count(_SCAN) > MAX_SCANS:
        return True
    with suppress(struct.error):
        if kind == "TIFF":
            return _tiff_strips(content) > MAX_PARTS
        if kind == "BMP":
            return _has_idle_runs(content)
    parts = _PARTS.get(kind or "")
    return parts is not None and next(islice(parts(content), MAX_PARTS, None), None) is not None


def _cheap_png(content: bytes) -> tuple[int, int] | None:
    extras, size = 0, None
    for count, (kind, start, length) in enumerate(_png_chunks(content)):
        if count >= _CHEAP_PARTS or (kind == b"IHDR") != (count == 0):
            return None
        if kind == b"IHDR":
            size = struct.unpack_from(">II", content, start) if length == 13 else None
        elif kind == b"IEND":
            return size
        elif kind != b"IDAT":
            extras += length
            if kind not in _CHUNKS or extras > _CHEAP_EXTRAS:
                return None
    return None


def _cheap_jpeg(content: bytes) -> tuple[int, int] | None:
    size = None
    for count, (marker, start, length) in enumerate(_jpeg_segments(content)):
        if count >= _CHEAP_PARTS or start > _CHEAP_EXTRAS:
            return None
        kind = marker[0]
        if kind in _FRAMES:
            if size is not None or kind not in _BASELINE or length < 6:
                return None
            height, width = struct.unpack_from(">HH", content, start + 1)
            size = (width, height)
        elif kind == _SCAN[1]:
            return size if content.count(_SCAN, start) < _CHEAP_SCANS else None
    return None


def _cheap_webp(content: bytes) -> tuple[int, int] | None:
    """Of a file with one key frame of VP8 (RFC 6386, 9.1) and nothing else."""
    if len(content) < 30 or content[8:16] != b"WEBPVP8 ":
        return None
    whole, length = (struct.unpack_from("<I", content, place)[0] for place in (4, 16))
    if whole != 12 + length + length % 2 or whole + 8 > len(content):
        return None
    if content[20] & 1 or content[23:26] != b"\x9d\x01\x2a":
        return None
    width, height = struct.unpack_from("<HH", content, 26)
    return width & 0x3FFF, height & 0x3FFF


_CHEAP = {"PNG": _cheap_png, "JPEG": _cheap_jpeg, "WEBP": _cheap_webp}


def _png_chunks(content: bytes) -> Iterator[Part]:
    position = 8
    while position + 12 <= len(content):
        length, kind = struct.unpack_from(">I4s", content, position)
        if position + 12 + length > len(content):
            return
        yield kind, position + 8, length
        position += 12 + length


def _jpeg_segments(content: bytes) -> Iterator[Part]:
    """The segments as far as the first scan."""
    position = 2
    while position + 4 <= len(content) and content[position] == 0xFF:
        kind = content[position + 1]
        if kind == 0xFF:
            position += 1
            continue
        length = 0 if kind in _BARE else int.from_bytes(content[position + 2 : position + 4])
        yield bytes([kind]), position + 4, length - 2
        if kind == _SCAN[1]:
            return
        position += 2 + length


def _tiff_strips(content: bytes) -> int:
    """How many strips or tiles the first image has."""
    order = "<" if content.startswith(b"II") else ">"
    big = content[2] == 43  # BigTIFF, as Pillow tells it
    (start,) = struct.unpack_from(order + ("8xQ" if big else "4xL"), content)
    count, entry = (order + each for each in (("Q", "HHQ8x") if big else ("H", "HHL4x")))
    (tags,) = struct.unpack_from(count, content, start)
    start += struct.calcsize(count)
    found = memoryview(content)[start : start + tags * struct.calcsize(entry)]
    whole = len(found) // struct.calcsize(entry) * struct.calcsize(entry)
    sizes = ((tag, size) for tag, _, size in struct.iter_unpack(entry, found[:whole]))
    return max((size for tag, size in sizes if tag in _TIFF_OFFSETS), default=0)


def _has_idle_runs(content: bytes) -> bool:
    """Whether a BMP has more bytes of run lengths than two a pixel and the end of each line."""
    start, width, height, kind = struct.unpack_from("<10xL4xll4xL", content)
    runs = len(content) - start
    return kind in _BMP_PACKED and runs > 2 * (abs(width) + 1) * (abs(height) + 1) + _CHEAP_EXTRAS


def _gif_blocks(content: bytes) -> Iterator[Part]:
    """The blocks of comments and other extensions as far as the first image."""
    position = 13
    if len(content) > position and content[10] & 0x80:
        position += 3 << ((content[10] & 7) + 1)
    while position + 2 < len(content) and content[position] == _GIF_EXTENSION:
        position += 2
        while position < len(content) and (length := content[position]):
            yield b"", position + 1, length
            position += 1 + length
        position += 1


_PARTS: dict[str, Callable[[bytes], Iterator[Part]]] = {
    "PNG": _png_chunks,
    "JPEG": _jpeg_segments,
    "GIF": _gif_blocks,
}
