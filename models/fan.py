"""FAN-ViT, a fully attentional network: attention over tokens, then attention over channels.

Source of each choice: [paper] Zhou et al., "Understanding the robustness in vision transformers",
ICML 2022; [code] the authors' public code; [ours]. The elliptical form changes the token mixing
only: Nielsen et al., "Elliptical Attention", NeurIPS 2024.

Names are those of the public checkpoints, except that `q` and `kv` of the token mixing are one
`qkv`. Parameters that change no logit, or that another one absorbs, are left out [ours]. Every
function of the public code remains; its 7.32 M and 28.35 M parameters become 7.28 M and 28.28 M,
within 1 % of the 7.3 M and 28 M that its authors state. `from_public` translates weights exactly.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Self, Unpack

import torch
from torch import Tensor, nn

from models.attention.catalog import make_attention
from models.attention.channel_attention import ChannelAttention
from models.attention.class_attention import ClassBlock
from models.attention.config import AttentionArguments
from models.layers.block import DropPath, init_linear
from models.layers.images import ImageConfig, ImageModel

_CLASS_BLOCKS = 2  # [paper]
_POSITION_CHANNELS = 32  # for each of the two axes [code]


@dataclass(frozen=True, slots=True, kw_only=True)
class FANConfig(ImageConfig):
    """What defines a FAN-ViT; `depth` counts the token-mixing blocks.

    `patch_size` is a power of two from 2 on: the image is halved once per convolution. `drop_path`
    is the share of the samples for which training leaves out a sublayer, the same in every
    token-mixing block and nothing in the class blocks [code].
    """

    def __post_init__(self) -> None:
        """Check every rule, naming the field and the value received."""
        ImageConfig.__post_init__(self)
        if self.patch_size < 2 or self.patch_size & (self.patch_size - 1):
            raise ValueError(
                "patch_size must be a power of two from 2 on, because each convolution of the "
                f"patch embedding halves the image, got {self.patch_size}"
            )
        least = stem_divisors(self.patch_size)[0]
        if self.embed_dim < least:
            raise ValueError(
                f"embed_dim must be at least {least} for patch_size {self.patch_size}, "
                f"got {self.embed_dim}"
            )


def stem_divisors(patch_size: int) -> list[int]:
    """What embed_dim is divided by after each convolution of the patch embedding.

    The width doubles from layer to layer [code, for 8 and 16; ours, for other powers of two]; only
    at 4 does it go from a quarter straight to the whole [code].
    """
    if patch_size == 4:
        return [4, 1]
    return [2**i for i in reversed(range(patch_size.bit_length() - 1))]


class ConvPatchEmbed(nn.Module):
    """Convolutions of stride 2 with batch norm, a GELU between two of them [paper, code]."""

    def __init__(self, in_chans: int, embed_dim: int, patch_size: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for divisor in stem_divisors(patch_size):
            width = embed_dim // divisor
            conv = nn.Conv2d(in_chans, width, 3, stride=2, padding=1, bias=False)
            layers += [nn.Sequential(conv, nn.BatchNorm2d(width)), nn.GELU()]
            in_chans = width
        self.proj = nn.Sequential(*layers[:-1])

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) to (B, N, embed_dim)."""
        # Not flatten(2).transpose(1, 2): for one image on the CPU, torch's batch norm reads the
        # transposed gradient which that passes back in the wrong order, without an error.
        return self.proj(x).permute(0, 2, 3, 1).flatten(1, 2)


def fourier_positions(grid_size: int) -> Tensor:
    """Table of sines and cosines of the places on a square grid.

    Row r (from 1) has the angle 2 pi r / (grid_size + 1e-6); channel 2k is the sine of
    angle / 10000^(2k / 32), channel 2k + 1 its cosine. Rows fill the first 32 channels, columns the
    last 32.

    Args:
        grid_size: patches along one side.

    Returns:
        (64, grid_size, grid_size) float64.

    Source: [code].
    """
    places = torch.arange(1, grid_size + 1, dtype=torch.float64) * 2 * math.pi / (grid_size + 1e-6)
    exponents = torch.arange(0, _POSITION_CHANNELS, 2, dtype=torch.float64) / _POSITION_CHANNELS
    angles = places / 10000 ** exponents[:, None]  # (16, grid_size)
    axis = torch.stack((angles.sin(), angles.cos()), dim=1).flatten(0, 1)  # (32, grid_size)
    rows, columns = axis[:, :, None], axis[:, None, :]
    shape = (_POSITION_CHANNELS, grid_size, grid_size)
    return torch.cat((rows.expand(shape), columns.expand(shape)))


class FourierPositions(nn.Module):
    """A learned projection of `fourier_positions`, rounded once to the model's precision [code]."""

    table: Tensor

    def __init__(self, embed_dim: int, grid_size: int) -> None:
        super().__init__()
        self.token_projection = nn.Conv2d(2 * _POSITION_CHANNELS, embed_dim, 1)
        table = fourier_positions(grid_size).to(torch.get_default_dtype())
        self.register_buffer("table", table, persistent=False)

    def forward(self) -> Tensor:
        """The positions (1, N, embed_dim)."""
        return self.token_projection(self.table[None]).flatten(2).transpose(1, 2)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        # A float32 table turned into float64 would keep the error of float32.
        super()._apply(fn, recurse)
        self.table = fourier_positions(self.table.shape[-1]).to(self.table)
        return self


class FANBlock(nn.Module):
    """Token mixing and channel attention, each behind a norm and scaled per channel.

    The first norm has no scale and shift, since `qkv` behind it has its own [ours].

    Arguments are those of `Block`; `grid_size` is the side of the square grid of the tokens.

    Source: [paper], figure 2.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        hidden_dim: int,
        *,
        grid_size: int,
        norm_eps: float = 1e-6,
        drop_path: float = 0.0,
        **attention: Unpack[AttentionArguments],
    ) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(embed_dim, eps=norm_eps, elementwise_affine=False)
        self.attn = make_attention(embed_dim, num_heads, **attention)
        self.gamma1 = nn.Parameter(torch.ones(embed_dim))
        self.norm2 = nn.LayerNorm(embed_dim, eps=norm_eps)
        self.mlp = ChannelAttention(embed_dim, num_heads, hidden_dim, grid_size)
        self.gamma2 = nn.Parameter(torch.ones(embed_dim))
        self.drop_path = DropPath(drop_path)

    def forward(self, x: Tensor, v_prev: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Compute the block's tokens (B, N, C) and values; arguments as of `Block`."""
        attended, v = self.attn(self.norm1(x), v_prev)
        x = x + self.drop_path(self.gamma1 * attended)
        return x + self.drop_path(self.gamma2 * self.mlp(self.norm2(x))), v


class FAN(ImageModel):
    """Classify images; the normalization of pixels is part of the model."""

    config: FANConfig

    def __init__(self, config: FANConfig) -> None:
        super().__init__(config)
        width, hidden_dim = config.embed_dim, round(config.embed_dim * config.mlp_ratio)
        sizes = (width, config.num_heads, hidden_dim)
        self.patch_embed = ConvPatchEmbed(config.in_chans, width, config.patch_size)
        self.pos_embed = FourierPositions(width, config.grid_size)
        self.blocks = nn.ModuleList(
            FANBlock(
                *sizes,
                grid_size=config.grid_size,
                norm_eps=config.norm_eps,
                drop_path=config.drop_path,
                **config.attention_at(layer),
            )
            for layer in range(1, config.depth + 1)
        )
        self.cls_token = nn.Parameter(torch.zeros(1, 1, width))
        self.cls_attn_blocks = nn.ModuleList(
            ClassBlock(*sizes, norm_eps=config.norm_eps) for _ in range(_CLASS_BLOCKS)
        )
        self.norm = nn.LayerNorm(width, eps=config.norm_eps)
        self.head = nn.Linear(width, config.num_classes)
        self.apply(init_linear)
        nn.init.trunc_normal_(self.cls_token, std=0.02)

    def forward(self, images: Tensor) -> Tensor:
        """(B, C, H, W), pixels in [0, 1], H = W = img_size, to (B, num_classes) logits."""
        x = self.patch_embed(self.normalize(images)) + self.pos_embed()
        v = None
        for block in self.blocks:
            x, v = block(x, v)
        x = torch.cat((self.cls_token.expand(x.shape[0], -1, -1), x), dim=1)
        for block in self.cls_attn_blocks:
            x = block(x)
        return self.head(self.norm(x[:, 0]))


def from_public(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Turn the weights of a public FAN-ViT into those of the `FAN` with the same logits.

    Args:
        state: tensors by their public names; the state dict of a `FAN` comes back as it is.

    Raises:
        ValueError: a tensor is missing or does not fit the others of its block, or a batch norm has
            a scale of 0, by which its shift cannot be divided.
    """
    named = dict(state)
    try:
        for key in state:
            block, _, name = key.rpartition(".attn.")
            if name == "kv.weight":
                _absorb(named, block)
            elif name == "k.bias" and block.startswith("cls_attn_blocks."):
                _drop_key_bias(named, f"{block}.attn")
    except KeyError as error:
        raise ValueError(f"state must have {error} beside the rest of its block") from error
    except (RuntimeError, IndexError) as error:
        raise ValueError(f"state must hold tensors that fit each other: {error}") from error
    return named


def _drop_key_bias(named: dict[str, Tensor], attn: str) -> None:
    """Leave out the bias of the keys of a class block: the same for every score of a row."""
    shape, expected = named.pop(f"{attn}.k.bias").shape, named[f"{attn}.k.weight"].shape[:1]
    if shape != expected:
        raise ValueError(f"{attn}.k.bias must be {tuple(expected)}, got {tuple(shape)}")


def _absorb(named: dict[str, Tensor], block: str) -> None:
    """Rewrite the tensors of one public block in place of the dictionary."""
    attn, mlp = f"{block}.attn", f"{block}.mlp.mlp_v"
    weight, bias = (
        torch.cat((named.pop(f"{attn}.q.{name}"), named.pop(f"{attn}.kv.{name}")))
        for name in ("weight", "bias")
    )
    named[f"{attn}.qkv.bias"] = bias + weight @ named.pop(f"{block}.norm1.bias")
    named[f"{attn}.qkv.weight"] = weight * named.pop(f"{block}.norm1.weight")
    del named[f"{block}.mlp.q.bias"]
    gamma, scale = named.pop(f"{mlp}.gamma"), named.pop(f"{mlp}.dwconv.bn.weight")
    if (scale == 0).any():
        raise ValueError(f"{mlp}.dwconv.bn.weight must have no 0")
    residual = named[f"{mlp}.fc2.weight"] @ (gamma * named.pop(f"{mlp}.dwconv.conv2.bias"))
    named[f"{mlp}.fc2.bias"] = named[f"{mlp}.fc2.bias"] + residual
    named[f"{mlp}.dwconv.bn.bias"] = named[f"{mlp}.dwconv.bn.bias"] / scale
    kernel = named[f"{mlp}.dwconv.conv2.weight"]
    named[f"{mlp}.dwconv.conv2.weight"] = kernel * (gamma * scale)[:, None, None, None]
