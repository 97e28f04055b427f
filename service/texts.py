"""``POST /classify_text``: texts in JSON, predictions as JSON."""

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError
from starlette.requests import Request
from starlette.responses import JSONResponse

from data.tokenizer import TextTokenizer
from service.errors import ApiError
from service.predictions import DEFAULT_TOP_K, Prediction, answered, check_top_k, prediction
from service.registry import TEXTS, Registry
from service.settings import Settings
from service.strict_json import broken_rules, parse_json


class TextRequest(BaseModel):
    """What `/classify_text` reads."""

    model_config = ConfigDict(extra="forbid", strict=True)

    texts: list[str]
    model: str | None = None
    top_k: int | None = None


class TextPredictions:
    """Answers ``/classify_text`` with the models of a registry."""

    def __init__(self, settings: Settings, registry: Registry) -> None:
        self._settings = settings
        self._registry = registry
        self._tokenizers: dict[str, TextTokenizer] = {
            served.artifact.digest: served.artifact.tokenizer()
            for served in registry.all()
            if served.artifact.manifest.task == TEXTS
        }
        self._executor = ThreadPoolExecutor(1, "tokenize")

    async def answer(self, request: Request) -> JSONResponse:
        """The route: reads the body, then `classify`."""
        asked = await _read(request)
        top_k = DEFAULT_TOP_K if asked.top_k is None else asked.top_k
        model = asked.model or None
        predictions = await self.classify(asked.texts, model=model, top_k=top_k)
        return answered(predictions, self._registry.get(model, TEXTS))

    async def classify(
        self, texts: Sequence[str], *, model: str | None = None, top_k: int = DEFAULT_TOP_K
    ) -> list[Prediction]:
        """Predictions of texts, in order; what is longer than the model reads is cut off.

        Args:
            texts: 1 to ``ASSAY_MAX_TEXTS_CLASSIFY``.
            model: ``name`` or ``name:version``; None is the default model of texts.
            top_k: labels to list, at least 1; a model with fewer labels lists them all.

        Raises:
            ApiError: 404 unknown_model; 422 wrong_task, no_texts, too_many_texts, invalid_text
                (naming its index), invalid_top_k; 503 overloaded; 504 timeout.
        """
        served = self._registry.get(model, TEXTS)
        check_top_k(top_k)
        if not texts:
            raise ApiError(422, "no_texts", "The field 'texts' must hold at least one text.")
        limit = self._settings.max_texts_classify
        if len(texts) > limit:
            message = f"At most {limit} texts may be sent at once, received {len(texts)}."
            raise ApiError(422, "too_many_texts", message, {"limit": limit})
        tokenizer = self._tokenizers[served.artifact.digest]
        longest = served.artifact.text_spec.max_len
        loop = asyncio.get_running_loop()
        async with served.batcher.turn(len(texts)):
            rows = await loop.run_in_executor(self._executor, _rows, tokenizer, texts, longest)
            logits = await served.batcher.predict(rows)
        return [prediction(row, served.artifact, top_k) for row in logits]

    def close(self) -> None:
        """Stop reading texts."""
        self._executor.shutdown(wait=False, cancel_futures=True)


async def _read(request: Request) -> TextRequest:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        message = "The body must be JSON, with the content type application/json."
        raise ApiError(415, "wrong_content_type", message)
    content = parse_json(await request.body(), "body")
    try:
        return TextRequest.model_validate(content)
    except ValidationError as error:
        problems = broken_rules(error)
    first = problems[0]
    message = f"The body is not acceptable: {first['field'] or 'body'}: {first['message']}."
    raise ApiError(422, "invalid_body", message, problems)


def _rows(tokenizer: TextTokenizer, texts: Sequence[str], longest: int) -> list[np.ndarray]:
    rows: list[Any] = []
    for index, text in enumerate(texts):
        try:
            text.encode()
            rows += tokenizer.rows([text], longest)
        except UnicodeEncodeError as error:  # also a ValueError
            raise _invalid(index, "is not Unicode text") from error
        except ValueError as error:
            raise _invalid(index, "holds nothing that the model reads") from error
    return rows


def _invalid(index: int, reason: str) -> ApiError:
    return ApiError(422, "invalid_text", f"Text {index} {reason}.", {"text": index})
