"""Mixtures of experts: feed-forwards of which each token passes only a few.

Sources: Fedus et al., "Switch Transformers", JMLR 2022 (Switch); Du et al., "GLaM", ICML 2022.
"""

import math
from dataclasses import dataclass, fields
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from core.fields import check_at_least, check_between, check_fraction, check_positive
from models.attention.base import Cache
from models.attention.config import AttentionConfig
from models.layers.routing import Router, Routes
from models.layers.tracing import at_most, is_traced

_FACTOR = 1.25
"""Room for each choice, as a share of what equal loads need (Switch, section 2.2)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """What sets one kind of mixture apart from another."""

    top_k: int  # choices of a token
    every: int  # one layer in so many is a mixture
    normalized: bool  # whether the weights of a token's choices sum to 1


KINDS = {
    "switch": Kind(top_k=1, every=1, normalized=False),
    "glam": Kind(top_k=2, every=2, normalized=True),
}
"""By the name that a config gives as `experts`."""


class Mixture(nn.Module):
    """E multilayer perceptrons, of which each token passes those that a router chooses.

    They have no biases, as in Switch and GLaM. A token that no expert has room for gets 0: it
    passes by on the residual path. Each expert has a fixed number of slots for each sequence, so
    that no shape depends on values.

    Args:
        router: chooses among E experts.
        hidden_dim: width inside of each.
    """

    def __init__(self, router: Router, hidden_dim: int) -> None:
        super().__init__()
        self.num_experts, embed_dim = router.weight.shape
        self.router = router
        self.w1 = nn.Parameter(torch.empty(self.num_experts, embed_dim, hidden_dim))
        self.act = nn.GELU()
        self.w2 = nn.Parameter(torch.empty(self.num_experts, hidden_dim, embed_dim))
        for weight in (self.w1, self.w2):  # as `nn.Linear`
            nn.init.uniform_(weight, -(weight.shape[1] ** -0.5), weight.shape[1] ** -0.5)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """(B, N, embed_dim) and the mask (B, N) of real tokens, None if all are, to x's shape."""
        return self._mixed(x, self.router(x, mask))

    def extend(self, x: Tensor, cache: Cache) -> Tensor:
        """`forward` for tokens that follow those whose number by expert is in the cache."""
        routes = self.router(x, loads=cache.get("loads"))
        loads = F.one_hot(routes.experts, self.num_experts).sum((1, 2))
        cache["loads"] = loads + cache["loads"] if "loads" in cache else loads
        return self._mixed(x, routes)

    def _mixed(self, x: Tensor, routes: Routes) -> Tensor:
        """What the experts make of tokens (B, N, embed_dim) on their routes, of x's shape."""
        B, N, C = x.shape
        room = at_most(N, self.router.capacity)  # slots of an expert in each sequence
        total = self.num_experts * B * room
        samples, tokens = (torch.arange(n, device=x.device) for n in (B, N))
        slots = (routes.experts * B + samples[:, None, None]) * room + routes.slots
        # Choices without room share one slot behind all others, which nothing reads.
        target = torch.where(routes.kept, slots, total).flatten()
        source = (samples[:, None, None] * N + tokens[:, None]).expand(slots.shape).flatten()
        source = source.new_zeros(total + 1).scatter(0, target, source)[:total]
        read = x.reshape(B * N, C).index_select(0, source).view(self.num_experts, B * room, C)
        answers = self._experts(read).view(total, C)
        given = answers.index_select(0, (slots * routes.kept).flatten()).view(B, N, -1, C)
        weights = (routes.weights * routes.kept).to(given.dtype)
        return (given * weights[..., None]).sum(2)

    def _experts(self, x: Tensor) -> Tensor:
        """What each expert makes of its own tokens, (E, M, embed_dim)."""
        if x.device.type != "cpu" or is_traced():
            return self.act(x @ self.w1) @ self.w2
        # One after the other they stay in the caches, and need no fresh memory.
        each = zip(x, self.w1, self.w2, strict=True)
        return torch.stack([self.act(own @ w1) @ w2 for own, w1, w2 in each])


@dataclass(frozen=True, slots=True, kw_only=True)
class MixtureConfig(AttentionConfig):
    """The feed-forwards of a transformer: dense ones, or mixtures of experts.

    The config of a model extends it, and gives `hidden_dim` beside what `AttentionConfig` needs.

    Attributes:
        experts: the kind of mixture; None is dense. "glam" has mixtures in layers 2, 4, ... alone.
        num_experts: number of experts E.
        top_k: experts of each token, each of them as many times narrower, so that a token passes as
            many weights as in the dense model; None is 1 for "switch" and 2 for "glam".
        capacity_factor: an expert reads at most capacity_factor * max_tokens / E tokens of a
            sequence, rounded up, whatever its length; None is 1.25 for each choice.
        jitter: of the router, in training.
    """

    experts: Literal["switch", "glam"] | None = None
    num_experts: int = 8
    top_k: int | None = None
    capacity_factor: float | None = None
    jitter: float = 0.01

    def __post_init__(self) -> None:
        """Check every rule, naming the field and the value received."""
        AttentionConfig.__post_init__(self)
        check_at_least(self, 1, "num_experts", "top_k")
        check_positive(self, "capacity_factor")
        check_fraction(self, "jitter")
        if self.experts is None:
            self._check_dense()
            return
        check_between(self, 1, self.num_experts, "top_k")
        if self.num_experts < self.choices:
            raise ValueError(
                f"num_experts must be at least top_k {self.choices}, got {self.num_experts}"
            )
        if self.hidden_dim % self.choices:
            sizes = f"{self.hidden_dim} and {self.choices}"
            raise ValueError(f"hidden_dim must be a multiple of top_k, got {sizes}")

    def _check_dense(self) -> None:
        """Refuse options of mixtures, which would change nothing."""
        for field in fields(MixtureConfig):
            own = field.name not in AttentionConfig.__dataclass_fields__
            if own and getattr(self, field.name) != field.default:
                value = getattr(self, field.name)
                raise ValueError(f"{field.name} needs experts, got {value} with experts None")

    @property
    def hidden_dim(self) -> int:
        """Width inside a dense feed-forward."""
        raise NotImplementedError

    @property
    def choices(self) -> int:
        """How many experts a token has."""
        if self.experts is None:
            return 0
        return self.top_k or KINDS[self.experts].top_k

    @property
    def capacity(self) -> int:
        """Most tokens of a sequence that an expert reads."""
        factor = self.capacity_factor or _FACTOR * self.choices
        return min(math.ceil(factor * self.max_tokens / self.num_experts), self.max_tokens)

    def mixture_at(self, layer: int) -> Mixture | None:
        """The mixture of one layer, counted from 1; None where it has a dense feed-forward."""
        if self.experts is None or layer % KINDS[self.experts].every:
            return None
        router = Router(
            self.embed_dim,
            self.num_experts,
            top_k=self.choices,
            capacity=self.capacity,
            jitter=self.jitter,
            normalized=KINDS[self.experts].normalized,
        )
        return Mixture(router, self.hidden_dim // self.choices)
