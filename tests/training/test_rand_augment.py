from collections.abc import Callable

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageOps
from torch import Tensor

from training.augment import rand_augment
from training.augment.rand_augment import OPERATIONS
from training.draws import Draws, source

LEVEL = 0.5


def picture() -> Image.Image:
    """Smooth colors over a part of the range, as a photograph has them."""
    rows, columns = np.mgrid[0:24, 0:32] / 32
    channels = (40 + 150 * rows, 30 + 120 * columns, 90 + 60 * np.sin(4 * rows + 3 * columns))
    return Image.fromarray(np.stack(channels, axis=-1).astype(np.uint8))


def tensor(image: Image.Image) -> Tensor:
    return torch.from_numpy(np.asarray(image).copy()).permute(2, 0, 1)[None].float() / 255


def apply(name: str, images: Tensor, sign: float = 1.0) -> Tensor:
    shape = (len(images), 1, 1, 1)
    operation = getattr(rand_augment, name)
    return operation(images, torch.full(shape, LEVEL), torch.full(shape, sign))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("auto_contrast", ImageOps.autocontrast),
        ("equalize", ImageOps.equalize),
        ("invert", ImageOps.invert),
        ("posterize", lambda image: ImageOps.posterize(image, 2)),
        ("solarize", lambda image: ImageOps.solarize(image, 128)),
        ("color", lambda image: ImageEnhance.Color(image).enhance(1.45)),
        ("contrast", lambda image: ImageEnhance.Contrast(image).enhance(1.45)),
        ("brightness", lambda image: ImageEnhance.Brightness(image).enhance(1.45)),
        ("sharpness", lambda image: ImageEnhance.Sharpness(image).enhance(1.45)),
    ],
)
def test_operation_is_that_of_pillow(
    name: str, expected: Callable[[Image.Image], Image.Image]
) -> None:
    image = picture()
    difference = (apply(name, tensor(image)) - tensor(expected(image))).abs().max()
    assert difference <= 2.1 / 255  # Pillow rounds to whole values on the way


def test_solarize_add_brightens_the_dark_half() -> None:
    images = torch.tensor([0.1, 0.45, 0.55, 0.9]).view(1, 1, 2, 2)
    changed = apply("solarize_add", images).flatten()
    brighter = LEVEL * 110 / 255
    assert changed.tolist() == pytest.approx([0.1 + brighter, 0.45 + brighter, 0.55, 0.9])


@pytest.mark.parametrize(
    ("name", "matrix"),
    [
        # Pillow's coefficients for pixels (x, y) of a 40 x 40 image: where to sample from.
        ("shear_x", (1, 0.15, -0.15 * 20, 0, 1, 0)),
        ("shear_y", (1, 0, 0, 0.15, 1, -0.15 * 20)),
        ("translate_x", (1, 0, 0.225 * 40, 0, 1, 0)),
        ("translate_y", (1, 0, 0, 0, 1, 0.225 * 40)),
    ],
)
def test_image_is_moved_as_pillow_moves_it(name: str, matrix: tuple[float, ...]) -> None:
    image = picture().resize((40, 40), Image.Resampling.BILINEAR)
    expected = tensor(
        image.transform((40, 40), Image.Transform.AFFINE, matrix, Image.Resampling.BILINEAR)
    )
    moved = apply(name, tensor(image))
    inside = (slice(None), slice(None), slice(10, 30), slice(10, 30))
    assert (moved[inside] - expected[inside]).abs().max() < 0.02
    assert not torch.allclose(moved, apply(name, tensor(image), sign=-1.0), atol=0.02)


def test_rotation_turns_by_half_of_thirty_degrees() -> None:
    image = picture().resize((40, 40), Image.Resampling.BILINEAR)
    moved = apply("rotate", tensor(image))
    expected = tensor(image.rotate(15, Image.Resampling.BILINEAR))
    assert (moved - expected)[..., 10:30, 10:30].abs().max() < 0.02


@pytest.mark.parametrize("operation", OPERATIONS)
def test_every_operation_keeps_range_and_shape_also_of_flat_and_grey_images(
    operation: Callable[[Tensor, Tensor, Tensor], Tensor],
) -> None:
    level, sign = torch.ones(4, 1, 1, 1), torch.tensor([1.0, -1.0, 1.0, -1.0]).view(4, 1, 1, 1)
    for images in (torch.rand(4, 3, 6, 6), torch.rand(4, 1, 6, 6), torch.full((4, 3, 6, 6), 0.3)):
        changed = operation(images, level, sign)
        assert changed.shape == images.shape and changed.isfinite().all()
        assert changed.min() >= 0 and changed.max() <= 1


def test_images_get_operations_of_their_own_about_half_of_the_time() -> None:
    image = tensor(picture()).expand(600, -1, -1, -1)
    draws = Draws(source(0, "augment", 0), 600)
    changed = rand_augment.rand_augment(image, 1, magnitude=9, draws=draws)
    same = (changed == image).all(3).all(2).all(1).float().mean()
    assert 0.4 < same < 0.6
    assert torch.equal(image[0], image[1]) and len(changed.mean((1, 2, 3)).unique()) > 100
