"""Word Swap: some words of a text become one that says nothing, whatever the model answers."""

import hashlib
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Literal, cast

import numpy as np
from pydantic import Field, field_validator

from robustness.attacks.base import Attack, Batch, Budget, Info, Search, distinct_numbers
from robustness.kinds import NotPossible
from robustness.parsing import Radii

if TYPE_CHECKING:
    from robustness.target import Target
    from robustness.text_target import TextTarget

REPLACEMENT = "AAA"
RATE = 0.025
"""Share of the words, as in the paper."""
_WORD = re.compile(r"\S+")


class WordSwap(Attack, frozen=True):
    """A share of the words becomes "AAA"; the model is not asked."""

    info: ClassVar[Info] = Info(
        title="Word Swap",
        paper="Elliptical Attention, section 4",
        references=("arXiv:2406.13770",),
        what="random words become “AAA”",
        input="text",
        answers=("class", "tokens"),
        access="none",
        budget="rate",
        by_chance=True,
    )
    name: Literal["word-swap"] = "word-swap"
    rate: Radii = Field(
        default=["0.025"],
        description="shares of the words that are replaced",
        json_schema_extra={"of": {"type": "number", "minimum": 0, "maximum": 1}},
    )

    @field_validator("rate")
    @classmethod
    def _known_rate(cls, rate: list[str]) -> list[str]:
        return distinct_numbers("rate", rate)

    def cost(self, num_classes: int) -> int:
        """Counted as one, though nothing is asked."""
        return 1

    def run(self, target: "Target", batch: Batch, budget: Budget, search: Search) -> Batch:
        """See `Attack.run`; an edit is a word changed.

        Raises:
            NotPossible: the true class is computed from the words, among which is no "AAA".
        """
        if cast("TextTarget", target).relabel is not None:
            raise NotPossible(f"word-swap must not be run on {target.name!r}: no text has words")
        swapped = [
            swap_words(text, rate=budget.value, seed=seed)
            for text, seed in zip(batch.texts, search.seeds, strict=True)
        ]
        edits = [
            sum(old != new for old, new in zip(before.split(), after.split(), strict=True))
            for before, after in zip(batch.texts, swapped, strict=True)
        ]
        spent = {"edits": np.array(edits, np.int64), "queries": np.zeros(len(edits), np.int64)}
        if search.meter is not None:
            search.meter.after(len(edits))
        return Batch(inputs=swapped, labels=batch.labels, found=spent)

    def allowed(
        self, clean: Batch, made: Batch, budget: Budget, target: "Target", seeds: Sequence[int]
    ) -> np.ndarray:
        """What the seeds draw, or the unchanged text."""
        rows = zip(clean.texts, made.texts, seeds, strict=True)
        return np.array(
            [
                after in (before, swap_words(before, rate=budget.value, seed=seed))
                for before, after, seed in rows
            ]
        )


def swap_words(text: str, *, rate: float = RATE, seed: int = 0) -> str:
    """Replace a share of a text's words by "AAA" and leave all else as it was.

    Words are what blanks separate. Of n words floor(rate * n + u) are replaced, with u uniform in
    [0, 1): on average the share is `rate`, for short texts, too. All draws depend on the seed and
    the text alone, so that a text is swapped alike in every set and order.

    Args:
        text: any text.
        rate: share of the words, in [0, 1].
        seed: at least 0.

    Raises:
        ValueError: `rate` or `seed` is out of range.

    Source: Elliptical Attention, section 4, which swaps 2.5 % of the words of a test set.
    """
    if not 0 <= rate <= 1:
        raise ValueError(f"rate must lie in [0, 1], got {rate}")
    if seed < 0:
        raise ValueError(f"seed must be at least 0, got {seed}")
    words = list(_WORD.finditer(text))
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
    random = np.random.default_rng([seed, int.from_bytes(digest, "little")])
    count = min(int(rate * len(words) + random.random()), len(words))
    parts, end = [], 0
    for place in np.sort(random.choice(len(words), count, replace=False)):
        start, stop = words[place].span()
        parts += [text[end:start], REPLACEMENT]
        end = stop
    return "".join([*parts, text[end:]])
