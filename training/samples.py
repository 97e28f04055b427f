"""The samples of a split, batch by batch, as a model takes them."""

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from data.errors import DataError
from data.images import ImageSpec, to_pixels
from data.sets import ImageSet
from data.token_set import TokenSet
from training.draws import Draws

_CROPPED_AREA = 0.08
"""Least share of an image that a random crop keeps."""


class Samples(ABC):
    """Samples of any kind with the targets of a task; each class of them says which."""

    labels: np.ndarray  # (N, ...) int64
    lengths: np.ndarray | None = None  # (N,) tokens of each sample; None for images

    def __len__(self) -> int:
        """Number of samples."""
        return len(self.labels)

    def targets(self, indices: np.ndarray) -> Tensor:
        """What the model shall answer for these samples, (B, ...) int64."""
        return torch.from_numpy(self.labels[indices])

    @abstractmethod
    def batch(self, indices: np.ndarray, draws: Draws | None = None) -> tuple[Tensor, ...]:
        """What the model takes for these samples.

        Args:
            indices: (B,) which samples.
            draws: source of what is drawn while they are read; None draws nothing.

        Returns:
            Images (B, C, H, W) uint8, alone; or tokens (B, N) int64 and mask (B, N) bool, of pairs
            (B, 2, N).

        Raises:
            DataError: an image cannot be decoded; the message names it.
        """

    @abstractmethod
    def digest(self) -> str:
        """The sha256 of what a run learns from these samples."""


class StoredImages(Samples):
    """Images in memory: pixels (N, C, H, W) uint8 and labels (N,) int64."""

    def __init__(self, pixels: np.ndarray, labels: np.ndarray) -> None:
        self.pixels, self.labels = torch.from_numpy(pixels), labels

    def batch(self, indices: np.ndarray, draws: Draws | None = None) -> tuple[Tensor, ...]:
        """The images (B, C, H, W) uint8."""
        return (self.pixels[torch.from_numpy(indices)],)

    def digest(self) -> str:
        """The sha256 of pixels and labels."""
        state = hashlib.sha256(str(tuple(self.pixels.shape)).encode())
        state.update(self.pixels.numpy().data)
        state.update(self.labels.astype("<i8").tobytes())
        return state.hexdigest()


class ReadImages(Samples):
    """Images that are decoded whenever they are needed; random parts of them where asked."""

    def __init__(
        self, images: ImageSet, spec: ImageSpec, labels: np.ndarray, *, random_crop: bool
    ) -> None:
        self._images, self._spec, self._random_crop = images, spec, random_crop
        self.labels = labels

    def batch(self, indices: np.ndarray, draws: Draws | None = None) -> tuple[Tensor, ...]:
        """The images (B, C, H, W) uint8, decoded."""
        images = [self._images.read(int(index)) for index in indices]
        if draws is not None and self._random_crop:
            parts = draws.uniform(4).tolist()
            images = [crop(image, part) for image, part in zip(images, parts, strict=True)]
        pixels = np.stack([to_pixels(image, self._spec) for image in images])
        return (torch.from_numpy(pixels),)

    def fault(self, index: int) -> str:
        """Why an image cannot be decoded; empty where it can."""
        try:
            self._images.read(index)
        except DataError as error:
            return str(error)
        return ""

    def digest(self) -> str:
        """The sha256 of names and labels; to read all pixels for it would take too long."""
        state = hashlib.sha256("\n".join(self._images.names).encode())
        state.update(self.labels.astype("<i8").tobytes())
        return state.hexdigest()


class Sequences(Samples):
    """Token sequences or pairs of them, padded to the longest of a batch."""

    def __init__(self, tokens: TokenSet) -> None:
        self._tokens = tokens
        self.labels, self.lengths = tokens.labels, tokens.lengths

    def batch(self, indices: np.ndarray, draws: Draws | None = None) -> tuple[Tensor, ...]:
        """Tokens (B, N) int64 and mask (B, N) bool; of pairs (B, 2, N)."""
        tokens, mask, _ = self._tokens.batch(indices)
        return torch.from_numpy(tokens), torch.from_numpy(mask)

    def digest(self) -> str:
        """The sha256 of all tokens and labels."""
        return self._tokens.digest()


def to_model(inputs: tuple[Tensor, ...], device: torch.device) -> tuple[Tensor, ...]:
    """Bring a batch to the device; pixels become numbers in [0, 1]."""
    moved = (each.to(device, non_blocking=True) for each in inputs)
    return tuple(each.float() / 255 if each.dtype == torch.uint8 else each for each in moved)


def crop(image: Image.Image, part: Sequence[float]) -> Image.Image:
    """Cut a part out of an image: 8 to 100 % of its area, its sides at 3 : 4 to 4 : 3.

    Args:
        image: of any size.
        part: area, ratio of the sides, left and top, each in [0, 1).

    Source: Szegedy et al., "Going deeper with convolutions", 2015, section 6.
    """
    area, ratio, left, top = part
    area = (_CROPPED_AREA + area * (1 - _CROPPED_AREA)) * image.width * image.height
    aspect = math.exp((2 * ratio - 1) * math.log(4 / 3))
    width = min(max(round(math.sqrt(area * aspect)), 1), image.width)
    height = min(max(round(math.sqrt(area / aspect)), 1), image.height)
    x, y = int(left * (image.width - width + 1)), int(top * (image.height - height + 1))
    return image.crop((x, y, x + width, y + height))
