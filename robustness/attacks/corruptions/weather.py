"""Snow, frost, fog, sunlight, and splashes on the lens.

Images are (H, W, C) in [0, 1] with C = 1 or 3; results may leave [0, 1].
"""

import numpy as np
from scipy import ndimage

from robustness.attacks.corruptions.noise import magnify, smear

_LUMA = np.array([0.299, 0.587, 0.114])
_ICE_TINT = (0.89, 1.02, 1.09)
_ICE_LEVELS = (0.46, 0.76)
_ICE_CONTRAST = 0.12
_NEEDLES = 3
_WATER = (175 / 255, 238 / 255, 238 / 255)
_MUD = (63 / 255, 42 / 255, 20 / 255)
_FARTHEST = 20
_WEAK_EDGE, _STRONG_EDGE = 50, 150
_EMBOSS = np.array([[-2, -1, 0], [-1, 1, 1], [0, 1, 2]])
_STEPS = ((0, 1), (1, 0), (1, 1), (1, -1))
"""(rows, columns) from a pixel to the next one along a gradient: right, down, two diagonals."""


def snow(
    image: np.ndarray,
    rng: np.random.Generator,
    mean: float,
    deviation: float,
    zoom: float,
    threshold: float,
    radius: float,
    sigma: float,
    keep: float,
) -> np.ndarray:
    """Lay falling flakes over an image that is whitened a little.

    The published code rounds the flakes to 8 bit before and after they are smeared; here nothing
    is rounded before the end.

    Args:
        image: (H, W, C).
        rng: draws the flakes and the direction of their fall.
        mean: of the normal noise that becomes flakes.
        deviation: of that noise.
        zoom: magnification of the flakes.
        threshold: noise below it is no flake.
        radius: of the smear, in pixels.
        sigma: of the smear, in pixels.
        keep: weight of the image itself against its whitened version.
    """
    noise = rng.normal(mean, deviation, (*image.shape[:2], 1))
    flakes = magnify(noise, zoom)
    flakes = np.where(flakes < threshold, 0, np.clip(flakes, 0, 1))
    flakes = smear(flakes, radius, sigma, rng.uniform(-135, -45))
    white = np.maximum(image, luma(image) * 1.5 + 0.5)
    return keep * image + (1 - keep) * white + flakes + np.rot90(flakes, k=2)


def frost(image: np.ndarray, rng: np.random.Generator, keep: float, cover: float) -> np.ndarray:
    """Lay ice over an image.

    ImageNet-C takes crops of six photographs, which may not be shipped; this takes a generated
    texture of their colour, brightness and contrast. Figures are close to those of ImageNet-C's
    frost, not the same.

    Args:
        image: (H, W, C).
        rng: draws the ice.
        keep: weight of the image.
        cover: weight of the ice.
    """
    pattern = ice(image.shape[0], image.shape[1], rng)  # (H, W, 3)
    return keep * image + cover * (luma(pattern) if image.shape[2] == 1 else pattern)


def fog(image: np.ndarray, rng: np.random.Generator, thickness: float, decay: float) -> np.ndarray:
    """Add clouds, then dim by what they may have added at most.

    Args:
        image: (H, W, C).
        rng: draws the clouds.
        thickness: height of the clouds, in units of white.
        decay: their smoothness, see `clouds`.
    """
    height, width, _ = image.shape
    brightest = image.max()
    hidden = image + thickness * clouds(height, width, rng, decay)[..., None]
    return hidden * brightest / (brightest + thickness)


def brightness(image: np.ndarray, rng: np.random.Generator, more: float) -> np.ndarray:
    """Raise the value of each pixel in HSV, the largest of its channels, by `more`, up to 1."""
    value = image.max(axis=2, keepdims=True)
    raised = np.minimum(value + more, 1)
    return np.where(value > 0, image * raised / np.maximum(value, 1e-12), raised)


def spatter(
    image: np.ndarray,
    rng: np.random.Generator,
    mean: float,
    deviation: float,
    sigma: float,
    threshold: float,
    strength: float,
    muddy: bool,
) -> np.ndarray:
    """Splash water, which lightens, or mud, which covers.

    Args:
        image: (H, W, C).
        rng: draws the splashes.
        mean: of the normal noise that becomes liquid.
        deviation: of that noise.
        sigma: smoothing of the noise, in pixels.
        threshold: smoothed noise below it is dry.
        strength: weight of water; for mud the smoothing of its rim, in pixels.
        muddy: mud instead of water.
    """
    noise = rng.normal(mean, deviation, image.shape[:2])
    liquid = ndimage.gaussian_filter(noise, sigma, mode="nearest")
    liquid = np.where(liquid < threshold, 0, liquid)
    if not muddy:
        return image + _gloss(liquid, strength)[..., None] * in_channels_of(image, _WATER)
    cover = ndimage.gaussian_filter((liquid > threshold).astype(float), strength, mode="nearest")
    cover = np.where(cover < 0.8, 0, cover)[..., None]
    return image * (1 - cover) + cover * in_channels_of(image, _MUD)


def _gloss(liquid: np.ndarray, strength: float) -> np.ndarray:
    """How much light drops add, (H, W): embossed by the distance to the drops' rims.

    Distances are exact, where the published code's library approximates them by steps of a chess
    knight; that is all that differs. No drop at all adds nothing, where that code divides 0 by 0.
    """
    depth = np.floor(np.clip(liquid, 0, 1) * 255)
    rims = edges(depth, weak=_WEAK_EDGE, strong=_STRONG_EDGE)
    distance = np.full(liquid.shape, float(_FARTHEST))
    if rims.any():
        exact = np.asarray(ndimage.distance_transform_edt(~rims))
        distance = np.minimum(exact, _FARTHEST)
    relief = _equalise(np.floor(ndimage.uniform_filter(distance, 3, mode="mirror")))
    relief = np.clip(ndimage.correlate(relief, _EMBOSS, mode="mirror"), 0, 255)
    shine = depth * np.rint(ndimage.uniform_filter(relief, 3, mode="mirror"))
    return strength * shine / shine.max() if shine.max() > 0 else shine


def _equalise(levels: np.ndarray) -> np.ndarray:
    """Spread grey levels so that each range of them is equally common, (H, W) in [0, 255]."""
    codes = levels.astype(np.uint8)
    counts = np.bincount(codes.ravel(), minlength=256)
    lowest = int(np.flatnonzero(counts)[0])
    rest = codes.size - counts[lowest]
    if not rest:
        return levels
    spread = (np.cumsum(counts) - counts[lowest]) * 255 / rest
    return np.rint(np.clip(spread, 0, 255))[codes]


def edges(grey: np.ndarray, *, weak: float, strong: float) -> np.ndarray:
    """Edges one pixel wide by Canny's method, without smoothing first.

    Args:
        grey: (H, W) in [0, 255].
        weak: pixels with a smaller gradient are no edge.
        strong: a connected edge has at least one pixel with a larger gradient.

    Returns:
        (H, W) bool.

    Source: Canny 1986; gradients are Sobel's, |dx| + |dy| long, as in the library that ImageNet-C
    used.
    """
    down = ndimage.sobel(grey, axis=0, mode="nearest")
    right = ndimage.sobel(grey, axis=1, mode="nearest")
    slope = np.abs(down) + np.abs(right)
    thin = _peaks(slope, down, right) & (slope > weak)
    connected = ndimage.generate_binary_structure(2, 2)
    return ndimage.binary_propagation(thin & (slope > strong), structure=connected, mask=thin)


def _peaks(slope: np.ndarray, down: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Where the slope is larger than at both neighbours along the gradient, (H, W) bool."""
    angle = np.arctan2(np.abs(down), np.abs(right))
    direction = np.select(
        [angle < np.pi / 8, angle > 3 * np.pi / 8, down * right >= 0], [0, 1, 2], 3
    )
    padded = np.pad(slope, 1)
    height, width = slope.shape
    peaks = np.zeros(slope.shape, bool)
    for number, (dy, dx) in enumerate(_STEPS):
        before = padded[1 - dy : 1 - dy + height, 1 - dx : 1 - dx + width]
        after = padded[1 + dy : 1 + dy + height, 1 + dx : 1 + dx + width]
        # Of two equal neighbours the former stays; on a diagonal neither, as in that library.
        later = slope >= after if number < 2 else slope > after
        peaks |= (direction == number) & (slope > before) & later
    return peaks


def clouds(height: int, width: int, rng: np.random.Generator, decay: float) -> np.ndarray:
    """Plasma fractal: a height map by the diamond-square algorithm.

    It is drawn on the smallest square that holds it whose side is a power of two, wraps round
    there, and spans 0 to 1 over that square. The random part of a point is divided by the square
    of `decay` from one scale to the next finer one, as in the published code.

    Args:
        height: rows.
        width: columns.
        rng: draws the heights.
        decay: larger is smoother.

    Returns:
        (height, width) in [0, 1].

    Source: Fournier, Fussell & Carpenter 1982.
    """
    side = max(2, 1 << (max(height, width) - 1).bit_length())
    heights = np.zeros((side, side))
    step, swing = side, 1.0
    while step >= 2:
        half = step // 2
        corners = heights[::step, ::step]
        pairs = corners + np.roll(corners, -1, 0)
        centres = (pairs + np.roll(pairs, -1, 1)) / 4 + _wobble(corners, swing, rng)
        heights[half::step, half::step] = centres
        across = corners + np.roll(corners, -1, 1) + centres + np.roll(centres, 1, 0)
        heights[::step, half::step] = across / 4 + _wobble(corners, swing, rng)
        along = corners + np.roll(corners, -1, 0) + centres + np.roll(centres, 1, 1)
        heights[half::step, ::step] = along / 4 + _wobble(corners, swing, rng)
        step, swing = half, swing / decay**2
    heights -= heights.min()
    return (heights / heights.max())[:height, :width]


def _wobble(like: np.ndarray, swing: float, rng: np.random.Generator) -> np.ndarray:
    return rng.uniform(-swing, swing, like.shape)


def ice(height: int, width: int, rng: np.random.Generator) -> np.ndarray:
    """A texture in place of ImageNet-C's photographs of frost: needles over uneven haze.

    Its mean colour, its range of brightness from one picture to the next and its contrast within
    one are those of the photographs; what it shows is not.

    Returns:
        (height, width, 3) in [0, 1].
    """
    grain = rng.normal(size=(height, width, 1))
    needles = [smear(grain, 4, 3, degrees) for degrees in rng.uniform(0, 360, _NEEDLES)]
    haze = _standardised(clouds(height, width, rng, 1.7))
    relief = _standardised(np.max(needles, axis=0)[..., 0]) + haze
    bright = rng.uniform(*_ICE_LEVELS) + _ICE_CONTRAST * _standardised(relief)
    return np.clip(bright[..., None] * np.array(_ICE_TINT), 0, 1)


def _standardised(pattern: np.ndarray) -> np.ndarray:
    return (pattern - pattern.mean()) / max(float(pattern.std()), 1e-12)


def luma(image: np.ndarray) -> np.ndarray:
    """Brightness (H, W, 1) as BT.601 weighs red, green and blue; a grey image itself."""
    return image if image.shape[2] == 1 else (image @ _LUMA)[..., None]


def in_channels_of(image: np.ndarray, rgb: tuple[float, float, float]) -> np.ndarray:
    """A colour (C,) in as many channels as an image has: itself, or its brightness."""
    colour = np.array(rgb)
    return colour if image.shape[2] == 3 else np.array([colour @ _LUMA])
