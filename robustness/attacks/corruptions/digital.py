"""What cameras' software and files do. Images are (H, W, C) in [0, 1]."""

import io

import numpy as np
from PIL import Image
from scipy import ndimage


def contrast(image: np.ndarray, rng: np.random.Generator, factor: float) -> np.ndarray:
    """Bring each channel closer to its mean, to `factor` times the distance."""
    mean = image.mean(axis=(0, 1), keepdims=True)
    return mean + (image - mean) * factor


def saturate(image: np.ndarray, rng: np.random.Generator, factor: float, more: float) -> np.ndarray:
    """Multiply the saturation in HSV by `factor` and add `more`, within [0, 1].

    Grey pixels of a colour image count as red there, so that `more` reddens them, as in the
    published code. An image with one channel has no colour and stays as it is.
    """
    if image.shape[2] == 1:
        return image
    value = image.max(axis=2, keepdims=True)
    spread = value - image.min(axis=2, keepdims=True)
    red = np.array([0.0, 1.0, 1.0])
    lack = np.where(spread > 0, (value - image) / np.maximum(spread, 1e-12), red)
    saturation = np.where(value > 0, spread / np.maximum(value, 1e-12), 0)
    return value * (1 - np.clip(saturation * factor + more, 0, 1) * lack)


def jpeg_compression(image: np.ndarray, rng: np.random.Generator, quality: float) -> np.ndarray:
    """Write the image as a JPEG of this quality, 1 to 95, and read it back."""
    stream = io.BytesIO()
    _to_picture(image).save(stream, "JPEG", quality=int(quality))
    with Image.open(stream, formats=("JPEG",)) as picture:
        return _from_picture(picture)


def pixelate(image: np.ndarray, rng: np.random.Generator, scale: float) -> np.ndarray:
    """Shrink the image to `scale` times its sides and enlarge it again, both by boxes."""
    picture = _to_picture(image)
    small = (max(1, int(picture.width * scale)), max(1, int(picture.height * scale)))
    shrunk = picture.resize(small, Image.Resampling.BOX)
    return _from_picture(shrunk.resize(picture.size, Image.Resampling.BOX))


def elastic_transform(
    image: np.ndarray, rng: np.random.Generator, pull: float, sigma: float, shear: float
) -> np.ndarray:
    """Move three points of the image, then each pixel along with its neighbours.

    Args:
        image: (H, W, C).
        rng: draws all moves.
        pull: largest move of a pixel before smoothing, in shorter sides of the image.
        sigma: smoothing of the moves, in shorter sides.
        shear: largest move of the three points, in shorter sides.

    Source: Simard et al. 2003 for the second part.
    """
    side = min(image.shape[:2])
    matrix, offset = _affine(image.shape[:2], rng, shear * side)
    rows, columns = np.indices(image.shape[:2], dtype=np.float64)
    places = np.stack([rows, columns])  # (2, H, W)
    sheared = np.einsum("ij,jhw->ihw", matrix, places) + offset[:, None, None]
    image = _pick(image, sheared, "mirror")
    moves = [rng.uniform(-1, 1, image.shape[:2]) for _ in range(2)]  # columns, rows
    smooth = [
        ndimage.gaussian_filter(move, sigma * side, mode="reflect", truncate=3) for move in moves
    ]
    return _pick(image, places + pull * side * np.stack(smooth[::-1]), "reflect")


def _affine(
    size: tuple[int, ...], rng: np.random.Generator, reach: float
) -> tuple[np.ndarray, np.ndarray]:
    """The map from a place (row, column) after the move to the place before it."""
    centre, arm = np.array(size) // 2, max(1, min(size) // 3)
    before = centre + arm * np.array([[1, 1], [-1, 1], [-1, -1]])  # (3 points, row and column)
    moved = before + rng.uniform(-reach, reach, before.shape)[:, ::-1]
    solution = np.linalg.lstsq(np.column_stack([moved, np.ones(3)]), before, rcond=None)[0]
    return solution[:2].T, solution[2]


def _pick(image: np.ndarray, places: np.ndarray, mode: str) -> np.ndarray:
    """Linearly interpolated values of an image at (2, H, W) rows and columns."""
    channels = [
        ndimage.map_coordinates(channel, places, order=1, mode=mode)
        for channel in image.transpose(2, 0, 1)
    ]
    return np.stack(channels, axis=2)


def _to_picture(image: np.ndarray) -> Image.Image:
    pixels = np.rint(image * 255).astype(np.uint8)
    return Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels)


def _from_picture(picture: Image.Image) -> np.ndarray:
    values = np.asarray(picture) / 255
    return values[..., None] if values.ndim == 2 else values
