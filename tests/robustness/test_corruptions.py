import colorsys
import io

import numpy as np
import pytest
from PIL import Image

from robustness.attacks.corruptions.attack import (
    CORRUPTIONS,
    EXTRA_CORRUPTIONS,
    mean_corruption_error,
)
from robustness.attacks.corruptions.corrupt import LARGE, SMALL, corrupt
from robustness.attacks.corruptions.noise import defocus_blur, magnify, smear
from robustness.attacks.corruptions.weather import clouds, edges, ice

ALL = CORRUPTIONS + EXTRA_CORRUPTIONS
SIZES = [(1, 28, 28), (3, 32, 32), (3, 40, 71), (1, 9, 70), (1, 8, 8), (3, 1, 1)]
GROWING = [
    "gaussian_noise", "shot_noise", "impulse_noise", "defocus_blur", "glass_blur", "motion_blur",
    "zoom_blur", "snow", "fog", "brightness", "contrast", "pixelate", "jpeg_compression",
    "speckle_noise", "gaussian_blur",
]  # fmt: skip


def picture(shape: tuple[int, int, int], seed: int = 0) -> np.ndarray:
    """Smooth colours with a few sharp rims, away from black and white."""
    channels, height, width = shape
    rows, columns = np.mgrid[:height, :width]
    waves = [np.sin((i + 1) * rows / 9 + columns / (7 + i) + seed) for i in range(channels)]
    blocks = ((rows // 6 + columns // 8) % 2) * 40.0
    return (np.stack(waves) * 50 + 110 + blocks - 20).astype(np.uint8)


def change(pixels: np.ndarray, name: str, severity: int, draws: int = 4) -> float:
    """Mean absolute change of a value over a few draws."""
    drawn = [corrupt(pixels, name, severity, np.random.default_rng(i)) for i in range(draws)]
    return float(np.mean([np.abs(one - pixels.astype(float)).mean() for one in drawn]))


@pytest.mark.parametrize("name", ALL)
def test_any_image_stays_what_it_is_and_the_draws_alone_decide(name: str) -> None:
    assert len(CORRUPTIONS) == 15 and len(SMALL[name]) == len(LARGE[name]) == 5
    plain = [np.full((c, 30, 30), value, np.uint8) for c in (1, 3) for value in (0, 255)]
    state = str(np.random.get_state())
    for pixels in [*map(picture, SIZES), *plain]:
        before = pixels.copy()
        for severity in range(1, 6):
            once, again = (
                corrupt(pixels, name, severity, np.random.default_rng(1)) for _ in range(2)
            )
            assert once.shape == pixels.shape and once.dtype == np.uint8 and once.flags.c_contiguous
            assert np.array_equal(once, again)
        assert np.array_equal(pixels, before)
    assert str(np.random.get_state()) == state


@pytest.mark.parametrize("name", ALL)
def test_severity_five_changes_more_than_one(name: str) -> None:
    assert change(picture((3, 224, 224)), name, 5, draws=1) > 0.5
    for shape in [(1, 28, 28), (3, 32, 32), (3, 96, 96)] * (name in GROWING):
        pixels = picture(shape)
        assert change(pixels, name, 5) > change(pixels, name, 1)


@pytest.mark.parametrize(
    ("pixels", "rule"),
    [
        (np.zeros((1, 8, 8), np.float32), "uint8, got"),
        (np.zeros((2, 8, 8), np.uint8), "1 or 3"),
        (np.zeros((8, 8), np.uint8), "1 or 3"),
    ],
)
def test_other_arrays_are_refused(pixels: np.ndarray, rule: str) -> None:
    with pytest.raises(ValueError, match=rule):
        corrupt(pixels, "fog", 1, np.random.default_rng(0))


def test_noise_is_as_strong_as_its_constants_say() -> None:
    grey = np.full((3, 200, 200), 128, np.uint8)
    draw = np.random.default_rng(0)
    level = 128 / 255

    def spread(name: str) -> float:
        return float(corrupt(grey, name, 1, draw).std() / 255)

    assert spread("gaussian_noise") == pytest.approx(0.08, rel=0.03)
    assert spread("shot_noise") == pytest.approx((level / 60) ** 0.5, rel=0.03)
    assert spread("speckle_noise") == pytest.approx(0.15 * level, rel=0.03)
    salted = corrupt(grey, "impulse_noise", 5, draw)
    assert (salted == 255).mean() == pytest.approx(0.135, abs=0.005)
    assert (salted == 0).mean() == pytest.approx(0.135, abs=0.005)


def test_frosted_glass_only_moves_pixels() -> None:
    # The smoothing of severity 1 for small images, sigma 0.05, weighs no neighbour.
    pixels = np.arange(900, dtype=np.int64).reshape(1, 30, 30) % 251
    moved = corrupt(pixels.astype(np.uint8), "glass_blur", 1, np.random.default_rng(0))
    assert sorted(moved.ravel()) == sorted(pixels.ravel())
    assert (moved != pixels).mean() > 0.5


def test_defocus_turns_a_point_into_a_disk() -> None:
    image = np.zeros((41, 41, 1))
    image[20, 20] = 1
    disk = defocus_blur(image, np.random.default_rng(0), 10, 0.01)[..., 0]
    rows, columns = np.mgrid[-20:21, -20:21]
    inside = rows**2 + columns**2 <= 100
    np.testing.assert_allclose(disk, inside / inside.sum(), atol=1e-12)


def test_smear_follows_its_direction_and_repeats_the_border() -> None:
    weights = np.exp(-(np.arange(5) ** 2) / (2 * 1.5**2))
    weights /= weights.sum()
    image = np.zeros((9, 9, 1))
    image[4, 4] = 1
    np.testing.assert_allclose(smear(image, 2, 1.5, 0)[4, :5, 0], weights[::-1])
    np.testing.assert_allclose(smear(image, 2, 1.5, 90)[:5, 4, 0], weights[::-1])
    np.testing.assert_allclose(smear(np.ones((9, 9, 1)), 2, 1.5, 30), 1)


def test_magnifying_keeps_the_size_and_the_middle() -> None:
    rows = np.broadcast_to(np.arange(32.0)[:, None, None], (32, 48, 1))
    large = magnify(rows, 2.0)
    assert large.shape == rows.shape and large.mean() == pytest.approx(rows.mean(), abs=0.6)
    assert np.diff(large[:, 0, 0]).mean() == pytest.approx(0.5, abs=0.02)


@pytest.mark.parametrize("severity", [1, 3, 5])
def test_contrast_brightness_and_saturation_are_their_formulas(severity: int) -> None:
    grey = picture((1, 28, 28))
    assert np.array_equal(corrupt(grey, "saturate", severity, np.random.default_rng(0)), grey)
    pixels = np.random.default_rng(0).integers(0, 256, (3, 12, 12), dtype=np.uint8)
    pixels[:, 0, :3] = [[0, 90, 255]] * 3  # black, grey and white
    mean = pixels.mean(axis=(1, 2), keepdims=True)
    expected = np.rint(mean + (pixels - mean) * SMALL["contrast"][severity - 1][0])
    found = corrupt(pixels, "contrast", severity, np.random.default_rng(0))
    np.testing.assert_array_equal(found, expected)
    for name in ("brightness", "saturate"):
        constants = SMALL[name][severity - 1]
        found = corrupt(pixels, name, severity, np.random.default_rng(0))
        for place in np.ndindex(12, 12):
            hue, saturation, value = colorsys.rgb_to_hsv(*(pixels[(slice(None), *place)] / 255))
            if name == "brightness":
                value = min(value + constants[0], 1)
            else:
                saturation = min(max(saturation * constants[0] + constants[1], 0), 1)
            expected = np.array(colorsys.hsv_to_rgb(hue, saturation, value)) * 255
            assert np.abs(found[(slice(None), *place)] - expected).max() <= 0.5 + 1e-9


def test_jpeg_and_pixelate_are_those_of_pillow() -> None:
    pixels = picture((3, 32, 40))
    image = Image.fromarray(np.ascontiguousarray(pixels.transpose(1, 2, 0)))
    stream = io.BytesIO()
    image.save(stream, "JPEG", quality=65)
    small = image.resize((36, 28), Image.Resampling.BOX)
    for name, expected in (
        ("jpeg_compression", Image.open(stream)),
        ("pixelate", small.resize((40, 32), Image.Resampling.BOX)),
    ):
        found = corrupt(pixels, name, 2, np.random.default_rng(0))
        np.testing.assert_array_equal(found.transpose(1, 2, 0), np.asarray(expected))


def test_elastic_moves_keep_a_plain_image_plain() -> None:
    for side in (32, 96):
        pixels = np.full((3, side, side), 77, np.uint8)
        for severity in range(1, 6):
            found = corrupt(pixels, "elastic_transform", severity, np.random.default_rng(severity))
            assert np.array_equal(found, pixels)


def test_clouds_span_their_square_and_repeat_with_the_draws() -> None:
    drawn = clouds(32, 32, np.random.default_rng(0), 2)
    assert (drawn.min(), drawn.max()) == (0, 1)
    assert np.array_equal(drawn, clouds(32, 32, np.random.default_rng(0), 2))
    rough, smooth = (clouds(64, 50, np.random.default_rng(0), decay) for decay in (1.2, 3))
    assert rough.shape == (64, 50)
    assert np.abs(np.diff(rough)).mean() > 3 * np.abs(np.diff(smooth)).mean()


def test_fog_never_makes_an_image_brighter_than_its_brightest_pixel() -> None:
    pixels = picture((3, 100, 100))
    foggy = corrupt(pixels, "fog", 5, np.random.default_rng(0))
    assert foggy.max() <= pixels.max()
    assert foggy.std() < 2 * pixels.std()


def test_ice_has_the_colour_and_the_contrast_of_the_photographs() -> None:
    drawn = np.stack([ice(224, 224, np.random.default_rng(i)) for i in range(12)]) * 255
    red, green, blue = drawn.mean(axis=(0, 1, 2))
    assert 130 < red < green < blue < 190
    contrasts = drawn.mean(axis=3).std(axis=(1, 2))
    assert 15 < contrasts.min() and contrasts.max() < 40  # crops of the photographs: 15 to 37


def test_edges_are_thin_rims_with_a_strong_pixel() -> None:
    grey = np.zeros((20, 20))
    grey[5:15, 5:15] = 200
    found = edges(grey, weak=50, strong=150)
    assert found[:, 10].nonzero()[0].tolist() == found[10].nonzero()[0].tolist()
    assert found[:, 10].sum() == 2
    assert not edges(grey / 10, weak=50, strong=150).any()
    assert not edges(np.full((5, 5), 9.0), weak=50, strong=150).any()


def test_mean_corruption_error_is_the_mean_of_ratios_of_sums() -> None:
    errors = {"fog": [0.1, 0.3], "snow": [0.2, 0.2]}
    reference = {"snow": [0.4, 0.4], "fog": [0.2, 0.2]}
    assert mean_corruption_error(errors, reference) == pytest.approx((1 + 0.5) / 2)
    assert mean_corruption_error(reference, reference) == pytest.approx(1)
