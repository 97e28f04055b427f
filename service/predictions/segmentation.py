"""From an image to the class of each of its pixels."""

import asyncio
import base64
import io

import numpy as np
from PIL import Image
from typing_extensions import TypedDict  # pydantic needs this one before Python 3.12

from data.images import class_color, to_png
from service.predictions.images import Predictions
from service.predictions.served import Served


class SegmentedClass(TypedDict):
    """A class, its color in the map, and its share of the pixels."""

    index: int
    label: str
    color: str
    share: float


class Segmentation(TypedDict):
    """The class of each pixel of what a model was given of an image.

    `png`: an indexed PNG in base64, whose values are the indices of classes; `input`: those pixels.
    """

    png: str
    height: int
    width: int
    legend: list[SegmentedClass]
    input: str
    model: str
    digest: str


async def segment(
    predictions: Predictions,
    content: bytes,
    served: Served,
    *,
    arrived: float | None = None,
    sharer: str = "",
) -> Segmentation:
    """The class of each pixel of an image, resized to what the model takes.

    Args:
        predictions: decodes.
        content: of an image file.
        served: a segmenter.
        arrived: see `Predictions.logits`.
        sharer: see `Predictions.logits`.

    Raises:
        ApiError: see `Predictions.logits`.
    """
    logits, inputs = await predictions.logits([content], served, arrived=arrived, sharer=sharer)
    return await asyncio.to_thread(_describe, logits[0], inputs[0], served)


def _describe(logits: np.ndarray, pixels: np.ndarray, served: Served) -> Segmentation:
    """What is said of logits (K, H, W) for pixels (C, H, W)."""
    artifact, classes = served.artifact, logits.argmax(0).astype(np.uint8)
    shares = np.bincount(classes.ravel(), minlength=len(artifact.labels)) / classes.size
    legend: list[SegmentedClass] = [
        {"index": i, "label": label, "color": f"#{bytes(class_color(i)).hex()}", "share": share}
        for i, (label, share) in enumerate(zip(artifact.labels, shares.tolist(), strict=True))
    ]
    return {
        "png": base64.b64encode(class_map(classes)).decode(),
        "height": classes.shape[0],
        "width": classes.shape[1],
        "legend": legend,
        "input": base64.b64encode(to_png(pixels)).decode(),
        "model": artifact.name,
        "digest": artifact.digest,
    }


def class_map(classes: np.ndarray) -> bytes:
    """An indexed PNG of classes (H, W) uint8."""
    image = Image.fromarray(classes, "P")
    image.putpalette([part for index in range(256) for part in class_color(index)])
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()
