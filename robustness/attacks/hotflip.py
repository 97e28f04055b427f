"""HotFlip: tokens replaced by those that the model's gradients point at, each one tried."""

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from data.tokenizer import Pieces, Vocabulary
from robustness.attacks.base import Info
from robustness.attacks.text_search import EditAttack, TextSearch

if TYPE_CHECKING:
    from robustness.text_target import TextTarget

# Of the first round that holds a worse text the worst is kept. On the shipped model of reviews, 30
# texts and 3 edits, 13 texts withstood rounds of 16, 11 those of 64 and 8 those of 192.
_ROUND = 192
_RANKED = 4096  # replacements that are considered at one point of the search


class HotFlip(EditAttack, frozen=True):
    """Tokens exchanged along the gradient, one after the other.

    At every point of the search the gradient of the margin with respect to the embeddings ranks all
    replacements of all tokens by what they promise, (e_new - e_old) . gradient. In this order they
    are tried on the served model, 192 at a time, until some are worse; the worst is kept, and its
    token is not replaced again. So five edits take 966 queries where no round is in vain. A
    replacement is written into the text, and counts only if the text then gives the very tokens
    that were meant: the model reads texts, not tokens. Nothing is drawn.

    Source: Ebrahimi et al. 2018, eq. 1 and section 4, there for characters and beams; ranking by
    the margin, tokens of any tokenizer and trying every candidate are our own.
    """

    info: ClassVar[Info] = Info(
        title="HotFlip",
        paper="Ebrahimi et al. 2018",
        references=("arXiv:1712.06751",),
        what="exchanges single tokens, led by the gradient",
        input="text",
        access="gradient",
        budget="edits",
        counts="pieces",
    )
    name: Literal["hotflip"] = "hotflip"

    def improver(self, target: "TextTarget") -> Callable[[TextSearch, int], None]:
        """See `EditAttack.improver`.

        Raises:
            NotPossible: there is no PyTorch model, or not one table of embeddings in it.
        """
        table = target.embedding().weight.detach().float().cpu().numpy()
        vocabulary = target.require_tokenizer().vocabulary()
        return lambda search, _seed: _attack(search, table, vocabulary)

    def units(self, text: str, target: "TextTarget") -> Sequence[object]:
        """The tokens."""
        return target.encode([text])[0][0].tolist()


def _attack(search: TextSearch, table: np.ndarray, vocabulary: Vocabulary) -> None:
    """Run one search to its end; `table` (V, E) holds the embeddings."""
    target, replaced = search.target, list[int]()
    tokenizer = target.require_tokenizer()
    while search.open and search.left > 1:  # a gradient alone would tell nothing
        pieces = tokenizer.pieces(search.text, target.max_len)
        gradient = target.margin_gradient(
            pieces.ids, search.label, variant=search.settings.variant, meter=search.settings.meter
        )
        search.spend()
        gains = _gains(gradient, table, pieces.ids, vocabulary)
        gains[replaced] = -np.inf
        place = _advance(search, pieces, vocabulary, ranked=_ranked(gains))
        if place is None:
            return
        replaced.append(place)


def _gains(
    gradient: np.ndarray, table: np.ndarray, ids: np.ndarray, vocabulary: Vocabulary
) -> np.ndarray:
    """What replacing token n by token v promises, (N, V): by how much the margin falls.

    Minus infinity where v cannot be written there: it has no text of its own, is the token that is
    there, or continues a word where another begins, or the other way round.
    """
    size = len(vocabulary.texts)
    promised = gradient @ table[:size].T  # (N, V)
    gains = promised[np.arange(len(ids)), ids][:, None] - promised
    gains[:, [not text for text in vocabulary.texts]] = -np.inf
    gains[vocabulary.continues[ids][:, None] != vocabulary.continues] = -np.inf
    gains[np.arange(len(ids)), ids] = -np.inf
    return np.where(np.isnan(gains), -np.inf, gains)


def _ranked(gains: np.ndarray) -> list[tuple[int, int]]:
    """Places and tokens of the largest gains, the largest first; equal ones by their place."""
    flat = gains.ravel()
    count = min(_RANKED, flat.size)
    largest = np.sort(np.argpartition(-flat, count - 1)[:count])
    largest = largest[np.isfinite(flat[largest])]
    order = largest[np.argsort(-flat[largest], kind="stable")]
    places, tokens = np.unravel_index(order, gains.shape)
    return list(zip(places.tolist(), tokens.tolist(), strict=True))


def _advance(
    search: TextSearch, pieces: Pieces, vocabulary: Vocabulary, *, ranked: Sequence[tuple[int, int]]
) -> int | None:
    """Try replacements in their order, round by round; the place of the one kept, or None."""
    waiting: list[tuple[int, str]] = []
    for written in _written(search, pieces, vocabulary, ranked=ranked):
        waiting += written
        while len(waiting) >= _ROUND and search.left:
            batch, waiting = waiting[:_ROUND], waiting[_ROUND:]
            chosen = search.advance([text for _, text in batch])
            if chosen is not None:
                return batch[chosen][0]
        if not search.left:
            return None
    chosen = search.advance([text for _, text in waiting])
    return None if chosen is None else waiting[chosen][0]


def _written(
    search: TextSearch, pieces: Pieces, vocabulary: Vocabulary, *, ranked: Sequence[tuple[int, int]]
) -> Iterator[list[tuple[int, str]]]:
    """The places and texts of replacements, those alone that the model would read as meant."""
    target = search.target
    for start in range(0, len(ranked), _ROUND):
        part = ranked[start : start + _ROUND]
        texts = [
            replaced(search.text, pieces.spans[place], vocabulary.texts[token])
            for place, token in part
        ]
        rows = target.require_tokenizer().ids(texts, target.max_len)
        yield [
            (place, text)
            for (place, token), text, row in zip(part, texts, rows, strict=True)
            if _differs_at(pieces.ids, row, place, token) and search.true_class(text) is not None
        ]


def replaced(text: str, span: np.ndarray, written: str) -> str:
    """A text with a piece written in the place of another, whose `span` is given."""
    start, stop = span.tolist()
    if not text[start:stop][:1].isspace():
        # Some vocabularies write the blank before a word with the word.
        written = written.lstrip() or written
    return text[:start] + written + text[stop:]


def _differs_at(before: np.ndarray, after: np.ndarray, place: int, token: int) -> bool:
    if len(before) != len(after) or after[place] != token:
        return False
    return np.count_nonzero(before != after) == 1
