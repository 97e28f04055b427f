"""Compare exported graphs with the eager model, image by image."""

from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import nn

from export.manifest import FormatParity, Parity

TOLERANCE = 1e-4
MIN_SAMPLES = 1000
_BATCH_SIZES = (1, 7, 64)
"""The first batches and all later ones: a batch that is not really dynamic fails here."""

Predict = Callable[[np.ndarray], np.ndarray]


class ParityError(ValueError):
    """An exported graph that does not compute what the model computes."""


def eager(model: nn.Module) -> Predict:
    """A torch module as a function of arrays."""

    def predict(inputs: np.ndarray) -> np.ndarray:
        with torch.inference_mode():
            return model(torch.from_numpy(inputs)).numpy()

    return predict


def measure(
    reference: Predict,
    candidates: Mapping[str, Predict],
    inputs: np.ndarray,
    *,
    on_progress: Callable[[int], object] = lambda done: None,
) -> dict[str, FormatParity]:
    """Measure how far each candidate's logits are from the reference's.

    Args:
        reference: the eager model.
        candidates: exported graphs by format.
        inputs: (N, C, H, W) float32 in [0, 1].
        on_progress: called with the number of images just compared.

    Raises:
        ParityError: a candidate answers in another shape, or anything is not finite.
    """
    largest = dict.fromkeys(candidates, 0.0)
    mismatches = dict.fromkeys(candidates, 0)
    for batch in _batches(inputs):
        expected = reference(batch)
        _refuse_non_finite("eager", expected)
        for name, predict in candidates.items():
            logits = predict(batch)
            if logits.shape != expected.shape:
                raise ParityError(f"{name}: logits must be {expected.shape}, got {logits.shape}")
            _refuse_non_finite(name, logits)
            largest[name] = max(largest[name], float(np.abs(logits - expected).max()))
            mismatches[name] += int((logits.argmax(1) != expected.argmax(1)).sum())
        on_progress(len(batch))
    return {
        name: FormatParity(max_abs_diff=largest[name], top1_mismatches=mismatches[name])
        for name in candidates
    }


def require(parity: Parity) -> None:
    """Refuse figures that are not good enough for an artifact.

    Raises:
        ParityError: too few samples, a difference above the tolerance, or another top-1.
    """
    if parity.samples < MIN_SAMPLES:
        raise ParityError(
            f"parity must be measured on at least {MIN_SAMPLES} images, got {parity.samples}"
        )
    for name, figures in parity.formats.items():
        if figures.max_abs_diff > parity.tolerance:
            raise ParityError(
                f"{name}: logits differ by {figures.max_abs_diff:.2e}, "
                f"more than {parity.tolerance:.0e}"
            )
        if figures.top1_mismatches:
            raise ParityError(
                f"{name}: {figures.top1_mismatches} of {parity.samples} images change their class"
            )


def _batches(inputs: np.ndarray) -> list[np.ndarray]:
    batches, start = [], 0
    while start < len(inputs):
        size = _BATCH_SIZES[min(len(batches), len(_BATCH_SIZES) - 1)]
        batches.append(inputs[start : start + size])
        start += size
    return batches


def _refuse_non_finite(name: str, logits: np.ndarray) -> None:
    if not np.isfinite(logits).all():
        raise ParityError(f"{name}: logits must be finite")
