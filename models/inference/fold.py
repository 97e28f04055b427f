"""The inference form of a trained model: plain matrices, no parametrizations, no work done twice.

Traced, with gradients or on a GPU, a folded model computes a whole batch in a few large products.
Called without gradients on a CPU, on long sequences, it goes by `models.inference.blockwise`.
"""

import copy
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from models.inference.blockwise import BlockwiseEncoder
from models.inference.folded import FoldedEncoder, FoldedLayer
from models.layers.contributions import head_input
from models.layers.tokens import TokenModel
from models.layers.tracing import is_traced
from models.transject import TransJect
from models.transject_image import TransJectImage


def fold(model: nn.Module, *, dtype: torch.dtype | None = None) -> nn.Module:
    """Turn a trained model into its inference form, without parametrizations.

    TransJect's matrices become plain ones: U_e Sigma V_e is one per expert where the eigenvalues
    are fixed (Random-TransJect), and one per expert and sample where sequences are longer than the
    model is wide. Any other parametrized weight, such as an orthogonal baseline's, becomes plain.

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
    for part in encoder.modules():
        for name in {"fixed", "u0", "gate", "b1", "b2"} & part._buffers.keys():
            value = getattr(part, name)
            part.register_buffer(name, None if value is None else value.to(own))
    if isinstance(model, TransJect) and long:
        return FoldedLongTransJect(model, encoder).eval()
    model.set_submodule("encoder", encoder)
    return model


def singular_range(model: nn.Module) -> tuple[float, float]:
    """Smallest and largest singular value of a folded TransJect's matrices, 1 but for rounding.

    With fixed eigenvalues the products U_e Sigma V_e are left out: they shrink by design.

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


class FoldedLongTransJect(TokenModel):
    """A folded TransJect, with its folded encoder, for sequences longer than it is wide."""

    def __init__(self, model: TransJect, encoder: FoldedEncoder) -> None:
        super().__init__(model.config)
        self.embedding = model.embedding
        self.positions = model.positions
        self.head = model.head
        self.encoder = encoder
        self.blockwise = BlockwiseEncoder(encoder, model.embedding.weight, model.positions.table)

    embed = TransJect.embed

    def features(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        """See `TransJect.features`."""
        x = self.embed(tokens, mask)
        head, pooling = self.head, self.config.pooling
        # Blocks pay by the cache of a processor; a GPU would wait for each of them.
        whole = not (tokens.is_cpu or torch.is_grad_enabled())
        if whole or is_traced():
            return head_input(head, self._encode_traced(x, tokens, mask), mask, pooling)
        if torch.is_grad_enabled() or not len(tokens):
            return head_input(head, self.encoder(x, mask), mask, pooling)
        pooled = []
        for index in range(len(tokens)):
            real = slice(tokens.shape[1]) if mask is None else mask[index].nonzero()[:, 0]
            encoded = self.blockwise(x[index, real], tokens[index, real], real)
            pooled.append(head_input(head, encoded[None], None, pooling))
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
