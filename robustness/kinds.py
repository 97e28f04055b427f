"""What both targets and attacks speak of."""

from typing import Literal

InputKind = Literal["image", "text"]
Variant = Literal["plain", "stopped", "full"]  # how gradients treat m of elliptical attention

ASKING = "use square, spsa, hopskipjump or corruptions, which only ask the model"
"""What can be done with images and without gradients."""


class NotPossible(ValueError):
    """Spec, models and inputs do not fit together; the message is fit for whoever asked."""
