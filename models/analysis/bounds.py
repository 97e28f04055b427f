"""A lower bound of the worst case of substituted pieces, for TransJects whose tokens meet.

At given statistics (`models.analysis.shared`) substitutions do not depend on each other, as in
`models.analysis.substitutions`. But k of them also move the statistics of all N tokens:

1. Reach (`models.analysis.reach`): a box of the statistics that k substitutions can lead to.
2. In a box around its center the margin is at least that of the text with the statistics of the
   center, plus the least that its tangent takes in the box, minus ||a|| mean(rho), minus the k
   largest gains of single substitutions, each wider by ||a|| delta of both tokens, over N. ||a|| is
   the norm of the difference of two rows of the head. Eigenvalues are linear in what is replaced,
   so that their tangent is part of the gains, and both compete for the k places.
3. A box whose bound is not above zero is halved, a number of times, unless it is far below
   (`models.analysis.boxes`).

The gains come from a table of contributions at statistics of the model alone (those of a text made
of its pieces), so that it is computed once; how far the box is from them makes the gains wider. The
bound is sound and not exact; for random eigenvalues and one expert it is the exact worst case.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from models.analysis.boxes import TextBound
from models.analysis.reach import Proposals, Spectrum, spectrum
from models.analysis.shared import SharedEncoder, Sizes
from models.analysis.substitutions import WorstCase
from models.transject import TransJect, TransJectConfig

_LARGEST = 2 * 2**30  # bytes that a model's table may take
_ROWS = 1024  # tokens that are encoded at once; always as many, so that sums end in the same bits


def refusal(model: nn.Module) -> str | None:
    """Why no bound of a model is known, in one sentence; None where there is one."""
    rule = "substitutions can be bounded of TransJect over texts"
    if not isinstance(model, TransJect):
        return f"{rule} in one tower, not of {type(model).__name__}"
    pooling = model.config.pooling
    if pooling != "mean":
        return f"{rule} with mean pooling; with {pooling} pooling one token hides others"
    size = _bytes(model.config)
    if size > _LARGEST:
        return f"{rule} whose table fits into 2 GiB; this one takes {size / 2**30:.1f}"
    return None


def _bytes(config: TransJectConfig) -> int:
    """What `Bounds` keeps of a model."""
    experts = config.num_experts if config.num_experts > 1 else 0
    gates = config.depth * (experts + experts**2) * config.embed_dim
    return 8 * config.vocab_size * (gates + config.seq_len * config.num_classes)


class Bounds:
    """Bounds of worst cases of substitutions in texts of one model.

    All pieces are encoded once at all places, and what they add to the logits is kept.

    Args:
        model: a TransJect that `refusal` has nothing against; it is left as it is.

    Raises:
        ValueError: `refusal` has.
    """

    def __init__(self, model: nn.Module) -> None:
        why = refusal(model)
        if why is not None or not isinstance(model, TransJect):
            raise ValueError(why)
        with torch.no_grad():
            self.encoder = SharedEncoder(model)
            length, pieces = len(self.encoder.positions), len(self.encoder.embedding)
            share = (torch.arange(length, dtype=torch.float64) + 0.5) / length
            made = self.encoder.tokens((pieces**share).long())  # Zipf's law over ids
            self.eigenvalues = self.encoder.eigenvalues(made)
            self._mixed = self.encoder.mixed(self.eigenvalues)
            self.gates = [each.gate for each in self.encoder.read(made, self._mixed)[1]]
            self.sizes: list[Sizes] = []
            self.proposals = [
                Proposals.lowest(pieces, *each.u.shape[:2])
                for each in self.encoder.layers
                if each.gate is not None
            ]
            self._given: list[Tensor] = []  # of each place, (V, K)
            self._lowest: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}

    def extend(self, length: int, before: Callable[[], object] | None = None) -> None:
        """Encode every piece at every place, also behind `length`: a bound holds for all texts.

        Args:
            length: number of places.
            before: called before each place; what it raises ends the work, and finished places
                stay.
        """
        for place in range(len(self._given), len(self.encoder.positions)):
            if before is not None:
                before()
            with torch.no_grad():
                self._encode(place)

    def _encode(self, place: int) -> None:
        """Keep what pieces add, and the largest of their sizes and proposals."""
        given = []
        for start in range(0, len(self.encoder.embedding), _ROWS):
            rows = slice(start, start + _ROWS)
            pieces = self.encoder.embedding[rows]
            here = self.encoder.positions[place].expand(len(pieces), -1)
            out, seen = self.encoder.read(torch.cat((pieces, here), -1), self._mixed, self.gates)
            given.append(self.encoder.contributions(out))
            pairs = list(zip(self.encoder.layers, seen, strict=True))
            sizes = [self.encoder.sizes(*pair) for pair in pairs]
            before = self.sizes or [None] * len(sizes)
            self.sizes = [a.largest(b) for a, b in zip(sizes, before, strict=True)]
            gated = [pair for pair in pairs if pair[0].gate is not None]
            for kept, (layer, one) in zip(self.proposals, gated, strict=True):
                kept.include(rows, (layer.step * one.proposed).transpose(0, 1), one.entered)
        self._given.append(torch.cat(given))

    def worst(self, tokens: Tensor, label: int, counts: Sequence[int]) -> list[WorstCase]:
        """Bounds of the worst cases of at most so many substitutions.

        Args:
            tokens: (N,) int64, the text.
            label: class that the text should keep.
            counts: numbers of substitutions.

        Returns:
            For each count a margin that no such text falls below, and the substitutions that are
            worst where the tangent is followed and no gate moves.
        """
        self.extend(len(tokens))
        with torch.no_grad():
            return [TextBound(self, tokens, label, count).worst() for count in counts]

    def rounding(self, length: int) -> float:
        """What float32 may take from a bound of a text of `length` tokens.

        What it does to the gates is part of the bound.
        """
        return self.encoder.rounding(length)[0]

    def lowest(self, label: int, other: int, length: int) -> tuple[Tensor, Tensor]:
        """The smallest difference of what a piece adds at each place (N,), and which does."""
        if (label, other) not in self._lowest:
            found = self.differences(label, other, len(self._given)).min(1)
            self._lowest[label, other] = found.values, found.indices
        values, pieces = self._lowest[label, other]
        return values[:length], pieces[:length]

    def differences(self, label: int, other: int, length: int) -> Tensor:
        """Differences (N, V) of what pieces add to two logits."""
        return torch.stack([each[:, label] - each[:, other] for each in self._given[:length]])

    def spectrum(self, x: Tensor, count: int) -> Spectrum | None:
        """Eigenvalues of a text (N, d) after `count` substitutions; None if they never move."""
        u0, embedding = self.encoder.u0, self.encoder.embedding
        if u0 is None:
            return None
        here = self.encoder.positions[: len(x)]
        turned, placed = embedding @ u0[: embedding.shape[1]], here @ u0[embedding.shape[1] :]
        ends = placed + turned.amin(0), placed + turned.amax(0)
        return spectrum(
            (x @ u0).square(),
            torch.maximum(ends[0].square(), ends[1].square()),
            embedding.square().sum(1).amax() + here.square().sum(1),
            count,
        )

    def squares(self, slope: Tensor, length: int) -> Tensor:
        """slope . (x U0)^2 of all pieces at all places, (N, V)."""
        embedding, u0 = self.encoder.embedding, self.encoder.u0
        turned = embedding @ u0[: embedding.shape[1]]
        placed = self.encoder.positions[:length] @ u0[embedding.shape[1] :]
        crossed = 2 * (placed * slope) @ turned.T
        return crossed + turned.square() @ slope + (placed.square() @ slope)[:, None]
