"""Performer: softmax attention estimated by positive orthogonal random features (FAVOR+).

Source: Choromanski et al., "Rethinking attention with Performers", ICLR 2021.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from core.fields import check_between
from models.attention.aligned import AlignedAttention
from models.attention.base import ANYWHERE, MOST_SEED, AttentionOptions, Cache, Place
from models.layers.tracing import full_precision, is_traced

_CHUNK = 64
"""Tokens of a causal layer that are compared with each other; sums stand for those before."""
_ROOM = 60.0
"""Largest exponent of a key: in float32 sums of its exponentials do not overflow."""
_LEAST = 1e-19
"""Least sum to divide by: its square, which the gradient divides by, is a number of float32."""


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
    A causal layer sums over the keys up to each query. Since the largest exponent would depend on
    later ones, what no exponent of a key exceeds, |w_f|^2 / 2, is taken out there; where all keys
    are further than about 14 from all features, the answer falls to 0.
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
        super().__init__(embed_dim, num_heads, place=place)
        options = options or PerformerOptions()
        generator = torch.Generator("cpu").manual_seed(place.seed(options.seed))
        features = orthogonal_features(options.features, embed_dim // num_heads, generator)
        self.register_buffer("features", features.to(torch.get_default_dtype()))

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        """See `Attention.attend`."""
        if self.causal:
            return self._attend_before(q, k, v)
        with full_precision(q):
            keys = self.exponents(k)  # (B, H, N, F)
            if mask is not None:
                keys = keys.masked_fill(~mask[:, None, :, None], -torch.inf)
            largest = keys.detach().amax(2, keepdim=True)
            # A query's length is common to all its features, and cancels.
            queries = self._products(q, torch.ones_like(q[..., :1]), largest)
        # In place: for long sequences new memory of this size takes longer than what fills it.
        queries = queries.sub_(queries.detach().amax(3, keepdim=True)).exp_()
        keys = keys.sub_(largest).exp_()
        counted = torch.cat((v, torch.ones_like(v[..., :1])), dim=3)
        sums = queries @ (keys.transpose(2, 3) @ counted)
        return sums[..., :-1] / sums[..., -1:]

    def _attend_before(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """What each query draws from the keys up to it, (B, H, N, D)."""
        sums = product_before(*self._features_before(q, k), F.pad(v, (0, 1), value=1.0))
        return _divided(sums).to(v.dtype)

    def _features_before(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """phi of queries and keys, (B, H, N, F), but for factors that cancel."""
        with full_precision(q):
            bound = self.features.square().sum(1) / 2 - _ROOM
            queries, keys = self.exponents(q) + bound, (self.exponents(k) - bound).exp()
            return (queries - queries.detach().amax(3, keepdim=True)).exp(), keys

    def attend_next(self, q: Tensor, k: Tensor, v: Tensor, cache: Cache) -> Tensor:
        """See `Attention.attend_next`; the cache holds the sums over the keys."""
        queries, keys = self._features_before(q, k)
        counted = F.pad(v, (0, 1), value=1.0)
        sums = product_before(queries, keys, counted)
        if "sums" in cache:
            sums = sums + queries @ cache["sums"]
        cache["sums"] = cache.get("sums", 0.0) + keys.transpose(2, 3) @ counted
        return _divided(sums).to(v.dtype)

    def exponents(self, x: Tensor) -> Tensor:
        """The logarithms of phi, (B, H, N, D) to (B, H, N, F)."""
        lengths = x.to(self.features.dtype).square().sum(-1, keepdim=True) * x.shape[-1] ** -0.5
        return self._products(
            x, -lengths / 2, torch.ones_like(self.features[None, None, None, :, 0])
        )

    def _products(self, x: Tensor, added: Tensor, factor: Tensor) -> Tensor:
        """w_f x' + added * factor in one product: (B, H, N, D), (B, H, N, 1), (..., 1, F)."""
        x = x.to(self.features.dtype) * x.shape[-1] ** -0.25
        features = self.features.transpose(0, 1).expand(*factor.shape[:2], -1, -1)
        columns = torch.cat((features, factor), dim=2)  # (..., D + 1, F)
        return torch.cat((x, added.to(x.dtype)), dim=3) @ columns


def product_before(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """sum_{j <= n} (q_n k_j) v_j: (B, H, N, F) twice and (B, H, N, D) to (B, H, N, D).

    Chunk by chunk, so that neither N x N nor N x F x D numbers are kept.
    """
    # In a graph one chunk more than needed: a single one would be another shape to torch.
    N, more = q.shape[2], 1 if is_traced() else 0
    starts = torch.arange((N + _CHUNK - 1) // _CHUNK + more, device=q.device)[:, None] * _CHUNK
    places = (starts + torch.arange(_CHUNK, device=q.device)).clamp(max=N - 1)
    # What stands again behind the last token is seen by nothing but itself.
    q, k, v = (each[:, :, places] for each in (q, k, v))  # (B, H, chunks, _CHUNK, ...)
    sums = (k.transpose(-2, -1) @ v).cumsum(2)
    before = F.pad(sums[:, :, :-1], (0, 0, 0, 0, 1, 0))  # (B, H, chunks, F, D)
    product = (q @ k.transpose(-2, -1)).tril() @ v + q @ before.to(q.dtype)
    return product.flatten(2, 3).index_select(2, torch.arange(N, device=q.device))


def _divided(sums: Tensor) -> Tensor:
    """Sums of values (..., D + 1) by the last one, which is that of ones."""
    return sums[..., :-1] / sums[..., -1:].clamp_min(_LEAST)


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
