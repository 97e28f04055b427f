"""Robust kernel regression: keys far from all others count for less.

Source: Han et al., "Designing robust transformers using robust kernel density estimation", NeurIPS
2023 (RKDE), after Kim and Scott, "Robust kernel density estimation", JMLR 2012 (KS).
"""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from core.fields import check_between, check_positive
from models.attention.base import ANYWHERE, Place
from models.attention.kde import KdeOptions, WeightedKdeAttention

# The least share of a key, relative to one that counts in full: no key is left without any.
_LEAST = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class RkdeOptions(KdeOptions):
    """Options of robust kernel regression, besides those of `KdeOptions`.

    Attributes:
        loss: of the distance from the density: quadratic up to the threshold a, then linear
            ("huber"); or linear up to 2 a only, and flat from 3 a on ("hampel").
        threshold: a, > 0. Distances lie between 0 and 1.
        steps: how often the shares are computed again from the density that they make.
    """

    loss: Literal["huber", "hampel"] = "huber"
    threshold: float = 0.2
    steps: int = 1

    def __post_init__(self) -> None:
        """Check every rule, naming the option and the value received."""
        KdeOptions.__post_init__(self)
        check_positive(self, "threshold")
        check_between(self, 1, 100, "steps")


class RkdeAttention(WeightedKdeAttention):
    """Shares by iteratively re-weighted least squares; arguments as of `Attention`.

    From equal shares w, each step computes the distance of a key from the density of all in the
    space of the kernel, x_j^2 = K_jj - 2 sum_m w_m K_jm + sum_ml w_m w_l K_ml, and from it the
    share, proportional to psi(x_j) = rho'(x_j) / x_j of the loss rho. A threshold of 1 or more
    changes nothing.

    Source: RKDE and KS, the algorithm KIRWLS. The authors' code adds the three terms of x_j^2, all
        with a factor of 1, and gives keys beyond 3 a a hundredth; here none gets less than that.
    """

    Options = RkdeOptions

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        options: RkdeOptions | None = None,
        place: Place = ANYWHERE,
    ) -> None:
        options = options or RkdeOptions()
        super().__init__(embed_dim, num_heads, options=options)
        self.loss, self.threshold, self.steps = options.loss, options.threshold, options.steps

    def shares(self, gram: Tensor, real: Tensor) -> Tensor:
        """See `WeightedKdeAttention.shares`."""
        shares = (real / real.sum(-1, keepdim=True)).expand(gram.shape[:-1])
        for _ in range(self.steps):
            near = (gram @ shares[..., None])[..., 0]
            apart = 1 - 2 * near + (shares * near).sum(-1, keepdim=True)
            psi = self.psi(apart) * real
            shares = psi / psi.sum(-1, keepdim=True)
        return shares

    def psi(self, apart: Tensor) -> Tensor:
        """rho'(x) / x of squared distances x^2."""
        a = self.threshold
        x = apart.clamp_min(a * a).sqrt()  # from 0, where a root has no gradient, to a psi is 1
        psi = a / x
        if self.loss == "hampel":
            psi = psi * ((3 * a - x) / a).clamp_max(1.0)
        return psi.clamp_min(_LEAST)
