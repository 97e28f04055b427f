"""Write a model as a program of torch.export, the successor of TorchScript."""

import io
from typing import Any

import torch
from torch import Tensor, nn

from models import fold


def to_program(model: nn.Module, example: Tensor | tuple[Tensor, Tensor]) -> bytes:
    """Trace a model into a program whose weights are constants and that only predicts.

    Args:
        model: as for `to_onnx`.
        example: as for `to_onnx`.

    Returns:
        A file for `torch.export.load`, with a dynamic batch and number of tokens. It holds nothing
        pickled and no path of this machine; the same weights give the same bytes.
    """
    model = fold(model)
    for tensor in (*model.parameters(), *model.buffers()):
        tensor.data = tensor.data.clone(memory_format=torch.contiguous_format)  # no part of another
    inputs = (example,) if isinstance(example, Tensor) else example
    with torch.no_grad():
        program = torch.export.export(model, inputs, dynamic_shapes=dynamic_shapes(model, inputs))
    # They would be stored with Python's pickler, and nothing needs them.
    program.example_inputs = None
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)
    stream = io.BytesIO()
    torch.export.save(program, stream)
    return stream.getvalue()


def load_program(content: bytes) -> nn.Module:
    """Open the bytes of a program; they are code, so check their digest before.

    Args:
        content: what `Artifact.read("model.pt2")` returned.
    """
    return torch.export.load(io.BytesIO(content)).module()


def dynamic_shapes(model: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[dict[int, Any], ...]:
    """Which axes of a model's inputs are free: the batch, and the number of tokens."""
    shape: dict[int, Any] = {0: torch.export.Dim("batch", min=1)}
    if len(inputs) == 2:
        config: Any = model.config
        shape[inputs[0].ndim - 1] = torch.export.Dim("length", min=1, max=config.seq_len)
    return (shape,) * len(inputs)
