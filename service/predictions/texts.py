"""From texts to predictions."""

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from data.tokenizer import TextTokenizer
from service.http.errors import ApiError
from service.predictions.images import DEFAULT_TOP_K, Prediction, check_top_k, prediction
from service.predictions.served import Served
from service.settings import Settings


class TextPredictions:
    """Classifies texts."""

    def __init__(self, settings: Settings) -> None:
        self._limit = settings.max_texts_classify
        self._executor = ThreadPoolExecutor(1, "tokenize")

    async def predict(
        self,
        texts: Sequence[str],
        served: Served,
        *,
        top_k: int = DEFAULT_TOP_K,
        explain: bool = False,
        arrived: float | None = None,
    ) -> list[Prediction]:
        """Predictions of texts, in order; what is longer than the model reads is cut off.

        Args:
            texts: 1 to ``ASSAY_MAX_TEXTS_CLASSIFY``.
            served: a model of texts.
            top_k: labels to list, at least 1; a model with fewer labels lists them all.
            explain: refused for every model of texts.
            arrived: see `logits`.

        Raises:
            ApiError: 422 not_explainable, invalid_top_k, and see `logits`.
        """
        if explain:
            name = served.artifact.name
            message = f"The model {name!r} reads texts; only attention to images is shown."
            raise ApiError(422, "not_explainable", message)
        check_top_k(top_k)
        logits = await self.logits(texts, served, arrived=arrived)
        return [prediction(row, served.artifact, top_k) for row in logits]

    async def logits(
        self, texts: Sequence[str], served: Served, *, arrived: float | None = None
    ) -> np.ndarray:
        """Logits (N, K) of texts.

        Args:
            texts: as in `predict`.
            served: a model of texts.
            arrived: time of the event loop from which the deadline counts; None is now.

        Raises:
            ApiError: 422 no_texts, too_many_texts, invalid_text (naming its index); 503
                overloaded; 504 timeout.
        """
        if not texts:
            raise ApiError(422, "no_texts", "The field 'texts' must hold at least one text.")
        if len(texts) > self._limit:
            message = f"At most {self._limit} texts may be sent at once, got {len(texts)}."
            raise ApiError(422, "too_many_texts", message, {"limit": self._limit})
        tokenizer, longest = served.tokenizer, served.artifact.text_spec.max_len
        if tokenizer is None:
            raise ValueError(f"served must be a model of texts, got {served.artifact.name}")
        loop = asyncio.get_running_loop()

        async def read() -> list[np.ndarray]:
            """Token ids, read outside the event loop."""
            return await loop.run_in_executor(self._executor, _rows, tokenizer, texts, longest)

        async with served.batcher.admission(len(texts), arrived=arrived) as admitted:
            return await admitted.predict(read)

    def close(self) -> None:
        """Stop reading texts."""
        self._executor.shutdown(wait=False, cancel_futures=True)


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
