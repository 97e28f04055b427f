"""The layers of TransJect in inference form: plain matrices instead of parametrizations."""

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from models.layers.tokens import masked_mean
from models.transject import Encoder, Layer, scale_eigenvalues


class FoldedExperts(nn.Module):
    """The experts of one layer as batched products.

    Args:
        layer: the trained layer.
        eigenvalues: (d,) where they are the same for every sample, else None.
        long: sequences are longer than d, so that multiplying U_e Sigma V_e out for each sample
            costs less than rotating every token twice.
        dtype: of the matrices.
    """

    first: Tensor
    v: Tensor | None
    gate: Tensor | None

    def __init__(
        self, layer: Layer, eigenvalues: Tensor | None, *, long: bool, dtype: torch.dtype
    ) -> None:
        super().__init__()
        u, v = layer.experts.u.stacked(), layer.experts.v.stacked()
        self.num_experts = len(u)
        self.long = long
        # Either U and V, or their product with fixed eigenvalues between them and nothing more.
        first = u if eigenvalues is None else (u * eigenvalues) @ v
        self.register_buffer("first", first.to(dtype))
        self.register_buffer("v", v.to(dtype) if eigenvalues is None else None)
        gate = layer.experts.gate
        self.register_buffer("gate", None if gate is None else gate.weight[0].clone())

    def products(self, eigenvalues: Tensor) -> Tensor:
        """U_e Sigma V_e: eigenvalues (..., d) to (..., E, d, d), or (E, d, d) if they are fixed."""
        if self.v is None:
            return self.first
        return (self.first * eigenvalues[..., None, None, :].to(self.v.dtype)) @ self.v

    def forward(self, x: Tensor, eigenvalues: Tensor) -> Tensor:
        """X U_e Sigma V_e for every expert: (B, N, d) and (B, d) to (B, E, N, d)."""
        low = x.to(self.first.dtype)
        if self.v is not None and self.long:
            return (low[:, None] @ self.products(eigenvalues)).to(x.dtype)
        rotated = low[:, None] @ self.first
        if self.v is not None:
            rotated = (rotated * eigenvalues[:, None, None].to(low.dtype)) @ self.v
        return rotated.to(x.dtype)

    def weights(self, largest: Tensor) -> Tensor:
        """Weights of the experts from their largest proposals: (..., E, d) to (..., E)."""
        if self.gate is None:
            return largest.new_ones(largest.shape[:-1])
        return (largest @ self.gate).softmax(-1)


class FoldedLayer(nn.Module):
    """One layer, with its step as a number; arguments as of `FoldedExperts`."""

    w1: Tensor
    w2: Tensor
    b1: Tensor
    b2: Tensor

    def __init__(
        self, layer: Layer, eigenvalues: Tensor | None, *, long: bool, dtype: torch.dtype
    ) -> None:
        super().__init__()
        self.step = float(layer.step.detach())
        self.experts = FoldedExperts(layer, eigenvalues, long=long, dtype=dtype)
        w1, w2 = layer.ffn.w.stacked().to(dtype).unbind()
        for name, value in (("w1", w1), ("w2", w2), ("b1", layer.ffn.b1), ("b2", layer.ffn.b2)):
            self.register_buffer(name, value.detach().clone())

    def get_extra_state(self) -> Tensor:
        """The step, so that a state dict is complete."""
        return torch.tensor(self.step, dtype=torch.float64)

    def set_extra_state(self, state: Tensor) -> None:
        """Take the step from a state dict."""
        self.step = float(state)

    def forward(
        self, x: Tensor, eigenvalues: Tensor, mask: Tensor | None, rotated: Tensor | None = None
    ) -> Tensor:
        """Encode tokens (B, N, d) by one layer, with the eigenvalues (B, d) of the samples.

        `rotated` (B, E, N, d) is what `FoldedExperts` gives, where it is known already.
        """
        moves = self.step * F.elu(self.experts(x, eigenvalues) if rotated is None else rotated)
        # Padding is masked in the tokens, not in the proposals, which are E times as many.
        real = x if mask is None else x.masked_fill(~mask[:, :, None], -torch.inf)
        weights = self.experts.weights((moves + real[:, None]).amax(2))
        x = x + (weights[:, None] @ moves.flatten(2)).view_as(x)  # the weights sum to 1
        hidden = F.elu((x.to(self.w1.dtype) @ self.w1).to(x.dtype) + self.b1)
        return x + self.step * F.elu((hidden.to(self.w2.dtype) @ self.w2).to(x.dtype) + self.b2)


class FoldedEncoder(nn.Module):
    """`models.transject.Encoder` without parametrizations; arguments as of `FoldedExperts`."""

    fixed: Tensor | None
    u0: Tensor | None

    def __init__(self, encoder: Encoder, *, long: bool, dtype: torch.dtype) -> None:
        super().__init__()
        fixed = None
        if encoder.diagonal is not None:
            fixed = encoder.eigenvalues(encoder.diagonal[None, None])[0].clone()
        self.register_buffer("fixed", fixed)
        self.register_buffer("u0", None if encoder.u0 is None else encoder.u0.weight)
        self.layers = nn.ModuleList(
            FoldedLayer(cast(Layer, layer), fixed, long=long, dtype=dtype)
            for layer in encoder.layers
        )

    def eigenvalues(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """(B, N, d) embeddings to (B, d), the largest 1 in absolute value."""
        if self.u0 is None:
            return cast(Tensor, self.fixed).expand(x.shape[0], -1)
        return scale_eigenvalues(masked_mean((x @ self.u0).square(), mask))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """(B, N, d) embeddings to encoded tokens of the same shape."""
        return self.encode(x, self.eigenvalues(x, mask), mask)

    def encode(
        self, x: Tensor, eigenvalues: Tensor, mask: Tensor | None, rotated: Tensor | None = None
    ) -> Tensor:
        """The layers alone; `rotated` is for the first one: see `FoldedLayer.forward`."""
        for layer in self.layers:
            x, rotated = layer(x, eigenvalues, mask, rotated), None
        return x
