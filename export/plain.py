"""Layers written for graphs: the functions of `models` in few and standard operators.

A graph keeps the tokens that each layer gives under the names that `Watched` gives them.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor, nn

from models import fold
from models.attention.base import Attention, is_randomized
from models.attention.graphs import WatchedPart


def folded(model: nn.Module) -> nn.Module:
    """A folded copy of a model for tracing.

    Raises:
        ValueError: the model draws m at random in every forward pass; a trace would freeze one.
    """
    if is_randomized(model):
        raise ValueError("model must not draw m afresh to be exported: give it a metric_seed")
    return fold(model)


def plain(model: nn.Module) -> nn.Module:
    """A copy as of `folded`, its attention in the form for graphs; the model is left as it is."""
    model = folded(model)
    for name, layer in list(model.named_modules()):
        if isinstance(layer, Attention):
            model.set_submodule(name, layer.graph_form())
    return model


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
        name = module.watched if isinstance(module, WatchedPart) else "layer"
        seen[f"{name}_{layer}"] = result if isinstance(result, Tensor) else result[0]

    with ExitStack() as hooks:
        for module in model.modules():
            # Not what inherits from a list: matrices, parametrizations.
            layers = list(module) if type(module) is nn.ModuleList else []
            for each in [module] if isinstance(module, WatchedPart) else layers:
                hooks.callback(each.register_forward_hook(keep).remove)
        yield seen
