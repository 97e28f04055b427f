"""Where an exported graph begins to differ from the model: the error of every layer."""

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import nn

from export.engines import open_engine
from export.layers import Watched, expose
from export.samples import Feed
from runtimes.manifest import Precision


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
    given = open_engine(expose(content, names), precision).outputs(feed)
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
