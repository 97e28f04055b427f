"""FAN-ViT by the names of its public checkpoints, one image at a time, as plainly as possible.

It keeps every parameter of the public model, also those that `models.fan` leaves out.
"""

import math
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn import functional as F

from models.fan import FANConfig
from tests.models.plain_transformer import (
    attend,
    attention,
    linear,
    mlp,
    norm,
    normalized,
    sinusoidal,
)

Weights = dict[str, Tensor]
Shapes = dict[str, tuple[int, ...]]
# Widths of the patch embedding's layers as parts of embed_dim, by patch size.
STEMS = {2: [1], 4: [1 / 4, 1], 8: [1 / 4, 1 / 2, 1], 16: [1 / 8, 1 / 4, 1 / 2, 1]}
STEMS |= {32: [1 / 16, *STEMS[16]]}


def public_weights(config: FANConfig, seed: int = 0) -> Weights:
    """Random float64 weights with the names and shapes of a public checkpoint."""
    generator = torch.Generator().manual_seed(seed)
    return {key: value(key, shape, generator) for key, shape in shapes(config).items()}


def value(key: str, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    if key.endswith("num_batches_tracked"):
        return torch.tensor(7)
    drawn = torch.randn(shape, generator=generator, dtype=torch.float64)
    if key.endswith("running_var"):
        return drawn.square() + 0.5
    if len(shape) == 1 and key.endswith(("weight", "gamma", "gamma1", "gamma2")):
        return 1 + 0.3 * drawn
    return drawn * 0.3


def shapes(config: FANConfig) -> Shapes:
    d, hidden = config.embed_dim, round(config.embed_dim * config.mlp_ratio)
    found: Shapes = {"cls_token": (1, 1, d)}
    # The weights of what has a bias too, as long as the weight's first axis.
    layers: Shapes = {"pos_embed.token_projection": (d, 64, 1, 1), "norm": (d,)}
    layers |= {"head": (config.num_classes, d)}
    widths = [config.in_chans, *(int(d * part) for part in STEMS[config.patch_size])]
    for i, (given, width) in enumerate(pairwise(widths)):
        found[f"patch_embed.proj.{2 * i}.0.weight"] = (width, given, 3, 3)
        layers[f"patch_embed.proj.{2 * i}.1"] = (width,)
    for i in range(config.depth):
        layers |= {f"blocks.{i}.{key}": shape for key, shape in block_layers(d, hidden).items()}
        found[f"blocks.{i}.mlp.mlp_v.gamma"] = (hidden,)
        found[f"blocks.{i}.mlp.temperature"] = (config.num_heads, 1, 1)
    for i in range(2):
        parts = dict.fromkeys([f"attn.{name}" for name in ("q", "k", "v", "proj")], (d, d))
        parts |= {"norm1": (d,), "norm2": (d,), "mlp.fc1": (hidden, d), "mlp.fc2": (d, hidden)}
        layers |= {f"cls_attn_blocks.{i}.{key}": shape for key, shape in parts.items()}
    for name, shape in layers.items():
        found |= {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
        if name.endswith((".1", ".bn")):
            found |= {f"{name}.running_mean": shape, f"{name}.running_var": shape}
            found[f"{name}.num_batches_tracked"] = ()
        if name.endswith("norm1"):
            found |= {name.replace("norm1", gamma): shape for gamma in ("gamma1", "gamma2")}
    return found


def block_layers(d: int, hidden: int) -> Shapes:
    shapes = dict.fromkeys(("norm1", "norm2", "mlp.norm_v"), (d,)) | {"attn.kv": (2 * d, d)}
    shapes |= dict.fromkeys(("attn.q", "attn.proj", "mlp.q"), (d, d))
    shapes |= {"mlp.mlp_v.fc1": (hidden, d), "mlp.mlp_v.fc2": (d, hidden)}
    convolutions = ("mlp.mlp_v.dwconv.conv1", "mlp.mlp_v.dwconv.conv2")
    shapes |= dict.fromkeys(convolutions, (hidden, 1, 3, 3))
    return shapes | {"mlp.mlp_v.dwconv.bn": (hidden,)}


def plain_fan(image: Tensor, w: Weights, config: FANConfig) -> Tensor:
    """Logits (K,) of one image (C, H, W) in float64."""
    x = plain_patches(normalized(image, config), w, config)
    x, v = x + plain_positions(config.grid_size, w), None
    for name in (f"blocks.{i}" for i in range(config.depth)):
        normed, joined = norm(x, w, f"{name}.norm1"), with_qkv(w, f"{name}.attn")
        previous = v if config.first_layer == 2 else None
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


def batch_norm(x: Tensor, w: Weights, name: str) -> Tensor:
    mean, variance = w[f"{name}.running_mean"], w[f"{name}.running_var"]
    return F.batch_norm(x, mean, variance, w[f"{name}.weight"], w[f"{name}.bias"])


def plain_patches(image: Tensor, w: Weights, config: FANConfig) -> Tensor:
    """Tokens (N, d) of one normalized image."""
    x = image[None]
    for i in range(len(STEMS[config.patch_size])):
        kernel = w[f"patch_embed.proj.{2 * i}.0.weight"]
        x = F.conv2d(F.gelu(x) if i else x, kernel, stride=2, padding=1)
        x = batch_norm(x, w, f"patch_embed.proj.{2 * i}.1")
    return x[0].flatten(1).T


def plain_positions(grid_size: int, w: Weights) -> Tensor:
    places = torch.arange(1, grid_size + 1).double() * 2 * math.pi / (grid_size + 1e-6)
    rows, columns = torch.meshgrid(places, places, indexing="ij")
    table = torch.cat([sinusoidal(each.flatten(), 32) for each in (rows, columns)], dim=1)
    kernel = w["pos_embed.token_projection.weight"].flatten(1)
    return table @ kernel.T + w["pos_embed.token_projection.bias"]


def plain_channel_attention(x: Tensor, w: Weights, name: str) -> Tensor:
    """Of the tokens (N, d): every channel weighs its own values."""
    temperature = w[f"{name}.temperature"].flatten()
    by_head = (len(x), len(temperature), -1)
    prototype = x.softmax(0).view(by_head).mean(2, keepdim=True)
    agreement = (linear(x, w, f"{name}.q").softmax(0).view(by_head) * prototype).sum(0)
    values = plain_conv_mlp(x, w, f"{name}.mlp_v")
    scale, shift = w[f"{name}.norm_v.weight"], w[f"{name}.norm_v.bias"]
    values = F.layer_norm(values, scale.shape, scale, shift)
    return (temperature[:, None] / (1 + (-agreement).exp())).flatten() * values


def plain_conv_mlp(x: Tensor, w: Weights, name: str) -> Tensor:
    x = linear(x, w, f"{name}.fc1")
    side = math.isqrt(len(x))
    local = plain_depthwise(x.T.unflatten(1, (side, side))[None], w, f"{name}.dwconv.conv1")
    local = batch_norm(F.gelu(local), w, f"{name}.dwconv.bn")
    local = plain_depthwise(local, w, f"{name}.dwconv.conv2")[0].flatten(1).T
    return linear(x + w[f"{name}.gamma"] * local, w, f"{name}.fc2")


def plain_depthwise(x: Tensor, w: Weights, name: str) -> Tensor:
    weight, bias = w[f"{name}.weight"], w[f"{name}.bias"]
    return F.conv2d(x, weight, bias, padding=1, groups=len(weight))


def plain_class_block(x: Tensor, w: Weights, name: str, num_heads: int) -> Tensor:
    normed = norm(x, w, f"{name}.norm1")
    q, k, v = (linear(normed, w, f"{name}.attn.{part}").chunk(num_heads, -1) for part in "qkv")
    heads = [attend(q[h][:1], k[h], v[h]) for h in range(num_heads)]
    attended = linear(torch.cat(heads, dim=1), w, f"{name}.attn.proj")
    x = x + w[f"{name}.gamma1"] * torch.cat((attended, normed[1:]))
    x = norm(x, w, f"{name}.norm2")
    mixed = w[f"{name}.gamma2"] * mlp(x[:1], w, f"{name}.mlp")
    return x + torch.cat((mixed, x[1:]))
