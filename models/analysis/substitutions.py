"""The exact worst case of substituted pieces, for TransJects that read each piece by itself.

With random eigenvalues and one expert the encoder is one map of single tokens, and the mean makes
the logits affine in it: logits = mean over tokens of g(piece, place) + bias. So what one
substitution does to the difference of two logits does not depend on the others, and the worst of
k substitutions takes the k places with the largest gains. This needs g of every piece at every
place, and no search.

A `token_bound` clips g, and without `positions` g is the same everywhere: a bag of pieces.

All of it is computed in float64 from the float32 weights; `Substitutions.rounding` bounds what
float32 arithmetic can add, in whatever order it sums.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from models.analysis import tokenwise
from models.analysis.tokenwise import UNIT, TokenwiseEncoder
from models.transject import TransJect

KINDS = 3
"""How many kinds of pieces are told apart."""
_ROWS = 8192  # tokens that are encoded at once; always as many, so that sums end in the same bits


@dataclass(frozen=True, slots=True, kw_only=True)
class WorstCase:
    """The worst that so many substitutions can do to one text.

    Attributes:
        margin: the label's logit minus the largest other one, in exact arithmetic.
        places: which tokens are replaced, the largest gain first.
        pieces: by which ids.
    """

    margin: float
    places: list[int]
    pieces: list[int]


def refusal(model: nn.Module) -> str | None:
    """Why the worst case of a model is not known exactly, in one sentence; None where it is."""
    rule = "substitutions can be proved of TransJect over texts with random eigenvalues"
    if not isinstance(model, TransJect):
        return f"{rule} in one tower, not of {type(model).__name__}"
    rest = tokenwise.refusal(model.config)
    return None if rest is None else f"{rule}{rest}"


class Substitutions:
    """Worst cases of substitutions in texts of one model.

    The table of the worst piece at every place grows with the longest text: vocabulary x length
    tokens are encoded once.

    Args:
        model: a TransJect that `refusal` has nothing against; it is left as it is.
        kinds: (V,) int64 below `KINDS`, pieces of which the worst are kept apart, such as those
            that begin words and those that continue them; rows
            of the embedding beyond them are of the last kind. None: all are alike.

    Raises:
        ValueError: `refusal` has.
    """

    def __init__(self, model: nn.Module, kinds: Tensor | None = None) -> None:
        why = refusal(model)
        if why is not None or not isinstance(model, TransJect):
            raise ValueError(why)
        self._encoder = TokenwiseEncoder(model)
        exact = self._encoder.exact
        self._embedding = exact.embedding.weight
        self._positions = exact.positions.table
        self._anywhere = not model.config.positions
        self._kinds = torch.zeros(len(self._embedding), dtype=torch.int64)
        if kinds is not None:
            self._kinds.fill_(KINDS - 1)[: len(kinds)] = kinds
        self._given: list[np.ndarray] = []
        self._bias = exact.head.bias
        # by place, kind of piece, label and other class
        self._lowest = self._bias.new_empty((0, KINDS, len(self._bias), len(self._bias)))
        self._pieces = torch.empty(self._lowest.shape, dtype=torch.int64)
        largest = (float(each.norm(dim=1).max()) for each in (self._embedding, self._positions))
        size = torch.tensor([math.hypot(*largest)], dtype=torch.float64)
        origin = torch.zeros(1, model.config.embed_dim, dtype=torch.float64)
        grown = self._encoder.grown(origin, size, UNIT * size)
        self._size, self._error = (float(each) for each in grown)

    @property
    def bias(self) -> np.ndarray:
        """Of the logits, (K,) float64."""
        return self._bias.numpy()

    def contributions(self, tokens: Tensor, places: Tensor) -> Tensor:
        """What tokens (N,) at places (N,) add to N times the logits, (N, K) float64."""
        x = torch.cat((self._embedding[tokens], self._positions[places]), dim=-1)
        return self._encoder.contributions(self._encoder(x))

    def everywhere(self, length: int, before: Callable[[], object] | None = None) -> np.ndarray:
        """What each piece adds to N times the logits at each of the first places, (V, length, K).

        It is kept, V x length x K numbers of float64; `before` is as for `extend`.
        """
        pieces = torch.arange(len(self._embedding))
        for place in range(len(self._given), length):
            if before is not None:
                before()
            rows = [self.contributions(p, torch.full_like(p, place)) for p in pieces.split(_ROWS)]
            self._given.append(torch.cat(rows).numpy())
        return np.stack(self._given[:length], axis=1)

    def extend(self, length: int, before: Callable[[], object] | None = None) -> None:
        """Find the worst piece of every pair of classes at the first places.

        Args:
            length: number of places.
            before: called before each place; what it raises ends the work, and finished places
                stay.
        """
        for place in range(len(self._lowest), length):
            if before is not None:
                before()
            if self._anywhere and place:
                found = self._lowest[:1], self._pieces[:1]
            else:
                found = self._worst_pieces(place)
            self._lowest, self._pieces = (
                torch.cat(pair) for pair in zip((self._lowest, self._pieces), found, strict=True)
            )

    def _worst_pieces(self, place: int) -> tuple[Tensor, Tensor]:
        """The lowest lead (1, KINDS, K, K) of a label over others at a place, and the pieces."""
        pieces = torch.arange(len(self._embedding))
        given = torch.cat(
            [self.contributions(p, torch.full_like(p, place)) for p in pieces.split(_ROWS)]
        )  # (V, K)
        lowest = torch.full(self._lowest.shape[1:], math.inf, dtype=given.dtype)
        chosen = torch.zeros(lowest.shape, dtype=torch.int64)
        for kind in range(KINDS):
            own = pieces[self._kinds == kind]
            for label in range(given.shape[1] if len(own) else 0):
                leads = given[own, label, None] - given[own]
                lowest[kind, label], rows = leads.min(0)
                chosen[kind, label] = own[rows]
        return lowest[None], chosen[None]

    def gains(
        self, tokens: Tensor, label: int, kinds: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """What the worst piece at each place takes from a label's lead over each class.

        Args:
            tokens: (N,) int64, the text.
            label: class that the text should keep.
            kinds: (N,) int64, of which kind the new pieces are; None: of any.

        Returns:
            margins (K,) of the text, gains (N, K), of which the N-th part is lost, and pieces
            (N, K) int64.
        """
        length = len(tokens)
        self.extend(length)
        given = self.contributions(tokens, torch.arange(length))  # (N, K)
        own = given[:, label, None] - given
        lowest, pieces = self._lowest[:length, :, label], self._pieces[:length, :, label]
        if kinds is None:
            lowest, chosen = lowest.min(1, keepdim=True)
        else:
            chosen = kinds[:, None, None].expand(-1, 1, lowest.shape[2])
            lowest = lowest.gather(1, chosen)
        margins = own.mean(0) + self._bias[label] - self._bias
        return margins, own - lowest[:, 0], pieces.gather(1, chosen)[:, 0]

    def worst(self, tokens: Tensor, label: int, counts: Sequence[int]) -> list[WorstCase]:
        """The worst cases of at most so many substitutions, by any pieces at any places.

        Args:
            tokens: (N,) int64, the text.
            label: class that the text should keep.
            counts: numbers of substitutions.
        """
        margins, gains, pieces = self.gains(tokens, label)
        best, places = gains.sort(dim=0, descending=True, stable=True)
        found = []
        for count in counts:
            left = margins - best[:count].sum(0) / len(tokens)
            left[label] = math.inf
            other = int(left.argmin())
            chosen = places[:count, other]
            found.append(
                WorstCase(
                    margin=float(left[other]),
                    places=chosen.tolist(),
                    pieces=pieces[chosen, other].tolist(),
                )
            )
        return found

    def rounding(self, length: int) -> float:
        """How far a difference of logits of `length` tokens in float32 lies from the exact one.

        A bound and no estimate, see `TokenwiseEncoder.grown`.
        """
        return self._encoder.rounding(self._size, self._error, length)
