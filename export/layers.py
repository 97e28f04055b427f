"""The tokens that each layer gives: in a torch module, and in a graph that was made of it.

A graph keeps them under the same names, so that it can be asked for them wherever it runs: where an
exported model differs from the eager one, they tell in which layer that begins.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import onnx
from torch import Tensor, nn

from export.plain import Metric


class Watched(nn.Module):
    """A model that gives its logits and what its layers gave.

    Args:
        model: any model of the catalogue, or a plain form of one.
    """

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


def expose(content: bytes, names: Sequence[str]) -> bytes:
    """Let a graph give some of its inner values after its logits.

    Args:
        content: an ONNX file.
        names: of the values, as `Watched` gives them.

    Raises:
        ValueError: the graph has no value of such a name.
    """
    graph = onnx.load_from_string(content)
    known = {name for node in graph.graph.node for name in node.output}
    for name in names:
        if name not in known:
            raise ValueError(f"names must be values of the graph, got {name!r}")
        # Without a type: engines infer it, and it depends on the precision.
        graph.graph.output.append(onnx.ValueInfoProto(name=name))
    return graph.SerializeToString()


@contextmanager
def _watching(model: nn.Module) -> Iterator[dict[str, Tensor]]:
    seen: dict[str, Tensor] = {}

    def layers() -> int:
        return sum(name.startswith("layer_") for name in seen)

    def keep_metric(_: nn.Module, __: Any, m: Tensor) -> None:
        seen[f"m_{layers() + 1}"] = m

    def keep_tokens(_: nn.Module, __: Any, result: Tensor | tuple[Tensor, Any]) -> None:
        tokens = result if isinstance(result, Tensor) else result[0]
        seen[f"layer_{layers() + 1}"] = tokens

    with ExitStack() as hooks:
        for module, keep in _watched_parts(model, keep_metric, keep_tokens):
            hooks.callback(module.register_forward_hook(keep).remove)
        yield seen


def _watched_parts(
    model: nn.Module, keep_metric: Callable[..., None], keep_tokens: Callable[..., None]
) -> Iterator[tuple[nn.Module, Callable[..., None]]]:
    for module in model.modules():
        if isinstance(module, Metric):
            yield module, keep_metric
        if type(module) is nn.ModuleList:  # not what inherits from it: matrices, parametrisations
            yield from ((layer, keep_tokens) for layer in module)
