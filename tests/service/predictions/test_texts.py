"""Texts in turns: nobody waits for all the texts of another request."""

import asyncio
from collections.abc import Iterator

import numpy as np
import pytest

from data.tokenizer import Reading, TextTokenizer
from runtimes.tasks import TEXTS
from service.http.refusal import ApiError
from service.predictions.registry import Registry
from service.predictions.served import Served
from service.predictions.texts import TextPredictions
from service.settings import Settings


@pytest.fixture
def served(settings: Settings) -> Iterator[Served]:
    registry = Registry.open(settings.model_copy(update={"default_text": "tiny-transject"}))
    yield registry.get(None, TEXTS)
    registry.close()


@pytest.mark.anyio
async def test_a_short_text_is_read_between_those_of_a_long_request(
    served: Served, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []

    def read(self: TextTokenizer, text: str, max_len: int) -> Reading:
        seen.append(text)
        return original(self, text, max_len)

    original = TextTokenizer.read
    monkeypatch.setattr(TextTokenizer, "read", read)
    predictions = TextPredictions(settings)
    long, many = ["good " * 2500] * 20, ["bad"] * 60
    found = await asyncio.gather(*(predictions.logits(each, served) for each in (long, many)))
    predictions.close()
    assert [len(logits) for logits, _ in found] == [20, 60]
    short = [place for place, text in enumerate(seen) if text == "bad"]
    assert short == list(range(short[0], short[0] + 60)) and short[-1] < 70


@pytest.mark.anyio
async def test_a_text_that_the_tokenizer_cannot_read_is_the_senders_fault(
    served: Served, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(_: TextTokenizer, text: str, __: int) -> Reading:
        if text == "bad":
            raise ValueError("the tokenizer cannot read this")
        return Reading(ids=np.ones(1, np.int64), tokens=1, words=1, unknown=0)

    monkeypatch.setattr(TextTokenizer, "read", read)
    predictions = TextPredictions(settings)
    with pytest.raises(ApiError, match="Text 2 cannot be read") as refused:
        await predictions.logits(["good " * 5000, "good", "bad"], served)
    predictions.close()
    assert (refused.value.status, refused.value.code) == (422, "invalid_text")
