from typing import Any

import torch

from data.images import ImageSpec
from training.augment.pipeline import augment, color_jitter, erase, flip, move
from training.draws import Draws, source
from training.recipe import ImageData


def draws(batch_size: int, part: slice = slice(None)) -> Draws:
    return Draws(source(0, "augment", 0), batch_size, part)


def recipe(**data: Any) -> ImageData:
    spec = ImageSpec(channels=3, height=8, width=8)
    return ImageData(source="cifar10", valid=1, image=spec, **data)


def test_flip_mirrors_about_half_of_the_images() -> None:
    images = torch.arange(4.0).expand(1000, 1, 3, 4)
    flipped = flip(images, draws(1000))
    mirrored = (flipped == images.flip(-1)).all((1, 2, 3))
    assert ((flipped == images).all((1, 2, 3)) ^ mirrored).all()
    assert 400 < mirrored.sum() < 600


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


def test_nothing_asked_changes_nothing() -> None:
    images = torch.rand(3, 3, 4, 4)
    assert augment(images, recipe(), draws(3)) is images


def test_everything_asked_does_not_depend_on_how_the_batch_is_shared() -> None:
    images = torch.rand(16, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    data = recipe(flip=True, shift=1, rand_augment=2, color_jitter=0.4, erase=0.5)
    whole = augment(images, data, draws(16))
    assert whole.min() >= 0 and whole.max() <= 1 and not torch.equal(whole, images)
    for part in (slice(0, 8), slice(8, 16)):
        assert torch.equal(augment(images[part], data, draws(16, part)), whole[part])
