"""``POST /classify``: images in a form, predictions as JSON."""

import asyncio
import json
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from starlette.requests import Request
from starlette.responses import JSONResponse
from typing_extensions import TypedDict  # pydantic needs this one before Python 3.12

from data.images import ImageError, ImageSpec, decode_image, to_input
from export.artifact import Artifact
from export.threads import available_cores
from service.errors import ApiError
from service.forms import read_form
from service.registry import Registry, Served
from service.settings import Settings

_STATUS = {"not_an_image": 415, "broken_image": 422, "too_many_pixels": 413}
DEFAULT_TOP_K = 5


class LabelProbability(TypedDict):
    """A label of the model, its index, and the probability given to it."""

    label: str
    index: int
    probability: float


class Prediction(LabelProbability):
    """The most probable label of an input, and who said so."""

    top_k: list[LabelProbability]
    model: str
    digest: str


class Predictions:
    """Answers ``/classify`` with the models of a registry."""

    def __init__(self, settings: Settings, registry: Registry) -> None:
        self._settings = settings
        self._registry = registry
        self._decoders = ThreadPoolExecutor(available_cores(), "decode")

    async def answer(self, request: Request) -> JSONResponse:
        """The route: reads the form, then `classify`."""
        limit = self._settings.max_images_classify
        fields = ["model", "top_k"]
        form = await read_form(request, files=["images"], fields=fields, max_files=limit)
        model = _model(form.fields.get("model"))
        predictions = await self.classify(
            [upload.content for upload in form.files["images"]],
            model=model,
            top_k=_top_k(form.fields.get("top_k")),
        )
        return answered(predictions, self._registry.get(model))

    async def classify(
        self, files: Sequence[bytes], *, model: str | None = None, top_k: int = DEFAULT_TOP_K
    ) -> list[Prediction]:
        """Predictions of image files, in order.

        Args:
            files: contents of image files, 1 to ``ASSAY_MAX_IMAGES_CLASSIFY``.
            model: ``name`` or ``name:version``; None is the default model.
            top_k: labels to list, at least 1; a model with fewer labels lists them all.

        Raises:
            ApiError: 404 unknown_model; 413, 415 or 422 for a file, naming its index; 422
                wrong_task, no_images, too_many_images, invalid_top_k; 503 overloaded; 504 timeout.
        """
        served = self._registry.get(model)
        check_top_k(top_k)
        if not files:
            raise ApiError(422, "no_images", "The field 'images' must hold at least one file.")
        limit = self._settings.max_images_classify
        if len(files) > limit:
            message = f"At most {limit} files may be sent at once, received {len(files)}."
            raise ApiError(422, "too_many_images", message, {"limit": limit})
        async with served.batcher.turn(len(files)):
            inputs = await self._decode(files, served.artifact.image_spec)
            logits = await served.batcher.predict(inputs)
        return [prediction(row, served.artifact, top_k) for row in logits]

    def close(self) -> None:
        """Stop decoding."""
        self._decoders.shutdown(wait=False, cancel_futures=True)

    async def _decode(self, files: Sequence[bytes], spec: ImageSpec) -> np.ndarray:
        """Inputs (N, C, H, W) of image files, read outside the event loop."""
        loop = asyncio.get_running_loop()
        jobs = [
            loop.run_in_executor(self._decoders, self._read, index, content, spec)
            for index, content in enumerate(files)
        ]
        try:
            return np.stack(await asyncio.gather(*jobs))
        finally:
            for job in jobs:
                job.cancel()

    def _read(self, index: int, content: bytes, spec: ImageSpec) -> np.ndarray:
        try:
            image = decode_image(content, max_pixels=self._settings.max_pixels)
            return to_input(image, spec)
        except ImageError as error:
            message = f"File {index}: {error}."
            raise ApiError(_STATUS[error.code], error.code, message, {"file": index}) from error


def answered(predictions: list[Prediction], served: Served) -> JSONResponse:
    """The answer, with headers that say which runtime and precision gave it."""
    runtime = served.runtime
    headers = {"x-assay-runtime": runtime.name, "x-assay-precision": runtime.precision}
    return JSONResponse(predictions, headers=headers)


def check_top_k(top_k: int) -> None:
    """Refuse to list less than one label.

    Raises:
        ApiError: 422 invalid_top_k.
    """
    if top_k < 1:
        raise ApiError(422, "invalid_top_k", f"top_k must be at least 1, received {top_k}.")


def prediction(logits: np.ndarray, artifact: Artifact, top_k: int) -> Prediction:
    """The prediction of one input from its logits (K,)."""
    shifted = np.exp(logits.astype(np.float64) - logits.max())
    probs = shifted / shifted.sum()
    order = np.argsort(-probs, kind="stable")[:top_k]
    best: list[LabelProbability] = [
        {"label": artifact.labels[i], "index": int(i), "probability": float(probs[i])}
        for i in order
    ]
    return {**best[0], "top_k": best, "model": artifact.name, "digest": artifact.digest}


def _model(text: str | None) -> str | None:
    """The model's name; BentoML's client writes text fields as JSON (``"name"``, ``null``)."""
    if text in (None, "", "null"):
        return None
    if text.startswith('"'):
        try:
            return str(json.loads(text))
        except ValueError:
            return text
    return text


def _top_k(text: str | None) -> int:
    if text in (None, "", "null"):
        return DEFAULT_TOP_K
    if not re.fullmatch(r"[+-]?[0-9]{1,9}", text):
        message = f"top_k must be a whole number of at least 1, received {text[:40]!r}."
        raise ApiError(422, "invalid_top_k", message)
    return int(text)
