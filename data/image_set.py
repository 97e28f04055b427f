"""A data set of images, read one by one."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image

from data.errors import DataError
from data.images import ImageError, ImageSpec, to_pixels


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageSet:
    """Images with names and, where known, labels.

    Attributes:
        names: one name per image, for reports.
        labels: (N,) int64 indices into `label_names`, or None.
        label_names: names of the classes, or None.
        reader: decodes image i; see `read`.
    """

    names: list[str]
    labels: np.ndarray | None
    label_names: list[str] | None
    reader: Callable[[int], Image.Image]

    def __len__(self) -> int:
        """Number of images."""
        return len(self.names)

    def read(self, index: int) -> Image.Image:
        """Decode one image.

        Raises:
            DataError: it cannot be decoded; the message names it.
        """
        try:
            return self.reader(index)
        except ImageError as error:
            raise DataError(f"{self.names[index]}: {error}") from error

    def take(self, indices: Sequence[int] | np.ndarray) -> "ImageSet":
        """The images at these indices, in this order."""
        chosen = [int(index) for index in indices]
        return ImageSet(
            names=[self.names[index] for index in chosen],
            labels=None if self.labels is None else self.labels[chosen],
            label_names=self.label_names,
            reader=lambda index: self.reader(chosen[index]),
        )


def load_pixels(images: ImageSet, spec: ImageSpec) -> np.ndarray:
    """Read all images at a model's size into memory: (N, C, H, W) uint8."""
    pixels = np.empty((len(images), spec.channels, spec.height, spec.width), np.uint8)
    for index in range(len(images)):
        pixels[index] = to_pixels(images.read(index), spec)
    return pixels


def load_inputs(images: ImageSet, spec: ImageSpec) -> np.ndarray:
    """Read all images as a model's inputs: (N, C, H, W) float32 in [0, 1]."""
    return load_pixels(images, spec).astype(np.float32) / np.float32(255)
