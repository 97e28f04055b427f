"""How far k substitutions move what all tokens of a TransJect share: gates and eigenvalues.

A gate weighs experts by z_e = w . M_e with M_e the largest proposals X_e over tokens, coordinate by
coordinate. Where M_e is reached by a token that stays, M_e - M_f is at most what it was, plus what
f loses; where an inserted token a reaches it, M_e - M_f <= min(X_e(a) - X_f(a), X_e(a) - M_f). So
each inserted piece adds at most what it alone would, and each removed token at most what lies
between the largest and the (k + 1)-th largest of f in the coordinates where it is the largest: both
are sums over tokens, and the k largest of each bound z_e - z_f.

An eigenvalue is a mean over tokens of squares q, divided by the largest such mean: the means move
by sums over tokens, and sum_j q_j = ||x||^2.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposals:
    """What any piece at any place proposes in one layer, at the statistics of a table.

    Attributes:
        tops: (V, E, d), the largest of X_e over places.
        gaps: (V, E, E, d), the largest of X_e - X_f over places.
    """

    tops: Tensor
    gaps: Tensor

    @classmethod
    def lowest(cls, pieces: int, experts: int, dim: int) -> "Proposals":
        """Below whatever is proposed."""
        return cls(
            tops=torch.full((pieces, experts, dim), -torch.inf, dtype=torch.float64),
            gaps=torch.full((pieces, experts, experts, dim), -torch.inf, dtype=torch.float64),
        )

    def include(self, rows: slice, proposed: Tensor, entered: Tensor) -> None:
        """Raise those of some pieces, in place, to what they propose at one more place.

        Args:
            rows: which pieces, n of them.
            proposed: (n, E, d), the step times F_e.
            entered: (n, d), the tokens.
        """
        tops, gaps = self.tops[rows], self.gaps[rows]
        torch.maximum(tops, entered[:, None] + proposed, out=tops)
        for expert in range(proposed.shape[1]):
            own = gaps[:, expert]
            torch.maximum(own, proposed[:, expert, None] - proposed, out=own)


def gate_reach(
    weight: Tensor,
    proposed: Tensor,
    moved: Tensor,
    any_piece: Proposals,
    slack: tuple[float, float],
    count: int,
) -> Tensor:
    """Upper bounds (E, E) of z_e - z_f after at most `count` substitutions.

    Args:
        weight: (d,) of the gate.
        proposed: (E, N, d), X_e of the tokens of the text.
        moved: (E, N, 1) or (E, N, d), how far X_e of a token that stays may move.
        any_piece: of the pieces that may be inserted.
        slack: how far X_e, and X_e - X_f, of any piece may lie from `any_piece`.
        count: number of substitutions.
    """
    E, N, _ = proposed.shape
    upper, lower = (proposed + moved).amax(1), proposed - moved
    first = lower.topk(min(count + 1, N), dim=1)
    low, holder = first.values[:, 0], first.indices[:, 0]  # (E, d)
    left = first.values[:, -1] if count < N else torch.full_like(low, -torch.inf)
    apart = (proposed[:, None] - proposed + moved[:, None] + moved).amax(2)  # (E, E, d)
    base = torch.minimum(upper[:, None] - low, apart)
    most = torch.maximum(base, any_piece.gaps.amax(0) + slack[1]) - base
    inserted = torch.minimum(
        any_piece.gaps + slack[1], any_piece.tops[:, :, None] + slack[0] - low
    ).sub_(base)
    lost = torch.minimum((low - left).expand_as(most), most)
    up, down = weight.clamp_min(0), (-weight).clamp_min(0)

    def both(given: Tensor) -> Tensor:
        """Sum over coordinates (..., E, E, d): where w < 0, z_e - z_f grows with M_f - M_e."""
        return given @ up + (given @ down).transpose(-1, -2)

    gained = both(inserted.clamp_min_(0)).topk(min(count, len(inserted)), dim=0).values.sum(0)
    shares = torch.zeros(E, E, N, dtype=weight.dtype)
    shares.scatter_add_(2, holder.expand(E, E, -1), lost * up)
    shares.scatter_add_(2, holder[:, None].expand(E, E, -1), lost.transpose(0, 1) * down)
    gained += shares.topk(min(count, N), dim=2).values.sum(2)
    reach = both(base) + torch.minimum(gained, both(most))
    return reach.fill_diagonal_(0)


def gate_box(reach: Tensor) -> tuple[Tensor, Tensor]:
    """Bounds (E,) of the gates from those (E, E) of z_e - z_f."""
    return 1 / reach.exp().sum(0), 1 / (-reach).exp().sum(1)


def tightened(low: Tensor, high: Tensor) -> tuple[Tensor, Tensor] | None:
    """The same box of numbers that sum to 1, with bounds that some of them reach; None if empty."""
    if float(low.sum()) > 1 or float(high.sum()) < 1:
        return None
    return (
        torch.maximum(low, 1 - (high.sum() - high)),
        torch.minimum(high, 1 - (low.sum() - low)),
    )


def center(low: Tensor, high: Tensor) -> Tensor:
    """Numbers in the box that sum to 1, each as far between its bounds as the others."""
    width = float((high - low).sum())
    share = 0.0 if width <= 0 else float(1 - low.sum()) / width
    return low + share * (high - low)


def least(slope: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Minimum (...) of slope . g over low <= g <= high with sum 1; slope (..., E)."""
    order = slope.argsort(dim=-1)
    room = (high - low)[order]
    before = room.cumsum(-1) - room
    taken = torch.minimum(room, (1 - low.sum() - before).clamp_min(0))
    return slope @ low + (slope.gather(-1, order) * taken).sum(-1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spectrum:
    """Eigenvalues of a text, and how far they can move.

    Attributes:
        raw: (d,) means of squares, before they are divided by the largest.
        low: (d,) the smallest that the means can become.
        high: (d,) the largest.
        budget: of the sum of all their changes.
    """

    raw: Tensor
    low: Tensor
    high: Tensor
    budget: float

    @property
    def scale(self) -> tuple[float, float]:
        """Between which numbers the largest mean stays."""
        return float(self.low.amax()), float(self.high.amax())

    @property
    def values(self) -> Tensor:
        """The eigenvalues of the text, (d,)."""
        return self.raw / self.raw.amax()

    @property
    def box(self) -> tuple[Tensor, Tensor]:
        """Bounds (d,) of the eigenvalues."""
        least, largest = self.scale
        return self.low / largest, (self.high / least).clamp_max(1)

    def moved(self, squares: Tensor) -> Tensor:
        """Bound of ||u (lambda' - lambda)|| for vectors of which (..., d) squares u^2 are given."""
        low, high = self.box
        beta = torch.maximum(high - self.values, self.values - low)
        plain = (squares @ beta.square()).sqrt()
        least, largest = self.scale
        own = float(self.raw.amax())
        change = torch.maximum(self.high - self.raw, self.raw - self.low)
        shift = max(largest - own, own - least)
        joint = ((squares * change).amax(-1) * self.budget).sqrt()
        joint = (joint + (squares @ self.values.square()).sqrt() * shift) / least
        return torch.minimum(plain, joint)


def spectrum(squares: Tensor, highest: Tensor, longest: Tensor, count: int) -> Spectrum:
    """How `count` substitutions move the means of squares.

    Args:
        squares: (N, d) of the text's tokens.
        highest: (N, d) the largest of any piece at these places.
        longest: (N,) the largest ||x||^2 of any piece at these places.
        count: number of substitutions.
    """
    N = len(squares)
    most, raw = min(count, N), squares.mean(0)
    change = squares.sum(1) + longest
    return Spectrum(
        raw=raw,
        low=(raw - squares.topk(most, dim=0).values.sum(0) / N).clamp_min(0),
        high=raw + (highest - squares).clamp_min(0).topk(most, dim=0).values.sum(0) / N,
        budget=float(change.topk(most).values.sum()) / N,
    )
