"""Layers of attention of public packages, and ours with the same weights, timed in turn.

`python -m benchmarks.peers.attention_layers NAME LENGTH PAIRS FOUND.npz` writes how far the outputs
are apart, and the seconds of ours and of theirs, forward and with gradients of input and weights,
on one thread. linformer and performer-pytorch lie on PYTHONPATH, transformers in our environment.
"""

import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from linformer import LinformerSelfAttention  # pyright: ignore[reportMissingImports]
from performer_pytorch import SelfAttention  # pyright: ignore[reportMissingImports]
from torch import Tensor, nn
from transformers import LongformerConfig, NystromformerConfig
from transformers.models.longformer.modeling_longformer import LongformerSelfAttention
from transformers.models.nystromformer.modeling_nystromformer import NystromformerSelfAttention

from benchmarks.support.pairs import measure_pairs
from models.attention.base import Attention, Place
from models.attention.catalog import make_attention

WIDTH, HEADS, TOKENS = 256, 4, 4096
Layer = Callable[[Tensor], Tensor]


def linformer(ours: Attention, length: int) -> nn.Module:
    """lucidrains' layer, with one projection for keys and values of all heads."""
    theirs = LinformerSelfAttention(WIDTH, length, k=256, heads=HEADS)
    theirs.proj_v = theirs.proj_k
    fill(ours, [theirs.to_q, theirs.to_k, theirs.to_v], theirs.to_out)
    ours.get_parameter("projection").copy_(theirs.proj_k.T)
    return theirs


def performer(ours: Attention, length: int) -> nn.Module:
    """lucidrains' layer, which adds a constant to the features."""
    theirs = SelfAttention(WIDTH, heads=HEADS, dim_head=WIDTH // HEADS, nb_features=256)
    fill(ours, [theirs.to_q, theirs.to_k, theirs.to_v], theirs.to_out)
    theirs.fast_attention.projection_matrix.copy_(ours.get_buffer("features"))
    return theirs


def nystromformer(ours: Attention, length: int) -> nn.Module:
    """The layer of transformers; its second way to start the pseudo-inverse is ours."""
    config = NystromformerConfig(
        hidden_size=WIDTH, num_attention_heads=HEADS, segment_means_seq_len=length,
        num_landmarks=64, conv_kernel_size=33, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    theirs = Projected(NystromformerSelfAttention(config))
    theirs.inner.init_option = "exact"
    fill(ours, theirs.maps(""), theirs.proj)
    ours.get_parameter("conv.weight").copy_(theirs.inner.conv.weight)
    return theirs


def longformer(ours: Attention, length: int) -> nn.Module:
    """The layer of transformers, with the first token global."""
    config = LongformerConfig(
        hidden_size=WIDTH, num_attention_heads=HEADS, attention_window=[512],
        attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    first = torch.arange(length).expand(TOKENS // length, -1) == 0
    theirs = Projected(
        LongformerSelfAttention(config, 0), attention_mask=first * 10000.0, is_global_attn=True,
        is_index_global_attn=first, is_index_masked=torch.zeros_like(first),
    )  # fmt: skip
    fill(ours, theirs.maps(""), theirs.proj)
    fill(ours, theirs.maps("_global"), theirs.proj, name="qkv_global")
    return theirs


class Projected(nn.Module):
    """A layer of transformers with the last map, which they keep elsewhere; options as it takes."""

    def __init__(self, inner: Any, **options: Any) -> None:
        super().__init__()
        self.inner, self.options, self.proj = inner, options, nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """(B, N, C) to the same."""
        return self.proj(self.inner(x, **self.options)[0])

    def maps(self, suffix: str) -> list[nn.Linear]:
        """Those of queries, keys and values."""
        return [getattr(self.inner, f"{name}{suffix}") for name in ("query", "key", "value")]


def fill(ours: Attention, maps: Sequence[nn.Linear], proj: nn.Linear, name: str = "qkv") -> None:
    """Give our layer the weights of other maps; those of theirs have a bias or not."""
    own = ours.get_submodule(name)
    own.get_parameter("weight").copy_(torch.cat([each.weight for each in maps]))
    biases = [each.weight.new_zeros(WIDTH) if each.bias is None else each.bias for each in maps]
    own.get_parameter("bias").copy_(torch.cat(biases))
    ours.proj.load_state_dict(proj.state_dict())


LAYERS = {
    "linformer": linformer,
    "performer": performer,
    "nystromformer": nystromformer,
    "longformer": longformer,
}
"""What makes their layer, and fills ours with its weights, by our name."""


def forward(layer: Layer, x: Tensor) -> Tensor:
    """The output, without gradients."""
    with torch.inference_mode():
        return layer(x)


def with_gradient(layer: Layer, x: Tensor) -> None:
    """The output, and the gradients of its sum by input and weights."""
    layer(x.detach().requires_grad_()).sum().backward()


def main(name: str, length: str, pairs: str, found: str) -> None:
    """Measure a mechanism."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    N = int(length)
    layer = make_attention(WIDTH, HEADS, attention=name, place=Place(length=N))
    with torch.no_grad():
        theirs = LAYERS[name](layer, N).eval()
    both: list[Layer] = [lambda x: layer(x)[0], theirs]
    x = torch.randn(TOKENS // N, N, WIDTH)
    one, other = (forward(each, x) for each in both)
    times = {
        work.__name__: measure_pairs(
            partial(work, both[0], x), partial(work, both[1], x), int(pairs)
        )
        for work in (forward, with_gradient)
    }
    apart = (one - other).norm() / other.norm()
    arrays: dict[str, Any] = {key: np.array(value) for key, value in times.items()}
    np.savez(found, apart=apart.item(), **arrays)


if __name__ == "__main__":
    main(*sys.argv[1:])
