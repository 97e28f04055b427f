"""TransJect: an encoder of orthogonal, injective, Lipschitz-bounded layers, linear in length.

Every sublayer is x + (alpha / L) F(x) with Lip(F) <= 1, token by token, once the eigenvalues and
the expert weights of a sample are given; so it can be inverted (`models.analysis.inversion`), and
distances between the tokens of one sequence change by a bounded factor. Nothing follows between
different sequences, where both differ, except for random eigenvalues and one expert.

Source: "Designing Injective and Low-Entropic Transformer for Short-Long Range Encoding" (TJ). Where
the paper leaves a choice open, the docstrings say what ours is.
"""

from dataclasses import dataclass
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import orthogonal

from core.fields import check_at_least, check_positive, check_types
from models.layers.contributions import contributions, head_input, head_of
from models.layers.tokens import SinusoidalPositions, TokenModel, masked_mean
from models.layers.towers import TransJectTowers
from models.layers.tracing import is_traced

_PAIR_WIDTH = 128  # of the head over two towers, as in the other models of Long Range Arena
MAX_STEP = 1 - 1e-4  # |alpha| stays below 1, so that no sublayer folds two tokens into one


@dataclass(frozen=True, slots=True, kw_only=True)
class TransJectConfig:
    """What defines a TransJect over tokens; the defaults are the paper's for short texts.

    `token_bound` limits what one token adds to the mean (`BoundedHead`); without `positions` the
    model reads a bag of pieces; `embed_std` is the spread of the first embeddings: beside positions
    of size 1, large ones hide from max pooling where a token stands [ours].
    """

    vocab_size: int = 30522
    seq_len: int = 512
    embed_dim: int = 512
    depth: int = 6
    num_experts: int = 4
    num_classes: int = 2
    pooling: Literal["mean", "max"] = "mean"
    random_eigenvalues: bool = False
    towers: int = 1
    token_bound: float | None = None
    positions: bool = True
    embed_std: float = 1.0

    def __post_init__(self) -> None:
        """Check every rule, naming the field and the value received."""
        check_types(self)
        check_encoder(self)
        check_positive(self, "embed_std")
        if self.towers not in (1, 2):
            raise ValueError(f"towers must be 1 or 2, got {self.towers}")
        if self.towers == 2 and self.token_bound is not None:
            raise ValueError(f"token_bound needs one tower, got {self.token_bound}")
        check_at_least(self, 1, "vocab_size", "seq_len")


def check_encoder(config: Any) -> None:
    """Raise ValueError for sizes that no encoder can have."""
    check_at_least(config, 1, "depth", "num_experts", "num_classes")
    if config.embed_dim < 4 or config.embed_dim % 4:
        raise ValueError(f"embed_dim must be a positive multiple of 4, got {config.embed_dim}")
    check_positive(config, "token_bound")
    if config.token_bound is not None and config.pooling != "mean":
        raise ValueError(f"token_bound needs mean pooling, got {config.pooling}")


class OrthogonalMap(nn.Module):
    """One learnable orthogonal matrix, `weight` of shape (dim, dim).

    The Cayley map of a skew-symmetric matrix: torch's matrix exponential misses 1e-5 in float32 at
    dim 512. No base matrix is multiplied to it, so that autocast never rounds the product. In
    float32 it stays within 1e-5 until the weights are some five times their first size; `fold`
    solves in float64 and does not depend on it.
    """

    weight: Tensor

    def __init__(self, dim: int) -> None:
        super().__init__()
        # Entries of this size spread the angles of the rotation over most of the circle.
        self.weight = nn.Parameter(torch.randn(dim, dim) * 2 / dim**0.5)
        orthogonal(self, orthogonal_map="cayley", use_trivialization=False)


class OrthogonalMaps(nn.ModuleList):
    """Some orthogonal matrices of one size.

    They are separate parameters, because MKL fails on a batch of large systems of equations once
    somebody has called `torch.set_num_threads`.
    """

    def __init__(self, count: int, dim: int) -> None:
        super().__init__(OrthogonalMap(dim) for _ in range(count))

    def stacked(self) -> Tensor:
        """The matrices, (count, dim, dim)."""
        return torch.stack([cast(OrthogonalMap, each).weight for each in self])


class Experts(nn.Module):
    """A mixture of rotations: every expert proposes tokens, one weight per sample and expert mixes.

    Args:
        num_experts: number of experts E; one alone needs no gate.
        dim: width d.

    Source: TJ eq. 5-7.
    """

    def __init__(self, num_experts: int, dim: int) -> None:
        super().__init__()
        self.u = OrthogonalMaps(num_experts, dim)
        self.v = OrthogonalMaps(num_experts, dim)
        self.gate = nn.Linear(dim, 1, bias=False) if num_experts > 1 else None

    def forward(
        self, x: Tensor, eigenvalues: Tensor, step: Tensor, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Mix the experts' proposals to tokens (B, N, d), and tell their weights (B, E).

        Args:
            x: (B, N, d) tokens.
            eigenvalues: (B, d), at most 1 in absolute value.
            step: scalar alpha / L.
            mask: (B, N) bool, True for real tokens.
        """
        moved = self._moved(x, eigenvalues)
        weights = self._weights(x, moved, step, mask)
        # The weights sum to 1: the tokens themselves need no expert.
        return x + torch.einsum("be,bend->bnd", step * weights, moved), weights

    def outputs(self, x: Tensor, eigenvalues: Tensor, step: Tensor) -> Tensor:
        """X_e = X + (alpha / L) ELU(X U_e Sigma V_e) of every expert, (B, E, N, d)."""
        return x[:, None] + step * self._moved(x, eigenvalues)

    def _moved(self, x: Tensor, eigenvalues: Tensor) -> Tensor:
        """ELU(X U_e Sigma V_e) of every expert, (B, E, N, d)."""
        u, v = self.u.stacked(), self.v.stacked()
        # One matrix a sample costs less then, but rounds otherwise than proofs allow for.
        if self.training and not is_traced() and x.shape[1] > x.shape[2]:
            return F.elu(x[:, None] @ ((u * eigenvalues[:, None, None]) @ v))
        rotated = torch.einsum("bnd,edk->benk", x, u) * eigenvalues[:, None, None]
        return F.elu(rotated @ v)

    def _weights(self, x: Tensor, moved: Tensor, step: Tensor, mask: Tensor | None) -> Tensor:
        """Softmax over experts of w . max over real tokens of X_e, (B, E)."""
        if self.gate is None:
            return x.new_ones(x.shape[0], 1)
        if is_traced() or not torch.is_grad_enabled():
            largest = _proposed(x, moved, step, mask).amax(2)
        else:  # only the largest pass a gradient, so it need not go through all proposals
            with torch.no_grad():
                at = _proposed(x, moved, step, mask).argmax(2, keepdim=True)  # (B, E, 1, d)
            own, moves = (each.gather(2, at) for each in (x[:, None].expand_as(moved), moved))
            largest = (own + step * moves).squeeze(2)
        return self.gate(largest).squeeze(-1).softmax(-1)


def _proposed(x: Tensor, moved: Tensor, step: Tensor, mask: Tensor | None) -> Tensor:
    """X_e of every expert, (B, E, N, d), -inf where a token is padding."""
    proposed = x[:, None] + step * moved
    return proposed if mask is None else proposed.masked_fill(~mask[:, None, :, None], -torch.inf)


class FeedForward(nn.Module):
    """X + (alpha / L) ELU(ELU(X W1 + b1) W2 + b2) with square orthogonal W (TJ eq. 8)."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.w = OrthogonalMaps(2, dim)
        self.b1 = nn.Parameter(torch.zeros(dim))
        self.b2 = nn.Parameter(torch.zeros(dim))

    def forward(self, x: Tensor, step: Tensor) -> Tensor:
        """(B, N, d) tokens and the scalar alpha / L to (B, N, d)."""
        w1, w2 = self.w.stacked().unbind()
        return x + step * F.elu(F.elu(x @ w1 + self.b1) @ w2 + self.b2)


class Layer(nn.Module):
    """Experts, then the feed-forward, both with the step alpha / L of an encoder of L layers."""

    def __init__(self, num_experts: int, dim: int, depth: int) -> None:
        super().__init__()
        self.depth = depth
        self.r = nn.Parameter(torch.zeros(()))
        self.experts = Experts(num_experts, dim)
        self.ffn = FeedForward(dim)

    @property
    def step(self) -> Tensor:
        """alpha / L with alpha = tanh(r), a scalar; r = 0 at first, as in ReZero."""
        alpha = self.r.tanh()
        # The bound passes gradients on, so that a step that has reached it may still turn back.
        return (alpha - (alpha - alpha.clamp(-MAX_STEP, MAX_STEP)).detach()) / self.depth

    def forward(
        self, x: Tensor, eigenvalues: Tensor, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """(B, N, d), (B, d) and (B, N) to the tokens (B, N, d) and the experts' weights (B, E)."""
        x, weights = self.experts(x, eigenvalues, self.step, mask)
        return self.ffn(x, self.step), weights


class Encoder(nn.Module):
    """Eigenvalues of a sample, then the layers.

    The eigenvalues are the diagonal of U0' G U0 with G = X'X / N over the real tokens, computed
    without any d x d matrix, and divided by the largest. Random-TransJect learns one diagonal
    instead, the same for every sample.

    Args:
        config: with the width d `embed_dim`, the number of layers L `depth`, of the experts in each
            `num_experts`, and `random_eigenvalues`.

    Source: TJ section 4.1; dividing G by N and by the largest eigenvalue is our reading of its
    "standardization".
    """

    def __init__(self, config: Any) -> None:
        super().__init__()
        dim, depth = config.embed_dim, config.depth
        if config.random_eigenvalues:
            self.u0, self.diagonal = None, nn.Parameter(torch.rand(dim))
        else:
            self.u0, self.diagonal = OrthogonalMap(dim), None
        self.layers = nn.ModuleList(Layer(config.num_experts, dim, depth) for _ in range(depth))

    def eigenvalues(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Scaled so that the largest is 1 in absolute value: (B, N, d) embeddings to (B, d)."""
        if self.u0 is not None:
            return scale_eigenvalues(masked_mean((x @ self.u0.weight).square(), mask))
        diagonal = cast(Tensor, self.diagonal)
        scale = diagonal.abs().amax().clamp_min(torch.finfo(x.dtype).tiny)
        return (diagonal / scale).expand(x.shape[0], -1)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Encode (B, N, d) embeddings; padded tokens (mask False) touch no other token."""
        eigenvalues = self.eigenvalues(x, mask)
        for layer in self.layers:
            x, _ = layer(x, eigenvalues, mask)
        return x

    def reconstruction_loss(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """How far U0 is from diagonalizing G: mean over the batch of ||G - U0 diag U0'||^2 / d^2.

        The embeddings are detached, so that the loss trains U0 alone. Zero with random eigenvalues.

        Args:
            x: (B, N, d) embeddings.
            mask: (B, N) bool, True for real tokens.
        """
        x = x.detach()
        if self.u0 is None:
            return x.new_zeros(())
        real = x if mask is None else x.masked_fill(~mask[:, :, None], 0.0)
        count = x.shape[1] if mask is None else mask.sum(1)[:, None, None]
        gram = real.transpose(1, 2) @ real / count
        kept = masked_mean((x @ self.u0.weight).square(), mask).square().sum(-1)
        return ((gram.square().sum((1, 2)) - kept) / x.shape[-1] ** 2).mean()


def scale_eigenvalues(raw: Tensor) -> Tensor:
    """Divide eigenvalues (..., d) >= 0 by the largest of each sample."""
    return raw / raw.amax(-1, keepdim=True).clamp_min(torch.finfo(raw.dtype).tiny)


class TransJect(TokenModel):
    """Classify sequences of tokens.

    Source: TJ section 4; the embedding [token; position] is its section 4.4.
    """

    config: TransJectConfig

    def __init__(self, config: TransJectConfig) -> None:
        super().__init__(config)
        half = config.embed_dim // 2
        self.embedding = nn.Embedding(config.vocab_size, half)
        with torch.no_grad():
            self.embedding.weight.mul_(config.embed_std)
        self.positions = SinusoidalPositions(config.seq_len, half, used=config.positions)
        self.encoder = Encoder(config)
        self.head = head_of(config)

    def features(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        """See `TokenModel.features`."""
        x = self.encoder(self.embed(tokens, mask), mask)
        return head_input(self.head, x, mask, self.config.pooling)

    def contributions(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        """What each token adds to the logits before mean and bias, (B, N, K)."""
        return contributions(self.head, self.encoder(self.embed(tokens, mask), mask))

    def embed(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        """X0 = [token; position], (B, N, embed_dim); arguments as for `features`."""
        self.check(tokens, mask)
        B, N = tokens.shape
        positions = self.positions(N).expand(B, -1, -1)
        return torch.cat((self.embedding(tokens), positions), dim=-1)

    def logits_and_reconstruction(
        self, tokens: Tensor, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """The logits and the reconstruction loss that training adds to the task's loss."""
        x = self.embed(tokens, mask)
        logits = self.head(head_input(self.head, self.encoder(x, mask), mask, self.config.pooling))
        return logits, self.encoder.reconstruction_loss(x, mask)


def transject_model(config: TransJectConfig) -> TransJect | TransJectTowers:
    """The model of a config: one tower or two."""
    encoder = TransJect(config)
    return encoder if config.towers == 1 else TransJectTowers(encoder, hidden_dim=_PAIR_WIDTH)
