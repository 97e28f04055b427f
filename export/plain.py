"""Layers written for graphs: the functions of `models` in few and standard operators."""

from collections.abc import Callable

from torch import Tensor, nn

from models import fold
from models.elliptical import Attention
from models.metric import attention_weights


def plain(model: nn.Module) -> nn.Module:
    """A copy of a model for tracing: folded, and its attention in a plain form.

    Args:
        model: any model of the catalogue; it is left as it is.

    Raises:
        ValueError: the model draws m at random in every forward pass; a graph cannot.
    """
    model = fold(model)
    for name, layer in list(model.named_modules()):
        if isinstance(layer, Attention):
            model.set_submodule(name, PlainAttention(layer))
    return model


class Metric(nn.Module):
    """m of an attention layer as a module of its own, so that it can be watched.

    Args:
        estimate: `Attention.metric` of the layer.
    """

    def __init__(self, estimate: Callable[..., Tensor]) -> None:
        super().__init__()
        self._estimate = estimate

    def forward(self, *arguments: Tensor | None) -> Tensor:
        """See `models.elliptical.Attention.metric`."""
        return self._estimate(*arguments)


class PlainAttention(Attention):
    """`models.elliptical.Attention` in as few graph nodes as possible.

    1 / sqrt(D) is applied to the scores, where engines fold it into the product that makes them.
    m of the estimator "difference" costs one Sub, Abs, ReduceSum, Clip, Reduce and Div.

    Args:
        layer: the layer whose parameters are used.

    Raises:
        ValueError: the layer draws m at random in every forward pass; a graph cannot.
    """

    def __init__(self, layer: Attention) -> None:
        nn.Module.__init__(self)
        vars(self).update(vars(layer))
        if self.generator is not None:
            raise ValueError("model must not draw m afresh to be exported: give it a metric_seed")
        self.estimate = Metric(layer.metric)

    def forward(
        self, x: Tensor, v_prev: Tensor | None = None, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """See `models.elliptical.Attention.forward`."""
        q, k, v = self.project(x, v_prev, mask)
        attended = attention_weights(q, k, mask) @ v
        return self.proj(attended.transpose(1, 2).reshape(x.shape)), v

    def metric(
        self, q: Tensor, k: Tensor, v: Tensor, v_prev: Tensor, mask: Tensor | None = None
    ) -> Tensor:
        """See `models.elliptical.Attention.metric`."""
        return self.estimate(q, k, v, v_prev, mask)
