"""TransJect on one long sequence, in blocks of tokens that stay in the processor's cache.

It computes the same function as `FoldedEncoder`, on the real tokens of one sample.
What it saves:

- The first layer multiplies distinct rows only. An embedding is [token; position], so a token's
  share of every product is a row per distinct id; and the table of sinusoids has a numerical rank
  of a hundred or so, since most of its frequencies are too low to tell apart over one sequence.
- Blocks of tokens pass through product, ELU and maximum while they lie in the cache. Only the
  proposals of the experts, which wait for the weights that mix them, are written to memory.
- That memory is kept between calls: new pages would cost as much as the arithmetic on them.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from models.inference.folded import FoldedEncoder, FoldedLayer
from models.layers.tokens import masked_mean
from models.transject import scale_eigenvalues

BLOCK = 1024  # tokens: with four experts and d = 512 a block is 8 MiB

Product = Callable[[slice, Tensor], None]  # writes the product of a block of tokens
Positions = Tensor | slice


class FirstProducts(nn.Module):
    """X0 U_e Sigma V_e of the first layer, from a table of tokens and a basis of positions.

    Args:
        layer: the first folded layer.
        tokens: (vocab_size, d/2) embeddings.
        positions: (seq_len, d/2) table.
        u0: (d, d) basis of the eigenvalues; None where they are fixed.
    """

    basis: Tensor
    token_rows: Tensor
    position_rows: Tensor
    token_projections: Tensor | None
    position_projections: Tensor | None

    def __init__(
        self, layer: FoldedLayer, tokens: Tensor, positions: Tensor, u0: Tensor | None
    ) -> None:
        super().__init__()
        experts, half, dtype = layer.experts, tokens.shape[1], layer.w1.dtype
        left, values, right = torch.linalg.svd(positions.double(), full_matrices=False)
        rank = max(1, int((values > 0.1 * torch.finfo(tokens.dtype).eps * values[0]).sum()))
        shares = (values[:rank, None] * right[:rank]).to(tokens.dtype)  # table = basis @ shares
        first = experts.first.to(tokens.dtype)  # (E, d, d)
        self.register_buffer("basis", left[:, :rank].to(dtype).contiguous())
        self.register_buffer("token_rows", (tokens @ first[:, :half]).to(dtype))
        self.register_buffer("position_rows", (shares @ first[:, half:]).to(dtype))
        self.register_buffer("token_projections", None if u0 is None else tokens @ u0[:half])
        self.register_buffer("position_projections", None if u0 is None else positions @ u0[half:])

    def eigenvalues(self, tokens: Tensor, positions: Positions) -> Tensor | None:
        """Scaled eigenvalues (d,) of the sample with these (N,) ids at these positions.

        None where they are fixed.
        """
        if self.token_projections is None or self.position_projections is None:
            return None
        raw = self.token_projections[tokens]
        raw += self.position_projections[positions]
        return scale_eigenvalues(raw.square_().mean(0))

    def forward(
        self,
        tokens: Tensor,
        positions: Positions,
        eigenvalues: Tensor,
        v: Tensor | None,
        space: "Workspace",
    ) -> Product:
        """Prepare the products of one sample with (N,) ids and eigenvalues (d,).

        Returns:
            What writes X0 U_e Sigma V_e of a block of tokens, (E, block, d); the tables contain
            Sigma V_e where `v` (E, d, d) is None.
        """
        distinct, which = tokens.unique(return_inverse=True)
        rows = torch.cat((self.token_rows[:, distinct], self.position_rows), dim=1)
        if v is not None:
            rows = torch.bmm(rows.mul_(eigenvalues.to(v.dtype)), v)
        known, shares = rows[:, : len(distinct)], rows[:, len(distinct) :]
        basis = self.basis[positions]

        def product(block: slice, out: Tensor) -> None:
            """Write the product of a block, of its positions and of its tokens."""
            torch.bmm(basis[block].expand(len(rows), -1, -1), shares, out=out)
            own = space.tensor("own", out.shape, out)
            out += torch.index_select(known, 1, which[block], out=own)

        return product

    def traced_eigenvalues(self, tokens: Tensor, mask: Tensor | None) -> Tensor | None:
        """`eigenvalues` of a batch that starts at position 0: (B, N) ids and mask to (B, d).

        None where they are fixed.
        """
        if self.token_projections is None or self.position_projections is None:
            return None
        rows = self.token_projections[tokens] + self.position_projections[: tokens.shape[1]]
        return scale_eigenvalues(masked_mean(rows.square(), mask))

    def traced(self, tokens: Tensor, eigenvalues: Tensor, v: Tensor | None) -> Tensor:
        """X0 U_e Sigma V_e (B, E, N, d) of a batch of (B, N) ids that starts at position 0."""
        (B, N), num_tokens = tokens.shape, self.token_rows.shape[1]
        rows = torch.cat((self.token_rows, self.position_rows), dim=1)  # (E, R, d)
        E, R, d = rows.shape
        tables = rows.expand(B, -1, -1, -1)
        if v is not None:
            tables = (rows * eigenvalues[:, None, None].to(v.dtype)) @ v
        starts = torch.arange(B * E, device=tokens.device).view(B, E, 1) * R
        own = F.embedding(starts + tokens[:, None], tables.reshape(-1, d))
        return self.basis[None, None, :N] @ tables[:, :, num_tokens:] + own


class BlockwiseEncoder(nn.Module):
    """Encode one sample without gradients; tables are those of `FirstProducts`."""

    def __init__(self, encoder: FoldedEncoder, tokens: Tensor, positions: Tensor) -> None:
        super().__init__()
        self._encoder = (encoder,)  # in a tuple: the model that has both registers it once
        first = cast(FoldedLayer, encoder.layers[0])
        few = len(tokens) <= len(positions)  # else the table would be larger than what it saves
        self.first = FirstProducts(first, tokens, positions, encoder.u0) if few else None
        self._spare: list[Workspace] = []  # those that no call is using

    def forward(self, x: Tensor, tokens: Tensor, positions: Positions) -> Tensor:
        """Encode the real tokens of one sample: overwrite their embeddings x (N, d)."""
        with torch.autocast(x.device.type, enabled=False):  # it knows no `out`
            return self._encode(x, tokens, positions)

    def __getstate__(self) -> dict[str, Any]:
        """Everything but the workspaces."""
        return self.__dict__ | {"_spare": []}

    def _encode(self, x: Tensor, tokens: Tensor, positions: Positions) -> Tensor:
        (encoder,), long = self._encoder, len(x) > x.shape[1]
        eigenvalues = None if self.first is None else self.first.eigenvalues(tokens, positions)
        if eigenvalues is None:
            eigenvalues = encoder.eigenvalues(x[None])[0]
        try:
            space = self._spare.pop()
        except IndexError:  # the first call, or other threads have them all
            space = Workspace()
        for index, module in enumerate(encoder.layers):
            layer = cast(FoldedLayer, module)
            if index == 0 and self.first is not None and long:
                product = self.first(tokens, positions, eigenvalues, layer.experts.v, space)
            else:
                product = _products(x, layer, eigenvalues, space)
            proposed = space.tensor("proposed", (layer.experts.num_experts, *x.shape), x)
            weights = _propose(x, layer, product, proposed, space)
            _mix(x, layer, weights, proposed, space)
        self._spare.append(space)
        return x


class Workspace:
    """Named pieces of memory that grow with what is asked of them."""

    def __init__(self) -> None:
        self._pieces: dict[str, Tensor] = {}

    def tensor(self, name: str, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """A tensor of this shape with the type and device of another; what it holds is left over.

        Tensors of different names never overlap.
        """
        size = math.prod(shape)
        piece = self._pieces.get(name)
        kind = (like.dtype, like.device)
        if piece is None or piece.numel() < size or (piece.dtype, piece.device) != kind:
            with torch.inference_mode(False):  # calls outside of it will write here too
                piece = torch.empty(size, dtype=like.dtype, device=like.device)
            self._pieces[name] = piece
        return piece[:size].view(shape)


def _propose(
    x: Tensor, layer: FoldedLayer, product: Product, proposed: Tensor, space: Workspace
) -> list[float]:
    """Write X_e of every expert to proposed (E, N, d) and return the weights of the experts."""
    num_experts, N, d = proposed.shape
    largest = x.new_full((num_experts, d), -torch.inf)
    for block in _blocks(N):
        part = proposed[:, block]
        low = part if layer.w1.dtype == x.dtype else space.tensor("low", part.shape, layer.w1)
        product(block, low)
        torch.add(x[block], _elu(low, space), alpha=layer.step, out=part)
        torch.maximum(largest, part.amax(1), out=largest)
    return layer.experts.weights(largest).tolist()


def _mix(
    x: Tensor, layer: FoldedLayer, weights: list[float], proposed: Tensor, space: Workspace
) -> None:
    """Overwrite x (N, d) by the mixture of the proposals (E, N, d), then by the feed-forward."""
    b1, b2 = layer.b1.to(layer.w1.dtype), layer.b2.to(layer.w2.dtype)
    for block in _blocks(len(x)):
        rows = x[block]
        torch.mul(proposed[0, block], weights[0], out=rows)
        for expert, weight in enumerate(weights[1:], start=1):
            rows.add_(proposed[expert, block], alpha=weight)
        first, second = (space.tensor(name, rows.shape, layer.w1) for name in ("first", "second"))
        _elu(torch.addmm(b1, rows.to(first.dtype), layer.w1, out=first), space)
        _elu(torch.addmm(b2, first, layer.w2, out=second), space)
        torch.add(rows, second, alpha=layer.step, out=rows)


def _products(x: Tensor, layer: FoldedLayer, eigenvalues: Tensor, space: Workspace) -> Product:
    """Return what writes X U_e Sigma V_e of a block of tokens, with U_e Sigma V_e if that pays."""
    first, v = layer.experts.first, layer.experts.v
    if v is not None:  # U_e Sigma
        scales = eigenvalues.to(v.dtype)
        first = torch.mul(first, scales, out=space.tensor("scaled", v.shape, v))
    if v is not None and len(x) > x.shape[1]:
        first, v = torch.bmm(first, v, out=space.tensor("matrices", v.shape, v)), None

    def product(block: slice, out: Tensor) -> None:
        """Write the product of a block, by one matrix or by two."""
        rows = x[block].to(first.dtype).expand(len(first), -1, -1)
        if v is None:
            torch.bmm(rows, first, out=out)
        else:
            torch.bmm(torch.bmm(rows, first), v, out=out)

    return product


def _elu(x: Tensor, space: Workspace) -> Tensor:
    """ELU in place: exp is faster than the expm1 of torch's kernel, by a third in float32."""
    negative = torch.clamp(x, max=0, out=space.tensor(f"negative {x.dtype}", x.shape, x))
    return torch.maximum(x, negative.exp_().sub_(1), out=x)


def _blocks(count: int) -> Iterator[slice]:
    return (slice(start, min(start + BLOCK, count)) for start in range(0, count, BLOCK))
