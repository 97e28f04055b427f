"""Pieces of a page in Markdown."""

from collections.abc import Iterable


def percent(value: float) -> str:
    """A share as percent, without the sign."""
    return f"{100 * value:.1f}"


def interval(bounds: Iterable[float]) -> str:
    """An interval of shares in percent, such as "[80.2, 82.9]"."""
    low, high = bounds
    return f"[{percent(low)}, {percent(high)}]"
