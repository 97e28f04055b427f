"""Elliptical attention: dot-product attention under the metric M = diag(m).

Source: Nielsen et al., "Elliptical Attention", NeurIPS 2024 (EA).
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from core.fields import check_between, check_positive
from models.attention.base import ANYWHERE, MOST_SEED, AttentionOptions, Cache, Place
from models.attention.dot import DotAttention
from models.attention.fused import scale_queries
from models.attention.graphs import PlainAttention, WatchedPart, parted
from models.attention.metric import (
    CausalMetric,
    Estimator,
    Scaling,
    consistent_metric,
    estimate_metric,
    prefix_metric,
    random_metric,
    scale_metric,
    value_change,
)
from models.layers.tracing import is_traced


@dataclass(frozen=True, slots=True, kw_only=True)
class EllipticalOptions(AttentionOptions):
    """How a layer estimates m.

    Attributes:
        scaling: how m is normalized over its D entries; "random" is always scaled by its maximum.
        estimator: how m is estimated, see `models.attention.metric`.
        delta: size of the step between two layers, > 0; it matters to "difference" under "none".
        metric_gradient: let gradients flow through m. Training stops them (EA algorithm 1); an
            attacker need not, so a fair attack switches this on.
        metric_seed: seed of "random", which then has one m per head for every input; None draws
            one per sample and head in every forward pass.
        causal_metric: of a language model's "difference". "prefix" takes the mean over the tokens
            up to each one. "segment" takes it over all tokens, as the paper does, and is a leak:
            every prediction depends on the tokens it is to predict, so that its perplexities are
            not those of a causal model. It is kept for replication alone. The paper's public code
            also leaves out 1 / sqrt(D) in its elliptical branch; here it is kept.
    """

    scaling: Scaling = "max"
    estimator: Estimator = "difference"
    delta: float = 1.0
    metric_gradient: bool = False
    metric_seed: int | None = None
    causal_metric: CausalMetric = "prefix"

    def __post_init__(self) -> None:
        """Check every rule, naming the option and the value received."""
        AttentionOptions.__post_init__(self)
        check_positive(self, "delta")
        check_between(self, 0, MOST_SEED, "metric_seed")

    def check_causal(self) -> None:
        """See `AttentionOptions.check_causal`; a metric of the segment is allowed, as a leak."""
        if self.estimator == "consistent":
            raise ValueError(
                "estimator must be difference or random in a language model, got 'consistent': it "
                "measures how the answers for all tokens change, later ones included"
            )


class EllipticalAttention(DotAttention):
    """Dot-product attention with the columns of Q scaled by m, which adds no parameter.

    The fused kernel is the same: diag(m) and the N x N matrix of scores are never materialized.
    Without values of a previous layer m is 1. Arguments as of `Attention`.

    Source: EA eq. 13.
    """

    Options = EllipticalOptions
    reads_values = True
    table: Tensor

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        options: EllipticalOptions | None = None,
        place: Place = ANYWHERE,
    ) -> None:
        super().__init__(embed_dim, num_heads, place=place)
        options = EllipticalOptions() if options is None else options
        self.scaling: Scaling = options.scaling
        self.estimator: Estimator = options.estimator
        self.delta = options.delta
        self.metric_gradient = options.metric_gradient
        self.by_prefix = self.causal and options.causal_metric == "prefix"
        self.register_buffer("table", None, persistent=False)
        if self.estimator == "difference" and not self.by_prefix:
            self.no_cache = "its metric of the segment changes with every token that is added"
        if self.estimator == "random":
            generator = torch.Generator("cpu")
            if options.metric_seed is None:
                generator.seed()
                self.generator = generator
            else:
                generator.manual_seed(place.seed(options.metric_seed))
                self.table = random_metric(num_heads, embed_dim // num_heads, generator)

    def project(
        self, x: Tensor, v_prev: Tensor | None, mask: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Compute q, scaled by m where there are values of a previous layer, k and v.

        In inference mode the output of `self.qkv` is changed in place: clone it to keep it.
        """
        qkv = self.qkv(x)
        q, k, v = self.split(qkv)
        if v_prev is None:
            return q, k, v
        in_place = not is_traced() and torch.is_inference_mode_enabled()
        by_values = self.estimator == "difference" and not self.by_prefix
        if in_place and by_values and scale_queries(q, v, v_prev, mask, self.scaling):
            return q, k, v
        m = self.metric(q, k, v, v_prev, mask)
        if in_place:
            return q.mul_(m), k, v
        if is_traced():  # one graph, whatever mode it is recorded in
            return q * m, k, v
        if qkv.requires_grad and not m.requires_grad and m.shape[2] == 1:
            # Autograd keeps what attention receives. Since k and v hold on to qkv, a q of its own
            # would come on top of it (7 % more memory in DeiT-tiny); a second qkv replaces it.
            factors = F.pad(m.flatten(1)[:, None], (0, 2 * x.shape[-1]), value=1.0)  # (B, 1, 3 C)
            return self.split(qkv * factors)
        return q * m, k, v

    def project_next(
        self, x: Tensor, v_prev: Tensor | None, cache: Cache
    ) -> tuple[Tensor, Tensor, Tensor]:
        """See `Attention.project_next`; the cache holds the sum of the changes of values."""
        if v_prev is None or not self.by_prefix or self.estimator != "difference":
            return self.project(x, v_prev, None)
        q, k, v = self.split(self.qkv(x))
        seen = cache["v"].shape[2] if "v" in cache else 0
        before = (cache["change"], seen) if seen else None
        m = prefix_metric(v, v_prev, scaling=self.scaling, delta=self.delta, before=before)
        change = value_change(v, v_prev, None).sum(-2, keepdim=True)
        cache["change"] = cache["change"] + change if seen else change
        return q * m.to(q.dtype), k, v

    def metric(
        self, q: Tensor, k: Tensor, v: Tensor, v_prev: Tensor, mask: Tensor | None = None
    ) -> Tensor:
        """Estimate m (B or 1, H, 1, D), outside the graph of gradients unless the switch is on.

        All but the mask (B, N) are (B, H, N, D), and q is not scaled. Where each token has an m of
        its own, m is (B, H, N, D).
        """
        if not self.metric_gradient and (torch.is_grad_enabled() or is_traced()):
            q, k, v, v_prev = q.detach(), k.detach(), v.detach(), v_prev.detach()
        if self.estimator == "difference":
            estimate = prefix_metric if self.by_prefix else estimate_metric
            m = estimate(v, v_prev, scaling=self.scaling, delta=self.delta, mask=mask)
        elif self.estimator == "consistent":
            m = consistent_metric(q, k, v, scaling=self.scaling, mask=mask)
        elif self.generator is None:
            m = self.table
        else:
            B, H, _, D = v.shape
            m = random_metric(H, D, self.generator, batch_size=B).to(v.device)
        # Autocast sums in float32. To ask first is cheaper than a conversion that does nothing.
        return m if m.dtype == v.dtype else m.to(v.dtype)

    def observed_metric(
        self, x: Tensor, v_prev: Tensor | None = None, mask: Tensor | None = None
    ) -> Tensor | None:
        """See `Attention.observed_metric`."""
        if v_prev is None:
            return None
        m = self.metric(*self.project(x, None, mask), v_prev, mask)
        return m[:, :, -1].expand(len(x), -1, -1)

    def graph_form(self) -> nn.Module:
        """See `Attention.graph_form`."""
        return PlainAttention(self.qkv, self.proj, self.num_heads, Metric(self), causal=self.causal)


class Metric(WatchedPart):
    """m of an elliptical layer as a module of its own, so that it can be watched."""

    watched = "m"

    def __init__(self, layer: EllipticalAttention) -> None:
        super().__init__()
        self._layer = (layer,)  # no submodule: its parameters are not m's

    def forward(self, q: Tensor, k: Tensor, v: Tensor, v_prev: Tensor, real: Tensor) -> Tensor:
        """Estimate m (B or 1, 1 or N, H, D) from (B, N, C) tokens, all heads side by side.

        `q` is not scaled; `real` (B or 1, 1, N) is 1 for real tokens and 0 for padding.
        """
        (layer,) = self._layer
        if layer.table is not None:
            return layer.table.transpose(1, 2)
        if layer.estimator == "consistent":
            heads = (parted(each, layer.num_heads).transpose(1, 2) for each in (q, k, v))
            mask = real[:, 0] > 0
            return consistent_metric(*heads, scaling=layer.scaling, mask=mask).transpose(1, 2)
        change, count = (v - v_prev).abs(), real.sum(-1)
        if layer.by_prefix:
            total = (change * real.transpose(1, 2)).cumsum(1)
            count = real[:, 0].cumsum(-1).clamp_min(1)
        else:  # the product sums over the real tokens in half the time of a reduction
            total = real @ change
        m = parted(total, layer.num_heads)
        if layer.scaling == "none":
            return m / (count[..., None, None] * layer.delta)
        return scale_metric(m, layer.scaling)
