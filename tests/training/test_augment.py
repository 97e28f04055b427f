import torch

from training.augment import augment


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def test_flip_mirrors_about_half_of_the_images() -> None:
    images = torch.arange(4.0).expand(1000, 1, 3, 4)
    flipped = augment(images, flip=True, shift=0, generator=generator())
    mirrored = (flipped == images.flip(-1)).all((1, 2, 3))
    assert ((flipped == images).all((1, 2, 3)) ^ mirrored).all()
    assert 400 < mirrored.sum() < 600


def test_shift_moves_each_image_and_fills_with_zero() -> None:
    images = torch.ones(200, 2, 5, 5)
    moved = augment(images, flip=False, shift=2, generator=generator())
    assert moved.shape == images.shape
    kept = moved.sum((2, 3))
    assert torch.equal(kept[:, 0], kept[:, 1])
    assert kept.min() == 9 and kept.max() == 25 and kept.unique().numel() == 6


def test_nothing_asked_changes_nothing() -> None:
    images = torch.rand(3, 1, 4, 4)
    assert torch.equal(augment(images, flip=False, shift=0, generator=generator()), images)
