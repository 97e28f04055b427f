"""The inference form of TransJect: plain matrices, no parametrisations, and no work done twice.

Traced, or with gradients, a folded model computes a whole batch in a few large products. Called
without gradients on long sequences it goes by `models.inference.blockwise`.
"""

import copy
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrize

from models.inference.blockwise import BlockwiseEncoder
from models.layers.tokens import masked_mean, pool
from models.layers.tracing import is_traced
from models.transject import Encoder, Layer, TransJect, scale_eigenvalues
from models.transject_image import TransJectImage


def fold(model: nn.Module, *, dtype: torch.dtype | None = None) -> nn.Module:
    """Turn a trained model into its inference form, without parametrisations.

    TransJect's matrices become plain ones: U_e Sigma V_e is one per expert where the eigenvalues
    are fixed (Random-TransJect), and one per expert and sample where sequences are longer than the
    model is wide. Any other parametrised weight, such as an orthogonal baseline's, becomes plain.

    Args:
        model: it is left as it is.
        dtype: of TransJect's matrices and of what is multiplied with them, the model's own if None;
            the tokens between the sublayers keep the model's.

    Returns:
        A copy in eval mode whose parameters need no gradients, with the same logits to 1e-5 in
        float32.
    """
    model = copy.deepcopy(model).eval().requires_grad_(False)
    device = next(model.parameters()).device.type
    with torch.autocast(device, enabled=False):  # it would round the matrices
        return _fold(model, dtype)


def _fold(model: nn.Module, dtype: torch.dtype | None) -> nn.Module:
    if isinstance(model, TransJect | TransJectImage):
        return _fold_transject(model, dtype)
    for name, part in list(model.named_modules()):
        if isinstance(part, TransJect):
            model.set_submodule(name, _fold_transject(part, dtype))
    for part in list(model.modules()):
        if parametrize.is_parametrized(part):
            _make_plain(part)
    return model.requires_grad_(False)


def _make_plain(part: nn.Module) -> None:
    # torch's remove_parametrizations takes the property from the class, which a copy shares with
    # its original: the original would lose its weights.
    names = list(cast(nn.ModuleDict, part.parametrizations))
    dtype = next(part.parameters()).dtype
    part.double()  # see `_fold_transject`
    weights = {name: getattr(part, name) for name in names}
    part.__class__ = type(part).__bases__[0]
    del part.parametrizations
    for name, weight in weights.items():
        part.register_parameter(name, nn.Parameter(weight))
    part.to(dtype)


def _fold_transject(model: TransJect | TransJectImage, dtype: torch.dtype | None) -> nn.Module:
    if isinstance(model.encoder, FoldedEncoder):
        return model
    own = next(model.parameters()).dtype
    long = model.config.seq_len > model.config.embed_dim
    # The Cayley maps are solved in float64, whose result is orthogonal however large the weights.
    encoder = FoldedEncoder(model.encoder.double(), long=long, dtype=dtype or own)
    _round_states(encoder, own)
    if isinstance(model, TransJect) and long:
        return FoldedLongTransJect(model, encoder).eval()
    model.set_submodule("encoder", encoder)
    return model


def _round_states(encoder: nn.Module, dtype: torch.dtype) -> None:
    for part in encoder.modules():
        for name in {"fixed", "u0", "gate", "b1", "b2"} & part._buffers.keys():
            value = getattr(part, name)
            part.register_buffer(name, None if value is None else value.to(dtype))


def singular_range(model: nn.Module) -> tuple[float, float]:
    """Smallest and largest singular value of a folded TransJect's matrices, 1 but for rounding.

    With fixed eigenvalues the products U_e Sigma V_e are left out: they shrink by design.

    Args:
        model: what `fold` returned.

    Raises:
        ValueError: it has no folded layers.
    """
    values = []
    for layer in model.modules():
        if isinstance(layer, FoldedLayer):
            pair = [] if layer.experts.v is None else [layer.experts.first, layer.experts.v]
            for matrices in (*pair, layer.w1, layer.w2):
                values.append(torch.linalg.svdvals(matrices.double()).flatten())
    if not values:
        raise ValueError("model must be a folded TransJect")
    everything = torch.cat(values)
    return float(everything.min()), float(everything.max())


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
    """One layer, with its step as a number.

    Args:
        layer: the trained layer.
        eigenvalues: see `FoldedExperts`.
        long: see `FoldedExperts`.
        dtype: of the matrices.
    """

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
        """Encode tokens by one layer.

        Args:
            x: (B, N, d) tokens.
            eigenvalues: (B, d) of the samples.
            mask: (B, N) bool, True for real tokens.
            rotated: (B, E, N, d), what `FoldedExperts` gives, where it is known already.

        Returns:
            (B, N, d).
        """
        moves = self.step * F.elu(self.experts(x, eigenvalues) if rotated is None else rotated)
        # Padding is masked in the tokens, not in the proposals, which are E times as many.
        real = x if mask is None else x.masked_fill(~mask[:, :, None], -torch.inf)
        weights = self.experts.weights((moves + real[:, None]).amax(2))
        x = x + (weights[:, None] @ moves.flatten(2)).view_as(x)  # the weights sum to 1
        hidden = F.elu((x.to(self.w1.dtype) @ self.w1).to(x.dtype) + self.b1)
        return x + self.step * F.elu((hidden.to(self.w2.dtype) @ self.w2).to(x.dtype) + self.b2)


class FoldedEncoder(nn.Module):
    """`models.transject.Encoder` without parametrisations.

    Args:
        encoder: the trained encoder.
        long: see `FoldedExperts`.
        dtype: of the matrices.
    """

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


class FoldedLongTransJect(nn.Module):
    """A folded TransJect for sequences longer than it is wide.

    Args:
        model: the trained model.
        encoder: its folded encoder.
    """

    def __init__(self, model: TransJect, encoder: FoldedEncoder) -> None:
        super().__init__()
        self.config = model.config
        self.embedding = model.embedding
        self.positions = model.positions
        self.head = model.head
        self.encoder = encoder
        self.blockwise = BlockwiseEncoder(encoder, model.embedding.weight, model.positions.table)

    forward = TransJect.forward
    embed = TransJect.embed

    def features(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        """See `TransJect.features`."""
        x = self.embed(tokens, mask)
        pooling = self.config.pooling
        if is_traced():
            return pool(self._encode_traced(x, tokens, mask), mask, pooling)
        if torch.is_grad_enabled() or not len(tokens):
            return pool(self.encoder(x, mask), mask, pooling)
        pooled = []
        for index in range(len(tokens)):
            real = slice(tokens.shape[1]) if mask is None else mask[index].nonzero()[:, 0]
            encoded = self.blockwise(x[index, real], tokens[index, real], real)
            pooled.append(pool(encoded[None], None, pooling))
        return torch.cat(pooled)

    def _encode_traced(self, x: Tensor, tokens: Tensor, mask: Tensor | None) -> Tensor:
        """With the products of the first layer from tables, where the vocabulary is small."""
        first = self.blockwise.first
        if first is None:
            return self.encoder(x, mask)
        eigenvalues = first.traced_eigenvalues(tokens, mask)
        if eigenvalues is None:
            eigenvalues = self.encoder.eigenvalues(x, mask)
        v = cast(FoldedLayer, self.encoder.layers[0]).experts.v
        rotated = first.traced(tokens, eigenvalues, v).to(x.dtype)
        return self.encoder.encode(x, eigenvalues, mask, rotated)
