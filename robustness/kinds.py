"""What both targets and attacks speak of."""

from typing import Literal

InputKind = Literal["image", "text"]
Variant = Literal["plain", "stopped", "full"]  # how gradients treat m of elliptical attention


class NotPossible(ValueError):
    """Spec, models and inputs do not fit together; the message is fit for whoever asked."""
