"""What every mechanism of attention shares: its maps, its place in a model, what others ask of it.

Models, training, export and attacks know this class alone, and no mechanism by its name.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from core.fields import check_types


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where in a model a layer of attention stands.

    Attributes:
        layer: counted from 1.
        depth: number of layers.
        length: the largest number of tokens, class tokens included; None if nothing limits it.
        causal: whether no token may depend on later ones, as in a language model.
    """

    layer: int = 1
    depth: int = 1
    length: int | None = None
    causal: bool = False

    def seed(self, seed: int) -> int:
        """The seed of this layer: no two layers share one, and no two seeds of a model."""
        return seed * self.depth + self.layer - 1


ANYWHERE = Place()
Cache = dict[str, Tensor]
"""What a causal layer keeps of the tokens that it has seen, by name."""
MOST_SEED = 2**32 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionOptions:
    """The options of a mechanism that has none; those of others extend it."""

    def __post_init__(self) -> None:
        """Check every rule, naming the option and the value received."""
        check_types(self)

    def check_fit(self, *, embed_dim: int, num_heads: int, length: int) -> None:
        """Refuse a model that the mechanism does not fit, naming the rule and the sizes.

        Args:
            embed_dim: width of the model, a multiple of num_heads.
            num_heads: number of heads.
            length: the largest number of tokens, class tokens included.

        Raises:
            ValueError: it does not fit.
        """

    def check_causal(self) -> None:
        """Refuse options under which a causal layer would see later tokens.

        Raises:
            ValueError: there is one.
        """


class Attention(nn.Module):
    """Multi-head self-attention with the parameters of a public DeiT; a mechanism `attend`s.

    Args:
        embed_dim: model width d; a multiple of num_heads.
        num_heads: number of heads H; the head dimension D is embed_dim / num_heads.
        options: those of the mechanism; None for its defaults.
        place: where in a model the layer stands.

    Attributes:
        Options: the class of its options.
        maps: how many (d, d) maps `qkv` holds side by side.
        reads_values: whether it needs the values of the layer before.
        no_map: why there are no N x N weights; empty where there are.
        not_causal: why no layer can be without later tokens; empty where one can.
        causal: whether no token depends on later ones.
        no_cache: why a causal layer cannot `extend` what it has seen; empty where it can.
        generator: what it draws from in every forward pass; None where it answers twice alike.
        metric_gradient: whether gradients flow through its metric; None where it estimates none.
    """

    Options: ClassVar[type[AttentionOptions]] = AttentionOptions
    maps: ClassVar[int] = 3
    reads_values: ClassVar[bool] = False
    no_map: ClassVar[str] = ""
    not_causal: ClassVar[str] = ""
    no_cache: str = ""
    generator: torch.Generator | None = None
    metric_gradient: bool | None = None

    def __init__(
        self, embed_dim: int, num_heads: int, *, options: Any = None, place: Place = ANYWHERE
    ) -> None:
        super().__init__()
        self.num_heads, self.causal = num_heads, place.causal
        self.qkv = nn.Linear(embed_dim, self.maps * embed_dim)
        self.proj = nn.Linear(embed_dim, embed_dim)

    def forward(
        self, x: Tensor, v_prev: Tensor | None = None, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Attend over the tokens of each sample.

        Args:
            x: (B, N, C) tokens.
            v_prev: (B, H, N, D) values of the previous layer; None in the first one.
            mask: (B, N) bool, True for real tokens; None if all are. Padding counts in nothing.

        Returns:
            The attended tokens (B, N, C) and this layer's values (B, H, N, D).
        """
        q, k, v = self.project(x, v_prev, mask)
        attended = self.attend(q, k, v, self.seen(x, mask))
        return self.proj(attended.transpose(1, 2).reshape(x.shape)), v

    def project(
        self, x: Tensor, v_prev: Tensor | None, mask: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Compute q, k and v, each (B, H, N, D); arguments as of `forward`."""
        return self.split(self.qkv(x))

    def split(self, qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(B, N, 3 C) of `qkv` to q, k and v, each (B, H, N, D)."""
        B, N, width = qkv.shape
        heads = qkv.view(B, N, 3, self.num_heads, width // (3 * self.num_heads))
        q, k, v = heads.permute(2, 0, 3, 1, 4).unbind(0)  # each (B, num_heads, N, head_dim)
        return q, k, v

    def seen(self, x: Tensor, mask: Tensor | None) -> Tensor | None:
        """The keys that count: the mask as it is, or those of each query, (B or 1, N, N) bool."""
        return keys_before(x, mask) if self.causal else mask

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        """What the heads give, (B, H, N, D), of what `project` gives and the keys `seen`."""
        raise NotImplementedError

    def extend(self, x: Tensor, v_prev: Tensor | None, cache: Cache) -> tuple[Tensor, Tensor]:
        """`forward` of a causal layer for tokens that follow those in the cache, and join them.

        Args:
            x: (B, n, C) tokens.
            v_prev: (B, H, n, D) their values of the previous layer; None in the first one.
            cache: what the layer keeps of earlier tokens; empty before the first ones.

        Returns:
            What `forward` of all tokens gives for these.
        """
        q, k, v = self.project_next(x, v_prev, cache)
        attended = self.attend_next(q, k, v, cache)
        return self.proj(attended.transpose(1, 2).reshape(x.shape)), v

    def project_next(
        self, x: Tensor, v_prev: Tensor | None, cache: Cache
    ) -> tuple[Tensor, Tensor, Tensor]:
        """`project` of tokens that follow those in the cache."""
        return self.project(x, v_prev, None)

    def attend_next(self, q: Tensor, k: Tensor, v: Tensor, cache: Cache) -> Tensor:
        """`attend` of tokens that follow those in the cache, whose keys and values it holds."""
        k, v = joined(cache, "k", k, dim=-2), joined(cache, "v", v, dim=-2)
        if q.shape[2] == 1:  # one token sees all
            return self.attend(q, k, v, None)
        places = torch.arange(k.shape[-2], device=q.device)
        before = places <= places[-q.shape[2] :, None]  # (n, N)
        return self.attend(q, k, v, before[None])

    def attention_map(
        self, x: Tensor, v_prev: Tensor | None = None, mask: Tensor | None = None
    ) -> Tensor:
        """The attention weights (B, H, N, N) that `forward` uses, rows summing to 1.

        Raises:
            ValueError: the mechanism has no such weights; the message says why.
        """
        if self.no_map:
            raise ValueError(f"attention must have N x N weights to show them: {self.no_map}")
        q, k, _ = self.project(x, v_prev, mask)
        return self.weights(q, k, self.seen(x, mask))

    def weights(self, q: Tensor, k: Tensor, mask: Tensor | None) -> Tensor:
        """The weights (B, H, N, N) of mechanisms without `no_map`; arguments as of `attend`."""
        raise NotImplementedError

    def observed_metric(
        self, x: Tensor, v_prev: Tensor | None = None, mask: Tensor | None = None
    ) -> Tensor | None:
        """The m (B, H, D) that `forward` uses, for the last token; None where it estimates none."""
        return None

    def graph_form(self) -> nn.Module:
        """The same function with the same weights, in operators that make a small graph."""
        return self


def keys_before(x: Tensor, mask: Tensor | None) -> Tensor:
    """The keys that each token sees where none sees later ones: (B or 1, N, N) bool.

    They are the real tokens up to it, and itself even where it is padding, which no one else sees.

    Args:
        x: (B, N, C) tokens.
        mask: (B, N) bool, True for real tokens; None if all are.
    """
    numbers = torch.arange(x.shape[1], device=x.device)
    before = (numbers <= numbers[:, None])[None]
    if mask is None:
        return before
    return (before & mask[:, None]) | (numbers == numbers[:, None])


def joined(cache: Cache, name: str, x: Tensor, *, dim: int) -> Tensor:
    """What a cache holds under a name with `x` behind it, which it holds from now on."""
    cache[name] = torch.cat((cache[name], x), dim=dim) if name in cache else x
    return cache[name]


def layers_of(model: nn.Module) -> list[Attention]:
    """The attention layers of a model, in order."""
    return [layer for layer in model.modules() if isinstance(layer, Attention)]


def has_metric(model: nn.Module) -> bool:
    """Whether any attention layer of the model estimates a metric."""
    return any(layer.metric_gradient is not None for layer in layers_of(model))


def is_randomized(model: nn.Module) -> bool:
    """Whether the model draws at random in every forward pass: it answers nothing twice alike."""
    return any(layer.generator is not None for layer in layers_of(model))


@contextmanager
def metric_gradient(model: nn.Module, enabled: bool) -> Iterator[None]:
    """Let gradients flow through m in every attention layer, or stop them, inside a `with` block.

    The layers' own settings return when the block ends, also after an error. One block at a time:
    two that overlap would change each other's gradients and leave the wrong setting behind; give
    each its own copy of the model.
    """
    layers = [layer for layer in layers_of(model) if layer.metric_gradient is not None]
    before = [layer.metric_gradient for layer in layers]
    try:
        for layer in layers:
            layer.metric_gradient = enabled
        yield
    finally:
        for layer, setting in zip(layers, before, strict=True):
            layer.metric_gradient = setting
