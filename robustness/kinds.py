"""What both targets and attacks speak of."""

from typing import Any, Literal, Protocol

import numpy as np

InputKind = Literal["image", "text"]
Variant = Literal["plain", "stopped", "full"]  # how gradients treat m of elliptical attention

Shows = Literal["scores", "top-k", "label"]  # what an attacker sees of an answer

ASKING: dict[InputKind, str] = {
    "image": "use square, spsa, hopskipjump, rays or corruptions, which only ask the model",
    "text": "use typos, which only asks the model, or word-swap",
}
"""What can be done without gradients."""


class Endpoint(Protocol):
    """Where a target lies behind an address; see `robustness.remote.target.RemoteRuntime`."""

    @property
    def shows(self) -> Shows:
        """What an attacker sees of an answer."""
        ...

    @property
    def best(self) -> int | None:
        """How many classes are seen at most; None for all."""
        ...

    def facts(self) -> dict[str, Any]:
        """What a report says of it."""
        ...

    def predict_again(self, inputs: Any, first: np.ndarray) -> np.ndarray:
        """Logits (B, K) of a second answer, asked for on purpose."""
        ...


class NotPossible(ValueError):
    """Spec, models and inputs do not fit together; the message is fit for whoever asked."""
