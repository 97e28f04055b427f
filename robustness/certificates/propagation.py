"""Bounds of what an ONNX graph gives for all images in a box, operator by operator."""

import math
from collections.abc import Sequence

import numpy as np
import torch
from onnx import ModelProto, helper, numpy_helper
from torch import Tensor

from robustness.certificates.affine import Form
from robustness.certificates.rules import RULES, Value

MOST_PIXELS = 3072
"""Elements of an image, at most, that affine arithmetic is tried on."""
_MOST_SLOPES = 2**25  # a quarter of a gigabyte for one tensor


class NoBounds(ValueError):
    """Bounds that are infinitely long, or a graph too large for affine arithmetic."""


class Propagation:
    """A graph that bounds can be sent through.

    Args:
        content: an ONNX file from `images` (1, C, H, W) to `logits` (1, K), see
            `export.verifiable`.

    Attributes:
        refusal: why it has no bounds, in words; None where it has.
    """

    def __init__(self, content: bytes) -> None:
        graph = ModelProto.FromString(content).graph
        self._nodes = list(graph.node)
        self._constants = {
            one.name: torch.from_numpy(_exact(numpy_helper.to_array(one)))
            for one in graph.initializer
        }
        unknown = sorted({node.op_type for node in self._nodes} - RULES.keys())
        self.refusal = f"there are no bounds for {', '.join(unknown)}" if unknown else None
        if not unknown:
            dims = graph.input[0].type.tensor_type.shape.dim
            self.refusal = self._tried([dim.dim_value for dim in dims])

    def _tried(self, shape: Sequence[int]) -> str | None:
        """Why a grey image has no bounds, if so."""
        grey = torch.full(tuple(shape), 0.5, dtype=torch.float64)
        try:
            self.bounds(grey, grey, slopes=False)
        except NoBounds:
            return None
        except ValueError as error:
            return str(error)
        return None

    def margin(self, low: Tensor, high: Tensor, label: int, *, slopes: bool) -> tuple[float, float]:
        """A lower bound of the label's logit minus the largest other one, see `bounds`.

        Returns:
            The bound in exact arithmetic, minus infinity where there is none, and what float32 may
            take of it.
        """
        try:
            return _margin(self.bounds(low, high, slopes=slopes), label)
        except NoBounds:
            return -math.inf, 0.0

    def bounds(self, low: Tensor, high: Tensor, *, slopes: bool) -> Form:
        """What the logits (1, K) are for images between two (1, C, H, W), float64.

        Args:
            low: smallest pixels.
            high: largest pixels.
            slopes: by affine arithmetic; else by intervals.

        Raises:
            NoBounds: they are infinitely long, or there would be too many slopes.
            ValueError: an operator has options that there are no bounds for.
        """
        if slopes and low.numel() > MOST_PIXELS:
            raise NoBounds(f"affine arithmetic reads {MOST_PIXELS:,} pixels at most")
        values: dict[str, Value] = dict(self._constants)
        values["images"] = Form.box(low, high, slopes=slopes)
        last = {name: i for i, node in enumerate(self._nodes) for name in node.input}
        for i, node in enumerate(self._nodes):
            given = [values[name] if name else torch.zeros(0) for name in node.input]
            options = {one.name: helper.get_attribute_value(one) for one in node.attribute}
            made = RULES[node.op_type](given, options)
            outputs = made if isinstance(made, list) else [made]
            values.update(zip(node.output, outputs, strict=True))
            if any(one.slope.numel() > _MOST_SLOPES or one.rest.isnan().all() for one in outputs):
                raise NoBounds(f"{node.op_type} loses the bounds, or has too many slopes")
            for name in node.input:
                if last[name] == i and name not in self._constants:
                    values.pop(name, None)
        logits = values["logits"]
        if not isinstance(logits, Form):
            raise ValueError("logits must depend on the image")
        return logits


def _margin(logits: Form, label: int) -> tuple[float, float]:
    others = [k for k in range(logits.shape[1]) if k != label]
    center = logits.center[0, label] - logits.center[0, others]
    slope = logits.slope[:, 0, label, None] - logits.slope[:, 0][:, others]
    left = center - slope.abs().sum(0) - logits.rest[0, label] - logits.rest[0, others]
    lost = logits.rounding[0, label] + logits.rounding[0, others]
    if not torch.isfinite(left - lost).all():
        return -math.inf, 0.0
    worst = int((left - lost).argmin())
    return float(left[worst]), float(lost[worst])


def _exact(array: np.ndarray) -> np.ndarray:
    """Numbers as float64, indices as they are."""
    return array.astype(np.float64 if array.dtype.kind == "f" else np.int64)
