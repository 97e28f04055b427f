"""FAN-ViT by the names of its public checkpoints, one image at a time, as plainly as possible.

It keeps every parameter of the public model, also those that `models.fan` leaves out.
"""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from models.fan import FANConfig
from tests.models.plain_transformer import attention, linear, mlp, norm

Weights = dict[str, Tensor]
# Widths of the patch embedding's layers as parts of embed_dim, by patch size.
STEMS = {2: [1], 4: [1 / 4, 1], 8: [1 / 4, 1 / 2, 1], 16: [1 / 8, 1 / 4, 1 / 2, 1]}
STEMS |= {32: [1 / 16, *STEMS[16]]}


def public_weights(config: FANConfig, seed: int = 0) -> Weights:
    """Random float64 weights with the names and shapes of a public checkpoint."""
    d, hidden = config.embed_dim, round(config.embed_dim * config.mlp_ratio)
    shapes: dict[str, tuple[int, ...]] = {"cls_token": (1, 1, d)}
    shapes |= {"pos_embed.token_projection.weight": (d, 64, 1, 1)}
    shapes |= {"pos_embed.token_projection.bias": (d,)} | norm_shapes("norm", d)
    shapes |= linear_shapes("head", config.num_classes, d)
    in_chans = config.in_chans
    for i, width in enumerate(STEMS[config.patch_size]):
        width = int(d * width)
        shapes[f"patch_embed.proj.{2 * i}.0.weight"] = (width, in_chans, 3, 3)
        shapes |= batch_norm_shapes(f"patch_embed.proj.{2 * i}.1", width)
        in_chans = width
    for i in range(config.depth):
        shapes |= {
            f"blocks.{i}.{key}": s for key, s in block_shapes(d, hidden, config.num_heads).items()
        }
    for i in range(2):
        shapes |= {
            f"cls_attn_blocks.{i}.{key}": s for key, s in class_block_shapes(d, hidden).items()
        }
    generator = torch.Generator().manual_seed(seed)
    return {key: value(key, shape, generator) for key, shape in shapes.items()}


def value(key: str, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    if key.endswith("num_batches_tracked"):
        return torch.tensor(7)
    drawn = torch.randn(shape, generator=generator, dtype=torch.float64)
    if key.endswith("running_var"):
        return drawn.square() + 0.5
    if len(shape) == 1 and key.endswith(("weight", "gamma", "gamma1", "gamma2")):
        return 1 + 0.3 * drawn
    return drawn * 0.3


def linear_shapes(name: str, rows: int, columns: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (rows, columns), f"{name}.bias": (rows,)}


def norm_shapes(name: str, d: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (d,), f"{name}.bias": (d,)}


def batch_norm_shapes(name: str, d: int) -> dict[str, tuple[int, ...]]:
    statistics = {f"{name}.running_{key}": (d,) for key in ("mean", "var")}
    return norm_shapes(name, d) | statistics | {f"{name}.num_batches_tracked": ()}


def block_shapes(d: int, hidden: int, num_heads: int) -> dict[str, tuple[int, ...]]:
    shapes = {"gamma1": (d,), "gamma2": (d,), "mlp.mlp_v.gamma": (hidden,)}
    shapes |= norm_shapes("norm1", d) | norm_shapes("norm2", d) | norm_shapes("mlp.norm_v", d)
    shapes |= (
        linear_shapes("attn.q", d, d)
        | linear_shapes("attn.kv", 2 * d, d)
        | linear_shapes("attn.proj", d, d)
    )
    shapes |= {"mlp.temperature": (num_heads, 1, 1)} | linear_shapes("mlp.q", d, d)
    shapes |= linear_shapes("mlp.mlp_v.fc1", hidden, d) | linear_shapes("mlp.mlp_v.fc2", d, hidden)
    for name in ("mlp.mlp_v.dwconv.conv1", "mlp.mlp_v.dwconv.conv2"):
        shapes |= {f"{name}.weight": (hidden, 1, 3, 3), f"{name}.bias": (hidden,)}
    return shapes | batch_norm_shapes("mlp.mlp_v.dwconv.bn", hidden)


def class_block_shapes(d: int, hidden: int) -> dict[str, tuple[int, ...]]:
    shapes = {"gamma1": (d,), "gamma2": (d,)} | norm_shapes("norm1", d) | norm_shapes("norm2", d)
    for name in ("q", "k", "v", "proj"):
        shapes |= linear_shapes(f"attn.{name}", d, d)
    return shapes | linear_shapes("mlp.fc1", hidden, d) | linear_shapes("mlp.fc2", d, hidden)


def plain_fan(image: Tensor, w: Weights, config: FANConfig) -> Tensor:
    """Logits (K,) of one image (C, H, W) in float64."""
    mean, std = (torch.tensor(x, dtype=torch.float64) for x in (config.mean, config.std))
    image = (image - mean[:, None, None]) / std[:, None, None]
    x = plain_patches(image, w) + plain_positions(config.grid_size, w)
    v = None
    for i in range(config.depth):
        name = f"blocks.{i}"
        normed, joined = norm(x, w, f"{name}.norm1"), with_qkv(w, f"{name}.attn")
        previous = v if config.elliptical else None
        mixed, v = attention(normed, joined, f"{name}.attn", config.num_heads, previous)
        x = x + w[f"{name}.gamma1"] * mixed
        normed = norm(x, w, f"{name}.norm2")
        x = x + w[f"{name}.gamma2"] * plain_channel_attention(normed, w, f"{name}.mlp")
    x = torch.cat((w["cls_token"][0], x))
    for i in range(2):
        x = plain_class_block(x, w, f"cls_attn_blocks.{i}", config.num_heads)
    return linear(norm(x[0], w, "norm"), w, "head")


def with_qkv(w: Weights, name: str) -> Weights:
    """With the layers q and kv of the token mixing as one."""
    parts = {key: (w[f"{name}.q.{key}"], w[f"{name}.kv.{key}"]) for key in ("weight", "bias")}
    return w | {f"{name}.qkv.{key}": torch.cat(pair) for key, pair in parts.items()}


def gelu(x: Tensor) -> Tensor:
    return 0.5 * x * (1 + torch.erf(x / math.sqrt(2)))


def plain_batch_norm(x: Tensor, w: Weights, name: str) -> Tensor:
    """By the running statistics; channels last."""
    x = (x - w[f"{name}.running_mean"]) / (w[f"{name}.running_var"] + 1e-5).sqrt()
    return x * w[f"{name}.weight"] + w[f"{name}.bias"]


def plain_patches(image: Tensor, w: Weights) -> Tensor:
    """Tokens (N, d) of one normalized image."""
    last = max(int(key.split(".")[2]) for key in w if key.startswith("patch_embed"))
    x = image
    for i in range(0, last + 1, 2):
        kernel = w[f"patch_embed.proj.{i}.0.weight"]
        side = x.shape[-1] // 2
        windows = F.unfold(x[None], 3, padding=1, stride=2)[0].T  # (side * side, C * 9)
        x = plain_batch_norm(windows @ kernel.flatten(1).T, w, f"patch_embed.proj.{i}.1")
        x = (gelu(x) if i < last else x).T.unflatten(1, (side, side))
    return x.flatten(1).T


def plain_positions(grid_size: int, w: Weights) -> Tensor:
    table = torch.zeros(grid_size, grid_size, 64, dtype=torch.float64)
    for row in range(grid_size):
        for column in range(grid_size):
            for k in range(64):
                place = (row if k < 32 else column) + 1
                angle = 2 * math.pi * place / (grid_size + 1e-6)
                angle /= 10000 ** (2 * (k % 32 // 2) / 32)
                table[row, column, k] = math.cos(angle) if k % 2 else math.sin(angle)
    kernel = w["pos_embed.token_projection.weight"].flatten(1)
    return table.flatten(0, 1) @ kernel.T + w["pos_embed.token_projection.bias"]


def plain_channel_attention(x: Tensor, w: Weights, name: str) -> Tensor:
    """Every channel of the tokens (N, d) alone."""
    values = plain_conv_mlp(x, w, f"{name}.mlp_v")
    values = values - values.mean(1, keepdim=True)
    values = values / (values.square().mean(1, keepdim=True) + 1e-5).sqrt()
    values = values * w[f"{name}.norm_v.weight"] + w[f"{name}.norm_v.bias"]
    q = linear(x, w, f"{name}.q")
    temperature = w[f"{name}.temperature"].flatten()
    width = x.shape[-1] // len(temperature)
    out = torch.zeros_like(x)
    for channel in range(x.shape[-1]):
        head = channel // width
        prototype = torch.zeros(len(x), dtype=x.dtype)
        for other in range(head * width, (head + 1) * width):
            prototype += x[:, other].exp() / x[:, other].exp().sum() / width
        agreement = (q[:, channel].exp() / q[:, channel].exp().sum() * prototype).sum()
        out[:, channel] = temperature[head] / (1 + (-agreement).exp()) * values[:, channel]
    return out


def plain_conv_mlp(x: Tensor, w: Weights, name: str) -> Tensor:
    x = linear(x, w, f"{name}.fc1")
    side = math.isqrt(len(x))
    local = gelu(plain_depthwise(x.unflatten(0, (side, side)), w, f"{name}.dwconv.conv1"))
    local = plain_batch_norm(local, w, f"{name}.dwconv.bn")
    local = plain_depthwise(local, w, f"{name}.dwconv.conv2").flatten(0, 1)
    return linear(x + w[f"{name}.gamma"] * local, w, f"{name}.fc2")


def plain_depthwise(x: Tensor, w: Weights, name: str) -> Tensor:
    """Correlate every channel of the grid (side, side, d) with its 3 x 3 kernel; zeros outside."""
    side = len(x)
    padded = F.pad(x, (0, 0, 1, 1, 1, 1))
    out = w[f"{name}.bias"].expand_as(x)
    for i in range(3):
        for j in range(3):
            out = out + w[f"{name}.weight"][:, 0, i, j] * padded[i : i + side, j : j + side]
    return out


def plain_class_attention(x: Tensor, w: Weights, name: str, num_heads: int) -> Tensor:
    """The class token's attended form (d,), from the tokens (1 + N, d)."""
    q, k, v = (linear(x, w, f"{name}.{part}") for part in "qkv")
    width = x.shape[-1] // num_heads
    out = torch.zeros_like(x[0])
    for head in range(num_heads):
        part = slice(head * width, (head + 1) * width)
        weights = (k[:, part] @ q[0, part] / math.sqrt(width)).softmax(0)
        out[part] = weights @ v[:, part]
    return linear(out, w, f"{name}.proj")


def plain_class_block(x: Tensor, w: Weights, name: str, num_heads: int) -> Tensor:
    normed = norm(x, w, f"{name}.norm1")
    attended = plain_class_attention(normed, w, f"{name}.attn", num_heads)
    x = x + w[f"{name}.gamma1"] * torch.cat((attended[None], normed[1:]))
    x = norm(x, w, f"{name}.norm2")
    mixed = w[f"{name}.gamma2"] * mlp(x[:1], w, f"{name}.mlp")
    return x + torch.cat((mixed, x[1:]))
