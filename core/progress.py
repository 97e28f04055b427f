"""Progress: a bar where somebody watches, plain lines where the output becomes a log."""

import math
import sys
from time import time
from typing import Any

from tqdm import tqdm

LINE_S, SHARE, SOON_S = 30.0, 0.1, 5.0
"""Seconds after which a line follows the last one; the share of the work after which it follows
sooner; and how soon at the earliest."""


def roughly(seconds: float) -> str:
    """An estimate in words, no finer than it can be: "about 15 minutes"; the page has the same."""

    def to(unit: int, step: float = 1) -> str:
        """The seconds in steps of so many units."""
        return f"{step * math.floor(seconds / unit / step + 0.5):g}"

    if seconds < 90:
        return ["a few seconds", "less than a minute", "about a minute"][
            (seconds >= 10) + (seconds >= 60)
        ]
    if seconds < 57.5 * 60:
        return f"about {to(60, 1 if seconds < 570 else 5)} minutes"
    if seconds < 75 * 60:
        return "about an hour"
    if seconds < 36.5 * 3600:
        return f"about {to(3600, 0.5 if seconds < 5 * 3600 else 1).replace('.5', '½')} hours"
    return f"about {to(86400)} days"


class Bar(tqdm):
    """A tqdm bar on standard error; where that is no terminal, a line now and then.

    A line follows the last one after 30 s, or with another tenth of the work done, though not
    within 5 s: short work leaves none.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        self._plain = not sys.stderr.isatty()
        self._line_at, self._line_share = -1.0, 0.0  # of the last line
        super().__init__(*args, **options)
        if self._plain:
            self.sp = None  # tqdm's sign of a display of its own: it draws nothing at the end

    @property
    def format_dict(self) -> dict[str, Any]:
        """What a format may name; `left` is the time that is left, in words."""
        known = super().format_dict
        rate = known["rate"] or (known["elapsed"] and self.n / known["elapsed"])
        left = f", {roughly((self.total - self.n) / rate)} left" if self.total and rate else ""
        return {**known, "left": left}

    def display(self, msg: str | None = None, pos: int | None = None) -> Any:
        """Draw the bar, or write a line if one is due."""
        if not self._plain:
            return super().display(msg, pos)
        now, share = time(), self.n / self.total if self.total else 0.0
        if self._line_at < 0 or share < self._line_share:  # it begins, perhaps again
            self._line_at, self._line_share = now, share
        since, more = now - self._line_at, share - self._line_share
        if since >= LINE_S or (since >= SOON_S and more >= SHARE):
            self._line_at, self._line_share = now, share
            self.fp.write(f"{self._line(now - self.start_t, share)}\n")
            self.fp.flush()

    def clear(self, nolock: bool = False) -> None:
        """Make room for a line above; a log has room."""
        if not self._plain:
            super().clear(nolock)

    def _line(self, seconds: float, share: float) -> str:
        of = f" of {self.total:,.0f}" if self.total else ""
        unit = f" {self.unit.strip()}s" if self.unit.strip() else ""
        parts = [f"{share:.0%}"] if self.total else []
        parts += [f"{self.n:,.0f}{of}{unit}", f"{self.format_interval(seconds)} so far"]
        parts += [str(self.postfix)] if self.postfix else []
        return ": ".join(filter(None, (self.desc.removesuffix(": "), ", ".join(parts))))
