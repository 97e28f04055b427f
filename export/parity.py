"""Compare exported graphs with the eager model, input by input."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from export.samples import Feed, Samples
from runtimes.gate import MIN_AGREEMENT
from runtimes.manifest import FormatParity, Parity, Precision

TOLERANCE = 1e-4
MIN_SAMPLES = 1000
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
    """An exported format on the runtime that it is measured on.

    Attributes:
        predict: from inputs to logits.
        precision: arithmetic of the format.
        runtime: its name.
    """

    predict: Predict
    precision: Precision = "fp32"
    runtime: str


def eager(model: nn.Module) -> Predict:
    """A torch module as a function of arrays."""

    def predict(feed: Feed) -> np.ndarray:
        with torch.inference_mode():
            return model(*(torch.from_numpy(values) for values in feed.values())).numpy()

    return predict


def measure(
    reference: Predict,
    candidates: Mapping[str, Candidate],
    samples: Samples,
    *,
    on_progress: Callable[[int], object] = lambda done: None,
) -> Parity:
    """Measure how far each candidate's logits are from the reference's.

    Args:
        reference: the eager model.
        candidates: exported graphs by file.
        samples: real inputs.
        on_progress: called with the number of inputs just compared.

    Raises:
        ParityError: a candidate answers in another shape, or anything is not finite.
    """
    totals = {name: _Total() for name in candidates}
    correct = 0
    for indices in _batches(len(samples)):
        feed, labels = samples.feed(indices), _labels(samples, indices)
        expected = reference(feed)
        _refuse_non_finite("eager", expected)
        correct += _correct(expected, labels)
        for name, candidate in candidates.items():
            logits = candidate.predict(feed)
            if logits.shape != expected.shape:
                raise ParityError(name, f"logits must be {expected.shape}, got {logits.shape}")
            _refuse_non_finite(name, logits)
            totals[name].add(logits, expected, labels)
        on_progress(len(indices))
    count = len(samples) if samples.labels is not None else 0
    return Parity(
        samples=len(samples),
        data=samples.description,
        tolerance=TOLERANCE,
        accuracy=correct / count if count else None,
        formats={
            name: totals[name].figures(candidate, count) for name, candidate in candidates.items()
        },
    )


def require(parity: Parity) -> None:
    """Refuse figures that are not good enough for an artifact.

    Raises:
        ParityError: in fp32 a difference above the tolerance, or another top-1; in other precisions
            fewer than 99.5 % of equal answers, or an accuracy that is unknown or more than 0.3
            points away.
        ValueError: too few samples.
    """
    require_enough(parity.samples)
    for name, figures in parity.formats.items():
        if figures.precision == "fp32":
            _require_equal(name, figures, parity)
        else:
            _require_close(name, figures, parity)


def require_enough(samples: int, *, calibration: int = 0) -> None:
    """Refuse to measure parity on too few samples.

    Args:
        samples: number of samples left to measure on.
        calibration: how many more were kept out for calibration.

    Raises:
        ValueError: fewer than 1,000.
    """
    if samples < MIN_SAMPLES:
        kept_out = f" beside {calibration} for calibration" if calibration else ""
        raise ValueError(
            f"parity must be measured on at least {MIN_SAMPLES} samples, got {samples}{kept_out}"
        )


def _require_equal(name: str, figures: FormatParity, parity: Parity) -> None:
    if figures.max_abs_diff > parity.tolerance:
        raise ParityError(
            name,
            f"logits differ by {figures.max_abs_diff:.2e}, more than {parity.tolerance:.0e}",
        )
    if figures.top1_mismatches:
        raise ParityError(
            name, f"{figures.top1_mismatches} of {parity.samples} samples change their class"
        )


def _require_close(name: str, figures: FormatParity, parity: Parity) -> None:
    changed = figures.top1_mismatches
    if changed > (1 - MIN_AGREEMENT) * parity.samples + 1e-9:
        raise ParityError(
            name,
            f"{changed} of {parity.samples} samples change their class in {figures.precision}, "
            f"more than {1 - MIN_AGREEMENT:.1%}",
        )
    if figures.accuracy is None or parity.accuracy is None:
        raise ParityError(name, f"samples must have labels to score {figures.precision}")
    change = figures.accuracy - parity.accuracy
    if abs(change) > MAX_ACCURACY_CHANGE + 1e-9:
        raise ParityError(
            name,
            f"accuracy changes by {100 * change:+.2f} points in {figures.precision}, more than "
            f"{100 * MAX_ACCURACY_CHANGE:.1f}",
        )


class _Total:
    """Figures of one candidate so far."""

    def __init__(self) -> None:
        self.largest = 0.0
        self.mismatches = 0
        self.correct = 0

    def add(self, logits: np.ndarray, expected: np.ndarray, labels: np.ndarray | None) -> None:
        self.largest = max(self.largest, float(np.abs(logits - expected).max()))
        self.mismatches += int((logits.argmax(1) != expected.argmax(1)).sum())
        self.correct += _correct(logits, labels)

    def figures(self, candidate: Candidate, labeled: int) -> FormatParity:
        return FormatParity(
            max_abs_diff=self.largest,
            top1_mismatches=self.mismatches,
            precision=candidate.precision,
            runtime=candidate.runtime,
            accuracy=self.correct / labeled if labeled else None,
        )


def _labels(samples: Samples, indices: np.ndarray) -> np.ndarray | None:
    return None if samples.labels is None else samples.labels[indices]


def _correct(logits: np.ndarray, labels: np.ndarray | None) -> int:
    return 0 if labels is None else int((logits.argmax(1) == labels).sum())


def _batches(count: int) -> list[np.ndarray]:
    batches, start = [], 0
    while start < count:
        size = _BATCH_SIZES[min(len(batches), len(_BATCH_SIZES) - 1)]
        batches.append(np.arange(start, min(start + size, count)))
        start += size
    return batches


def _refuse_non_finite(name: str, logits: np.ndarray) -> None:
    if not np.isfinite(logits).all():
        raise ParityError(name, "logits must be finite")
