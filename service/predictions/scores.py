"""From a text to what a language model thinks of each of its tokens."""

import asyncio
import math

import numpy as np
from typing_extensions import TypedDict  # pydantic needs this one before Python 3.12

from data.tokenizer import Pieces
from runtimes.surprise import AT_ONCE, losses, windows
from service.http.refusal import ApiError
from service.predictions.served import Served
from service.predictions.texts import TextPredictions


class ScoredToken(TypedDict):
    """A token as the text has it, where it starts, and -log2 of its probability.

    The first one has none.
    """

    token: str
    start: int
    surprise: float | None


class Scores(TypedDict):
    """What a model thinks of a text.

    `count` tokens are predicted, each from at most `context` before it, and from at least half of
    them where there are as many.
    """

    tokens: list[ScoredToken]
    perplexity: float
    bits_per_character: float
    count: int
    context: int
    model: str
    digest: str


async def score(
    texts: TextPredictions, text: str, served: Served, *, arrived: float | None = None
) -> Scores:
    """The surprise of each token of a text, window by window.

    Args:
        texts: reads texts.
        text: of at least two tokens.
        served: a language model.
        arrived: time of the event loop from which the deadline counts; None is now.

    Raises:
        ApiError: 413 text_too_long; 422 invalid_text, text_too_short; 503 overloaded; 504 timeout.
    """
    pieces = await texts.pieces(text, served)
    if len(pieces.ids) < 2:
        message = f"The text must hold at least two tokens, got {len(pieces.ids)}."
        raise ApiError(422, "text_too_short", message)
    context = served.artifact.text_spec.max_len
    starts = windows(len(pieces.ids), context)
    found: list[np.ndarray] = []  # of each window, of the tokens that no earlier one predicts
    seen = 1
    for first in range(0, len(starts), AT_ONCE):
        rows = [pieces.ids[start : start + context] for start in starts[first : first + AT_ONCE]]
        logits = await texts.compute(rows, served, arrived=arrived)
        for row, start, given in zip(rows, starts[first:], logits, strict=False):
            skipped = seen - start
            found.append(await asyncio.to_thread(losses, given, row, skipped))
            seen = start + len(row)
    surprises = np.concatenate(found) / math.log(2)
    return await asyncio.to_thread(_described, text, pieces, surprises, served)


def _described(text: str, pieces: Pieces, surprises: np.ndarray, served: Served) -> Scores:
    artifact, total = served.artifact, float(surprises.sum())
    values = [None, *surprises.tolist()]
    tokens: list[ScoredToken] = [
        {"token": text[low:high], "start": low, "surprise": value}
        for (low, high), value in zip(pieces.spans.tolist(), values, strict=True)
    ]
    # A character of several bytes has a token for each, all of them with its place.
    characters = max(1, len(text) - int(pieces.spans[0, 1]))
    return {
        "tokens": tokens,
        "perplexity": 2 ** min(total / len(surprises), 1000.0),
        "bits_per_character": total / characters,
        "count": len(surprises),
        "context": artifact.text_spec.max_len,
        "model": artifact.name,
        "digest": artifact.digest,
    }
