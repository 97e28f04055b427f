import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from data.images import ImageError, ImageSpec, decode_image, to_input, to_pixels, to_png

GREY = ImageSpec(channels=1, height=6, width=5)
RGB = ImageSpec(channels=3, height=6, width=5)


def file_of(image: Image.Image, kind: str = "PNG") -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind)
    return stream.getvalue()


def random_pixels(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)


@pytest.mark.parametrize("spec", [GREY, RGB])
def test_png_of_an_input_is_that_input_again(spec: ImageSpec) -> None:
    pixels = random_pixels(spec.channels, 6, 5).astype(np.float32) / np.float32(255)
    assert np.array_equal(to_input(decode_image(to_png(pixels)), spec), pixels)


def test_png_rounds_to_the_nearest_eight_bit_value() -> None:
    pixels = np.full((1, 6, 5), (100.4 / 255), np.float32)
    assert (to_pixels(decode_image(to_png(pixels)), GREY) == 100).all()


@pytest.mark.parametrize("bad", [np.nan, -0.01, 1.01])
def test_pixels_outside_the_range_are_not_written(bad: float) -> None:
    with pytest.raises(ValueError, match=r"pixels must lie in \[0, 1\]"):
        to_png(np.full((1, 2, 2), bad, np.float32))


def test_another_size_is_resized() -> None:
    image = Image.fromarray(random_pixels(40, 30, 3))
    assert to_input(image, RGB).shape == (3, 6, 5)


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "YCbCr", "I;16", "F"])
def test_every_colour_mode_becomes_an_input(mode: str) -> None:
    image = Image.new(mode, (5, 6))
    for spec in (GREY, RGB):
        pixels = to_input(image, spec)
        assert pixels.dtype == np.float32 and 0 <= pixels.min() and pixels.max() <= 1


def test_sixteen_bit_grey_is_scaled() -> None:
    image = Image.fromarray(np.full((6, 5), 65535, np.uint16))
    assert (to_input(image, GREY) == 1).all()


def test_transparent_pixels_are_laid_on_white() -> None:
    assert (to_input(Image.new("RGBA", (5, 6), (0, 0, 0, 0)), RGB) == 1).all()


def test_orientation_of_a_photo_is_applied() -> None:
    image = Image.new("L", (6, 5))
    exif = image.getexif()
    exif[0x0112] = 6
    stream = io.BytesIO()
    image.save(stream, "JPEG", exif=exif)
    assert decode_image(stream.getvalue()).size == (5, 6)


def test_truncated_png_is_refused() -> None:
    data = file_of(Image.fromarray(random_pixels(64, 64)))
    with pytest.raises(ImageError, match="broken or incomplete") as caught:
        decode_image(data[: len(data) // 2])
    assert caught.value.code == "broken_image"


@pytest.mark.parametrize("data", [b"", b"just some text", b"%PDF-1.7", b"\x89PNG\r\n"])
def test_what_is_no_image_is_refused(data: bytes) -> None:
    with pytest.raises(ImageError) as caught:
        decode_image(data)
    assert caught.value.code in {"not_an_image", "broken_image"}


def test_too_many_pixels_are_refused_before_decoding() -> None:
    data = file_of(Image.new("1", (4000, 4000)))
    with pytest.raises(ImageError, match="4000 x 4000 is more than 1000000 pixels") as caught:
        decode_image(data, max_pixels=1_000_000)
    assert caught.value.code == "too_many_pixels"


def test_error_holds_no_path(tmp_path: Path) -> None:
    path = tmp_path / "secret.png"
    path.write_bytes(b"text")
    with pytest.raises(ImageError) as caught:
        decode_image(path)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"channels": 2, "height": 1, "width": 1}, "channels must be 1 or 3, got 2"),
        ({"channels": 1, "height": 0, "width": 1}, "height and width must be positive"),
        ({"channels": 1, "height": 1, "width": 1, "resample": "no"}, "resample must be one of"),
    ],
)
def test_input_against_the_rules_is_refused(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ImageSpec(**fields)  # pyright: ignore[reportArgumentType] -- wrong on purpose
