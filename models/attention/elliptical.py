"""Elliptical attention: dot-product attention under the metric M = diag(m).

Source: Nielsen et al., "Elliptical Attention", NeurIPS 2024 (EA).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypedDict

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from core.fields import check_at_least, check_positive, check_types
from models.attention.metric import (
    Estimator,
    Scaling,
    attention_weights,
    consistent_metric,
    estimate_metric,
    random_metric,
)
from models.layers.tracing import is_traced


class AttentionOptions(TypedDict, total=False):
    """The keyword arguments of `Attention`."""

    elliptical: bool
    scaling: Scaling
    estimator: Estimator
    delta: float
    metric_gradient: bool
    seed: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class EllipticalConfig:
    """The attention of a transformer: its size, which layers are elliptical, how they estimate m.

    The config of a model extends it; since both have slots, its `__post_init__` calls
    `EllipticalConfig.__post_init__(self)` by name.

    Attributes:
        embed_dim: width d; a multiple of num_heads.
        num_heads: number of heads.
        depth: number of layers.
        elliptical: the switch; off, none of the other fields matters.
        elliptical_layers: the elliptical layers, counted from 1; None for `default_layers`. The
            first layer has no previous values and can never be one.
        scaling: how m is normalized over its D entries; "random" is always scaled by its maximum.
        estimator: how m is estimated, see `models.attention.metric`.
        delta: size of the step between two layers, > 0; it matters to "difference" under "none".
        metric_gradient: let gradients flow through m.
        metric_seed: seed of "random"; None draws afresh in every forward pass.
    """

    embed_dim: int
    num_heads: int
    depth: int = 12
    elliptical: bool = False
    elliptical_layers: tuple[int, ...] | None = None
    scaling: Scaling = "max"
    estimator: Estimator = "difference"
    delta: float = 1.0
    metric_gradient: bool = False
    metric_seed: int | None = None

    def __post_init__(self) -> None:
        """Check every rule, naming the field and the value received."""
        check_types(self)
        check_at_least(self, 1, "embed_dim", "num_heads", "depth")
        if self.embed_dim % self.num_heads:
            sizes = f"{self.embed_dim} and {self.num_heads}"
            raise ValueError(f"embed_dim must be a multiple of num_heads, got {sizes}")
        for layer in self.elliptical_layers or ():
            if not 2 <= layer <= self.depth:
                raise ValueError(f"elliptical_layers must lie in 2..{self.depth}, got {layer}")
        check_positive(self, "delta")
        if self.metric_seed is not None and not 0 <= self.metric_seed < 2**32:
            raise ValueError(f"metric_seed must lie in 0..2**32 - 1, got {self.metric_seed}")

    @property
    def default_layers(self) -> tuple[int, ...]:
        """The layers that are elliptical where none are named: all with a previous layer."""
        return tuple(range(2, self.depth + 1))

    def attention_options(self, layer: int) -> AttentionOptions:
        """Keyword arguments of `Attention` in one layer, counted from 1."""
        layers = self.default_layers if self.elliptical_layers is None else self.elliptical_layers
        # Every layer draws its own table; two seeds of one model never share any.
        seed = None if self.metric_seed is None else self.metric_seed * self.depth + layer - 1
        return {
            "elliptical": self.elliptical and layer in layers,
            "scaling": self.scaling,
            "estimator": self.estimator,
            "delta": self.delta,
            "metric_gradient": self.metric_gradient,
            "seed": seed,
        }


class Attention(nn.Module):
    """Multi-head self-attention, dot-product or elliptical, with the parameters of a public DeiT.

    Elliptical attention scales the columns of Q by m and calls the same fused kernel: diag(m) and
    the N x N matrix of scores are never materialized, and no parameter is added.

    Args:
        embed_dim: model width d; a multiple of num_heads.
        num_heads: number of heads H; the head dimension D is embed_dim / num_heads.
        elliptical: estimate m from the previous layer's values; without them m is 1.
        scaling: see `EllipticalConfig`.
        estimator: see `EllipticalConfig`.
        delta: see `EllipticalConfig`.
        metric_gradient: let gradients flow through m. Training stops them (EA algorithm 1); an
            attacker need not, so a fair attack switches this on.
        seed: seed of the estimator "random", which then has one m per head for every input; None
            draws one per sample and head in every forward pass.

    Source: EA eq. 13.
    """

    table: Tensor

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        elliptical: bool = False,
        scaling: Scaling = "max",
        estimator: Estimator = "difference",
        delta: float = 1.0,
        metric_gradient: bool = False,
        seed: int | None = None,
    ) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.elliptical = elliptical
        self.scaling: Scaling = scaling
        self.estimator: Estimator = estimator
        self.delta = delta
        self.metric_gradient = metric_gradient
        self.qkv = nn.Linear(embed_dim, 3 * embed_dim)
        self.proj = nn.Linear(embed_dim, embed_dim)
        self.generator: torch.Generator | None = None
        self.register_buffer("table", None, persistent=False)
        if elliptical and estimator == "random":
            generator = torch.Generator("cpu")
            if seed is None:
                generator.seed()
                self.generator = generator
            else:
                generator.manual_seed(seed)
                self.table = random_metric(num_heads, embed_dim // num_heads, generator)

    def forward(
        self, x: Tensor, v_prev: Tensor | None = None, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Attend over the tokens of each sample.

        Args:
            x: (B, N, C) tokens.
            v_prev: (B, H, N, D) values of the previous layer; None in the first one.
            mask: (B, N) bool, True for real tokens; None if all are. Padding is no key and does
                not count in m.

        Returns:
            The attended tokens (B, N, C) and this layer's values (B, H, N, D).
        """
        q, k, v = self.project(x, v_prev, mask)
        attended = _attend(q, k, v, mask)
        return self.proj(attended.transpose(1, 2).reshape(x.shape)), v

    def attention_map(
        self, x: Tensor, v_prev: Tensor | None = None, mask: Tensor | None = None
    ) -> Tensor:
        """The attention weights (B, H, N, N) that `forward` uses, rows summing to 1."""
        q, k, _ = self.project(x, v_prev, mask)
        return attention_weights(q, k, mask)

    def project(
        self, x: Tensor, v_prev: Tensor | None, mask: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Compute q, scaled by m where the layer is elliptical, k and v, each (B, H, N, D).

        In inference mode the output of `self.qkv` is changed in place: clone it to keep it.
        """
        qkv = self.qkv(x)
        q, k, v = self._split(qkv)
        if not self.elliptical or v_prev is None:
            return q, k, v
        m = self.metric(q, k, v, v_prev, mask)
        if is_traced():  # one graph, whatever mode it is recorded in
            return q * m, k, v
        if torch.is_inference_mode_enabled():
            return q.mul_(m), k, v
        if qkv.requires_grad and not m.requires_grad:
            # Autograd keeps what attention receives. Since k and v hold on to qkv, a q of its own
            # would come on top of it (7 % more memory in DeiT-tiny); a second qkv replaces it.
            factors = F.pad(m.flatten(1)[:, None], (0, 2 * x.shape[-1]), value=1.0)  # (B, 1, 3 C)
            return self._split(qkv * factors)
        return q * m, k, v

    def _split(self, qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        B, N, width = qkv.shape
        heads = qkv.view(B, N, 3, self.num_heads, width // (3 * self.num_heads))
        q, k, v = heads.permute(2, 0, 3, 1, 4).unbind(0)  # each (B, num_heads, N, head_dim)
        return q, k, v

    def metric(
        self, q: Tensor, k: Tensor, v: Tensor, v_prev: Tensor, mask: Tensor | None = None
    ) -> Tensor:
        """Estimate m (B or 1, H, 1, D), outside the graph of gradients unless the switch is on.

        All but the mask (B, N) are (B, H, N, D), and q is not scaled.
        """
        if not self.metric_gradient and (torch.is_grad_enabled() or is_traced()):
            q, k, v, v_prev = q.detach(), k.detach(), v.detach(), v_prev.detach()
        if self.estimator == "difference":
            m = estimate_metric(v, v_prev, scaling=self.scaling, delta=self.delta, mask=mask)
        elif self.estimator == "consistent":
            m = consistent_metric(q, k, v, scaling=self.scaling, mask=mask)
        elif self.generator is None:
            m = self.table
        else:
            B, H, _, D = v.shape
            m = random_metric(H, D, self.generator, batch_size=B).to(v.device)
        # Autocast sums in float32. To ask first is cheaper than a conversion that does nothing.
        return m if m.dtype == v.dtype else m.to(v.dtype)


def is_elliptical(model: nn.Module) -> bool:
    """Whether any attention layer of the model estimates a metric."""
    return any(layer.elliptical for layer in _layers(model))


def is_randomized(model: nn.Module) -> bool:
    """Whether the model draws m at random in every forward pass: it answers nothing twice alike."""
    return any(layer.generator is not None for layer in _layers(model))


@contextmanager
def metric_gradient(model: nn.Module, enabled: bool) -> Iterator[None]:
    """Let gradients flow through m in every attention layer, or stop them, inside a `with` block.

    The layers' own settings return when the block ends, also after an error. One block at a time:
    two that overlap would change each other's gradients and leave the wrong setting behind; give
    each its own copy of the model.
    """
    layers = _layers(model)
    before = [layer.metric_gradient for layer in layers]
    try:
        for layer in layers:
            layer.metric_gradient = enabled
        yield
    finally:
        for layer, setting in zip(layers, before, strict=True):
            layer.metric_gradient = setting


def _layers(model: nn.Module) -> list[Attention]:
    return [layer for layer in model.modules() if isinstance(layer, Attention)]


def _attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    trained_in_half = q.requires_grad and torch.is_autocast_enabled("cpu")
    if q.is_cpu and trained_in_half and q.shape[-2] <= 512:
        # There torch's fused attention takes up to six times as long, most of it in the gradient.
        return attention_weights(q, k, mask) @ v
    keys = None if mask is None else mask[:, None, None, :]
    return F.scaled_dot_product_attention(q, k, v, attn_mask=keys)
