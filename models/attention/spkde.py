"""Scaled and projected kernel regression: the density, made larger and projected back.

Source: Han et al., "Designing robust transformers using robust kernel density estimation", NeurIPS
2023 (RKDE), after Vandermeulen and Scott, "Robust kernel density estimation by scaling and
projection in Hilbert space", NeurIPS 2014 (VS).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from core.fields import check_between, check_fraction
from models.attention.base import ANYWHERE, Place
from models.attention.kde import KdeOptions, WeightedKdeAttention

# The part of the shares that is equal for all keys: none is left without any.
_EQUAL = 0.01
# Keys so close that rounding alone would tell them apart keep equal shares.
_LEAST_BOUND = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class SpkdeOptions(KdeOptions):
    """Options of scaling and projection, besides those of `KdeOptions`.

    Attributes:
        outliers: the share of the keys that is taken for outliers, in [0, 1); the density is made
            1 / (1 - outliers) times as large.
        steps: of the accelerated projected gradient.
    """

    outliers: float = 0.05
    steps: int = 20

    def __post_init__(self) -> None:
        """Check every rule, naming the option and the value received."""
        KdeOptions.__post_init__(self)
        check_fraction(self, "outliers")
        check_between(self, 1, 1000, "steps")


class SpkdeAttention(WeightedKdeAttention):
    """Shares a on the simplex that minimize |beta p - p_a|^2, p_a = sum_j a_j K(., k_j).

    p has equal shares, beta = 1 / (1 - outliers). With the kernel matrix K the quadratic programme
    is min a' K a / 2 - beta a' K 1 / n. A fixed number of steps approximates its solution, from
    equal shares: of the projected gradient, accelerated (Beck and Teboulle 2009), for K with its
    rows and columns centered, which changes nothing on the simplex and lets steps be longer. The
    shares are then mixed with 1 % of equal ones. Without outliers it is `KdeAttention`. Arguments
    as of `Attention`.

    Source: RKDE and VS. Steps, centering and mixing are ours: the authors' code calls a solver on
        the CPU, for one kernel matrix averaged over batch and heads, and no gradient goes through.
    """

    Options = SpkdeOptions

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        options: SpkdeOptions | None = None,
        place: Place = ANYWHERE,
    ) -> None:
        options = options or SpkdeOptions()
        super().__init__(embed_dim, num_heads, options=options)
        self.outliers, self.steps = options.outliers, options.steps

    def shares(self, gram: Tensor, real: Tensor) -> Tensor:
        """See `WeightedKdeAttention.shares`."""
        equal = (real / real.sum(-1, keepdim=True)).expand(gram.shape[:-1])
        scale = self.outliers / (1 - self.outliers)  # beta - 1
        gram = gram * real[..., None] * real[..., None, :]
        means = (gram @ equal[..., None])[..., 0]  # (..., N), K 1 / n
        mean = (means * equal).sum(-1, keepdim=True)
        centered = gram - means[..., None] - means[..., None, :] + mean[..., None]
        centered = centered * real[..., None] * real[..., None, :]
        # a' K a is a' C a + 2 a' K 1 / n + a number, so the linear part is (beta - 1) K 1 / n.
        target = scale * (means - mean) * real
        bound = centered.abs().sum(-1).amax(-1, keepdim=True)  # no eigenvalue of C is larger
        bound = bound.clamp_min(_LEAST_BOUND)
        shares = ahead = equal
        for step in range(self.steps):
            slope = (centered @ ahead[..., None])[..., 0] - target
            before, shares = shares, onto_simplex(ahead - slope / bound, real)
            ahead = shares + step / (step + 3) * (shares - before)
        return (1 - _EQUAL) * shares + _EQUAL * equal


def onto_simplex(x: Tensor, real: Tensor) -> Tensor:
    """The nearest point on the simplex of the real tokens, (..., N) and (B or 1, 1, N) ones.

    Source: Duchi et al., "Efficient projections onto the l1-ball", ICML 2008, algorithm 1.
    """
    x = x * real
    lowest = x.detach().amin(-1, keepdim=True) - 1.0  # below what any real token can have left
    x = torch.where(real > 0, x, lowest)
    ordered = x.sort(dim=-1, descending=True).values
    excess = ordered.cumsum(-1) - 1.0
    ranks = torch.ones_like(ordered).cumsum(-1)
    kept = (ordered * ranks > excess).to(x.dtype)
    threshold = ((ordered * kept).sum(-1, keepdim=True) - 1.0) / kept.sum(-1, keepdim=True)
    return (x - threshold).clamp_min(0.0) * real
