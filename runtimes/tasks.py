"""What models do: for each task, what its graph reads, what it answers, and how it is spoken of."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from data.sets import IGNORED

Task = Literal[
    "image-classification", "text-classification", "image-segmentation", "language-model"
]
IMAGES: Task = "image-classification"
TEXTS: Task = "text-classification"
MASKS: Task = "image-segmentation"
LANGUAGE: Task = "language-model"
Reads = Literal["images", "texts"]
Answer = Literal["class", "pixels", "tokens"]  # of an input, of each of its pixels; next tokens
Feed = Mapping[str, np.ndarray]
"""What a graph reads, by name."""
MIN_AGREEMENT = 0.995
"""Share of equal answers that a precision below fp32 must reach."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskForm:
    """What the artifacts of a task have in common; here of classifiers, with logits (N, K).

    Attributes:
        reads: what goes in.
        purpose: the same for sentences: a model reads ...
        default: the setting that names the model to use where none is named.
        title: what a model is called.
        answer: what it answers with.
        labeled: whether answers are classes with names.
        per_pixel: whether each pixel has logits of its own, (K, H, W).
        class_axis: of the logits, along which probabilities sum to 1.
        compared: inputs on which an export measures parity, at most.
        stored: inputs that an artifact keeps with their logits, see `runtimes.probe`.
        stored_tokens: the first ones of each that it keeps; None keeps all.
    """

    reads: Reads
    purpose: str
    default: str
    title: str
    answer: Answer = "class"
    labeled: bool = True
    per_pixel: bool = False
    class_axis: int = 1
    compared: int = 2000
    stored: int = 200
    stored_tokens: int | None = None

    def output_shape(self, labels: int, input_shape: Sequence[int], tokens: int = 0) -> list[int]:
        """The shape of the logits, -1 for any number of inputs or of tokens.

        Args:
            labels: their number K.
            input_shape: of the graph's first input.
            tokens: number of token ids of a model of texts.
        """
        return [-1, labels]

    def counted(self, values: np.ndarray, feed: Feed) -> np.ndarray:
        """Those of values of the shape of the logits that mean something."""
        return values

    def cut(self, logits: np.ndarray, lengths: Sequence[int]) -> np.ndarray:
        """The logits of texts of some lengths, without what stands for padding."""
        return logits

    def changed(self, logits: np.ndarray, expected: np.ndarray, feed: Feed) -> np.ndarray:
        """Which of two models' answers to what a graph reads differ, (N,) bool."""
        return logits.argmax(1) != expected.argmax(1)

    def right(self, logits: np.ndarray, labels: np.ndarray) -> float:
        """How many answers are right."""
        return float((logits.argmax(1) == labels).sum())


class Segmentation(TaskForm):
    """One of K classes for each pixel: logits (N, K, H, W).

    Between two classes that are equally likely the last bits decide, and in an image of thousands
    of pixels some are: more than 0.5 % of them must have another class for another answer.
    """

    def output_shape(self, labels: int, input_shape: Sequence[int], tokens: int = 0) -> list[int]:
        """See `TaskForm.output_shape`."""
        return [-1, labels, *input_shape[2:]]

    def changed(self, logits: np.ndarray, expected: np.ndarray, feed: Feed) -> np.ndarray:
        """See `TaskForm.changed`."""
        differ = logits.argmax(1) != expected.argmax(1)
        return differ.reshape(len(differ), -1).mean(1) > 1 - MIN_AGREEMENT

    def right(self, logits: np.ndarray, labels: np.ndarray) -> float:
        """The sum of the images' shares of right pixels."""
        counted = labels != IGNORED
        right = ((logits.argmax(1) == labels) & counted).sum(axis=(1, 2))
        return float((right / np.maximum(counted.sum(axis=(1, 2)), 1)).sum())


class NextTokens(TaskForm):
    """The token after each: logits (N, L, V), of which those of padding mean nothing.

    As of a segmentation, another answer is one with more than 0.5 % of other tokens, and with more
    than one: between two that are equally likely the last bits decide.
    """

    def output_shape(self, labels: int, input_shape: Sequence[int], tokens: int = 0) -> list[int]:
        """See `TaskForm.output_shape`."""
        return [-1, -1, tokens]

    def counted(self, values: np.ndarray, feed: Feed) -> np.ndarray:
        """Those after real tokens."""
        return values[feed["mask"]]

    def cut(self, logits: np.ndarray, lengths: Sequence[int]) -> np.ndarray:
        """Those up to the longest text, zeros behind the end of each."""
        sizes = np.array(lengths)
        mask = np.arange(sizes.max()) < sizes[:, None]
        return np.where(mask[:, :, None], logits[:, : mask.shape[1]], 0)

    def changed(self, logits: np.ndarray, expected: np.ndarray, feed: Feed) -> np.ndarray:
        """See `TaskForm.changed`."""
        differ = (logits.argmax(2) != expected.argmax(2)) & feed["mask"]
        return differ.sum(1) > np.maximum(1, (1 - MIN_AGREEMENT) * feed["mask"].sum(1))


TASKS: dict[Task, TaskForm] = {
    IMAGES: TaskForm(
        reads="images", purpose="images", default="default_image", title="image classifier"
    ),
    TEXTS: TaskForm(
        reads="texts", purpose="texts", default="default_text", title="text classifier"
    ),
    # The others answer each input with as many logits as hundreds of classifications have.
    MASKS: Segmentation(
        reads="images",
        purpose="images to segment",
        default="default_segmenter",
        title="image segmenter",
        answer="pixels",
        per_pixel=True,
        stored=8,
    ),
    LANGUAGE: NextTokens(
        reads="texts",
        purpose="texts to score",
        default="default_language",
        title="language model",
        answer="tokens",
        labeled=False,
        class_axis=2,
        compared=1000,
        stored=8,
        stored_tokens=16,
    ),
}
"""By the name in the manifest."""
