"""From texts to predictions."""

import asyncio
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np

from data.tokenizer import Pieces, Reading, TextTokenizer
from runtimes.tasks import TASKS
from service.http.refusal import ApiError, check_length
from service.predictions.images import DEFAULT_TOP_K, Prediction, check_top_k, prediction
from service.predictions.served import Served
from service.settings import Settings

_MOST_TOKENS = 1 << 30
_TURN = 20_000  # characters that are read before another request has its turn


class TextPredictions:
    """Classifies texts."""

    def __init__(self, settings: Settings) -> None:
        self._limit, self._longest = settings.max_texts_classify, settings.max_text_chars
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
        """Predictions of texts, in order; tokens behind those that the model reads are cut off.

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
        logits, readings = await self.logits(texts, served, arrived=arrived)
        return [
            {
                **prediction(row, served.artifact, top_k),
                "tokens": {"total": reading.tokens, "read": len(reading.ids)},
                "words": {"read": reading.words, "unknown": reading.unknown},
                "warnings": warnings(reading),
            }
            for row, reading in zip(logits, readings, strict=True)
        ]

    async def logits(
        self, texts: Sequence[str], served: Served, *, arrived: float | None = None
    ) -> tuple[np.ndarray, list[Reading]]:
        """Logits (N, K) of texts, and what the model reads of each.

        Args:
            texts: as in `predict`.
            served: a model of texts.
            arrived: time of the event loop from which the deadline counts; None is now.

        Raises:
            ApiError: 413 text_too_long, 422 no_texts, too_many_texts, invalid_text (text_too_long
                and invalid_text name the text's index); 503 overloaded; 504 timeout.
        """
        if not texts:
            raise ApiError(422, "no_texts", "The field 'texts' must hold at least one text.")
        if len(texts) > self._limit:
            message = f"At most {self._limit} texts may be sent at once, got {len(texts)}."
            raise ApiError(422, "too_many_texts", message, {"limit": self._limit})
        check_length(texts, self._longest)
        tokenizer, max_len = served.tokenizer, served.artifact.text_spec.max_len
        if tokenizer is None:
            raise ValueError(f"served must be a model of texts, got {served.artifact.name}")
        loop = asyncio.get_running_loop()

        readings: list[Reading] = []

        async def read() -> list[np.ndarray]:
            """Token ids, which are there already: they are small, and wait without a place."""
            return [reading.ids for reading in readings]

        async with served.batcher.admission(len(texts), arrived=arrived) as admitted:
            for turn in _turns(texts):
                part = partial(_read, tokenizer, texts[turn.start : turn.stop], max_len, turn.start)
                readings += await loop.run_in_executor(self._executor, part)
            found = await admitted.predict(read)
        task = TASKS[served.artifact.manifest.task]
        return task.cut(found, [len(reading.ids) for reading in readings]), readings

    async def pieces(self, text: str, served: Served) -> Pieces:
        """All tokens of one text, with their places.

        Raises:
            ApiError: 413 text_too_long; 422 invalid_text.
        """
        check_length([text], self._longest)
        if served.tokenizer is None:
            raise ValueError(f"served must be a model of texts, got {served.artifact.name}")
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._executor, _pieces, served.tokenizer, text)

    async def compute(
        self, rows: Sequence[np.ndarray], served: Served, *, arrived: float | None = None
    ) -> np.ndarray:
        """The logits of token ids that are read already; see `logits`."""

        async def read() -> Sequence[np.ndarray]:
            """The ids, which are there."""
            return rows

        async with served.batcher.admission(len(rows), arrived=arrived) as admitted:
            return await admitted.predict(read)

    def close(self) -> None:
        """Stop reading texts."""
        self._executor.shutdown(wait=False, cancel_futures=True)


def _turns(texts: Sequence[str]) -> Iterator[range]:
    """Which texts are read together, all but the last text of a turn short enough for one."""
    start = size = 0
    for index, text in enumerate(texts):
        size += len(text)
        if size > _TURN or index == len(texts) - 1:
            yield range(start, index + 1)
            start, size = index + 1, 0


def _read(
    tokenizer: TextTokenizer, texts: Sequence[str], max_len: int, first: int
) -> list[Reading]:
    readings: list[Reading] = []
    for index, text in enumerate(texts, first):
        try:
            text.encode()
            readings.append(tokenizer.read(text, max_len))
        except UnicodeEncodeError as error:  # also a ValueError
            raise _invalid(index, "is not Unicode text") from error
        except ValueError as error:
            raise _invalid(index, "cannot be read by the model's tokenizer") from error
        if not readings[-1].tokens:
            raise _invalid(index, "holds nothing that the model reads")
    return readings


def _pieces(tokenizer: TextTokenizer, text: str) -> Pieces:
    try:
        text.encode()
        return tokenizer.pieces(text, _MOST_TOKENS)
    except UnicodeEncodeError as error:  # also a ValueError
        raise _invalid(0, "is not Unicode text") from error
    except ValueError as error:
        raise _invalid(0, "cannot be read by the model's tokenizer") from error


def warnings(reading: Reading) -> list[str]:
    """What the model could not read of a text, in sentences; none where it read everything."""
    words, unknown, cut = reading.words, reading.unknown, len(reading.ids) < reading.tokens
    found = []
    if unknown == words:
        none = "does not know the only word" if words == 1 else f"knows none of the {words:,} words"
        found = [f"The model {none} that it read; its answer says nothing about this text."]
    elif unknown:
        found = [f"{unknown:,} of {words:,} words {'is' if unknown == 1 else 'are'} unknown."]
    if cut:
        found.append(f"Cut at {len(reading.ids):,} of {reading.tokens:,} tokens.")
    return found


def _invalid(index: int, reason: str) -> ApiError:
    return ApiError(422, "invalid_text", f"Text {index} {reason}.", {"text": index})
