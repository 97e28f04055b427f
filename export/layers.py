"""The tokens that each layer gives: in a torch module, and in a graph that was made of it.

A graph keeps them under the same names, so that it can be asked for them wherever it runs: where an
exported model differs from the eager one, they tell in which layer that begins.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import onnx
import torch
from torch import Tensor, nn

from export.graphs import open_graph
from export.plain import Metric
from export.samples import Feed
from runtimes.manifest import Precision


class Watched(nn.Module):
    """A model that gives its logits and what its layers gave.

    Args:
        model: any model of the catalog, or a plain form of one.
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
        # Without a type: runtimes infer it, and it depends on the precision.
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


def layer_errors(
    model: nn.Module, content: bytes, precision: Precision, feed: Feed
) -> dict[str, float]:
    """Compare what each layer gives in a graph and in the eager model.

    Args:
        model: the eager model.
        content: an ONNX file made of it by `to_onnx`.
        precision: arithmetic of the graph.
        feed: inputs.

    Returns:
        ||graph - model|| / ||model|| of the tokens that each layer gives, padding left out, by the
        names of the layers in their order, and last of the logits; infinite where the graph's
        values are not finite, or have another shape.
    """
    with torch.inference_mode():
        expected = Watched(model)(*(torch.from_numpy(values) for values in feed.values()))
    names = [name for name in expected if name != "logits"]
    given = open_graph(expose(content, names), precision).outputs(feed)
    mask = feed.get("mask")
    errors = {
        name: _relative(_real(given[name], mask), _real(expected[name].numpy(), mask))
        for name in names
    }
    return errors | {"logits": _relative(given["logits"], expected["logits"].numpy())}


def error_table(errors: dict[str, float]) -> str:
    """The errors as lines of text."""
    return "\n".join([f"{'layer':10} {'error':>9}", *_lines(list(errors), list(errors.values()))])


def _lines(names: Sequence[str], values: Sequence[float]) -> list[str]:
    return [f"{name:10} {value:9.2e}" for name, value in zip(names, values, strict=True)]


def _real(values: np.ndarray, mask: np.ndarray | None) -> np.ndarray:
    # The class token that some models put before the others has no place in the mask.
    fits = mask is not None and values.shape[:2] == mask.shape
    return values[mask] if fits else values


def _relative(given: np.ndarray, expected: np.ndarray) -> float:
    if given.shape != expected.shape or not np.isfinite(given).all():
        return math.inf
    size = float(np.linalg.norm(expected.astype(np.float64)))
    return float(np.linalg.norm((given - expected).astype(np.float64))) / max(size, 1e-30)
