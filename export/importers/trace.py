"""Export a model in PyTorch and ask it, in a process of its own.

`python -m export.importers.trace FORMAT GIVEN FOLDER`, started by `export.importers.pytorch`, whose
files lie in the folder. Here the user's code runs.
"""

import json
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.export import ExportedProgram

from export.child import REFUSED, end_with_parent
from export.importers.input_file import InputFile
from export.importers.pytorch import ANSWERS, GRAPH, SAMPLES, SPEC, Refused, TorchSource
from export.importers.sources import SOURCES
from export.onnx import write_program
from runtimes.base import in_batches

_AT_ONCE = 16  # inputs, where the model takes any number
_SHORTEST = 2  # tokens, of which torch.export would take one for the number that is meant
Inputs = tuple[torch.Tensor, ...]
_MOST = 300  # characters of a reason


def main(argv: list[str]) -> int:
    """Export one source.

    Returns:
        0, or 2 when it cannot be done, with the reason in the last line of standard error.
    """
    end_with_parent()
    kind, given, folder = SOURCES[argv[0]], argv[1], Path(argv[2])
    try:
        if not issubclass(kind, TorchSource):
            raise Refused(f"must be a model in PyTorch, not {kind.wanted}")
        export(kind, given, folder)
    except Refused as error:
        sys.stderr.write(f"\nerror: {error}\n")
        return REFUSED
    return 0


def export(kind: type[TorchSource], given: str, folder: Path) -> None:
    """Write the graph of a model beside the samples, and what it answers to them.

    Args:
        kind: of the source.
        given: how the kind finds it.
        folder: with the files of `export.importers.pytorch`.

    Raises:
        Refused: it cannot be had; one line says why.
    """
    samples, read = _reader(folder)
    torch.manual_seed(0)
    model = _or_refused("cannot be loaded", lambda: kind.load(given))
    batch = _batch(model)
    ask = model.module() if isinstance(model, ExportedProgram) else model.eval()
    example = read(np.arange(batch or 2) % samples)
    shapes = ", ".join(str(tuple(each.shape)) for each in example)
    _or_refused(f"does not run on {shapes}", lambda: _scores(ask, example))
    program = _or_refused("cannot be exported", lambda: _program(model, example))
    graph = _or_refused("cannot be written as ONNX", lambda: write_program(program))
    (folder / GRAPH).write_bytes(graph)
    answers = in_batches(
        lambda feed: _scores(ask, read(feed["rows"])),
        {"rows": np.arange(samples)},
        _batch(program) or _AT_ONCE,
    )
    np.save(folder / ANSWERS, answers)


def _reader(folder: Path) -> tuple[int, Callable[[np.ndarray], Inputs]]:
    """How many samples there are, and what the model reads of some of them."""
    told = json.loads((folder / SPEC).read_text(encoding="utf-8"))
    samples = np.load(folder / SAMPLES, mmap_mode="r")

    def images(rows: np.ndarray) -> Inputs:
        """Prepared pixels."""
        spec, dtype = InputFile(**told["input"]), told["dtype"]
        pixels = samples[rows].astype(np.float32) / np.float32(255)
        return (torch.from_numpy(spec.prepare({"images": pixels}, {"images": dtype})["images"]),)

    def texts(rows: np.ndarray) -> Inputs:
        """Ids and mask, as long as the longest."""
        ids, mask = np.swapaxes(samples[rows], 0, 1)
        longest = max(int(mask.sum(1).max()), _SHORTEST)
        return tuple(torch.from_numpy(each[:, :longest].copy()) for each in (ids, mask))

    return len(samples), texts if "names" in told else images


def _or_refused(problem: str, run: Callable[[], Any]) -> Any:
    """What is returned; what the user's code raises becomes one line."""
    try:
        return run()
    except Refused:
        raise
    except Exception as error:  # the user's code raises anything
        reason = (str(error).strip() or "no reason given").splitlines()[0]
        raise Refused(f"{problem}: {type(error).__name__}: {reason}"[:_MOST]) from error


def _scores(model: nn.Module, inputs: Inputs) -> np.ndarray:
    """The scores (B, K)."""
    with torch.no_grad():
        scores = model(*inputs)
    if not isinstance(scores, torch.Tensor):
        raise Refused(f"must give one tensor of scores, got {type(scores).__name__}")
    if scores.ndim != 2 or len(scores) != len(inputs[0]):
        got = f"{tuple(scores.shape)} of {len(inputs[0])} inputs"
        raise Refused(f"must give a score for each class, (B, K), got {got}")
    return scores.float().numpy()


def _batch(model: nn.Module | ExportedProgram) -> int | None:
    """How many inputs a program takes at once; None where it takes any number."""
    if not isinstance(model, ExportedProgram):
        return None
    name, *_ = model.graph_signature.user_inputs
    [value] = [node.meta["val"] for node in model.graph.nodes if node.name == name]
    return value.shape[0] if isinstance(value.shape[0], int) else None


def _program(model: nn.Module | ExportedProgram, inputs: Inputs) -> ExportedProgram:
    """A program that takes any number of inputs, or where that cannot be, one; and any tokens."""
    if isinstance(model, ExportedProgram):
        return model
    batch, length = torch.export.Dim("batch", min=1), torch.export.Dim.DYNAMIC
    texts = len(inputs) > 1
    with torch.no_grad():
        with suppress(Exception):
            shapes = ({0: batch} | ({1: length} if texts else {}),) * len(inputs)
            return torch.export.export(model, inputs, dynamic_shapes=shapes)
        alone = tuple(each[:1] for each in inputs)
        shapes = ({1: length},) * len(inputs) if texts else None
        return torch.export.export(model, alone, dynamic_shapes=shapes)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
