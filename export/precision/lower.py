"""Bring an fp32 graph to a lower precision."""

from collections.abc import Callable

from export.precision.half import to_half
from export.precision.int8 import quantize_dynamic, quantize_static
from export.samples import Samples
from runtimes.manifest import Precision, Quantization

CALIBRATION_SAMPLES = 256


def lower(
    content: bytes,
    precision: Precision,
    quantization: Quantization,
    calibration: Samples,
    on_progress: Callable[[int], object] = lambda done: None,
) -> bytes:
    """Bring a graph to another precision; its inputs and logits keep their types.

    Args:
        content: an fp32 graph by `to_onnx`.
        precision: the one wanted.
        quantization: see `runtimes.manifest.Manifest`; it matters for int8 alone.
        calibration: real inputs; needed for static int8 alone.
        on_progress: called with the number of inputs just used in calibration.
    """
    if precision == "fp32":
        return content
    if precision == "int8":
        if quantization == "dynamic":
            return quantize_dynamic(content)
        return quantize_static(content, calibration, on_progress)
    return to_half(content, precision)
