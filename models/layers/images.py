"""What all image models share: normalization of pixels, checks of their config and input."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor, nn

from core.fields import check_at_least, check_fraction, check_positive, check_types
from models.attention.config import AttentionConfig
from models.layers.tracing import is_traced

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


def check_images(config: Any) -> None:
    """Refuse sizes and statistics that no image model can have; lists become tuples.

    Raises:
        ValueError: a size below 1, an image that patches do not fill, or statistics that are not
            one positive `std` and one `mean` per channel.
    """
    check_at_least(config, 1, "img_size", "patch_size", "in_chans", "num_classes")
    if config.img_size % config.patch_size:
        sizes = f"{config.img_size} and {config.patch_size}"
        raise ValueError(f"img_size must be a multiple of patch_size, got {sizes}")
    for field in ("mean", "std"):
        # A config that went through JSON or YAML arrives with lists.
        values = tuple(getattr(config, field))
        object.__setattr__(config, field, values)
        if len(values) != config.in_chans:
            rule = f"one value per channel ({config.in_chans})"
            raise ValueError(f"{field} must have {rule}, got {values}")
    if min(config.std) <= 0:
        raise ValueError(f"std must be positive, got {config.std}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageConfig(AttentionConfig):
    """What defines an image transformer; `mean` and `std` have one entry per input channel.

    `drop_path` is the share of the samples for which training leaves out a sublayer.
    """

    mlp_ratio: float = 4.0
    img_size: int = 224
    patch_size: int = 16
    in_chans: int = 3
    num_classes: int = 1000
    drop_path: float = 0.0
    norm_eps: float = 1e-6
    mean: tuple[float, ...] = IMAGENET_MEAN
    std: tuple[float, ...] = IMAGENET_STD

    def __post_init__(self) -> None:
        """Check every rule, naming the field and the value received."""
        check_types(self)
        check_images(self)
        check_fraction(self, "drop_path")
        check_positive(self, "mlp_ratio", "norm_eps")
        AttentionConfig.__post_init__(self)

    @property
    def max_tokens(self) -> int:
        """See `AttentionConfig.max_tokens`."""
        return self.num_prefix_tokens + self.grid_size**2

    @property
    def num_prefix_tokens(self) -> int:
        """Number of tokens before the patches."""
        return 0

    @property
    def grid_size(self) -> int:
        """Patches along one side of the image."""
        return self.img_size // self.patch_size


class ImageModel(nn.Module):
    """A model of images that normalizes their pixels itself.

    Args:
        config: a dataclass with the fields `in_chans`, `img_size`, `mean` and `std`.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config: Any = config
        for name in ("mean", "std"):
            statistics = self._statistics(name).to(torch.get_default_dtype())
            self.register_buffer(name, statistics, persistent=False)

    def normalize(self, images: Tensor) -> Tensor:
        """Normalize images (B, in_chans, img_size, img_size) with pixels in [0, 1].

        Unchecked, a batch of another shape could pass by broadcasting and get logits without
        meaning. While the model is traced nothing is checked.

        Raises:
            ValueError: a wrong shape, or no floating point type.
        """
        if not is_traced():
            self._check(images)
        return (images - self.mean) / self.std

    def _check(self, images: Tensor) -> None:
        expected = (self.config.in_chans, self.config.img_size, self.config.img_size)
        if images.ndim != 4 or images.shape[1:] != expected:
            sizes = ", ".join(["B", *map(str, expected)])
            raise ValueError(f"images must be ({sizes}), got {tuple(images.shape)}")
        if not images.is_floating_point():
            raise ValueError(f"images must be of a floating point type, got {images.dtype}")

    def _statistics(self, name: str) -> Tensor:
        return torch.tensor(getattr(self.config, name), dtype=torch.float64).view(1, -1, 1, 1)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        # Statistics of float32 turned into float64 would keep the error of float32.
        super()._apply(fn, recurse)
        self.mean = self._statistics("mean").to(self.mean)
        self.std = self._statistics("std").to(self.std)
        return self
