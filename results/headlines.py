"""The figure that each task of training is known by, in tables of results."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from core.percent import hundredths
from core.stats import wilson


@dataclass(frozen=True, slots=True, kw_only=True)
class Headline:
    """How a figure of the test split is shown.

    Attributes:
        key: its name among the metrics, without the split.
        title: of its column.
        shown: writes it.
        of_papers: writes that of a paper.
        interval: its interval at 95 %, from the figure and the number of samples; None has none.
        known_by: a metric that only runs of the task have; empty where it is the figure itself.
        floor: what reaches the figure without reading its input: its metric, and its name.
    """

    key: str
    title: str
    shown: Callable[[float], str]
    of_papers: Callable[[float], str]
    interval: Callable[[float, int], tuple[float, float]] | None = None
    known_by: str = ""
    floor: tuple[str, str] | None = None

    def of(self, metrics: dict[str, Any]) -> float:
        """The figure of a run."""
        return metrics[f"test_{self.key}"]

    def number(self, value: float) -> float:
        """The figure as a number in the unit in which it is shown."""
        return float(self.shown(value))

    def bounds(self, value: float, count: int) -> str:
        """The interval in percent, such as "[80.2, 82.9]"; empty where there is none."""
        if self.interval is None:
            return ""
        low, high = self.interval(value, count)
        return f"[{hundredths(low, 1)}, {hundredths(high, 1)}]"


_ACCURACY: dict[str, Any] = {
    "key": "accuracy",
    "title": "accuracy",
    "shown": lambda value: f"{100 * value:.2f}",
    "of_papers": lambda value: hundredths(value, 1),
    "floor": ("majority_accuracy", "majority class"),
}
HEADLINES = (
    Headline(
        key="bits_per_character",
        title="bits per character",
        shown=lambda value: f"{value:.3f}",
        of_papers=lambda value: f"{value:.3f}",
    ),
    Headline(
        key="perplexity",
        title="perplexity",
        shown=lambda value: f"{value:.2f}",
        of_papers=lambda value: f"{value:.2f}",
        floor=("unigram_perplexity", "unigrams"),
    ),
    # The pixels of an image are no samples of their own, so there is no interval.
    Headline(**_ACCURACY, known_by="mean_iou"),
    Headline(**_ACCURACY, interval=lambda value, count: wilson(round(value * count), count)),
)
"""The first of them that a run has is the one that it is known by."""


def headline_of(metrics: dict[str, Any]) -> Headline:
    """The figure that a run is known by."""
    return next(one for one in HEADLINES if f"test_{one.known_by or one.key}" in metrics)
