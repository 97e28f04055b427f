"""Shares as percent, rounded by one rule; `service/page/words.js` has the same one."""

from decimal import ROUND_HALF_UP, Decimal

_NOISE = 9  # decimals of a percentage below which binary fractions, not counts, speak


def hundredths(share: float, digits: int) -> str:
    """A share as a number of percent, halves rounded away from zero: 4 of 32 is "13".

    Args:
        share: finite; 1 is 100 %.
        digits: decimals to keep.
    """
    exact = Decimal(f"{100 * share:.{_NOISE}f}")
    return f"{exact.quantize(Decimal(1).scaleb(-digits), ROUND_HALF_UP) + 0:f}"
