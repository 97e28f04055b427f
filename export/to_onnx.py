"""Write a model as an ONNX graph with a dynamic batch and m computed inside it.

torch's exporter works on torch.export, the maintained one of its two. It decomposes the fused
attention kernel into some thirty nodes a layer, most of which compute a constant scale at run time;
and its optimiser folds a small constant added as a guard against zero. So the attention layers are
replaced by a plain form of the same function before they are traced.
"""

import io
import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from typing import Any, cast

import onnx
import torch
from torch import Tensor, nn

from models import fold
from models.elliptical import Attention
from models.metric import attention_weights

OPSET = 20  # the first with Gelu; the Attention node of 23 gains nothing and few engines know it
_CONTROL_FLOW = {"If", "Loop", "Scan"}
_EXPORTER_LOGS = "torch.onnx._internal.exporter"


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

    def forward(
        self, x: Tensor, v_prev: Tensor | None = None, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """See `models.elliptical.Attention.forward`."""
        q, k, v = self.project(x, v_prev, mask)
        attended = attention_weights(q, k, mask) @ v
        return self.proj(attended.transpose(1, 2).reshape(x.shape)), v


def to_onnx(
    model: nn.Module, example: Tensor | tuple[Tensor, Tensor], metadata: Mapping[str, str]
) -> bytes:
    """Export a model.

    Args:
        model: maps images, or tokens and a mask, to (B, K) logits; it is folded and left as it is.
        example: (B, C, H, W) images, or tokens and their mask, (B, N) each, or (B, 2, N) for two
            towers, with any B and N >= 2; only their shapes matter, and B and N stay dynamic.
        metadata: entries of the graph's metadata.

    Returns:
        A checked ONNX file: input "images", or "tokens" and "mask", output "logits", standard
        operators only, no control flow, no external data. The same weights give the same bytes.

    Raises:
        ValueError: the model cannot be written under these rules.
    """
    inputs = (example,) if isinstance(example, Tensor) else example
    with torch.no_grad(), _quiet():
        program = torch.onnx.export(
            _plain(model),
            inputs,
            dynamo=True,
            opset_version=OPSET,
            input_names=["images"] if len(inputs) == 1 else ["tokens", "mask"],
            output_names=["logits"],
            dynamic_shapes=_dynamic_shapes(model, inputs),
            external_data=False,
            verbose=False,
        )
    if program is None:
        raise ValueError("model must be one that torch.export can trace")
    graph = program.model_proto
    _strip(graph)
    onnx.helper.set_model_props(graph, dict(metadata))
    check_graph(graph)
    return graph.SerializeToString(deterministic=True)


def _dynamic_shapes(model: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[dict[int, Any], ...]:
    shape: dict[int, Any] = {0: torch.export.Dim("batch", min=1)}
    if len(inputs) == 2:
        longest = cast(Any, model).config.seq_len
        shape[inputs[0].ndim - 1] = torch.export.Dim("length", min=1, max=longest)
    return (shape,) * len(inputs)


def check_graph(graph: onnx.ModelProto) -> None:
    """Hold a graph to the rules of an artifact.

    Raises:
        ValueError: an operator of another domain, control flow, or a fixed batch.
    """
    domains = {entry.domain for entry in graph.opset_import} | {n.domain for n in graph.graph.node}
    if not domains <= {"", "ai.onnx"} or graph.functions:
        raise ValueError(f"graph must use standard operators only, got domains {sorted(domains)}")
    flow = _CONTROL_FLOW & {node.op_type for node in graph.graph.node}
    if flow:
        raise ValueError(f"graph must have no control flow, got {sorted(flow)}")
    for value in (*graph.graph.input, *graph.graph.output):
        if not value.type.tensor_type.shape.dim[0].dim_param:
            raise ValueError(f"{value.name} must have a dynamic batch")
    onnx.checker.check_model(graph, full_check=True)


def _plain(model: nn.Module) -> nn.Module:
    model = fold(model)
    for name, layer in list(model.named_modules()):
        if isinstance(layer, Attention):
            model.set_submodule(name, PlainAttention(layer))
    return model


def _strip(graph: onnx.ModelProto) -> None:
    """Remove what only helps to debug the exporter: stack traces, node names, inner shapes."""
    del graph.graph.value_info[:]
    del graph.metadata_props[:]
    del graph.graph.metadata_props[:]
    graph.ClearField("doc_string")
    graph.graph.ClearField("doc_string")
    values = (*graph.graph.input, *graph.graph.output, *graph.graph.initializer)
    for part in (*graph.graph.node, *values):
        part.ClearField("doc_string")
        del part.metadata_props[:]
    for index, node in enumerate(graph.graph.node):
        node.name = f"{node.op_type}_{index}"


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the exporter: it prints its progress and warns about its own use of torch."""
    logger = logging.getLogger(_EXPORTER_LOGS)
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore", FutureWarning)
            warnings.simplefilter("ignore", DeprecationWarning)
            # Tokens and mask share both axes, as they should.
            warnings.filterwarnings("ignore", "# The axis name", UserWarning)
            yield
    finally:
        logger.setLevel(level)
