"""`fashion-scenes`: items of Fashion-MNIST over photos, with the class of every pixel [ours].

A scene is a random square of a photo, enlarged or shrunk to 128 x 128, with an item of random size
laid over it at a random spot, mirrored half of the time. The item covers a pixel where its picture,
enlarged bilinearly, is more there than black; there the pixel has its gray, and its class. All
other pixels are background, class 0.

Photos and items are split: none of the test split was seen in training. Scene i of a split depends
on nothing but split and i.
"""

import functools
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from data.errors import DataError
from data.formats.idx import open_idx
from data.sets import ImageSet, MaskSet, Origin

SIDE = 128
"""Height and width of a scene, in pixels."""
SIZES = {"train": 60_000, "valid": 1_000, "test": 1_000}
"""Scenes of each split."""
PHOTOS = "imagenet1k-1perclass-224.parquet"
_ITEM_SIDES = (72, 120)
_LEAST_CROP = 64
_VISIBLE = 16  # of 255: darker is not told from black
_SHARES = {"train": (0.0, 0.8), "valid": (0.8, 0.9), "test": (0.9, 1.0)}  # of the photos
_HELD_OUT = 5_000  # training items that are those of the validation split


@dataclass(frozen=True, kw_only=True)
class Scenes:
    """What the scenes of a split are made of.

    Attributes:
        split: its name.
        photos: those of the split.
        items: gray pictures with labels.
    """

    split: str
    photos: ImageSet
    items: ImageSet

    def draw(self, index: int) -> tuple[Image.Image, np.ndarray]:
        """Scene `index`: the image, and the class of each pixel, (SIDE, SIDE) uint8."""
        rng = np.random.default_rng([list(SIZES).index(self.split), index])
        scene = np.array(_crop(rng, self._photo(int(rng.integers(len(self.photos))))))
        mask = np.zeros((SIDE, SIDE), np.uint8)
        item = int(rng.integers(len(self.items)))
        gray = _enlarged(rng, self.items.read(item))
        rows, columns = (_spot(rng, length) for length in gray.shape)
        covered = gray > _VISIBLE
        scene[rows, columns][covered] = gray[covered, None]
        mask[rows, columns][covered] = 1 + _label(self.items, item)
        return Image.fromarray(scene), mask

    @functools.cached_property
    def _photo(self) -> "functools._lru_cache_wrapper[Image.Image]":
        return functools.lru_cache(maxsize=None)(lambda i: self.photos.read(i).convert("RGB"))

    def as_masks(self, label_names: list[str]) -> MaskSet:
        """All scenes of the split."""
        # An image and its mask are asked for one after the other.
        draw = functools.lru_cache(maxsize=2)(self.draw)
        return MaskSet(
            names=[f"{self.split}/{index:05d}" for index in range(SIZES[self.split])],
            labels=None,
            label_names=label_names,
            reader=lambda index: draw(index)[0],
            origin=Origin(split=self.split, source="drawn here"),
            mask_reader=lambda index: draw(index)[1],
        )


def open_scenes(folder: Path, photos: ImageSet, split: str, label_names: list[str]) -> MaskSet:
    """Open a split of the scenes.

    Args:
        folder: with the idx files of Fashion-MNIST.
        photos: all of them.
        split: a key of `SIZES`.
        label_names: background, then the items' classes.

    Raises:
        DataError: an unknown split, too few photos, or the files of Fashion-MNIST are missing.
    """
    if split not in SIZES:
        raise DataError(f"fashion-scenes has the splits {', '.join(SIZES)}, got {split!r}")
    order = np.random.default_rng(0).permutation(len(photos))
    first, last = (round(share * len(photos)) for share in _SHARES[split])
    if first == last:
        raise DataError(f"fashion-scenes needs at least 10 photos in {PHOTOS}, got {len(photos)}")
    items = open_idx(folder, "test" if split == "test" else "train", label_names[1:])
    held_out = max(len(items) - _HELD_OUT, len(items) // 2)
    if split != "test":
        chosen = range(held_out) if split == "train" else range(held_out, len(items))
        items = items.take(chosen)
    scenes = Scenes(split=split, photos=photos.take(order[first:last]), items=items)
    return scenes.as_masks(label_names)


def _crop(rng: np.random.Generator, photo: Image.Image) -> Image.Image:
    """A random square of a photo, SIDE x SIDE."""
    most = min(photo.size)
    side = int(rng.integers(min(_LEAST_CROP, most), most + 1))
    left, top = (int(rng.integers(length - side + 1)) for length in photo.size)
    box = (left, top, left + side, top + side)
    return photo.resize((SIDE, SIDE), Image.Resampling.BILINEAR, box=box)


def _enlarged(rng: np.random.Generator, item: Image.Image) -> np.ndarray:
    """An item at a random size, mirrored half of the time: (s, s) uint8."""
    side = int(rng.integers(_ITEM_SIDES[0], _ITEM_SIDES[1] + 1))
    gray = np.asarray(item.resize((side, side), Image.Resampling.BILINEAR))
    return gray[:, ::-1] if rng.random() < 0.5 else gray


def _spot(rng: np.random.Generator, length: int) -> slice:
    start = int(rng.integers(SIDE - length + 1))
    return slice(start, start + length)


def _label(items: ImageSet, index: int) -> int:
    if items.labels is None:
        raise DataError("the items of fashion-scenes have no labels")
    return int(items.labels[index])
