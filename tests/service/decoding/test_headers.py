import struct

import pytest

from service.decoding.headers import MAX_PARTS, MAX_SCANS, cheap_size, has_too_many_parts
from tests.service.decoding.hostile import (
    file_of,
    large_tiff,
    many_chunks,
    many_comments,
    many_runs,
    many_scans,
    many_segments,
    many_strips,
    photo,
    png_with,
)

SMALL, WIDE = photo(60, 40), photo(1200, 900)
LONG = photo(2, 5000)
WEBP = file_of(SMALL, "WEBP")
EXIF = b"Exif\0\0MM\0*\0\0\0\x08\0\0"
SECOND_HEADER = (b"IHDR", struct.pack(">IIBBBBB", 9000, 9000, 8, 0, 0, 0, 0))
# what is sent, and whether threads of the worker decode it
FILES: dict[str, tuple[bytes, bool]] = {
    "png": (file_of(SMALL, "PNG"), True),
    "png with colors and text": (png_with((b"gAMA", b"\0" * 4), (b"tEXt", b"a\0b")), True),
    "jpeg": (file_of(SMALL, "JPEG"), True),
    "grey jpeg": (file_of(photo(60, 40, "L"), "JPEG"), True),
    "jpeg with exif": (file_of(SMALL, "JPEG", exif=EXIF), True),
    "progressive jpeg": (file_of(SMALL, "JPEG", progressive=True), False),
    "large png": (file_of(WIDE, "PNG"), False),
    "large jpeg": (file_of(WIDE, "JPEG"), False),
    "long png": (file_of(LONG, "PNG"), False),
    "gif": (file_of(SMALL, "GIF"), False),
    "webp": (WEBP, True),
    "lossless webp": (file_of(SMALL, "WEBP", lossless=True), False),
    "webp with a profile": (file_of(SMALL, "WEBP", exif=EXIF), False),
    "webp of two chunks": (WEBP[:4] + struct.pack("<I", len(WEBP)) + WEBP[8:] + b"ICCP" * 2, False),
    "webp without a key frame": (WEBP[:20] + b"\1" + WEBP[21:], False),
    "half a webp": (WEBP[:-30], False),
    "large webp": (file_of(WIDE, "WEBP"), False),
    "half a png": (file_of(SMALL, "PNG")[:-30], False),
    "half a jpeg header": (file_of(SMALL, "JPEG")[:30], False),
    "png of many chunks": (many_chunks(70), False),
    "png of a second size": (png_with(SECOND_HEADER), False),
    "png of much text": (png_with((b"tEXt", b"a" * 70_000)), False),
    "png of compressed text": (png_with((b"zTXt", b"a")), False),
    "jpeg of many segments": (many_segments(70), False),
    "jpeg of five scans": (file_of(SMALL, "JPEG") + b"\xff\xda" * 4, False),
    "text": (b"hello", False),
    "nothing": (b"", False),
}


@pytest.mark.parametrize("case", FILES)
def test_only_what_its_structure_proves_cheap_is_decoded_in_the_worker(case: str) -> None:
    content, cheap = FILES[case]
    assert (cheap_size(content) is not None) == cheap


def test_size_of_a_cheap_image_is_told() -> None:
    for kind in ("PNG", "JPEG", "WEBP"):
        assert cheap_size(file_of(SMALL, kind)) == (60, 40)


def test_parts_of_a_file_are_bounded() -> None:
    assert not has_too_many_parts(many_scans(MAX_SCANS - 10, 16))
    assert has_too_many_parts(many_scans(MAX_SCANS, 16))
    for make in (many_segments, many_chunks, many_comments, many_strips, large_tiff):
        assert not has_too_many_parts(make(MAX_PARTS - 100)), make
        assert has_too_many_parts(make(MAX_PARTS + 1)), make
    assert not has_too_many_parts(many_runs(28 * 28))
    assert has_too_many_parts(many_runs(100_000))
    for half in (many_strips(9)[:90], many_strips(9)[:4], b"MM\0*" + bytes(9), many_runs(9)[:20]):
        assert not has_too_many_parts(half)
    for kind in ("TIFF", "BMP"):
        assert not has_too_many_parts(file_of(WIDE, kind))
    for case in ("webp", "gif", "large png", "large jpeg", "progressive jpeg", "text", "nothing"):
        assert not has_too_many_parts(FILES[case][0])
