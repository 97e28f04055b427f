"""The samples of a split, batch by batch, as a model takes them."""

import copy
import dataclasses
import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from data.errors import DataError
from data.images import ImageSpec, fit_mask, to_pixels
from data.sets import IGNORED, ImageSet, MaskSet
from data.token_set import TokenSet
from training.draws import Draws

UNSCORED = -100
"""The target of a token that counts in no loss and no figure."""
_NUMBERS = 1 << 24
"""Logits that an evaluation of a language model computes at a time, at most."""
_CROPPED_AREA = 0.08
"""Least share of an image that a random crop keeps."""
_SCALES = (0.5, 2.0)
"""Of a random window: how long the shorter side of its image is, over that of the window."""
_MOST_PIXELS = 2**21
"""Pixels of one batch of an evaluation of masks, at most."""


class Samples(ABC):
    """Samples of any kind with the targets of a task; each class of them says which."""

    labels: np.ndarray  # (N, ...) int64
    lengths: np.ndarray | None = None  # (N,) tokens of each sample; None for images

    most: int = 500  # in one batch of an evaluation, at most

    def __len__(self) -> int:
        """Number of samples."""
        return len(self.labels)

    def targets(self, indices: np.ndarray, draws: Draws | None = None) -> Tensor:
        """What the model shall answer for these samples, (B, ...) int64; see `batch`."""
        return torch.from_numpy(self.labels[indices]).long()

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


class StoredMasks(StoredImages):
    """Images in memory with the class of every pixel: masks (N, H, W) uint8."""

    def __init__(self, pixels: np.ndarray, masks: np.ndarray) -> None:
        super().__init__(pixels, masks)
        self.most = _most(*masks.shape[1:])
        self.counts = np.bincount(masks.ravel(), minlength=IGNORED + 1)[:IGNORED]

    def digest(self) -> str:
        """The sha256 of pixels and masks."""
        state = hashlib.sha256(str(tuple(self.pixels.shape)).encode())
        state.update(self.pixels.numpy().data)
        state.update(self.labels.data)
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
        """Why a sample cannot be decoded; empty where it can."""
        try:
            self._decode(index)
        except DataError as error:
            return str(error)
        return ""

    def _decode(self, index: int) -> None:
        self._images.read(index)

    def digest(self) -> str:
        """The sha256 of names and labels; to read all pixels for it would take too long."""
        state = hashlib.sha256("\n".join(self._images.names).encode())
        state.update(self.labels.astype("<i8").tobytes())
        return state.hexdigest()


class ReadMasks(ReadImages):
    """Images with masks that are decoded whenever they are needed; random windows where asked."""

    def __init__(self, images: MaskSet, spec: ImageSpec, *, random_crop: bool) -> None:
        # Their number is that of the images; masks are read one by one.
        super().__init__(images, spec, np.zeros(len(images), np.int64), random_crop=random_crop)
        self._masks, self.most = images, _most(spec.height, spec.width)

    def batch(self, indices: np.ndarray, draws: Draws | None = None) -> tuple[Tensor, ...]:
        """The images (B, C, H, W) uint8, decoded."""
        if draws is None or not self._random_crop:
            return super().batch(indices)
        parts = draws.uniform(3).tolist()
        pixels = [
            window(self._images.read(int(index)), part, self._spec)
            for index, part in zip(indices, parts, strict=True)
        ]
        return (torch.from_numpy(np.stack(pixels)),)

    def targets(self, indices: np.ndarray, draws: Draws | None = None) -> Tensor:
        """The masks (B, H, W) int64, decoded."""
        masks = [self._masks.mask(int(index)) for index in indices]
        if draws is None or not self._random_crop:
            found = [fit_mask(mask, self._spec) for mask in masks]
        else:
            parts = draws.uniform(3).tolist()
            found = [mask_window(*each, self._spec) for each in zip(masks, parts, strict=True)]
        return torch.from_numpy(np.stack(found)).long()

    def _decode(self, index: int) -> None:
        super()._decode(index)
        self._masks.mask(index)


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


class Segments(Samples):
    """A text cut into segments, of which each token but the first is predicted once.

    Args:
        stream: (T,) tokens of any integer type, T > context.
        context: tokens of a segment, N.
        stride: tokens from one segment to the next, at most N; what segments share is predicted in
            the first of them. The last segment ends where the text does, unless some of it may be
            left out.
        vocab_size: of the tokens.
        whole: predict the last tokens, too, where they fill no segment.
    """

    def __init__(
        self, stream: np.ndarray, *, context: int, stride: int, vocab_size: int, whole: bool
    ) -> None:
        self.stream, self.vocab_size, self.context = stream, vocab_size, context
        last = len(stream) - 1 - context
        starts = np.arange(0, last + 1, stride)
        if whole and starts[-1] < last:
            starts = np.append(starts, last)
        # `labels` are where segments start; `targets` are of the stream.
        self.labels, self._seen = starts, np.concatenate(([0], starts[:-1] + context))
        self.most = max(1, _NUMBERS // (context * max(vocab_size, 8 * context)))

    def take(self, indices: np.ndarray) -> "Segments":
        """Some of the segments, which predict what they did."""
        taken = copy.copy(self)
        taken.labels, taken._seen = self.labels[indices], self._seen[indices]
        return taken

    def batch(self, indices: np.ndarray, draws: Draws | None = None) -> tuple[Tensor, ...]:
        """The tokens (B, N) int64, alone."""
        return (self._read(self.labels[indices]),)

    def targets(self, indices: np.ndarray, draws: Draws | None = None) -> Tensor:
        """The token after each, (B, N) int64; -100 where an earlier segment has predicted it."""
        starts = self.labels[indices]
        places = torch.from_numpy(starts[:, None] + np.arange(self.context))
        again = places < torch.from_numpy(self._seen[indices])[:, None]
        return self._read(starts + 1).masked_fill(again, UNSCORED)

    def _read(self, starts: np.ndarray) -> Tensor:
        places = starts[:, None] + np.arange(self.context)
        return torch.from_numpy(self.stream[places].astype(np.int64))

    def digest(self) -> str:
        """The sha256 of the tokens and of where segments start."""
        state = hashlib.sha256(self.stream.astype("<i4").tobytes())
        state.update(self.labels.astype("<i8").tobytes())
        return state.hexdigest()


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


def window(image: Image.Image, part: Sequence[float], spec: ImageSpec) -> np.ndarray:
    """Cut a window of a model's size out of an image enlarged or shrunk; black behind its edges.

    Args:
        image: of any size.
        part: size, left and top, each in [0, 1).
        spec: of the model.

    Returns:
        (C, H, W) uint8.

    Source: Strudel et al. 2021, section 4.1 ("random resizing", "random cropping").
    """
    resized = dataclasses.replace(spec, **_scaled(image.size, part[0], spec), resize=None)
    return _cut(to_pixels(image, resized), part, spec, fill=0)


def mask_window(mask: np.ndarray, part: Sequence[float], spec: ImageSpec) -> np.ndarray:
    """The classes of an image's pixels, (h, w) uint8, in its `window`: (H, W) uint8."""
    size = mask.shape[1], mask.shape[0]
    resized = dataclasses.replace(spec, **_scaled(size, part[0], spec), resize=None)
    return _cut(fit_mask(mask, resized)[None], part, spec, fill=IGNORED)[0]


def _scaled(size: tuple[int, int], part: float, spec: ImageSpec) -> dict[str, int]:
    least, most = _SCALES
    scale = (least + part * (most - least)) * min(spec.height, spec.width) / min(size)
    width, height = (max(round(scale * length), 1) for length in size)
    return {"width": width, "height": height}


def _cut(pixels: np.ndarray, part: Sequence[float], spec: ImageSpec, *, fill: int) -> np.ndarray:
    """The window (C, spec.height, spec.width) of pixels (C, h, w)."""
    _, height, width = pixels.shape
    left = int(part[1] * (max(width - spec.width, 0) + 1))
    top = int(part[2] * (max(height - spec.height, 0) + 1))
    found = pixels[:, top : top + spec.height, left : left + spec.width]
    missing = (spec.height - found.shape[1], spec.width - found.shape[2])
    return np.pad(found, ((0, 0), (0, missing[0]), (0, missing[1])), constant_values=fill)


def _most(height: int, width: int) -> int:
    return max(1, min(Samples.most, _MOST_PIXELS // (height * width)))
