"""DeiT, a vision transformer for classification, with any attention of `models.attentions()`.

Parameter names are those of the public DeiT and timm checkpoints; the elliptical model has the same
names and shapes, so that weights load unchanged both ways.

Source: Touvron et al., "Training data-efficient image transformers", ICML 2021; the elliptical
form: Nielsen et al., "Elliptical Attention", NeurIPS 2024 (EA).
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from models.layers.block import Block, drop_path_rate, init_linear
from models.layers.images import ImageConfig, ImageModel


@dataclass(frozen=True, slots=True, kw_only=True)
class DeiTConfig(ImageConfig):
    """What defines a DeiT; `drop_path` is that of the last block, before which it grows from 0.

    With `distilled` a second token and head learn from a teacher, see `DeiT.heads`.
    """

    distilled: bool = False

    @property
    def num_prefix_tokens(self) -> int:
        """Number of tokens before the patches: class, then distillation."""
        return 2 if self.distilled else 1


class PatchEmbed(nn.Module):
    """Cut the image into patches and project each to a token."""

    def __init__(self, in_chans: int, embed_dim: int, patch_size: int) -> None:
        super().__init__()
        self.proj = nn.Conv2d(in_chans, embed_dim, kernel_size=patch_size, stride=patch_size)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) to (B, N, embed_dim)."""
        return self.proj(x).flatten(2).transpose(1, 2)


class DeiTEncoder(ImageModel):
    """From normalized images to tokens: class, distillation if it has one, then the patches."""

    config: DeiTConfig
    dist_token: nn.Parameter | None

    def __init__(self, config: DeiTConfig) -> None:
        super().__init__(config)
        self.patch_embed = PatchEmbed(config.in_chans, config.embed_dim, config.patch_size)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, config.embed_dim))
        num_tokens = config.num_prefix_tokens + config.grid_size**2
        self.pos_embed = nn.Parameter(torch.zeros(1, num_tokens, config.embed_dim))
        self.register_parameter("dist_token", None)
        if config.distilled:
            self.dist_token = nn.Parameter(torch.zeros(1, 1, config.embed_dim))
        hidden_dim = round(config.embed_dim * config.mlp_ratio)
        self.blocks = nn.ModuleList(
            Block(
                config.embed_dim,
                config.num_heads,
                hidden_dim,
                norm_eps=config.norm_eps,
                drop_path=drop_path_rate(config.drop_path, layer, config.depth),
                **config.attention_at(layer),
            )
            for layer in range(1, config.depth + 1)
        )
        self.norm = nn.LayerNorm(config.embed_dim, eps=config.norm_eps)

    def draw_weights(self) -> None:
        """Draw the first weights, once all layers are there."""
        if self.dist_token is not None:
            nn.init.trunc_normal_(self.dist_token, std=0.02)
        self.apply(init_linear)
        nn.init.trunc_normal_(self.cls_token, std=0.02)
        nn.init.trunc_normal_(self.pos_embed, std=0.02)

    def tokens(self, x: Tensor) -> Tensor:
        """(B, C, H, W), normalized, H = W = img_size, to tokens (B, N, d) behind the last norm."""
        x = self.patch_embed(x)
        prefix = [token for token in (self.cls_token, self.dist_token) if token is not None]
        x = torch.cat([*(token.expand(x.shape[0], -1, -1) for token in prefix), x], dim=1)
        x = x + self.pos_embed
        v = None
        for block in self.blocks:
            x, v = block(x, v)
        return self.norm(x)


class DeiT(DeiTEncoder):
    """Classify images; the normalization of pixels is part of the model."""

    def __init__(self, config: DeiTConfig) -> None:
        super().__init__(config)
        self.head = nn.Linear(config.embed_dim, config.num_classes)
        self.head_dist: nn.Linear | None = None
        if config.distilled:
            self.head_dist = nn.Linear(config.embed_dim, config.num_classes)
        self.draw_weights()

    def forward(self, images: Tensor) -> Tensor:
        """(B, C, H, W), pixels in [0, 1], H = W = img_size, to (B, num_classes) logits.

        Those of a distilled model are the mean over both heads, as in the authors' code; their
        paper (section 4) adds the heads' softmaxes instead, which can rank two classes otherwise.
        """
        logits, *distilled = self.heads(images)
        return (logits + distilled[0]) / 2 if distilled else logits

    def heads(self, images: Tensor) -> tuple[Tensor, ...]:
        """Compute the logits (B, num_classes) of each head, which training needs apart.

        Training gives the labels to the first, `head`, and the teacher's to the second, `head_dist`
        of a distilled model.

        Source: Touvron et al. 2021, section 4 ("hard-label distillation", "distillation token").
        """
        x = self.tokens(self.normalize(images))
        if self.head_dist is None:
            return (self.head(x[:, 0]),)
        return self.head(x[:, 0]), self.head_dist(x[:, 1])


def resize_positions(pos_embed: Tensor, grid_size: int, num_prefix_tokens: int) -> Tensor:
    """Interpolate position embeddings for another number of patches; the prefix tokens stay.

    (1, num_prefix_tokens + G ** 2, d) of a square grid of patches becomes
    (1, num_prefix_tokens + grid_size ** 2, d).

    Raises:
        ValueError: the embeddings are not those of a square grid.

    Source: Touvron et al. 2021, section 3: bicubic; corners not aligned and no antialiasing, as in
        the authors' code.
    """
    if pos_embed.ndim != 3 or pos_embed.shape[1] <= num_prefix_tokens:
        raise ValueError(f"pos_embed must be (1, tokens, d), got {tuple(pos_embed.shape)}")
    prefix, patches = pos_embed[:, :num_prefix_tokens], pos_embed[:, num_prefix_tokens:]
    old_size = math.isqrt(patches.shape[1])
    if old_size**2 != patches.shape[1]:
        raise ValueError(
            f"pos_embed must hold {num_prefix_tokens} + G x G tokens, got {pos_embed.shape[1]}"
        )
    if old_size == grid_size:
        return pos_embed
    grid = patches.float().unflatten(1, (old_size, old_size)).permute(0, 3, 1, 2)
    grid = F.interpolate(grid, size=(grid_size, grid_size), mode="bicubic", align_corners=False)
    return torch.cat((prefix.float(), grid.flatten(2).transpose(1, 2)), dim=1)
