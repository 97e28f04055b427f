import io
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageCms

from data.images import ImageError, ImageSpec, decode_image, to_input, to_pixels, to_png

GREY = ImageSpec(channels=1, height=6, width=5)
RGB = ImageSpec(channels=3, height=6, width=5)


def file_of(image: Image.Image, kind: str = "PNG", **options: object) -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


@pytest.mark.parametrize("spec", [GREY, RGB])
def test_png_of_an_input_is_that_input_again(spec: ImageSpec) -> None:
    eight_bit = np.random.default_rng(0).integers(0, 256, (spec.channels, 6, 5), dtype=np.uint8)
    pixels = eight_bit.astype(np.float32) / np.float32(255)
    assert np.array_equal(to_input(decode_image(to_png(pixels)), spec), pixels)
    between = np.full((1, 6, 5), (100.4 / 255), np.float32)
    assert (to_pixels(decode_image(to_png(between)), spec) == 100).all()


@pytest.mark.parametrize("bad", [np.nan, -0.01, 1.01])
def test_pixels_outside_the_range_are_not_written(bad: float) -> None:
    with pytest.raises(ValueError, match=r"pixels must lie in \[0, 1\]"):
        to_png(np.full((1, 2, 2), bad, np.float32))


def test_orientation_of_a_photo_is_applied() -> None:
    image = Image.new("L", (6, 5))
    exif = image.getexif()
    exif[0x0112] = 6
    assert decode_image(file_of(image, "JPEG", exif=exif)).size == (5, 6)


_FILES = {
    "PNG": "1 L LA P RGB RGBA I;16",
    "JPEG": "1 L RGB CMYK YCbCr",
    "WEBP": "1 L LA P RGB RGBA CMYK",
    "GIF": "1 L LA P RGB RGBA",
    "BMP": "1 L P RGB RGBA",
    "TIFF": "1 L LA P PA RGB RGBA RGBX CMYK YCbCr LAB I F I;16 I;16B",
    "PPM": "1 L RGB I",
    "AVIF": "L LA RGB RGBA",
    "JPEG2000": "L LA RGB RGBA",
}


@pytest.mark.parametrize("kind", _FILES)
def test_a_picture_is_the_same_in_every_format_and_mode(kind: str) -> None:
    """A picture in shades of grey: what comes back is near it, whatever it was written as."""
    # Lossy formats keep two halves, palettes and one bit keep black and white.
    pixels = np.zeros((32, 20), np.uint8)
    pixels[16:] = 255
    for mode in _FILES[kind].split():
        data = file_of(_in_mode(pixels, mode), kind)
        for channels in (1, 3):
            found = to_pixels(decode_image(data), ImageSpec(channels=channels, height=32, width=20))
            error = np.abs(found.astype(int) - pixels).max()
            assert error <= 8, (kind, mode, channels, error)


def _in_mode(pixels: np.ndarray, mode: str) -> Image.Image:
    image = Image.fromarray(pixels)
    if mode.startswith("I;16"):
        wide = pixels.astype(np.uint16) * 257
        return Image.fromarray(wide.astype(">u2" if "B" in mode else "<u2"))
    if mode == "I":
        return Image.fromarray(pixels.astype(np.int32) * 257)
    if mode == "LAB":
        srgb, lab = ImageCms.createProfile("sRGB"), ImageCms.createProfile("LAB")
        turn = ImageCms.buildTransformFromOpenProfiles(srgb, lab, "RGB", "LAB")
        turned = ImageCms.applyTransform(image.convert("RGB"), turn)
        assert turned is not None
        return turned
    between = {"CMYK": "RGB", "YCbCr": "RGB", "PA": "P"}.get(mode, "L")
    return image.convert(between).convert(mode)


def _png(color_type: int, channels: int, rows: np.ndarray) -> bytes:
    """A 16-bit PNG of kinds that Pillow does not write."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        check = struct.pack(">I", zlib.crc32(kind + body))
        return struct.pack(">I", len(body)) + kind + body + check

    height, width = rows.shape[0], rows.shape[1] // channels
    header = struct.pack(">IIBBBBB", width, height, 16, color_type, 0, 0, 0)
    lines = b"".join(b"\0" + row.astype(">u2").tobytes() for row in rows)
    body = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(lines)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


@pytest.mark.parametrize(("color_type", "channels"), [(0, 1), (2, 3), (4, 2), (6, 4)])
def test_sixteen_bit_pngs_of_every_kind(color_type: int, channels: int) -> None:
    grey = np.repeat(np.linspace(0, 65535, 6).round().astype(int)[:, None], 5, axis=1)
    rows = np.repeat(grey[:, :, None], channels, axis=2)
    if channels in (2, 4):
        rows[..., -1] = 65535  # opaque
    found = to_pixels(decode_image(_png(color_type, channels, rows.reshape(6, -1))), GREY)[0]
    assert np.abs(found - grey / 257).max() <= 1


@pytest.mark.parametrize(
    ("mode", "transparency", "shade"),
    [("P", 0, 255), ("L", 0, 255), ("RGB", (0, 0, 0), 255), ("P", bytes([128]), 127)],
)
def test_what_is_transparent_is_laid_on_white(mode: str, transparency: object, shade: int) -> None:
    assert (to_input(Image.new("RGBA", (5, 6), (0, 0, 0, 0)), RGB) == 1).all()
    data = file_of(Image.new("L", (5, 6), 0).convert(mode), "PNG", transparency=transparency)
    for spec in (GREY, RGB):
        found = to_pixels(decode_image(data), spec).astype(int)
        assert np.abs(found - shade).max() <= (shade == 127)


@pytest.mark.parametrize("size", [(1, 1), (20_000, 1), (1, 20_000)])
def test_tiny_and_very_wide_pictures_become_inputs(size: tuple[int, int]) -> None:
    found = to_pixels(decode_image(file_of(Image.new("L", size, 77))), RGB)
    assert found.shape == (3, 6, 5) and (found == 77).all()


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG", "TIFF"])
def test_the_first_frame_of_several_counts(kind: str) -> None:
    first, second = (Image.new("L", (5, 6), shade) for shade in (255, 0))
    data = file_of(first, kind, save_all=True, append_images=[second])
    assert (to_pixels(decode_image(data), GREY) >= 253).all()


def test_numbers_that_are_none_are_black() -> None:
    pixels = np.array([[np.nan, np.inf, -np.inf, 100]], np.float32)
    found = to_pixels(Image.fromarray(pixels), ImageSpec(channels=1, height=1, width=4))
    assert found.tolist() == [[[0, 255, 0, 100]]]


_NOISE = np.random.default_rng(0).integers(0, 256, (64, 64), dtype=np.uint8)


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"", "not_an_image"),
        (b"just some text", "not_an_image"),
        (b"%PDF-1.7", "not_an_image"),
        (b"\x89PNG\r\n", "broken_image"),
        (file_of(Image.fromarray(_NOISE))[:2000], "broken_image"),
        (file_of(Image.new("1", (4000, 4000))), "too_many_pixels"),
    ],
    ids=["empty", "text", "pdf", "head", "half", "large"],
)
def test_what_cannot_be_read_is_refused_without_its_path(
    tmp_path: Path, data: bytes, code: str
) -> None:
    (tmp_path / "secret.png").write_bytes(data)
    message = {"too_many_pixels": "4000 x 4000 is more than 1000000", "broken_image": "broken or"}
    for source in (data, tmp_path / "secret.png"):
        with pytest.raises(ImageError, match=message.get(code, "not an image")) as caught:
            decode_image(source, max_pixels=1_000_000)
        assert caught.value.code == code and "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"channels": 2, "height": 1, "width": 1}, "channels must be 1 or 3, got 2"),
        ({"channels": 1, "height": 0, "width": 1}, "height must be positive, got 0"),
        ({"channels": 1, "height": 1, "width": "x"}, "width must be an integer, got"),
        ({"channels": 1, "height": 1, "width": 1, "resample": "no"}, "resample must be one of"),
    ],
)
def test_input_against_the_rules_is_refused(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ImageSpec(**fields)  # pyright: ignore[reportArgumentType] -- wrong on purpose


def test_colors_of_an_unknown_kind_are_refused() -> None:
    with pytest.raises(ImageError, match="colors of the kind La are unknown") as caught:
        to_pixels(Image.new("La", (5, 6)), GREY)
    assert caught.value.code == "broken_image"
