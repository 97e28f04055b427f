"""Performer: softmax attention estimated by positive orthogonal random features (FAVOR+).

Source: Choromanski et al., "Rethinking attention with Performers", ICLR 2021.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from core.fields import check_between
from models.attention.aligned import AlignedAttention
from models.attention.base import ANYWHERE, MOST_SEED, AttentionOptions, Place
from models.layers.tracing import full_precision


@dataclass(frozen=True, slots=True, kw_only=True)
class PerformerOptions(AttentionOptions):
    """Options of Performer.

    Attributes:
        features: number of random features; the error falls with its root.
        seed: of the features, which are drawn once, another time in every layer.
    """

    features: int = 256
    seed: int = 0

    def __post_init__(self) -> None:
        """Check every rule, naming the option and the value received."""
        AttentionOptions.__post_init__(self)
        check_between(self, 1, 2**14, "features")
        check_between(self, 0, MOST_SEED, "seed")


class PerformerAttention(AlignedAttention):
    """phi(Q) (phi(K)^T V), rows divided by phi(Q) sum phi(K); arguments as of `Attention`.

    phi(x)_f = exp(w_f x' - |x'|^2 / 2) with x' = x / D^(1/4). The largest exponent over the keys of
    each feature, and then over the features of each query, is taken out [ours]: both cancel, no
    exponential overflows, no sum is 0, and no constant need be added to features as in public code.
    """

    Options = PerformerOptions
    no_map = "Performer never compares queries with keys, but both with random features"
    features: Tensor

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        options: PerformerOptions | None = None,
        place: Place = ANYWHERE,
    ) -> None:
        super().__init__(embed_dim, num_heads)
        options = options or PerformerOptions()
        generator = torch.Generator("cpu").manual_seed(place.seed(options.seed))
        features = orthogonal_features(options.features, embed_dim // num_heads, generator)
        self.register_buffer("features", features.to(torch.get_default_dtype()))

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        """See `Attention.attend`."""
        with full_precision(q):
            queries, keys = self.exponents(q), self.exponents(k)  # (B, H, N, F)
        if mask is not None:
            keys = keys.masked_fill(~mask[:, None, :, None], -torch.inf)
        largest = keys.detach().amax(2, keepdim=True)
        # In place: for long sequences new memory of this size takes longer than what fills it.
        queries = queries.add_(largest)
        queries = queries.sub_(queries.detach().amax(3, keepdim=True)).exp_()
        keys = keys.sub_(largest).exp_()
        attended = queries @ (keys.transpose(2, 3) @ v)
        return attended / (queries @ keys.sum(2)[..., None])

    def exponents(self, x: Tensor) -> Tensor:
        """The logarithms of phi, (B, H, N, D) to (B, H, N, F)."""
        x = x.to(self.features.dtype) * x.shape[-1] ** -0.25
        lengths = x.square().sum(-1, keepdim=True)
        return (x @ self.features.transpose(0, 1)).sub_(lengths / 2)


def orthogonal_features(count: int, dim: int, generator: torch.Generator) -> Tensor:
    """Normal vectors (count, dim) float64, orthogonal in blocks of `dim`.

    Source: Choromanski et al. 2021, section 2.4: directions of a random orthogonal matrix, lengths
        of independent normal vectors.
    """

    def draw() -> Tensor:
        """A block of independent normal numbers."""
        # The device is named: under `torch.device("meta")` a model still gets its true features.
        shape = (-(-count // dim), dim, dim)
        return torch.randn(shape, generator=generator, dtype=torch.float64, device="cpu")

    q, r = torch.linalg.qr(draw())
    directions = q * r.diagonal(dim1=1, dim2=2).sign()[:, None]  # uniform among all rotations
    lengths = draw().norm(dim=2)
    return (directions.transpose(1, 2) * lengths[:, :, None]).flatten(0, 1)[:count]
