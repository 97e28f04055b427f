"""Routers of mixtures of experts: which experts read a token, and whether they have room for it.

Sources: Fedus et al., "Switch Transformers", JMLR 2022 (Switch); Du et al., "GLaM", ICML 2022;
Lepikhin et al., "GShard", ICLR 2021.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from models.layers.tracing import full_precision


class Routes(NamedTuple):
    """The k experts of each token, the best first, and what became of each choice.

    Attributes:
        probs: (B, N, E) of the router.
        experts: (B, N, k) int64, in 0..E-1.
        weights: (B, N, k) by which their answers are multiplied.
        slots: (B, N, k) int64: how many of these tokens the expert has before this one.
        kept: (B, N, k) bool: whether the expert has room; False of padding.
    """

    probs: Tensor
    experts: Tensor
    weights: Tensor
    slots: Tensor
    kept: Tensor


class Router(nn.Module):
    """Send each token to the k experts that a linear layer finds likeliest.

    An expert reads the first `capacity` real tokens of a sequence that choose it: slots are counted
    token by token, all choices of a token before those of the next, so that no route depends on
    later tokens or on other sequences. GShard's top-2 gate counts second choices after the first
    ones of all tokens instead, which is a leak in a causal model.

    Args:
        embed_dim: width d of the tokens.
        num_experts: number of experts E.
        top_k: number of choices k of a token.
        capacity: tokens of a sequence that an expert reads.
        jitter: in training, tokens are read times random factors in [1 - jitter, 1 + jitter].
        normalized: whether the weights of a token's choices sum to 1, as in GLaM; else they are
            the router's probabilities, as in Switch (eq. 2).

    Attributes:
        auxiliary_loss: see `load_balance`, of the last pass in training; None once it was taken.
    """

    def __init__(
        self,
        embed_dim: int,
        num_experts: int,
        *,
        top_k: int = 1,
        capacity: int,
        jitter: float = 0.0,
        normalized: bool = False,
    ) -> None:
        super().__init__()
        self.top_k, self.capacity = top_k, capacity
        self.jitter, self.normalized = jitter, normalized
        self.weight = nn.Parameter(torch.empty(num_experts, embed_dim))
        nn.init.uniform_(self.weight, -(embed_dim**-0.5), embed_dim**-0.5)
        self.auxiliary_loss: Tensor | None = None

    def forward(self, x: Tensor, mask: Tensor | None = None, loads: Tensor | None = None) -> Routes:
        """Route tokens, in float32 at least, also under autocast (Switch, section 2.4).

        Args:
            x: (B, N, d) tokens.
            mask: (B, N) bool, True for real tokens; None if all are.
            loads: (B, E) int64, how many tokens before these chose each expert; None if none did.
        """
        probs = self._probs(x)
        top, experts = probs.topk(self.top_k, dim=-1)
        weights = top / top.sum(-1, keepdim=True) if self.normalized else top
        real = torch.ones_like(x[:, :, 0], dtype=torch.bool) if mask is None else mask
        chosen = F.one_hot(experts, probs.shape[2]).sum(2) * real[:, :, None]  # (B, N, E)
        slots = (chosen.cumsum(1) - chosen).gather(2, experts)
        before = 0 if loads is None else loads[:, None].expand_as(chosen).gather(2, experts)
        kept = (slots + before < self.capacity) & real[:, :, None]
        if self.training:
            self.auxiliary_loss = load_balance(probs, experts, real)
        return Routes(probs, experts, weights, slots, kept)

    def _probs(self, x: Tensor) -> Tensor:
        dtype = torch.promote_types(x.dtype, torch.float32)
        with full_precision(x):
            x = x.to(dtype)
            if self.training and self.jitter:
                x = x * torch.empty_like(x).uniform_(1 - self.jitter, 1 + self.jitter)
            return F.linear(x, self.weight.to(dtype)).softmax(-1)


def load_balance(probs: Tensor, experts: Tensor, real: Tensor) -> Tensor:
    """E * sum over experts of f_e P_e, a scalar: 1 where all are used alike.

    f_e is the share of the batch's real tokens whose first choice is e, P_e their mean probability.

    Args:
        probs: (B, N, E).
        experts: (B, N, k) int64 choices.
        real: (B, N) bool.

    Source: Switch, eq. 4-6, for one layer and without its weight; with several choices the first
        counts alone, as in GShard, algorithm 1.
    """
    E = probs.shape[2]
    first = F.one_hot(experts[:, :, 0], E).to(probs.dtype)
    share = (real.to(probs.dtype) / real.sum())[:, :, None]
    return E * ((first * share).sum((0, 1)) * (probs * share).sum((0, 1))).sum()


def auxiliary_loss(model: nn.Module) -> Tensor | float:
    """The sum of the auxiliary losses that a model's modules hold of their last pass; 0 of none.

    They are taken: a loss kept would keep the graph of its pass.
    """
    total: Tensor | float = 0.0
    module: Any  # any module may have one
    for module in model.modules():
        if getattr(module, "auxiliary_loss", None) is not None:
            total = total + module.auxiliary_loss
            module.auxiliary_loss = None
    return total
