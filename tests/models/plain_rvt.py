"""RVT by the names of its public checkpoints, one image at a time, as plainly as possible.

It keeps the biases before batch norms, which `models.rvt` leaves out.
"""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from models.rvt import RVTConfig
from tests.models.plain_fan import Shapes, Weights, batch_norm, plain_depthwise, value
from tests.models.plain_transformer import linear, norm, normalized

STEM = 32


def public_weights(config: RVTConfig) -> Weights:
    """Random float64 weights with the names and shapes of a public checkpoint."""
    generator = torch.Generator().manual_seed(0)
    return {key: value(key, shape, generator) for key, shape in shapes(config).items()}


def shapes(config: RVTConfig) -> Shapes:
    d, size = config.embed_dim, config.patch_size // 4
    last = d * (2 if config.pooled_layers else 1)
    layers: Shapes = {"patch_embed.proj.0": (STEM, config.in_chans, 7, 7)}
    layers |= {"patch_embed.proj.1": (STEM,), "patch_embed.proj.3": (d, STEM, size, size)}
    layers |= {"norm": (last,), "head": (config.num_classes, last)}
    if config.pooled_layers:
        layers["pools.0.conv"] = (2 * d, 1, 3, 3)
    found: Shapes = {}
    for name, width, heads, grid, scaled in blocks(config):
        layers |= {f"{name}.{key}": shape for key, shape in block_layers(width, config).items()}
        if scaled:
            found[f"{name}.attn.att_mask"] = (heads, grid**2, grid**2)
    for name, shape in layers.items():
        found |= {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
        if name.endswith(("proj.1", "bn1", "bn2", "bn3")):
            found |= {f"{name}.running_mean": shape, f"{name}.running_var": shape}
            found[f"{name}.num_batches_tracked"] = ()
    return found


def blocks(config: RVTConfig) -> list[tuple[str, int, int, int, bool]]:
    """Name, width, heads, side of the grid and whether positions scale, of each block."""
    found = []
    for i in range(config.depth):
        first = config.depth - config.pooled_layers
        stage, grid = (0, config.grid_size) if i < first else (1, math.ceil(config.grid_size / 2))
        width, heads = (stage + 1) * config.embed_dim, (stage + 1) * config.num_heads
        name = f"transformers.{stage}.blocks.{i - stage * first}"
        found.append((name, width, heads, grid, i < config.scaled_layers))
    return found


def block_layers(d: int, config: RVTConfig) -> Shapes:
    hidden = round(d * config.mlp_ratio)
    shapes: Shapes = {"norm1": (d,), "norm2": (d,), "attn.qkv": (3 * d, d), "attn.proj": (d, d)}
    shapes |= {"mlp.fc1": (hidden, d, 1, 1), "mlp.fc2": (d, hidden, 1, 1)}
    return shapes | {
        "mlp.dwconv": (hidden, 1, 3, 3),
        "mlp.bn1": (hidden,),
        "mlp.bn2": (hidden,),
        "mlp.bn3": (d,),
    }


def plain_rvt(image: Tensor, w: Weights, config: RVTConfig) -> Tensor:
    """Logits (K,) of one image (C, H, W) in float64."""
    x, v, side = plain_patches(normalized(image, config), w, config), None, config.grid_size
    for name, _, heads, grid, _ in blocks(config):
        if grid != side:
            pooled = x.T.unflatten(1, (side, side))[None]
            kernel, bias = w["pools.0.conv.weight"], w["pools.0.conv.bias"]
            groups = config.embed_dim
            x = F.conv2d(pooled, kernel, bias, stride=2, padding=1, groups=groups)[0].flatten(1).T
            v, side = None, grid
        previous = v if config.attention == "elliptical" else None
        x, v = plain_block(x, w, name, heads, previous)
    return linear(norm(x.sum(0) / len(x), w, "norm"), w, "head")


def plain_patches(image: Tensor, w: Weights, config: RVTConfig) -> Tensor:
    """Tokens (N, d) of one normalized image."""
    kernels = [(w[f"patch_embed.proj.{i}.weight"], w[f"patch_embed.proj.{i}.bias"]) for i in (0, 3)]
    x = F.conv2d(image[None], *kernels[0], stride=2, padding=2)
    x = F.max_pool2d(batch_norm(x, w, "patch_embed.proj.1"), 3, stride=2, padding=1)
    return F.conv2d(x, *kernels[1], stride=config.patch_size // 4)[0].flatten(1).T


def plain_block(
    x: Tensor, w: Weights, name: str, num_heads: int, v_prev: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Of the tokens (N, d) and, for elliptical attention, the values (N, d) of the layer before."""
    attended, v = plain_attention(norm(x, w, f"{name}.norm1"), w, f"{name}.attn", num_heads, v_prev)
    x = x + attended
    return x + plain_conv_mlp(norm(x, w, f"{name}.norm2"), w, f"{name}.mlp"), v


def plain_attention(
    x: Tensor, w: Weights, name: str, num_heads: int, v_prev: Tensor | None
) -> tuple[Tensor, Tensor]:
    q, k, v = linear(x, w, f"{name}.qkv").chunk(3, dim=1)
    N, D = len(x), x.shape[1] // num_heads
    out = torch.zeros_like(x)
    for h in range(num_heads):
        own = slice(h * D, (h + 1) * D)
        m = torch.ones(D, dtype=x.dtype)
        if v_prev is not None:
            m = (v[:, own] - v_prev[:, own]).abs().mean(0)
            m = m / m.max()
        for i in range(N):
            scores = torch.stack([(q[i, own] * m * k[j, own]).sum() / D**0.5 for j in range(N)])
            if f"{name}.att_mask" in w:
                scores = scores / (1 + (-w[f"{name}.att_mask"][h, i]).exp())
            shares = scores.exp() / scores.exp().sum()
            out[i, own] = sum(shares[j] * v[j, own] for j in range(N))
    return linear(out, w, f"{name}.proj"), v


def plain_conv_mlp(x: Tensor, w: Weights, name: str) -> Tensor:
    side = math.isqrt(len(x))
    x = pointwise(x, w, f"{name}.fc1").T.unflatten(1, (side, side))[None]
    x = F.gelu(batch_norm(x, w, f"{name}.bn1"))
    x = F.gelu(batch_norm(plain_depthwise(x, w, f"{name}.dwconv"), w, f"{name}.bn2"))
    x = pointwise(x[0].flatten(1).T, w, f"{name}.fc2").T.unflatten(1, (side, side))[None]
    return batch_norm(x, w, f"{name}.bn3")[0].flatten(1).T


def pointwise(x: Tensor, w: Weights, name: str) -> Tensor:
    return x @ w[f"{name}.weight"][:, :, 0, 0].T + w[f"{name}.bias"]
