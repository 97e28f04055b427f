"""Write a model as a frozen TorchScript trace."""

import io
import warnings
import zipfile

import torch
from torch import Tensor, nn

from models import fold
from models.attention.elliptical import is_randomized


def to_torchscript(model: nn.Module, example: Tensor | tuple[Tensor, Tensor]) -> bytes:
    """Trace a model and freeze its weights into the graph.

    Args:
        model: maps images, or tokens and a mask, to (B, K) logits; it is folded and left as it is.
        example: (B, C, H, W) images, or (B, N) tokens and their mask, any B and N >= 2; the batch
            and the number of tokens stay dynamic.

    Returns:
        A file for `torch.jit.load`. In a fresh process the same weights give the same bytes; within
        one process torch numbers the names of its classes.

    Raises:
        ValueError: the model draws m at random in every forward pass; a trace would freeze one.
    """
    if is_randomized(model):
        raise ValueError("model must not draw m afresh to be exported: give it a metric_seed")
    model = fold(model)
    with warnings.catch_warnings(), torch.no_grad():
        # TorchScript is deprecated in favour of torch.export, but is what such files' users load.
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
