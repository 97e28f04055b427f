"""Worst pieces: the pieces that mislead a model most, known from its weights, written as a text."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, ClassVar, Literal, cast

import numpy as np

from robustness.attacks.base import Batch, Budget, Info, Search
from robustness.attacks.hotflip import replaced
from robustness.attacks.text_search import CountedEdits, differences
from robustness.kinds import NotPossible
from robustness.logits import margin

if TYPE_CHECKING:
    from data.tokenizer import Pieces, Vocabulary
    from models.analysis.substitutions import Substitutions
    from robustness.target import Target
    from robustness.text_target import TextTarget

_BEGINS, _CONTINUES, _UNWRITTEN = range(3)  # kinds of pieces


class WorstPieces(CountedEdits, frozen=True):
    """The worst case of the proof `substitutions`, as far as a text gives it.

    For each other class the pieces with the largest exact gains are written into the text: of those
    that begin a word, or continue one, as the piece in their place does. One after the other is
    kept if the text then gives the very tokens that were meant; of the texts that come out the
    one with the smallest margin of the served model is taken. Nothing is drawn.
    """

    info: ClassVar[Info] = Info(
        title="Worst Pieces",
        paper="our own",
        what="writes down the worst case that the proof of substitutions is about",
        input="text",
        access="token-wise",
        budget="edits",
        counts="pieces",
    )
    name: Literal["worst-pieces"] = "worst-pieces"

    def cost(self, num_classes: int) -> int:
        """A text for each other class, and the clean one."""
        return num_classes

    def units(self, text: str, target: "TextTarget") -> Sequence[object]:
        """The tokens."""
        return target.encode([text])[0][0].tolist()

    def run(self, target: "Target", batch: Batch, budget: Budget, search: Search) -> Batch:
        """See `Attack.run`; a text that cannot be changed for the worse is as it was.

        Raises:
            NotPossible: the model's worst case is not known.
        """
        model, count = cast("TextTarget", target), int(budget.value)
        table, found = table_of(model), list[tuple[str, int]]()
        vocabulary = model.require_tokenizer().vocabulary()
        for text, label in zip(batch.texts, batch.labels.tolist(), strict=True):
            margins, texts = margins_of(model, [text], label, search), [text]
            if margins[0] > 0 or not search.leave:
                texts += _written(model, table, vocabulary, text, label, count, search)
                margins += margins_of(model, texts[1:], label, search)
            found.append((texts[margins.index(min(margins))], len(texts)))
        edits = [
            differences(self.units(old, model), self.units(new, model))
            for old, (new, _) in zip(batch.texts, found, strict=True)
        ]
        return Batch(
            inputs=[text for text, _ in found],
            labels=batch.labels,
            found={
                "edits": np.array(edits, np.int64),
                "queries": np.array([queries for _, queries in found], np.int64),
            },
        )


def margins_of(target: "TextTarget", texts: list[str], label: int, search: Search) -> list[float]:
    """How far a label leads in each text on the served model."""
    logits = target.predict(texts, search.meter)
    return margin(logits, np.full(len(texts), label)).tolist()


def table_of(target: "TextTarget") -> "Substitutions":
    """The worst pieces of a model, kept from call to call.

    Raises:
        NotPossible: they are not known.
    """
    import torch

    from models.analysis.substitutions import Substitutions, refusal

    model = target.require_torch_model()
    if why := refusal(model):
        raise NotPossible(f"worst pieces of {target.name!r} are not known: {why}")

    def read() -> Substitutions:
        """Tell pieces that begin words from those that continue them."""
        vocabulary = target.require_tokenizer().vocabulary()
        kinds = np.where(vocabulary.continues, _CONTINUES, _BEGINS)
        kinds[[not text for text in vocabulary.texts]] = _UNWRITTEN
        return Substitutions(model, torch.from_numpy(kinds))

    return target.known(Substitutions, model, read)


def _written(
    target: "TextTarget",
    table: "Substitutions",
    vocabulary: "Vocabulary",
    text: str,
    label: int,
    count: int,
    search: Search,
) -> list[str]:
    """For each other class the text with its worst pieces."""
    import torch

    pieces = target.require_tokenizer().pieces(text, target.max_len)
    table.extend(len(pieces.ids), None if search.meter is None else search.meter.before)
    kinds = torch.from_numpy(vocabulary.continues[pieces.ids].astype(np.int64))
    _, gains, chosen = table.gains(torch.from_numpy(pieces.ids), label, kinds)
    order = gains.sort(dim=0, descending=True, stable=True).indices
    found = []
    for other in set(range(gains.shape[1])) - {label}:
        ranked = order[gains[order[:, other], other] > 0, other]
        wanted = zip(ranked.tolist(), chosen[ranked, other].tolist(), strict=True)
        found.append(_write(target, text, pieces, wanted, vocabulary.texts, count))
    return found


def _write(
    target: "TextTarget",
    text: str,
    pieces: "Pieces",
    wanted: Iterable[tuple[int, int]],
    texts: Sequence[str],
    count: int,
) -> str:
    """A text with the first `count` wanted pieces, by their places, that it can hold."""
    kept, made = dict[int, int](), text
    for place, piece in wanted:
        if len(kept) == count:
            break
        trying, ids, changed = kept | {place: piece}, pieces.ids.copy(), text
        for at in sorted(trying, reverse=True):  # spans before a change stay where they are
            ids[at] = trying[at]
            changed = replaced(changed, pieces.spans[at], texts[trying[at]])
        [read] = target.require_tokenizer().ids([changed], target.max_len)
        if np.array_equal(read, ids):
            kept, made = trying, changed
    return made
