"""Data sets of images and of texts, read one by one."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Self, TypeVar

import numpy as np
from PIL import Image

from data.errors import DataError
from data.images import ImageError, ImageSpec, decode_image, fit_mask, to_pixels, to_unit

Sample = TypeVar("Sample", Image.Image, str, bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where samples come from, in words for reports.

    Attributes:
        name: of the data set: a known name, `hf:NAME`, or that of its folder or file.
        split: which part, where there are several.
        source: the file or folder that was read, without the folders above it; or "uploaded".
        classes: what the data themselves call their classes, all of which are the model's; None
            where there are no labels, or nothing but indices.
    """

    name: str | None = None
    split: str | None = None
    source: str | None = None
    classes: list[str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleSet(Generic[Sample]):
    """Samples with names and, where known, labels.

    Attributes:
        names: one name per sample, for reports.
        labels: (N,) int64 indices into `label_names`, or None.
        label_names: names of the classes, or None.
        reader: reads sample i; see `read`.
        origin: where they come from.
    """

    names: list[str]
    labels: np.ndarray | None
    label_names: list[str] | None
    reader: Callable[[int], Sample]
    origin: Origin = Origin()

    def __len__(self) -> int:
        """Number of samples."""
        return len(self.names)

    def read(self, index: int) -> Sample:
        """Read one sample; a text holds more than blanks.

        Raises:
            DataError: it cannot be read or decoded; the message names it.
        """
        try:
            return self.reader(index)
        except ImageError as error:
            raise DataError(f"{self.names[index]}: {error}") from error

    def take(self, indices: Sequence[int] | np.ndarray) -> Self:
        """The samples at these indices, in this order."""
        chosen = [int(index) for index in indices]
        return dataclasses.replace(
            self,
            names=[self.names[index] for index in chosen],
            labels=None if self.labels is None else self.labels[chosen],
            reader=lambda index: self.reader(chosen[index]),
        )


class ImageSet(SampleSet[Image.Image]):
    """Images with names and, where known, labels."""

    def pixels(self, index: int, spec: ImageSpec) -> np.ndarray:
        """One image at a model's size: (C, H, W) uint8; see `read`."""
        return to_pixels(self.read(index), spec)


@dataclass(frozen=True, slots=True, kw_only=True)
class PixelSet(ImageSet):
    """Images of which only the pixels at the sizes of some models are kept.

    Attributes:
        arrays: by input, (N, C, H, W) uint8.
    """

    arrays: Mapping[ImageSpec, np.ndarray]

    def pixels(self, index: int, spec: ImageSpec) -> np.ndarray:
        """See `ImageSet.pixels`."""
        return self.arrays[spec][index]

    def take(self, indices: Sequence[int] | np.ndarray) -> Self:
        """See `SampleSet.take`."""
        arrays = {spec: array[np.asarray(indices)] for spec, array in self.arrays.items()}
        return dataclasses.replace(super(PixelSet, self).take(indices), arrays=arrays)


IGNORED = 255
"""In masks, of pixels that belong to no class: they count nowhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskSet(ImageSet):
    """Images with a class for each pixel.

    Attributes:
        mask_reader: reads the mask of image i, see `mask`.
    """

    mask_reader: Callable[[int], np.ndarray]

    def mask(self, index: int) -> np.ndarray:
        """The class of each pixel of an image, (h, w) uint8; `IGNORED` where it has none.

        Raises:
            DataError: it cannot be read, or holds other classes; the message names it.
        """
        return self.mask_reader(index)

    def fitted(self, index: int, spec: ImageSpec) -> np.ndarray:
        """The mask of an image at a model's size, (H, W) uint8; see `mask`."""
        return fit_mask(self.mask(index), spec)

    def take(self, indices: Sequence[int] | np.ndarray) -> Self:
        """See `SampleSet.take`."""
        chosen = [int(index) for index in indices]
        taken = super(MaskSet, self).take(chosen)
        return dataclasses.replace(taken, mask_reader=lambda i: self.mask_reader(chosen[i]))


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredMaskSet(MaskSet):
    """Images with masks of which only the pixels at the sizes of some models are kept.

    Attributes:
        stored: the pixels.
        masks: by input, (N, H, W) uint8.
    """

    stored: PixelSet
    masks: Mapping[ImageSpec, np.ndarray]

    def pixels(self, index: int, spec: ImageSpec) -> np.ndarray:
        """See `ImageSet.pixels`."""
        return self.stored.pixels(index, spec)

    def fitted(self, index: int, spec: ImageSpec) -> np.ndarray:
        """See `MaskSet.fitted`."""
        return self.masks[spec][index]

    def take(self, indices: Sequence[int] | np.ndarray) -> Self:
        """See `SampleSet.take`."""
        masks = {spec: array[np.asarray(indices)] for spec, array in self.masks.items()}
        taken = super(StoredMaskSet, self).take(indices)
        return dataclasses.replace(taken, stored=self.stored.take(indices), masks=masks)


class FileSet(SampleSet[bytes]):
    """Image files, not decoded, with names and, where known, labels."""

    def decoded(self) -> ImageSet:
        """The images in the files."""
        return ImageSet(
            names=self.names,
            labels=self.labels,
            label_names=self.label_names,
            reader=lambda index: decode_image(self.reader(index)),
            origin=self.origin,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskFiles(FileSet):
    """Image files, not decoded, with a class for each pixel.

    Attributes:
        mask_reader: reads the mask of image i, see `MaskSet.mask`.
    """

    mask_reader: Callable[[int], np.ndarray]


@dataclass(frozen=True, slots=True, kw_only=True)
class TextSet(SampleSet[str]):
    """Texts with names and, where known, labels.

    Attributes:
        description: what the set is; says so where it is only a part of a known one.
    """

    description: str

    def __iter__(self) -> Iterator[str]:
        """All texts in order."""
        return (self.read(index) for index in range(len(self)))

    def changed(self, change: Callable[[str], str]) -> "TextSet":
        """The same set with every text changed when it is read."""
        return dataclasses.replace(self, reader=lambda index: change(self.reader(index)))


def load_pixels(images: ImageSet, spec: ImageSpec) -> np.ndarray:
    """Read all images at a model's size into memory: (N, C, H, W) uint8."""
    pixels = np.empty((len(images), spec.channels, spec.height, spec.width), np.uint8)
    for index in range(len(images)):
        pixels[index] = images.pixels(index, spec)
    return pixels


def load_masks(masks: MaskSet, spec: ImageSpec) -> np.ndarray:
    """Read all masks at a model's size: (N, H, W) uint8."""
    found = [masks.fitted(index, spec) for index in range(len(masks))]
    return np.stack(found) if found else np.zeros((0, spec.height, spec.width), np.uint8)


def load_inputs(images: ImageSet, spec: ImageSpec) -> np.ndarray:
    """Read all images as a model's inputs: (N, C, H, W) float32 in [0, 1]."""
    return to_unit(load_pixels(images, spec))
