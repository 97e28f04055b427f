"""From the bytes of an image file to a model's input, and back to a PNG.

Training, export, evaluation and the service all read images through this module, so that a model
sees the same numbers everywhere.
"""

import dataclasses
import io
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from PIL import Image, ImageOps

from core.fields import check_positive, check_types

Resample = Literal["bilinear", "bicubic"]
_MODES = {1: "L", 3: "RGB"}
_FILTERS = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}
_SIXTEEN_BIT = ("I;16", "I;16L", "I;16B", "I;16N")
# Pillow knows many more; some start other programs (EPS) or decode while they are opened (ICO).
FORMATS = {
    "PNG": re.compile(rb"\x89PNG"),
    "JPEG": re.compile(rb"\xff\xd8\xff"),
    "WEBP": re.compile(rb"RIFF"),
    "GIF": re.compile(rb"GIF8"),
    "BMP": re.compile(rb"BM.{13}\0\0\0", re.DOTALL),
    "TIFF": re.compile(rb"II[*+]\0|MM\0[*+]|MM\*\0|II\0\*"),
    "PPM": re.compile(rb"P[0-6fy]\s"),
    "AVIF": re.compile(rb".{4}ftyp(avif|avis|mif1|msf1)", re.DOTALL),
    "JPEG2000": re.compile(rb"\xff\x4f\xff\x51|\0\0\0\x0cjP  \r\n\x87\n"),
}
"""By the name of each format that is read, how its files begin."""
_HEAD = 32  # bytes, more than any of them
BROKEN = "the image data is broken or incomplete"
MAX_PIXELS = 50_000_000
# Its warning and its error come too late or too early; `decode_image` has its own rule.
Image.MAX_IMAGE_PIXELS = None


class ImageError(ValueError):
    """An image that cannot be read. `code` says why; the message holds no path.

    Codes: "not_an_image", "broken_image", "too_many_pixels"; where strangers' images are decoded
    also "format_not_taken", "image_too_costly".
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageSpec:
    """The input of an image model: channels (1 grey, 3 RGB), height and width in pixels.

    With `resize` the shorter side comes to that many pixels and the middle is cut out; without it
    an image is stretched to height and width.
    """

    channels: int  # 1 gray, 3 RGB
    height: int  # in pixels
    width: int  # in pixels
    resample: Resample = "bicubic"  # how images are resized
    resize: int | None = None  # length of the shorter side, of which the middle is cut out

    def __post_init__(self) -> None:
        """Check every rule, naming the field and the value received."""
        check_types(self)
        check_positive(self, "channels", "height", "width", "resize")
        if self.resize is not None and self.resize < max(self.height, self.width):
            sides = f"height {self.height} and width {self.width}"
            raise ValueError(f"resize must be at least {sides}, got {self.resize}")
        if self.channels not in _MODES:
            raise ValueError(f"channels must be 1 or 3, got {self.channels}")

    def to_dict(self) -> dict[str, Any]:
        """The fields by name, as JSON values."""
        return dataclasses.asdict(self)


def decode_image(source: bytes | Path, *, max_pixels: int = MAX_PIXELS) -> Image.Image:
    """Decode an image completely; its size is checked before any pixel is.

    Args:
        source: the bytes of an image file, or a path to one.
        max_pixels: width times height at most.

    Raises:
        ImageError: no known image format, too many pixels, or broken data.
    """
    with _open(source) as image:
        if image.width * image.height > max_pixels:
            message = f"{image.width} x {image.height} is more than {max_pixels} pixels"
            raise ImageError("too_many_pixels", message)
        try:
            image.load()
            return ImageOps.exif_transpose(image)
        except Exception as error:
            raise ImageError("broken_image", BROKEN) from error


def image_size(source: bytes | Path) -> tuple[int, int]:
    """Width and height of an image, which is not decoded for it.

    Args:
        source: the bytes of an image file, or a path to one.

    Raises:
        ImageError: no known image format, or a broken header.
    """
    with _open(source) as image:
        return image.size


def format_of(head: bytes) -> str | None:
    """The name in `FORMATS` of what the first bytes of a file promise, if it is known."""
    return next((name for name, start in FORMATS.items() if start.match(head)), None)


def image_format(source: bytes | Path) -> str | None:
    """The name in `FORMATS` of what a file's first bytes promise; see `decode_image`."""
    return format_of(_head(source))


def _open(source: bytes | Path) -> Image.Image:
    """An image of which only the header has been read."""
    kind = image_format(source)
    if kind is None:
        raise ImageError("not_an_image", "not an image in a known format")
    stream = io.BytesIO(source) if isinstance(source, bytes) else source
    try:
        return Image.open(stream, formats=[kind])
    except Exception as error:  # Pillow's decoders raise nearly anything on broken data
        raise ImageError("broken_image", BROKEN) from error


def _head(source: bytes | Path) -> bytes:
    if isinstance(source, bytes):
        return source[:_HEAD]
    try:
        with source.open("rb") as file:
            return file.read(_HEAD)
    except OSError as error:
        raise ImageError("broken_image", BROKEN) from error


def to_pixels(image: Image.Image, spec: ImageSpec) -> np.ndarray:
    """Bring an image to the size and channels of a model.

    Transparent pixels are laid on white, 16-bit grey is scaled to 8 bit.

    Returns:
        (C, H, W) uint8.

    Raises:
        ImageError: colors of a kind that cannot be turned into grey or RGB.
    """
    try:
        image = _flatten(image).convert(_MODES[spec.channels])
    except ValueError as error:
        raise ImageError("broken_image", f"colors of the kind {image.mode} are unknown") from error
    pixels = np.asarray(_fit(image, spec, _FILTERS[spec.resample]))
    return pixels[None] if spec.channels == 1 else np.ascontiguousarray(pixels.transpose(2, 0, 1))


def fit_mask(mask: np.ndarray, spec: ImageSpec) -> np.ndarray:
    """Bring the classes of an image's pixels, (h, w) uint8, to where `to_pixels` brings the pixels.

    Each pixel has the class of the nearest one: (H, W) uint8.
    """
    return np.asarray(_fit(Image.fromarray(mask), spec, Image.Resampling.NEAREST))


def class_color(index: int) -> tuple[int, int, int]:
    """The color of a class 0..255: that of PASCAL VOC's masks, whose class 0 is black.

    Bit i of red, green and blue comes from the i-th triple of the index's bits, highest first.
    """
    parts = [0, 0, 0]
    for place in range(8):
        for channel in range(3):
            parts[channel] |= (index >> (3 * place + channel) & 1) << (7 - place)
    return parts[0], parts[1], parts[2]


def _fit(image: Image.Image, spec: ImageSpec, how: Image.Resampling) -> Image.Image:
    box = _middle(image.size, spec)
    if box == (0, 0, spec.width, spec.height):
        return image
    return image.resize((spec.width, spec.height), how, box=box)


def _middle(size: tuple[int, int], spec: ImageSpec) -> tuple[float, float, float, float]:
    """The part of an image that a model sees: left, top, right and bottom.

    Cut out before it is resized: a long and narrow image would grow without limit.
    """
    width, height = size
    if spec.resize is None:
        return 0, 0, width, height
    scale = min(width, height) / spec.resize
    left, top = (width - spec.width * scale) / 2, (height - spec.height * scale) / 2
    return left, top, width - left, height - top


def to_input(image: Image.Image, spec: ImageSpec) -> np.ndarray:
    """Bring an image to a model's input.

    Returns:
        (C, H, W) float32 in [0, 1], whole multiples of 1/255.
    """
    return to_unit(to_pixels(image, spec))


def to_unit(pixels: np.ndarray) -> np.ndarray:
    """Pixels in 8 bit as float32 in [0, 1]."""
    return pixels.astype(np.float32) / np.float32(255)


def framed(pixels: np.ndarray, spec: ImageSpec) -> np.ndarray:
    """Pixels (C, H, W) inside the border that reading an image cuts away, so that it gives them.

    Without `resize` there is none; of an odd one, reading is half a pixel off.
    """
    if spec.resize is None:
        return pixels
    spare = (spec.resize - spec.height, spec.resize - spec.width)
    border = [(0, 0), *((length // 2, length - length // 2) for length in spare)]
    return np.pad(pixels, border, mode="edge")


def to_png(pixels: np.ndarray) -> bytes:
    """Write pixels as a PNG, rounded to 8 bit.

    Args:
        pixels: (C, H, W) in [0, 1] with C = 1 or 3.

    Raises:
        ValueError: wrong shape, or a pixel outside [0, 1].
    """
    if pixels.ndim != 3 or pixels.shape[0] not in _MODES:
        raise ValueError(f"pixels must be (1 or 3, H, W), got {pixels.shape}")
    if not (np.isfinite(pixels).all() and pixels.min() >= 0 and pixels.max() <= 1):
        raise ValueError("pixels must lie in [0, 1]")
    eight_bit = np.rint(pixels * 255).astype(np.uint8)
    array = eight_bit[0] if len(eight_bit) == 1 else eight_bit.transpose(1, 2, 0)
    stream = io.BytesIO()
    Image.fromarray(array).save(stream, format="PNG")
    return stream.getvalue()


def _flatten(image: Image.Image) -> Image.Image:
    if image.mode in _SIXTEEN_BIT or image.mode == "I":
        return Image.fromarray((np.asarray(image).clip(0, 65535) / 257).round().astype(np.uint8))
    if image.mode == "F":
        numbers = np.nan_to_num(np.asarray(image), nan=0)  # NaN has no color; black is one
        return Image.fromarray(numbers.clip(0, 255).round().astype(np.uint8))
    if image.mode == "LAB":  # grey cannot be had from it directly
        return image.convert("RGB")
    if not image.has_transparency_data:
        return image
    image = image.convert("RGBA")
    white = Image.new("RGBA", image.size, "white")
    return Image.alpha_composite(white, image).convert("RGB")
