"""Noise of sensors, blur of lenses and of movement.

Images are (H, W, C) in [0, 1]; results may leave [0, 1].
"""

import math

import numpy as np
from scipy import ndimage

_DISK_GRID = 8
"""The published disks lie on a grid that reaches at least so far from their centre."""


def gaussian_noise(image: np.ndarray, rng: np.random.Generator, scale: float) -> np.ndarray:
    """Add independent normal noise of standard deviation `scale`."""
    return image + rng.normal(0, scale, image.shape)


def shot_noise(image: np.ndarray, rng: np.random.Generator, photons: float) -> np.ndarray:
    """Count particles of light; a white pixel receives `photons` on average."""
    return rng.poisson(image * photons) / photons


def impulse_noise(image: np.ndarray, rng: np.random.Generator, share: float) -> np.ndarray:
    """Set a share of all values to 0 or 1, either with probability 1/2, channel by channel."""
    hit = rng.random(image.shape) <= share
    salt = rng.random(image.shape) <= 0.5
    return np.where(hit, salt, image)


def speckle_noise(image: np.ndarray, rng: np.random.Generator, scale: float) -> np.ndarray:
    """Add normal noise that grows in proportion to brightness."""
    return image * (1 + rng.normal(0, scale, image.shape))


def gaussian_blur(image: np.ndarray, rng: np.random.Generator, sigma: float) -> np.ndarray:
    """Smooth by a normal kernel of `sigma` pixels."""
    return ndimage.gaussian_filter(image, (sigma, sigma, 0), mode="nearest")


def defocus_blur(
    image: np.ndarray, rng: np.random.Generator, radius: float, edge: float
) -> np.ndarray:
    """Average over a disk, as a lens out of focus does.

    Args:
        image: (H, W, C).
        rng: unused.
        radius: of the disk, in pixels.
        edge: sigma that softens the disk's rim, in pixels.
    """
    reach = max(_DISK_GRID, int(radius))
    steps = np.arange(-reach, reach + 1)
    disk = (steps[:, None] ** 2 + steps[None, :] ** 2 <= radius**2).astype(np.float64)
    taps = np.arange(-1, 2) if radius <= _DISK_GRID else np.arange(-2, 3)
    soft = np.exp(-(taps**2) / (2 * edge**2))
    soft /= soft.sum()
    kernel = disk / disk.sum()
    for axis in (0, 1):
        kernel = ndimage.correlate1d(kernel, soft, axis=axis, mode="mirror")
    used = np.flatnonzero(kernel.any(axis=0))
    kernel = kernel[used[0] : used[-1] + 1, used[0] : used[-1] + 1]
    return ndimage.correlate(image, kernel[..., None], mode="mirror")


def glass_blur(
    image: np.ndarray, rng: np.random.Generator, sigma: float, reach: float, rounds: float
) -> np.ndarray:
    """Smooth, exchange each pixel with one nearby, smooth again: frosted glass.

    In colour the published code copies one pixel of each pair over the other, by an accident of
    arrays that share memory; here they are exchanged, as it does in grey.

    Args:
        image: (H, W, C).
        rng: chooses the partners.
        sigma: of both smoothings, in pixels.
        reach: partners are less than this many rows and columns away, or just as many before.
        rounds: how often all pixels are gone through.
    """
    height, width, channels = image.shape
    reach = int(reach)
    order = list(range(height * width))
    centres = [
        h * width + w
        for h in range(height - reach, reach, -1)
        for w in range(width - reach, reach, -1)
    ]
    for _ in range(int(rounds)):
        moves = rng.integers(-reach, reach, (len(centres), 2))  # columns, rows
        partners = np.asarray(centres, np.int64) + moves[:, 1] * width + moves[:, 0]
        for one, other in zip(centres, partners.tolist(), strict=True):
            order[one], order[other] = order[other], order[one]
    smooth = gaussian_blur(image, rng, sigma).reshape(-1, channels)
    return gaussian_blur(smooth[order].reshape(image.shape), rng, sigma)


def motion_blur(
    image: np.ndarray, rng: np.random.Generator, radius: float, sigma: float
) -> np.ndarray:
    """Smear along a line that leans at most 45 degrees from the horizontal.

    Args:
        image: (H, W, C).
        rng: chooses the direction.
        radius: half the line's length, in pixels.
        sigma: of the normal weights along it, in pixels.
    """
    return smear(image, radius, sigma, rng.uniform(-45, 45))


def smear(image: np.ndarray, radius: float, sigma: float, degrees: float) -> np.ndarray:
    """Average over 2 * radius + 1 pixels that start at each pixel and follow a direction.

    Pixels beyond the border repeat it. This is what ImageMagick's motion blur computes.

    Args:
        image: (H, W, C).
        radius: half the number of pixels.
        sigma: weights fall as a normal density of this many pixels.
        degrees: 0 is to the right, 90 down.
    """
    steps = np.arange(2 * math.ceil(radius) + 1)
    weights = np.exp(-(steps**2) / (2 * sigma**2))
    weights /= weights.sum()
    angle = math.radians(degrees)
    down = np.ceil(steps * math.sin(angle) - 0.5).astype(int)
    right = np.ceil(steps * math.cos(angle) - 0.5).astype(int)
    height, width, _ = image.shape
    rows, columns = np.arange(height), np.arange(width)
    result = np.zeros_like(image)
    for weight, dy, dx in zip(weights, down, right, strict=True):
        moved = image[np.clip(rows + dy, 0, height - 1)]
        result += weight * moved[:, np.clip(columns + dx, 0, width - 1)]
    return result


def zoom_blur(image: np.ndarray, rng: np.random.Generator, stop: float, step: float) -> np.ndarray:
    """Average the image with its magnifications by 1, 1 + step, ... below 1 + stop."""
    # Floating-point arange may run one step past the end; that is part of the published constants.
    factors = np.arange(1, 1 + stop, step)
    return (image + sum(magnify(image, factor) for factor in factors)) / (len(factors) + 1)


def magnify(image: np.ndarray, factor: float) -> np.ndarray:
    """The middle of an image, linearly magnified to the image's own size."""
    height, width, _ = image.shape
    rows, columns = math.ceil(height / factor), math.ceil(width / factor)
    top, left = (height - rows) // 2, (width - columns) // 2
    middle = image[top : top + rows, left : left + columns]
    large = np.asarray(ndimage.zoom(middle, (factor, factor, 1), order=1))
    top, left = (large.shape[0] - height) // 2, (large.shape[1] - width) // 2
    return large[top : top + height, left : left + width]
