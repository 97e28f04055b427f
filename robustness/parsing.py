"""Numbers as a spec spells them: "8/255", "0.03"; read strictly, kept as they were written."""

import math
import re
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

L2_LIMIT = 1000.0
"""Largest l2 radius that is read; the diagonal of a colour image of 224 x 224 is 388."""

MOST = 1000
"""Attacks of a spec, or values of a setting, at most: each is checked, and told what is wrong."""

_NUMBER = r"(?:[0-9]{1,12}(?:\.[0-9]{0,20})?|\.[0-9]{1,20})(?:[eE][+-]?[0-9]{1,2})?"
_FRACTION = re.compile(rf"({_NUMBER})(?:/({_NUMBER}))?", re.ASCII)


def parse_eps(text: str, *, name: str = "eps", limit: float = 1.0) -> float:
    """Read a number such as "8/255" or "0.03".

    Args:
        text: a decimal number or a fraction of two; its value must lie in (0, limit].
        name: what the number is called in messages.
        limit: the largest value allowed.

    Returns:
        The number; radii live in the model's input space, where pixels lie in [0, 1].

    Raises:
        ValueError: the text is no such number, or its value lies outside (0, limit].
    """
    match = _FRACTION.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{name} must be a number like '8/255' or '0.03', got {text[:40]!r}")
    denominator = float(match[2]) if match[2] else 1.0
    value = float(match[1]) / denominator if denominator else math.inf
    if not 0 < value <= limit:
        of_pixels = name in ("eps", "alpha") and limit == 1 < value <= 255 and not match[2]
        hint = f"; did you mean '{match[1]}/255'?" if of_pixels else ""
        raise ValueError(f"{name} must lie in (0, {limit:g}], got {text[:40]!r}{hint}")
    return value


def _as_text(value: Any) -> Any:
    """Let 0.03 stand for "0.03": JSON and YAML writers will; refuse booleans."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return repr(value)
    return value.strip() if isinstance(value, str) else value


def as_list(value: Any) -> Any:
    """Let one value stand for a list of one."""
    return value if isinstance(value, list) else [value]


Radius = Annotated[str, BeforeValidator(_as_text), Field(max_length=40)]
Radii = Annotated[list[Radius], Field(min_length=1, max_length=MOST), BeforeValidator(as_list)]
Count = Annotated[int, Field(strict=True, ge=1, le=1_000_000_000)]
Counts = Annotated[list[Count], Field(min_length=1, max_length=MOST), BeforeValidator(as_list)]
