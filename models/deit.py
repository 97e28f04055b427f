"""DeiT, a vision transformer for classification, with dot-product or elliptical attention.

Parameter names are those of the public DeiT and timm checkpoints; the elliptical twin has the same
names and shapes, so that weights load unchanged both ways.

Source: Touvron et al., "Training data-efficient image transformers", ICML 2021; the elliptical
form: Nielsen et al., "Elliptical Attention", NeurIPS 2024 (EA).
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from models.block import Block
from models.elliptical import SCALINGS, Scaling

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeiTConfig:
    """What defines a DeiT; `mean` and `std` have one entry per input channel."""

    embed_dim: int
    num_heads: int
    depth: int = 12
    mlp_ratio: float = 4.0
    img_size: int = 224
    patch_size: int = 16
    in_chans: int = 3
    num_classes: int = 1000
    norm_eps: float = 1e-6
    mean: tuple[float, ...] = IMAGENET_MEAN
    std: tuple[float, ...] = IMAGENET_STD
    elliptical: bool = False
    scaling: Scaling = "max"
    delta: float = 1.0
    metric_gradient: bool = False

    def __post_init__(self) -> None:
        """Check every rule, naming the field and the value received."""
        # A config that went through JSON or YAML arrives with lists.
        object.__setattr__(self, "mean", tuple(self.mean))
        object.__setattr__(self, "std", tuple(self.std))
        for field in ("embed_dim", "num_heads", "depth", "img_size", "patch_size", "num_classes"):
            if getattr(self, field) < 1:
                raise ValueError(f"{field} must be at least 1, got {getattr(self, field)}")
        for field, by in (("embed_dim", "num_heads"), ("img_size", "patch_size")):
            value, divisor = getattr(self, field), getattr(self, by)
            if value % divisor:
                raise ValueError(f"{field} must be a multiple of {by}, got {value} and {divisor}")
        self._check_values()

    def _check_values(self) -> None:
        if self.scaling not in SCALINGS:
            raise ValueError(f"scaling must be one of {SCALINGS}, got {self.scaling!r}")
        if not self.delta > 0:
            raise ValueError(f"delta must be positive, got {self.delta}")
        for field in ("mean", "std"):
            if len(getattr(self, field)) != self.in_chans:
                raise ValueError(
                    f"{field} must have one value per channel ({self.in_chans}), "
                    f"got {getattr(self, field)}"
                )
        if min(self.std) <= 0:
            raise ValueError(f"std must be positive, got {self.std}")

    @property
    def num_patches(self) -> int:
        """Number of image patches, without the class token."""
        return (self.img_size // self.patch_size) ** 2


class PatchEmbed(nn.Module):
    """Cut the image into patches and project each to a token."""

    def __init__(self, in_chans: int, embed_dim: int, patch_size: int) -> None:
        super().__init__()
        self.proj = nn.Conv2d(in_chans, embed_dim, kernel_size=patch_size, stride=patch_size)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) to (B, N, embed_dim)."""
        return self.proj(x).flatten(2).transpose(1, 2)


class DeiT(nn.Module):
    """Classify images; the normalisation of pixels is part of the model."""

    mean: Tensor
    std: Tensor

    def __init__(self, config: DeiTConfig) -> None:
        super().__init__()
        self.config = config
        shape = (1, config.in_chans, 1, 1)
        self.register_buffer("mean", torch.tensor(config.mean).view(shape), persistent=False)
        self.register_buffer("std", torch.tensor(config.std).view(shape), persistent=False)
        self.patch_embed = PatchEmbed(config.in_chans, config.embed_dim, config.patch_size)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, config.embed_dim))
        self.pos_embed = nn.Parameter(torch.zeros(1, config.num_patches + 1, config.embed_dim))
        hidden_dim = round(config.embed_dim * config.mlp_ratio)
        self.blocks = nn.ModuleList(
            Block(
                config.embed_dim,
                config.num_heads,
                hidden_dim,
                norm_eps=config.norm_eps,
                elliptical=config.elliptical,
                scaling=config.scaling,
                delta=config.delta,
                metric_gradient=config.metric_gradient,
            )
            for _ in range(config.depth)
        )
        self.norm = nn.LayerNorm(config.embed_dim, eps=config.norm_eps)
        self.head = nn.Linear(config.embed_dim, config.num_classes)
        self.apply(_init_linear)
        nn.init.trunc_normal_(self.cls_token, std=0.02)
        nn.init.trunc_normal_(self.pos_embed, std=0.02)

    def forward(self, images: Tensor) -> Tensor:
        """Compute the logits.

        Args:
            images: (B, C, H, W), pixels in [0, 1], H = W = img_size.

        Returns:
            (B, num_classes) logits.
        """
        x = self.patch_embed((images - self.mean) / self.std)
        x = torch.cat((self.cls_token.expand(x.shape[0], -1, -1), x), dim=1) + self.pos_embed
        v = None
        for block in self.blocks:
            x, v = block(x, v)
        return self.head(self.norm(x)[:, 0])


def _init_linear(module: nn.Module) -> None:
    if isinstance(module, nn.Linear):
        nn.init.trunc_normal_(module.weight, std=0.02)
        nn.init.zeros_(module.bias)
