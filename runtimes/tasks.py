"""What models do: for each task, what its graph reads, what it answers, and how it is spoken of."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Task = Literal["image-classification", "text-classification", "image-segmentation"]
IMAGES: Task = "image-classification"
TEXTS: Task = "text-classification"
MASKS: Task = "image-segmentation"
Reads = Literal["images", "texts"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskForm:
    """What the artifacts of a task have in common.

    Attributes:
        reads: what goes in.
        purpose: the same for sentences: a model reads ...
        default: the setting that names the model to use where none is named.
        per_pixel: whether each pixel has logits of its own, (K, H, W).
    """

    reads: Reads
    purpose: str
    default: str
    per_pixel: bool = False

    def output_shape(self, labels: int, input_shape: Sequence[int]) -> list[int]:
        """The shape of the logits, -1 for any number of inputs.

        Args:
            labels: their number K.
            input_shape: of the graph's first input.
        """
        return [-1, labels, *(input_shape[2:] if self.per_pixel else ())]


TASKS: dict[Task, TaskForm] = {
    IMAGES: TaskForm(reads="images", purpose="images", default="default_image"),
    TEXTS: TaskForm(reads="texts", purpose="texts", default="default_text"),
    MASKS: TaskForm(
        reads="images", purpose="images to segment", default="default_segmenter", per_pixel=True
    ),
}
"""By the name in the manifest."""
