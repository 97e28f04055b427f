"""Compare exported graphs with the eager model, input by input."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from export.samples import Feed, Samples
from runtimes.manifest import FormatParity, Parity, Precision
from runtimes.tasks import MIN_AGREEMENT

TOLERANCE = 1e-4
MIN_SAMPLES = 1000
_EAGER = "eager"
MAX_ACCURACY_CHANGE = 0.003
_BATCH_SIZES = (1, 7, 64)
"""The first batches and all later ones: a batch that is not really dynamic fails here."""

Predict = Callable[[Feed], np.ndarray]


class ParityError(ValueError):
    """An exported graph that does not compute what the model computes.

    Args:
        name: of the graph.
        problem: what is wrong with it.

    Attributes:
        name: of the graph.
        layers: the error of each of its layers by name, where they could be compared.
    """

    layers: dict[str, float] | None = None

    def __init__(self, name: str, problem: str) -> None:
        super().__init__(f"{name}: {problem}")
        self.name = name


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """An exported format of a precision, from inputs to logits on a named runtime."""

    predict: Predict
    precision: Precision = "fp32"
    runtime: str


def eager(model: nn.Module) -> Predict:
    """A torch module as a function of arrays."""

    def predict(feed: Feed) -> np.ndarray:
        """The logits (B, K)."""
        with torch.inference_mode():
            return model(*(torch.from_numpy(values) for values in feed.values())).numpy()

    return predict


def measure(
    reference: Predict | np.ndarray,
    candidates: Mapping[str, Candidate],
    samples: Samples,
    *,
    on_progress: Callable[[int], object] = lambda done: None,
) -> Parity:
    """Measure how far each candidate's logits are from the reference's.

    Args:
        reference: the eager model, or its logits (N, K).
        candidates: exported graphs by file.
        samples: real inputs.
        on_progress: called with the number of inputs just compared.

    Raises:
        ParityError: a candidate answers in another shape, or anything is not finite.
    """
    largest, changed = dict.fromkeys(candidates, 0.0), dict.fromkeys(candidates, 0)
    right = dict.fromkeys((_EAGER, *candidates), 0.0)
    labels, task = samples.labels, samples.task
    for indices in _batches(len(samples), samples.most):
        feed = samples.feed(indices)
        expected = reference(feed) if callable(reference) else reference[indices]
        _refuse_non_finite(_EAGER, expected)
        right[_EAGER] += 0.0 if labels is None else task.right(expected, labels[indices])
        for name, candidate in candidates.items():
            logits = candidate.predict(feed)
            if logits.shape != expected.shape:
                raise ParityError(name, f"logits must be {expected.shape}, got {logits.shape}")
            _refuse_non_finite(name, logits)
            difference = np.abs(task.counted(logits - expected, feed)).max()
            largest[name] = max(largest[name], float(difference))
            changed[name] += int(task.changed(logits, expected, feed).sum())
            right[name] += 0.0 if labels is None else task.right(logits, labels[indices])
        on_progress(len(indices))
    accuracy = {
        name: None if labels is None else share / len(samples) for name, share in right.items()
    }
    return Parity(
        samples=len(samples),
        data=samples.description,
        tolerance=TOLERANCE,
        accuracy=accuracy[_EAGER],
        formats={
            name: FormatParity(
                max_abs_diff=largest[name],
                top1_mismatches=changed[name],
                precision=candidate.precision,
                runtime=candidate.runtime,
                accuracy=accuracy[name],
            )
            for name, candidate in candidates.items()
        },
    )


def require(parity: Parity) -> None:
    """Refuse figures that are not good enough for an artifact.

    Raises:
        ParityError: in fp32 a difference above the tolerance, or another top-1; in other precisions
            fewer than 99.5 % of equal answers, or an accuracy that is unknown or more than 0.3
            points away.
    """
    for name, figures in parity.formats.items():
        problem = (_unequal if figures.precision == "fp32" else _distant)(figures, parity)
        if problem is not None:
            raise ParityError(name, problem)


def require_enough(samples: int, *, calibration: int = 0) -> None:
    """Raise ValueError for fewer than 1,000 samples, beside those kept out for calibration."""
    if samples < MIN_SAMPLES:
        kept_out = f" beside {calibration} for calibration" if calibration else ""
        raise ValueError(
            f"parity must be measured on at least {MIN_SAMPLES} samples, got {samples}{kept_out}"
        )


def require_labels(precision: Precision, labels: np.ndarray | None) -> None:
    """Raise ValueError for samples without labels where a precision is judged by its accuracy."""
    if precision != "fp32" and labels is None:
        raise ValueError(f"samples must have labels to score {precision}")


def _unequal(figures: FormatParity, parity: Parity) -> str | None:
    """Why a format in fp32 is not the model, or None."""
    if figures.max_abs_diff > parity.tolerance:
        return f"logits differ by {figures.max_abs_diff:.2e}, more than {parity.tolerance:.0e}"
    if figures.top1_mismatches:
        return f"{figures.top1_mismatches} of {parity.samples} samples change their class"
    return None


def _distant(figures: FormatParity, parity: Parity) -> str | None:
    """Why a format of another precision is too far from the model, or None."""
    changed, precision = figures.top1_mismatches, figures.precision
    if changed > (1 - MIN_AGREEMENT) * parity.samples + 1e-9:
        samples = f"{changed} of {parity.samples} samples change their class in {precision}"
        return f"{samples}, more than {1 - MIN_AGREEMENT:.1%}"
    if figures.accuracy is None or parity.accuracy is None:
        return f"samples must have labels to score {precision}"
    change, most = figures.accuracy - parity.accuracy, MAX_ACCURACY_CHANGE
    if abs(change) > most + 1e-9:
        points = f"accuracy changes by {100 * change:+.2f} points in {precision}"
        return f"{points}, more than {100 * most:.1f}"
    return None


def _batches(count: int, most: int) -> list[np.ndarray]:
    batches, start = [], 0
    while start < count:
        size = min(most, _BATCH_SIZES[min(len(batches), len(_BATCH_SIZES) - 1)])
        batches.append(np.arange(start, min(start + size, count)))
        start += size
    return batches


def _refuse_non_finite(name: str, logits: np.ndarray) -> None:
    if not np.isfinite(logits).all():
        raise ParityError(name, "logits must be finite")
