"""What both targets and attacks speak of."""

import re
from typing import Any, Literal, Protocol

import numpy as np

from runtimes.tasks import Answer

InputKind = Literal["image", "text"]
Variant = Literal["plain", "stopped", "full"]  # how gradients treat m of elliptical attention

Shows = Literal["scores", "top-k", "label"]  # what an attacker sees of an answer

ASKING: dict[InputKind, str] = {
    "image": "use square, spsa, hopskipjump, rays or corruptions, which only ask the model",
    "text": "use typos, which only asks the model, or word-swap",
}
"""What can be done without gradients."""
OF_ANSWERS: dict[Answer, str] = {
    "class": "weighs the pixels of a segmenter, and {name} answers with one class: use pgd",
    "pixels": "changes the class of a whole input, and {name} answers with one for each pixel: use "
    "fgsm, pgd or segpgd",
    "tokens": "is about the class of an input, and {name} answers with the next token: use "
    "word-swap",
}
"""By what a model answers with, why an attack makes no sense for it."""


_TOP = re.compile("top-([1-9][0-9]{0,5})", re.ASCII)


def read_shows(text: str, what: str = "--shows") -> tuple[Shows, int]:
    """What attacks may see, and of how many classes: "scores", "top-5" or "label".

    Raises:
        ValueError: it is none of these; `what` is named.
    """
    if text in ("scores", "label"):
        return text, 0
    match = _TOP.fullmatch(text)
    if match is None or int(match[1]) < 2:
        raise ValueError(f"{what} must be scores, label, or top-2 and above, got {text[:40]!r}")
    return "top-k", int(match[1])


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
