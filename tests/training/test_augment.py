import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageOps
from torch import Tensor

from data.images import ImageSpec
from training.augment import (
    OPERATIONS,
    augment,
    augment_masks,
    change_patches,
    color_jitter,
    erase,
    flip,
    mix,
    move,
    rand_augment,
)
from training.draws import Draws, source
from training.recipe import ImageData, MaskData


def draws(batch_size: int, part: slice = slice(None), step: int = 0) -> Draws:
    return Draws(source(0, "augment", step), batch_size, part)


def recipe(**data: Any) -> ImageData:
    spec = ImageSpec(channels=3, height=8, width=8)
    return ImageData(source="cifar10", valid=1, image=spec, **data)


def test_flip_mirrors_about_half_of_the_images() -> None:
    images = torch.arange(4.0).expand(1000, 1, 3, 4)
    flipped = flip(images, draws(1000))
    mirrored = (flipped == images.flip(-1)).all((1, 2, 3))
    assert ((flipped == images).all((1, 2, 3)) ^ mirrored).all()
    assert 400 < mirrored.sum() < 600


def test_masks_are_mirrored_with_their_images_and_keep_their_classes() -> None:
    spec = ImageSpec(channels=3, height=8, width=8)
    data = MaskData(source="x", image=spec, background=0, flip=True, color_jitter=0.4)
    masks = torch.arange(8).expand(400, 8, 8)
    images = (masks / 8.0)[:, None].expand(-1, 3, -1, -1)
    changed, moved = augment_masks(images, masks, data, draws(400))
    mirrored = (moved == masks.flip(-1)).all((1, 2))
    assert 150 < mirrored.sum() < 250 and ((moved == masks).all((1, 2)) ^ mirrored).all()
    rising = changed[:, 0, 0, -1] > changed[:, 0, 0, 0]
    assert torch.equal(rising, ~mirrored) and (changed != images).any()
    plain = MaskData(source="x", image=spec, background=None)
    assert augment_masks(images, masks, plain, draws(400)) == (images, masks)


def test_move_moves_each_image_and_fills_with_zero() -> None:
    images = torch.ones(200, 2, 5, 5)
    moved = move(images, 2, draws(200))
    assert moved.shape == images.shape
    kept = moved.sum((2, 3))
    assert torch.equal(kept[:, 0], kept[:, 1])
    assert kept.min() == 9 and kept.max() == 25 and kept.unique().numel() == 6


def test_color_jitter_keeps_the_range_and_grey_images_grey() -> None:
    images = torch.rand(64, 1, 4, 4, generator=torch.Generator().manual_seed(0)).expand(-1, 3, 4, 4)
    changed = color_jitter(images, 0.4, draws(64))
    assert changed.min() >= 0 and changed.max() <= 1
    assert (changed - changed[:, :1]).abs().max() < 1e-5
    ratio = (changed.mean((1, 2, 3)) / images.mean((1, 2, 3))).sort().values
    assert 0.55 < ratio[0] < 0.75 and 1.2 < ratio[-1] < 1.45
    assert color_jitter(torch.rand(3, 1, 4, 4), 0.4, draws(3)).shape == (3, 1, 4, 4)


def test_erase_fills_one_rectangle_of_some_images() -> None:
    images = torch.full((400, 3, 12, 12), 2.0)
    erased = erase(images, 0.25, draws(400))
    changed = (erased != 2.0).all(1)  # (B, H, W)
    assert torch.equal(changed, (erased != 2.0).any(1))
    touched = changed.any((1, 2))
    assert 0.18 < touched.float().mean() < 0.32
    rows, columns = changed.any(2)[touched].sum(1), changed.any(1)[touched].sum(1)
    area = changed[touched].sum((1, 2))
    assert torch.equal(area, rows * columns)
    assert area.min() >= 1 and area.float().mean() / 144 < 0.3
    assert erased[erased != 2.0].min() >= 0 and erased[erased != 2.0].max() < 1


def test_everything_asked_does_not_depend_on_how_the_batch_is_shared() -> None:
    images = torch.rand(16, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    assert augment(images, recipe(), draws(16)) is images  # nothing was asked
    data = recipe(flip=True, shift=1, rand_augment=2, color_jitter=0.4, erase=0.5, patches=4)
    whole = augment(images, data, draws(16))
    assert whole.min() >= 0 and whole.max() <= 1 and not torch.equal(whole, images)
    for part in (slice(0, 8), slice(8, 16)):
        assert torch.equal(augment(images[part], data, draws(16, part)), whole[part])


def test_patches_change_each_on_its_own_by_what_the_seed_draws() -> None:
    images = torch.rand(100, 3, 8, 12, generator=torch.Generator().manual_seed(0))
    before = images.clone()
    changed = change_patches(images, 4, draws(100))
    assert torch.equal(images, before)  # a copy is changed
    assert torch.equal(changed, change_patches(images, 4, draws(100)))
    assert not torch.equal(changed, change_patches(images, 4, draws(100, step=1)))
    assert changed.min() >= 0 and changed.max() <= 1
    found, given = (
        each.unfold(2, 4, 4).unfold(3, 4, 4).permute(0, 2, 3, 1, 4, 5).flatten(0, 2)
        for each in (changed, images)
    )
    distance = (found - given).abs().amax((1, 2, 3))
    mirrored = (found == given.flip(-1)).all(3).all(2).all(1)
    noisy = (distance > 0) & (distance < 6 * 0.00226)  # six deviations
    # 600 patches; each change alone has probability 0.1 * 0.9 ** 2 = 0.081.
    assert 0.68 < (distance == 0).float().mean() < 0.78
    assert 0.05 < mirrored.float().mean() < 0.12 and 0.05 < noisy.float().mean() < 0.12
    deviation = (found - given)[noisy & ~mirrored].std()
    assert 0.002 < deviation < 0.0025
    kept = (distance == 0).view(100, 6)
    assert (kept.any(1) & ~kept.all(1)).float().mean() > 0.7  # not the same in a whole image


def test_a_cropped_patch_is_a_part_of_itself_enlarged() -> None:
    # Columns are alike, so that a crop alone changes a patch by more than noise.
    ramp = (torch.arange(8.0) / 7).view(1, 1, 8, 1).expand(400, 1, 8, 8).contiguous()
    changed = change_patches(ramp, 8, draws(400))
    moved = (changed - ramp).abs().amax((1, 2, 3)) > 6 * 0.00226
    assert 0.06 < moved.float().mean() < 0.14
    steps = changed[moved][:, 0, 2:6].diff(dim=1).mean((1, 2)) * 7  # 1 for the whole patch
    assert steps.min() > 0.85**0.5 - 0.02 and steps.max() < 1.02 and steps.std() > 0.01


def test_patches_that_do_not_fill_the_image_are_refused() -> None:
    with pytest.raises(ValueError, match="patches must divide height and width, got 3 and 8 x 8"):
        recipe(patches=3)


LEVEL = 0.5
COS, SIN = math.cos(math.radians(15)), math.sin(math.radians(15))


def enhanced(kind: Any) -> Callable[[Image.Image], Image.Image]:
    return lambda image: kind(image).enhance(1.45)


def moved(*matrix: float) -> Callable[[Image.Image], Image.Image]:
    """By Pillow's coefficients for pixels (x, y): where to sample from."""
    affine, bilinear = Image.Transform.AFFINE, Image.Resampling.BILINEAR
    return lambda image: image.transform(image.size, affine, matrix, bilinear)


MOVES = {
    "shear_x": moved(1, 0.15, -0.15 * 20, 0, 1, 0),
    "shear_y": moved(1, 0, 0, 0.15, 1, -0.15 * 20),
    "translate_x": moved(1, 0, 0.225 * 40, 0, 1, 0),
    "translate_y": moved(1, 0, 0, 0, 1, 0.225 * 40),
    "rotate": moved(COS, -SIN, 20 * (1 - COS + SIN), SIN, COS, 20 * (1 - COS - SIN)),
}
PILLOW = MOVES | {
    "auto_contrast": ImageOps.autocontrast,
    "equalize": ImageOps.equalize,
    "invert": ImageOps.invert,
    "posterize": lambda image: ImageOps.posterize(image, 2),
    "solarize": lambda image: ImageOps.solarize(image, 128),
    "color": enhanced(ImageEnhance.Color),
    "contrast": enhanced(ImageEnhance.Contrast),
    "brightness": enhanced(ImageEnhance.Brightness),
    "sharpness": enhanced(ImageEnhance.Sharpness),
}


def picture() -> Image.Image:
    """Smooth colors over a part of the range, as a photograph has them; 40 x 40."""
    rows, columns = np.mgrid[0:40, 0:40] / 53
    channels = (40 + 150 * rows, 30 + 120 * columns, 90 + 60 * np.sin(4 * rows + 3 * columns))
    return Image.fromarray(np.stack(channels, axis=-1).astype(np.uint8))


def tensor(image: Image.Image) -> Tensor:
    return torch.from_numpy(np.asarray(image).copy()).permute(2, 0, 1)[None].float() / 255


def apply(name: str, images: Tensor, sign: float = 1.0) -> Tensor:
    shape = (len(images), 1, 1, 1)
    return OPERATIONS[name](images, torch.full(shape, LEVEL), torch.full(shape, sign))


@pytest.mark.parametrize("name", PILLOW)
def test_operation_is_that_of_pillow(name: str) -> None:
    image = picture()
    # What moves in from outside is ours; where nothing moves, Pillow rounds to whole values.
    kept, most = (slice(10, 30), 0.02) if name in MOVES else (slice(None), 2.1 / 255)
    changed = apply(name, tensor(image))
    difference = (changed - tensor(PILLOW[name](image))).abs()[..., kept, kept]
    assert difference.max() <= most
    if name in MOVES:
        assert not torch.allclose(changed, apply(name, tensor(image), sign=-1.0), atol=0.02)


def test_solarize_add_brightens_the_dark_half() -> None:
    images = torch.tensor([0.1, 0.45, 0.55, 0.9]).view(1, 1, 2, 2)
    changed = apply("solarize_add", images).flatten()
    brighter = LEVEL * 110 / 255
    assert changed.tolist() == pytest.approx([0.1 + brighter, 0.45 + brighter, 0.55, 0.9])


@pytest.mark.parametrize("name", OPERATIONS)
def test_every_operation_keeps_range_and_shape_also_of_flat_and_grey_images(name: str) -> None:
    level, sign = torch.ones(4, 1, 1, 1), torch.tensor([1.0, -1.0, 1.0, -1.0]).view(4, 1, 1, 1)
    for images in (torch.rand(4, 3, 6, 6), torch.rand(4, 1, 6, 6), torch.full((4, 3, 6, 6), 0.3)):
        changed = OPERATIONS[name](images, level, sign)
        assert changed.shape == images.shape and changed.isfinite().all()
        assert changed.min() >= 0 and changed.max() <= 1


def test_images_get_operations_of_their_own_about_half_of_the_time() -> None:
    image = tensor(picture()).expand(600, -1, -1, -1)
    changed = rand_augment(image, 1, magnitude=9, draws=draws(600))
    same = (changed == image).all(3).all(2).all(1).float().mean()
    assert 0.4 < same < 0.6
    assert torch.equal(image[0], image[1]) and len(changed.mean((1, 2, 3)).unique()) > 100


def mixed(step: int, *, mixup: float = 0.0, cutmix: float = 0.0) -> tuple[Tensor, Tensor]:
    """Mix images of one value each, that of their place."""
    images, labels = torch.arange(6.0).view(6, 1, 1, 1), torch.tensor([0, 1, 2, 2, 1, 0])
    strength = {"mixup": mixup, "cutmix": cutmix, "draws": draws(6, step=step)}
    return mix(images.expand(6, 1, 8, 10), labels, num_classes=3, **strength)


def test_mixup_mixes_neighbors_and_their_labels_by_one_share() -> None:
    images, targets = mixed(0, mixup=0.8)
    share = float(1 - images[0].mean())  # image 0 is 0 * share + 1 * (1 - share)
    assert 0 < share < 1
    expected = torch.tensor([1 - share, share, 3 - share, 2 + share, 5 - share, 4 + share])
    assert torch.allclose(images, expected.view(6, 1, 1, 1).expand_as(images))
    assert torch.allclose(targets[0], torch.tensor([share, 1 - share, 0]))
    assert torch.allclose(targets[2], torch.tensor([0.0, 0, 1]))


def test_cutmix_pastes_a_box_and_shares_labels_by_its_area() -> None:
    for step in range(5):
        images, targets = mixed(step, cutmix=1.0)
        pasted = (images[0] == 1.0).float().mean()
        assert torch.equal(images.unique(), torch.arange(6.0))
        assert torch.allclose(targets[0], torch.stack((1 - pasted, pasted, pasted * 0)))
        box = (images[0, 0] == 1.0).nonzero()
        if len(box):
            height, width = (box.amax(0) - box.amin(0) + 1).tolist()
            assert len(box) == height * width


def test_both_take_turns_and_targets_sum_to_one() -> None:
    found = [mixed(step, mixup=0.8, cutmix=1.0) for step in range(40)]
    # Mixup leaves one value an image, CutMix those of both neighbors in each.
    assert 5 < sum(len(images[0].unique()) > 1 for images, _ in found) < 35
    for images, targets in found:
        assert len(images.unique()) == 6 and torch.allclose(targets.sum(1), torch.ones(6))
