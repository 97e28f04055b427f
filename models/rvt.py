"""RVT, a robust vision transformer: convolutions before and between attention, no class token.

Source of each choice: [paper] Mao et al., "Towards robust vision transformer", CVPR 2022; [code]
the authors' public code, whose `rvt_tiny_plus` and `rvt_small_plus` (RVT-Ti* and RVT-S*) are those
of the catalog; [ours]. Positions are known by convolutions and by `models.attention.position`.

Names are those of the public checkpoints. The biases of convolutions before a batch norm, which
takes them away again, are left out [ours]; `from_public` translates weights exactly. Elliptical
attention is no part of the paper [ours].
"""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor, nn

from models.attention.base import Place
from models.attention.catalog import make_attention, mechanism
from models.attention.config import AttentionArguments
from models.attention.position import position_scaled
from models.layers.block import DropPath, drop_path_rate
from models.layers.images import ImageConfig, ImageModel

_STEM_WIDTH = 32  # [code]
_STEM_STRIDE = 4  # of the first convolution and the maximum behind it [code]


@dataclass(frozen=True, slots=True, kw_only=True)
class RVTConfig(ImageConfig):
    """What defines an RVT.

    Attributes:
        pooled_layers: the last layers, which see a grid half as wide with twice the width and
            heads. Values do not pass the pooling: behind it begins what reads those of the layer
            before.
        scaled_layers: the first layers, whose scores are scaled by position.
    """

    pooled_layers: int = 0
    scaled_layers: int = 0

    def __post_init__(self) -> None:
        """Check every rule, naming the field and the value received."""
        ImageConfig.__post_init__(self)
        if self.patch_size % _STEM_STRIDE:
            raise ValueError(
                f"patch_size must be a multiple of {_STEM_STRIDE}, because the first layers of the "
                f"patch embedding shrink the image as much, got {self.patch_size}"
            )
        for field, most in (("pooled_layers", self.depth - 1), ("scaled_layers", self.pooled_at)):
            value = getattr(self, field)
            if not 0 <= value <= most:
                raise ValueError(f"{field} must lie in 0..{most}, got {value}")
        self._check_layers()

    def _check_layers(self) -> None:
        layers = self.default_layers if self.attention_layers is None else self.attention_layers
        options, after = self.options, self.pooled_at + 1
        if self.first_layer == 2 and self.pooled_layers and after in layers:
            raise ValueError(
                f"attention_layers must leave out {after}, which is behind the pooling: "
                f"{self.attention} attention needs the values of a layer before"
            )
        if any(layer <= self.scaled_layers for layer in layers):
            position_scaled(self.attention, options)
        if self.pooled_layers:
            options.check_fit(
                embed_dim=2 * self.embed_dim,
                num_heads=2 * self.num_heads,
                length=self.pooled_grid_size**2,
            )

    @property
    def pooled_at(self) -> int:
        """Number of layers before the pooling."""
        return self.depth - self.pooled_layers

    @property
    def pooled_grid_size(self) -> int:
        """Tokens along one side behind the pooling."""
        return (self.grid_size + 1) // 2

    @property
    def default_layers(self) -> tuple[int, ...]:
        """See `AttentionConfig.default_layers`."""
        layers = range(self.first_layer, self.depth + 1)
        after = self.pooled_at + 1 if mechanism(self.attention).reads_values else 0
        return tuple(layer for layer in layers if layer != after)

    def attention_at(self, layer: int) -> AttentionArguments:
        """See `AttentionConfig.attention_at`."""
        arguments = ImageConfig.attention_at(self, layer)
        if layer > self.pooled_at:
            place = Place(layer=layer, depth=self.depth, length=self.pooled_grid_size**2)
            arguments["place"] = place
        return arguments


class ConvPatchEmbed(nn.Module):
    """A convolution with batch norm, a maximum, and a convolution without overlap [code]."""

    def __init__(self, in_chans: int, embed_dim: int, patch_size: int) -> None:
        super().__init__()
        size = patch_size // _STEM_STRIDE
        self.proj = nn.Sequential(
            nn.Conv2d(in_chans, _STEM_WIDTH, 7, stride=2, padding=2, bias=False),
            nn.BatchNorm2d(_STEM_WIDTH),
            nn.MaxPool2d(3, stride=2, padding=1),
            nn.Conv2d(_STEM_WIDTH, embed_dim, size, stride=size),
        )

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) to (B, N, embed_dim)."""
        return to_tokens(self.proj(x))


class ConvMlp(nn.Module):
    """An MLP with a depth-wise 3 x 3 convolution between its maps, a batch norm after each [code].

    The paper draws the convolution alone. The tokens form a square grid of side `grid_size`.
    """

    def __init__(self, embed_dim: int, hidden_dim: int, grid_size: int) -> None:
        super().__init__()
        self.grid_size = grid_size
        self.fc1 = nn.Conv2d(embed_dim, hidden_dim, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(hidden_dim)
        self.dwconv = nn.Conv2d(hidden_dim, hidden_dim, 3, padding=1, groups=hidden_dim, bias=False)
        self.bn2 = nn.BatchNorm2d(hidden_dim)
        self.act = nn.GELU()
        self.fc2 = nn.Conv2d(hidden_dim, embed_dim, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(embed_dim)

    def forward(self, x: Tensor) -> Tensor:
        """(B, N, embed_dim) to the same shape."""
        x = self.act(self.bn1(self.fc1(to_grid(x, self.grid_size))))
        x = self.act(self.bn2(self.dwconv(x)))
        return to_tokens(self.bn3(self.fc2(x)))


class RVTBlock(nn.Module):
    """Attention and a convolutional MLP, each behind a norm.

    Arguments are those of `Block`; `grid_size` is the side of the square grid of the tokens, and
    `scaled` says whether the scores are scaled by position.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        hidden_dim: int,
        attention: AttentionArguments,
        *,
        grid_size: int,
        scaled: bool = False,
        norm_eps: float = 1e-6,
        drop_path: float = 0.0,
    ) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(embed_dim, eps=norm_eps)
        if scaled:
            options = attention.get("options")
            kind = position_scaled(attention.get("attention", "dot"), options)
            place = attention.get("place", Place(length=grid_size**2))
            self.attn = kind(embed_dim, num_heads, options=options, place=place)
        else:
            self.attn = make_attention(embed_dim, num_heads, **attention)
        self.norm2 = nn.LayerNorm(embed_dim, eps=norm_eps)
        self.mlp = ConvMlp(embed_dim, hidden_dim, grid_size)
        self.drop_path = DropPath(drop_path)

    def forward(self, x: Tensor, v_prev: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Compute the block's tokens (B, N, C) and values; arguments as of `Block`."""
        attended, v = self.attn(self.norm1(x), v_prev)
        x = x + self.drop_path(attended)
        return x + self.drop_path(self.mlp(self.norm2(x))), v


class Stage(nn.Module):
    """Blocks over one grid of tokens.

    Args:
        config: that of the model.
        layers: the numbers of the blocks' layers, counted from 1.
        pooled: whether they are behind the pooling.
    """

    def __init__(self, config: RVTConfig, layers: range, *, pooled: bool) -> None:
        super().__init__()
        factor = 2 if pooled else 1
        width = factor * config.embed_dim
        self.blocks = nn.ModuleList(
            RVTBlock(
                width,
                factor * config.num_heads,
                round(width * config.mlp_ratio),
                config.attention_at(layer),
                grid_size=config.pooled_grid_size if pooled else config.grid_size,
                scaled=layer <= config.scaled_layers,
                norm_eps=config.norm_eps,
                drop_path=drop_path_rate(config.drop_path, layer, config.depth),
            )
            for layer in layers
        )

    def forward(self, x: Tensor) -> Tensor:
        """(B, N, C) to the same shape."""
        v = None
        for block in self.blocks:
            x, v = block(x, v)
        return x


class ConvPool(nn.Module):
    """A depth-wise 3 x 3 convolution of stride 2, two channels from each [paper, code]."""

    def __init__(self, embed_dim: int, grid_size: int) -> None:
        super().__init__()
        self.grid_size = grid_size
        self.conv = nn.Conv2d(embed_dim, 2 * embed_dim, 3, stride=2, padding=1, groups=embed_dim)

    def forward(self, x: Tensor) -> Tensor:
        """(B, N, C) to (B, about N / 4, 2 C)."""
        return to_tokens(self.conv(to_grid(x, self.grid_size)))


def to_grid(x: Tensor, grid_size: int) -> Tensor:
    """Tokens (B, N, C) to (B, C, grid_size, grid_size)."""
    return x.unflatten(1, (grid_size, grid_size)).permute(0, 3, 1, 2)


def to_tokens(x: Tensor) -> Tensor:
    """(B, C, H, W) to tokens (B, N, C)."""
    # Not flatten(2).transpose(1, 2): see `models.fan.ConvPatchEmbed`.
    return x.permute(0, 2, 3, 1).flatten(1, 2)


class RVT(ImageModel):
    """Classify images; the normalization of pixels is part of the model.

    Weights start as torch draws them [code]. The share of `drop_path` grows evenly to its full
    value in the last block, as in DeiT; [code] stops one step before.
    """

    config: RVTConfig

    def __init__(self, config: RVTConfig) -> None:
        super().__init__(config)
        before, depth = config.pooled_at, config.depth
        self.patch_embed = ConvPatchEmbed(config.in_chans, config.embed_dim, config.patch_size)
        stages, pools, width = [Stage(config, range(1, before + 1), pooled=False)], [], 1
        if config.pooled_layers:
            stages.append(Stage(config, range(before + 1, depth + 1), pooled=True))
            pools.append(ConvPool(config.embed_dim, config.grid_size))
            width = 2
        self.transformers = nn.ModuleList(stages)
        self.pools = nn.ModuleList(pools)
        self.norm = nn.LayerNorm(width * config.embed_dim, eps=config.norm_eps)
        self.head = nn.Linear(width * config.embed_dim, config.num_classes)

    def forward(self, images: Tensor) -> Tensor:
        """(B, C, H, W), pixels in [0, 1], H = W = img_size, to (B, num_classes) logits."""
        first, *others = self.transformers
        x = first(self.patch_embed(self.normalize(images)))
        for pooling, stage in zip(self.pools, others, strict=True):
            x = stage(pooling(x))
        return self.head(self.norm(x.mean(1)))


_NORM_BEHIND = {"proj.0": "proj.1", "fc1": "bn1", "dwconv": "bn2", "fc2": "bn3"}


def from_public(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Turn the weights of a public RVT into those of the `RVT` with the same logits.

    A bias before a batch norm moves the mean that is taken away.

    Args:
        state: tensors by their public names; the state dict of an `RVT` comes back as it is.

    Raises:
        ValueError: a bias has no batch norm behind it, or one of another shape.
    """
    named = dict(state)
    for key in state:
        for conv, norm in _NORM_BEHIND.items():
            if not key.endswith(f".{conv}.bias"):
                continue
            mean = f"{key.removesuffix(f'{conv}.bias')}{norm}.running_mean"
            if mean not in named or named[mean].shape != state[key].shape:
                raise ValueError(f"state must have {mean} of the shape of {key}")
            named[mean] = named[mean] - named.pop(key)
    return named
