"""Write a model as a frozen TorchScript trace, or as a program of torch.export, its successor."""

import io
import json
import re
import warnings
import zipfile
from typing import Any

import torch
from torch import Tensor, nn

from export.plain import folded
from runtimes.manifest import PROGRAM

_SAMPLE_INPUTS = "data/sample_inputs/model.pt"
# Everything that a program of `to_program` is made of; torch unpickles much of what may lie beside.
_PARTS = re.compile(
    r"archive_format|archive_version|byteorder|\.data/version|\.data/serialization_id"
    r"|models/model\.json|data/sample_inputs/model\.pt"
    r"|data/weights/(weight_\d+|model_weights_config\.json)"
    r"|data/constants/(tensor_\d+|model_constants_config\.json)"
)
_PLAIN = re.compile(r"(weight|tensor)_\d+")
Example = Tensor | tuple[Tensor, Tensor]


def to_torchscript(model: nn.Module, example: Example) -> bytes:
    """Trace a model and freeze its weights into the graph.

    Args:
        model: maps images, or tokens and a mask, to (B, K) logits; it is folded and left as it is.
        example: (B, C, H, W) images, or (B, N) tokens and their mask, any B and N >= 2; the batch
            and the number of tokens stay dynamic.

    Returns:
        A file for `torch.jit.load`. In a fresh process the same weights give the same bytes; within
        one process torch numbers the names of its classes.

    Raises:
        ValueError: see `folded`.
    """
    model = folded(model)
    with warnings.catch_warnings(), torch.no_grad():
        # TorchScript is deprecated in favor of torch.export, but is what such files' users load.
        warnings.simplefilter("ignore", DeprecationWarning)
        traced = torch.jit.freeze(torch.jit.trace(model, example, check_trace=False))
        stream = io.BytesIO()
        torch.jit.save(traced, stream)
    return _strip(stream.getvalue())


def _strip(content: bytes) -> bytes:
    """Drop the debug tables: they hold the paths of this machine's source files."""
    stream = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as full, zipfile.ZipFile(stream, "w") as bare:
        for name in full.namelist():
            if not name.endswith((".debug_pkl", "/.data/serialization_id")):
                # ZipInfo's own date, and stored: the reader of torch knows no compression.
                bare.writestr(zipfile.ZipInfo(name), full.read(name))
    return stream.getvalue()


def to_program(model: nn.Module, example: Example) -> bytes:
    """Trace a model into a program whose weights are constants and that only predicts.

    Args:
        model: maps images, or tokens and a mask, to (B, K) logits; it is folded and left as it is.
        example: as for `to_torchscript`.

    Returns:
        A file for `torch.export.load`, with a dynamic batch and number of tokens. It holds nothing
        pickled and no path of this machine; the same weights give the same bytes.
    """
    model = folded(model)
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

    Raises:
        ValueError: torch would have to unpickle a part of it.
    """
    return torch.export.load(io.BytesIO(_unpickled(content))).module()


def _unpickled(content: bytes) -> bytes:
    """An archive of the same parts, once none of them is for Python's unpickler.

    torch reads what is written here, and not the original: two readers of one damaged archive need
    not agree on what it holds.
    """
    stream = io.BytesIO()
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as given, zipfile.ZipFile(stream, "w") as copy:
            names = given.namelist()
            if len(set(names)) != len(names):
                raise ValueError(f"{PROGRAM} must hold every part once")
            for name in names:
                part = given.read(name)
                _refuse_pickles(name.partition("/")[2], part)
                copy.writestr(zipfile.ZipInfo(name), part)
    except zipfile.BadZipFile as error:
        raise ValueError(f"{PROGRAM} must be an archive") from error
    return stream.getvalue()


def _refuse_pickles(name: str, part: bytes) -> None:
    if not _PARTS.fullmatch(name):
        raise ValueError(f"{PROGRAM} must hold the parts of a program alone, got {name!r}")
    if name == _SAMPLE_INPUTS and part:
        raise ValueError(f"{PROGRAM} must hold nothing pickled, got inputs")
    if name.endswith("_config.json"):
        for key, entry in json.loads(part)["config"].items():
            if entry["use_pickle"] or not _PLAIN.fullmatch(entry["path_name"]):
                raise ValueError(f"{PROGRAM} must hold nothing pickled, got {key!r}")


def dynamic_shapes(model: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[dict[int, Any], ...]:
    """Which axes of a model's inputs are free: the batch, and the number of tokens."""
    shape: dict[int, Any] = {0: torch.export.Dim("batch", min=1)}
    if len(inputs) == 2:
        config: Any = model.config
        shape[inputs[0].ndim - 1] = torch.export.Dim("length", min=1, max=config.seq_len)
    return (shape,) * len(inputs)
