"""TransJect on one long sequence, in blocks of tokens that stay in the processor's cache.

It computes the same function as `models.folded.FoldedEncoder`, on the real tokens of one sample.
What it saves:

- The first layer multiplies distinct rows only. An embedding is [token; position], so a token's
  share of every product is a row per distinct id; and the table of sinusoids has a numerical rank
  of a hundred or so, since most of its frequencies are too low to tell apart over one sequence.
- Blocks of tokens pass through product, ELU and maximum while they lie in the cache. Only the
  proposals of the experts, which wait for the weights that mix them, are written to memory.
- That memory is kept between calls: new pages would cost as much as the arithmetic on them.
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from models.folded import FoldedEncoder, FoldedLayer

BLOCK = 256  # tokens: with four experts and d = 512 a block is 2 MiB

Product = Callable[[slice], Tensor]


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
    v: Tensor | None
    token_squares: Tensor | None
    position_squares: Tensor | None

    def __init__(
        self, layer: "FoldedLayer", tokens: Tensor, positions: Tensor, u0: Tensor | None
    ) -> None:
        super().__init__()
        experts, half, dtype = layer.experts, tokens.shape[1], layer.w1.dtype
        left, values, right = torch.linalg.svd(positions.double(), full_matrices=False)
        rank = int((values > 0.1 * torch.finfo(tokens.dtype).eps * values[0]).sum())
        shares = (values[:rank, None] * right[:rank]).to(tokens.dtype)  # table = basis @ shares
        first = experts.first.to(tokens.dtype)  # (E, d, d)
        self.register_buffer("basis", left[:, :rank].to(dtype).contiguous())
        self.register_buffer("token_rows", (tokens @ first[:, :half]).to(dtype))
        self.register_buffer("position_rows", (shares @ first[:, half:]).to(dtype))
        self.register_buffer("v", experts.v)
        self.register_buffer("token_squares", None if u0 is None else tokens @ u0[:half])
        self.register_buffer("position_squares", None if u0 is None else positions @ u0[half:])

    def eigenvalues(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """Scaled eigenvalues (d,) of the sample with these (N,) ids at these (N,) positions."""
        if self.token_squares is None or self.position_squares is None:
            raise ValueError("fixed eigenvalues are not computed from the tokens")
        raw = self.token_squares[tokens]
        raw += self.position_squares[positions]
        raw = raw.square_().mean(0)
        return raw / raw.amax()

    def forward(self, tokens: Tensor, positions: Tensor, eigenvalues: Tensor) -> Product:
        """Return what maps a block of tokens to X0 U_e Sigma V_e, (E, block, d)."""
        distinct, which = tokens.unique(return_inverse=True)
        rows = torch.cat((self.token_rows[:, distinct], self.position_rows), dim=1)
        if self.v is not None:
            rows = torch.bmm(rows * eigenvalues.to(rows.dtype), self.v)
        known, shares = rows[:, : len(distinct)], rows[:, len(distinct) :]

        def product(block: slice) -> Tensor:
            basis = self.basis[positions[block]].expand(len(rows), -1, -1)
            return known[:, which[block]].baddbmm_(basis, shares)

        return product


class BlockwiseEncoder(nn.Module):
    """Encode one sample without gradients.

    Args:
        encoder: the folded encoder.
        tokens: (vocab_size, d/2) embeddings.
        positions: (seq_len, d/2) table.
    """

    def __init__(self, encoder: "FoldedEncoder", tokens: Tensor, positions: Tensor) -> None:
        super().__init__()
        self.encoder = encoder
        first = cast("FoldedLayer", encoder.layers[0])
        few = len(tokens) <= len(positions)  # else the table would be larger than what it saves
        self.first = FirstProducts(first, tokens, positions, encoder.u0) if few else None
        self._spare: list[Tensor] = []  # workspaces that no call is using

    def forward(self, x: Tensor, tokens: Tensor, positions: Tensor) -> Tensor:
        """Encode the real tokens of one sample.

        Args:
            x: (N, d) embeddings; overwritten.
            tokens: (N,) ids.
            positions: (N,) positions.

        Returns:
            (N, d), the same tensor as x.
        """
        if self.first is None or self.first.token_squares is None:
            eigenvalues = self.encoder.eigenvalues(x[None])[0]
        else:
            eigenvalues = self.first.eigenvalues(tokens, positions)
        try:
            workspace = self._spare.pop()
        except IndexError:  # the first call, or another thread has it
            workspace = x.new_empty(0)
        for index, layer in enumerate(self.encoder.layers):
            layer = cast("FoldedLayer", layer)
            if index == 0 and self.first is not None:
                product = self.first(tokens, positions, eigenvalues)
            else:
                product = _products(x, layer.experts.products(eigenvalues))
            workspace = self._layer(x, layer, product, workspace)
        self._spare.append(workspace)
        return x

    def _layer(
        self, x: Tensor, layer: "FoldedLayer", product: Product, workspace: Tensor
    ) -> Tensor:
        num_experts, (N, d) = layer.experts.num_experts, x.shape
        if workspace.numel() < num_experts * N * d:
            workspace = x.new_empty(num_experts * N * d)
        proposed = workspace[: num_experts * N * d].view(num_experts, N, d)
        largest = x.new_full((num_experts, d), -torch.inf)
        for block in _blocks(N):
            step = _elu(product(block).to(x.dtype))
            part = torch.add(x[block], step, alpha=layer.step, out=proposed[:, block])
            torch.maximum(largest, part.amax(1), out=largest)
        weights = layer.experts.weights(largest)
        for block in _blocks(N):
            mixed = (weights[None] @ proposed[:, block].flatten(1)).view(-1, d)
            low = mixed.to(layer.w1.dtype)
            hidden = _elu(torch.addmm(layer.b1.to(low.dtype), low, layer.w1).to(x.dtype))
            low = hidden.to(layer.w2.dtype)
            step = _elu(torch.addmm(layer.b2.to(low.dtype), low, layer.w2).to(x.dtype))
            torch.add(mixed, step, alpha=layer.step, out=x[block])
        return workspace


def _products(x: Tensor, matrices: Tensor) -> Product:
    def product(block: slice) -> Tensor:
        rows = x[block].to(matrices.dtype)
        return torch.bmm(rows.expand(len(matrices), -1, -1), matrices)

    return product


def _elu(x: Tensor) -> Tensor:
    """ELU in place: exp alone is a third faster than the exact expm1 of torch's kernel."""
    negative = x.clamp(max=0).exp_().sub_(1)
    return torch.maximum(x, negative, out=x)


def _blocks(count: int) -> Iterator[slice]:
    return (slice(start, min(start + BLOCK, count)) for start in range(0, count, BLOCK))
