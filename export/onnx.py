"""Write a model as an ONNX graph with a dynamic batch and m computed inside it.

torch's exporter works on torch.export, the maintained one of its two. It decomposes the fused
attention kernel into some thirty nodes a layer, most of which compute a constant scale at run time;
and its optimizer folds a small constant added as a guard against zero. So the attention layers are
replaced by a plain form of the same function before they are traced.
"""

import io
import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout

import onnx
import torch
from torch import Tensor, nn

from export.plain import Watched, plain
from export.torch_files import dynamic_shapes

OPSET = 20  # the first with Gelu; the Attention node of 23 gains nothing and few runtimes know it
_CONTROL_FLOW = {"If", "Loop", "Scan"}
_WATCHED = "model."
_EXPORTER_LOGS = ("torch.onnx._internal.exporter", "onnx_ir.passes")


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
    shapes = dynamic_shapes(model, inputs)
    with torch.no_grad(), _quiet():
        traced = torch.export.export(Watched(plain(model)), inputs, dynamic_shapes=(shapes,))
        program = torch.onnx.export(
            traced,
            inputs,
            dynamo=True,
            opset_version=OPSET,
            input_names=["images"] if len(inputs) == 1 else ["tokens", "mask"],
            output_names=_output_names(traced),
            external_data=False,
            verbose=False,
        )
    if program is None:
        raise ValueError("model must be one that torch.export can trace")
    graph = program.model_proto
    # What the layers gave keeps its name and is no output any more.
    del graph.graph.output[1:]
    _drop_unused(graph)
    _name_as_the_model(graph)
    _strip(graph)
    onnx.helper.set_model_props(graph, dict(metadata))
    check_graph(graph)
    return graph.SerializeToString(deterministic=True)


def write_program(program: torch.export.ExportedProgram) -> bytes:
    """Write a program of any model as an ONNX file, without what only helps to debug it.

    Raises:
        Exception: an operator cannot be written; torch does not say what it raises.
    """
    with torch.no_grad(), _quiet():
        written = torch.onnx.export(
            program, dynamo=True, opset_version=OPSET, external_data=False, verbose=False
        )
    if written is None:
        raise ValueError("torch cannot write it")
    graph = written.model_proto
    _strip(graph)
    return graph.SerializeToString(deterministic=True)


def _output_names(program: torch.export.ExportedProgram) -> list[str]:
    spec = program.call_spec.out_spec
    if spec is None:
        raise ValueError("model must give named tensors")
    return list(spec.unflatten(range(spec.num_leaves)))


def check_graph(graph: onnx.ModelProto) -> None:
    """Hold a graph to the rules of an artifact.

    Raises:
        ValueError: an operator of another domain, control flow, a fixed batch, or shapes and types
            that do not fit.
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
    try:
        onnx.checker.check_model(graph, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise ValueError(f"graph must pass the checker of onnx: {error}") from error


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


def _name_as_the_model(graph: onnx.ModelProto) -> None:
    """Give weights the names that they have in the model, not those in what watches it."""
    taken = {name for node in graph.graph.node for name in node.output}
    names = {tensor.name: tensor.name.removeprefix(_WATCHED) for tensor in graph.graph.initializer}
    names = {old: new for old, new in names.items() if new not in taken}
    for tensor in graph.graph.initializer:
        tensor.name = names.get(tensor.name, tensor.name)
    for node in graph.graph.node:
        for index, name in enumerate(node.input):
            node.input[index] = names.get(name, name)


def _drop_unused(graph: onnx.ModelProto) -> None:
    """Remove nodes that nothing reads."""
    needed = {value.name for value in graph.graph.output}
    kept = []
    for node in reversed(graph.graph.node):
        if needed.intersection(node.output):
            needed.update(node.input)
            kept.append(node)
    del graph.graph.node[:]
    graph.graph.node.extend(reversed(kept))


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the exporter: it prints its progress and warns about its own use of torch.

    Its passes warn that they leave constants alone that a layer gives, such as an m that is drawn.
    """
    loggers = [logging.getLogger(name) for name in _EXPORTER_LOGS]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore", FutureWarning)
            warnings.simplefilter("ignore", DeprecationWarning)
            # Tokens and mask share both axes, as they should.
            warnings.filterwarnings("ignore", "# The axis name", UserWarning)
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
