"""What every model behind an address has, whatever protocol it speaks."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from data.images import ImageSpec
from robustness.remote.connection import Answer, Connection

_TEXT = "a"


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteModel:
    """One model of an endpoint, as it described itself.

    Attributes:
        connection: to the endpoint.
        protocol: its name, for reports.
        name: of the model.
        version: asked for, or None for the server's choice.
        image_spec: the size of its images, or None where it reads texts.
        names_class: whether it answers with the index of a class, and not with scores.
        best: how many classes an answer shows at most; None for all.
        kind: what scores are, "logits" or "probabilities"; None to learn it from an answer.
        together: how many inputs a request may carry; None for any number.
        as_files: whether images travel as files, so that each is one.
        told: what the server says of itself and the model, for reports.
        identity: what must stay the same while it is asked.
    """

    connection: Connection
    protocol: str
    name: str
    version: str | None
    image_spec: ImageSpec | None
    names_class: bool
    best: int | None = None
    kind: Literal["logits", "probabilities"] | None = None
    together: int | None = None
    as_files: bool = False
    told: dict[str, str]
    identity: dict[str, Any]

    @property
    @abstractmethod
    def asked_at(self) -> str:
        """The path of the endpoint that inputs are sent to."""

    @abstractmethod
    def question(self, inputs: np.ndarray | Sequence[str]) -> tuple[bytes, Mapping[str, str]]:
        """The body that carries some inputs, and its headers; see `ask`."""

    @abstractmethod
    def scores(self, answer: Answer, count: int) -> np.ndarray:
        """What an answer says of so many inputs, (N, K) scores or (N, 1) classes.

        Raises:
            EndpointError: it is not one to so many inputs.
        """

    def ask(self, inputs: np.ndarray | Sequence[str]) -> tuple[np.ndarray, int]:
        """What it answers to some inputs, (N, K) scores or (N, 1) classes, and how many tries.

        Args:
            inputs: (N, C, H, W) float32 in [0, 1], or N texts.

        Raises:
            EndpointError: there is no answer, or it is not one to these inputs.
        """
        content, headers = self.question(inputs)
        answer = self.connection.send(
            "POST", self.asked_at, content=content, headers=headers, inputs=len(inputs)
        )
        return self.scores(answer, len(inputs)), answer.tries

    def class_names(self, num_classes: int) -> list[str] | None:
        """Names of the classes; None where it tells none."""
        del num_classes

    def blank(self) -> np.ndarray | list[str]:
        """One input that means nothing."""
        spec = self.image_spec
        if spec is None:
            return [_TEXT]
        return np.zeros((1, spec.channels, spec.height, spec.width), np.float32)
