"""Layers written for graphs: the functions of `models` in few and standard operators.

A graph keeps the tokens that each layer gives under the names that `Watched` gives them.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor, nn

from models import fold
from models.attention.elliptical import Attention, is_randomized
from models.attention.metric import attention_weights, consistent_metric, scale_metric


def folded(model: nn.Module) -> nn.Module:
    """A folded copy of a model for tracing.

    Raises:
        ValueError: the model draws m at random in every forward pass; a trace would freeze one.
    """
    if is_randomized(model):
        raise ValueError("model must not draw m afresh to be exported: give it a metric_seed")
    return fold(model)


def plain(model: nn.Module) -> nn.Module:
    """A copy as of `folded`, its attention in a plain form; the model is left as it is."""
    model = folded(model)
    for name, layer in list(model.named_modules()):
        if isinstance(layer, Attention):
            model.set_submodule(name, PlainAttention(layer))
    return model


class Metric(nn.Module):
    """m of an elliptical layer as a module of its own, so that it can be watched."""

    def __init__(self, layer: Attention) -> None:
        super().__init__()
        self._layer = (layer,)  # no submodule: its parameters are not m's

    def forward(self, q: Tensor, k: Tensor, v: Tensor, v_prev: Tensor, real: Tensor) -> Tensor:
        """Estimate m (B or 1, 1, H, D) from (B, N, C) tokens, all heads side by side.

        `q` is not scaled; `real` (B or 1, 1, N) is 1 for real tokens and 0 for padding.
        """
        (layer,) = self._layer
        if layer.table is not None:
            return layer.table.transpose(1, 2)
        if layer.estimator == "consistent":
            heads = (_heads(each, layer.num_heads).transpose(1, 2) for each in (q, k, v))
            mask = real[:, 0] > 0
            return consistent_metric(*heads, scaling=layer.scaling, mask=mask).transpose(1, 2)
        # The product sums over the real tokens in half the time of a reduction.
        change = _heads(real @ (v - v_prev).abs(), layer.num_heads)
        if layer.scaling == "none":
            return change / (real.sum(-1)[..., None, None] * layer.delta)
        return scale_metric(change, layer.scaling)


class PlainAttention(nn.Module):
    """`models.attention.elliptical.Attention` in as few graph nodes as possible.

    Values are handed on as (B, N, C): m is estimated and applied before the heads are parted, on
    rows three times as long or more. 1 / sqrt(D) is applied to the scores, where runtimes fold it
    into the product that makes them. m of the estimator "difference" under maxscale costs one Sub,
    Abs, MatMul, Clip, ReduceMax, Div and Mul, of which the Sub, Abs and Mul are over all tokens.
    """

    def __init__(self, layer: Attention) -> None:
        super().__init__()
        self.num_heads = layer.num_heads
        self.qkv, self.proj = layer.qkv, layer.proj
        self.metric = Metric(layer) if layer.elliptical else None

    def forward(
        self, x: Tensor, v_prev: Tensor | None = None, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """See `models.attention.elliptical.Attention.forward`; values are (B, N, C)."""
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        if self.metric is not None and v_prev is not None:
            real = x.new_ones(1, 1, x.shape[1]) if mask is None else mask[:, None].to(x.dtype)
            m = self.metric(q, k, v, v_prev, real)
            q = q * m.flatten(2)
        query, key, value = (_heads(each, self.num_heads).transpose(1, 2) for each in (q, k, v))
        attended = attention_weights(query, key, mask) @ value
        return self.proj(attended.transpose(1, 2).reshape(x.shape)), v


def _heads(x: Tensor, num_heads: int) -> Tensor:
    """(B, N, C) to (B, N, H, D)."""
    return x.unflatten(-1, (num_heads, -1))


class Watched(nn.Module):
    """A model of the catalog, or a plain form of one, that gives what its layers gave too."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *inputs: Tensor) -> dict[str, Tensor]:
        """Run the model.

        Returns:
            `logits` first, then `layer_1`, ... for tokens (B, N, C), and `m_2`, ... for the m of
            plain elliptical layers, in the order of their computation.
        """
        with _watching(self.model) as seen:
            logits = self.model(*inputs)
        return {"logits": logits, **seen}


@contextmanager
def _watching(model: nn.Module) -> Iterator[dict[str, Tensor]]:
    seen: dict[str, Tensor] = {}

    def keep(module: nn.Module, _: Any, result: Tensor | tuple[Tensor, Any]) -> None:
        """Note what a layer gave, under the next free name of its kind."""
        layer = 1 + sum(name.startswith("layer_") for name in seen)
        name = "m" if isinstance(module, Metric) else "layer"
        seen[f"{name}_{layer}"] = result if isinstance(result, Tensor) else result[0]

    with ExitStack() as hooks:
        for module in model.modules():
            # Not what inherits from a list: matrices, parametrizations.
            layers = list(module) if type(module) is nn.ModuleList else []
            for each in [module] if isinstance(module, Metric) else layers:
                hooks.callback(each.register_forward_hook(keep).remove)
        yield seen
