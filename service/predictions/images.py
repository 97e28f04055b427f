"""From image files to predictions."""

import asyncio
import base64
import heapq
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Literal, NotRequired

import numpy as np
from typing_extensions import TypedDict  # pydantic needs this one before Python 3.12

from data.images import ImageError, ImageSpec, to_png, to_unit
from runtimes.artifact import Artifact
from runtimes.threads import available_cores
from service.decoding.pool import Decoders, Request, refusal
from service.http.refusal import ApiError
from service.predictions.attention import not_explainable, to_picture
from service.predictions.batcher import MicroBatcher
from service.predictions.served import Served
from service.settings import Settings

DEFAULT_TOP_K = 5
_OWN_S, _OWN_S_PER_BYTE = 0.05, 1e-8  # processor time of a request besides decoding


class LabelProbability(TypedDict):
    """A label of the model, its index, and the probability given to it."""

    label: str
    index: int
    probability: float


class Explanation(TypedDict):
    """Where the model looked: a grey PNG in base64, of the size of its input, brightest = most."""

    kind: Literal["attention-rollout"]
    png: str


class TokensRead(TypedDict):
    """Tokens of a text, and how many of them the model reads, from the first on."""

    total: int
    read: int


class WordsRead(TypedDict):
    """Words that the model reads of a text, and how many of them are not in its vocabulary."""

    read: int
    unknown: int


class Prediction(LabelProbability):
    """The most probable label of an input, and who said so.

    Of a text also what was read of it; `input`: the pixels a model was given, as a PNG in base64.
    """

    top_k: list[LabelProbability]
    model: str
    digest: str
    explanation: NotRequired[Explanation]
    tokens: NotRequired[TokensRead]
    words: NotRequired[WordsRead]
    warnings: NotRequired[list[str]]
    input: NotRequired[str]


class Predictions:
    """Classifies images.

    Attributes:
        max_files: of one request.
    """

    def __init__(self, settings: Settings, decoders: Decoders) -> None:
        self.max_files = settings.max_images_classify
        self._decoders, self._seconds = decoders, settings.decode_cpu_s
        self._pixels = max(settings.max_pixels, settings.predict_pixels)
        self._drawers = ThreadPoolExecutor(available_cores(), "draw")

    async def predict(
        self,
        files: Sequence[bytes],
        served: Served,
        *,
        top_k: int = DEFAULT_TOP_K,
        explain: bool = False,
        show_input: bool = False,
        arrived: float | None = None,
        sharer: str = "",
    ) -> list[Prediction]:
        """Predictions of image files, in order.

        Args:
            files: contents of image files, 1 to ``ASSAY_MAX_IMAGES_CLASSIFY``.
            served: a model of images.
            top_k: labels to list, at least 1; a model with fewer labels lists them all.
            explain: add a map of what the model attended to.
            show_input: add the pixels that the model was given.
            arrived: see `logits`.
            sharer: see `logits`.

        Raises:
            ApiError: 422 no_images, too_many_images, invalid_top_k, not_explainable; and see
                `logits`.
        """
        check_top_k(top_k)
        if not files:
            raise ApiError(422, "no_images", "The field 'images' must hold at least one file.")
        if len(files) > self.max_files:
            message = f"At most {self.max_files} files may be sent at once, got {len(files)}."
            raise ApiError(422, "too_many_images", message, {"limit": self.max_files})
        if explain and served.explainer is None:
            raise not_explainable(served.artifact)
        logits, inputs = await self.logits(files, served, arrived=arrived, sharer=sharer)
        found = [prediction(row, served.artifact, top_k) for row in logits]
        if show_input:
            for each, pixels in zip(found, inputs, strict=True):
                each["input"] = await self._draw(to_png, pixels)
        if explain and served.explainer is not None:
            await self._explain(found, inputs, served.explainer, arrived)
        return found

    async def logits(
        self,
        files: Sequence[bytes],
        served: Served,
        *,
        arrived: float | None = None,
        sharer: str = "",
    ) -> tuple[np.ndarray, np.ndarray]:
        """Logits of image files, in order, and the inputs (N, C, H, W) that they were made.

        Args:
            files: contents of at least one image file.
            served: a model of images.
            arrived: time of the event loop from which the deadline counts; None is now.
            sharer: whose requests share one turn at the decoders.

        Raises:
            ApiError: 413, 415 or 422 for a file, naming its index; 503 overloaded; 504 timeout.
        """
        read = partial(self._decode, files, served.artifact.image_spec, sharer)
        async with served.batcher.admission(len(files), arrived=arrived) as admitted:
            logits = await admitted.predict(read)
        return logits, np.asarray(admitted.inputs)

    def close(self) -> None:
        """Stop drawing pictures."""
        self._drawers.shutdown(wait=False, cancel_futures=True)

    async def _explain(
        self,
        found: list[Prediction],
        inputs: np.ndarray,
        explainer: MicroBatcher,
        arrived: float | None,
    ) -> None:
        """Add to each prediction its map."""

        async def read() -> np.ndarray:
            """What was read for the predictions."""
            return inputs

        async with explainer.admission(len(inputs), arrived=arrived) as admitted:
            maps = await admitted.predict(read)
        height, width = inputs.shape[2:]
        for prediction, shares in zip(found, maps, strict=True):
            encoded = await self._draw(to_picture, shares, height, width)
            prediction["explanation"] = {"kind": "attention-rollout", "png": encoded}

    async def _draw(self, draw: Callable[..., bytes], *given: Any) -> str:
        """A picture in base64, drawn outside the event loop."""
        picture = await asyncio.get_running_loop().run_in_executor(self._drawers, draw, *given)
        return base64.b64encode(picture).decode()

    async def _decode(self, files: Sequence[bytes], spec: ImageSpec, sharer: str) -> np.ndarray:
        """Inputs (N, C, H, W) of image files, read outside the event loop."""
        own = _OWN_S + _OWN_S_PER_BYTE * sum(map(len, files))
        seconds = max(self._seconds / 2, self._seconds - own)
        limits = {"pixels": self._pixels, "seconds": seconds, "at_once": 1}
        with self._decoders.request(sharer, **limits) as images:
            if len(files) == 1:
                return (await _read(images, 0, files[0], spec, alone=True))[None]
            jobs = (_read(images, index, content, spec) for index, content in enumerate(files))
            return np.stack(await asyncio.gather(*jobs))


async def _read(
    images: Request, index: int, content: bytes, spec: ImageSpec, *, alone: bool = False
) -> np.ndarray:
    """The input (C, H, W) of one file."""
    try:
        tiny = images.decode_tiny(content, [spec], to_unit) if alone else None
        (pixels,) = tiny or await asyncio.wrap_future(images.decode(content, [spec], to_unit))
    except ImageError as error:
        raise refusal(error, f"File {index}", {"file": index}) from error
    return pixels


def model_headers(served: Served) -> dict[str, str]:
    """Headers that say which model, runtime and precision gave an answer."""
    return {
        "x-assay-model": f"{served.artifact.name}:{served.artifact.version}",
        "x-assay-runtime": served.runtime.name,
        "x-assay-precision": served.runtime.precision,
    }


def check_top_k(top_k: int) -> None:
    """Refuse to list less than one label.

    Raises:
        ApiError: 422 invalid_top_k.
    """
    if top_k < 1:
        raise ApiError(422, "invalid_top_k", f"top_k must be at least 1, got {top_k}.")


def probabilities(logits: np.ndarray) -> np.ndarray:
    """Softmax of logits (..., K), in float64."""
    shifted = np.exp(logits.astype(np.float64) - logits.max(-1, keepdims=True))
    return shifted / shifted.sum(-1, keepdims=True)


def prediction(logits: np.ndarray, artifact: Artifact, top_k: int) -> Prediction:
    """The prediction of one input from its logits (K,)."""
    probs: list[float] = probabilities(logits).tolist()
    # numpy's sorting lets other threads run in between, and waits for them.
    order = heapq.nlargest(top_k, range(len(probs)), key=probs.__getitem__)
    best: list[LabelProbability] = [
        {"label": artifact.labels[i], "index": i, "probability": probs[i]} for i in order
    ]
    return {**best[0], "top_k": best, "model": artifact.name, "digest": artifact.digest}
