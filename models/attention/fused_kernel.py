# Triton gives annotations and brackets meanings of its own.
# pyright: reportMissingParameterType=false, reportIndexIssue=false
"""The metric m and the scaling of q by it, as one kernel of Triton.

Seven operators of torch read and write the values and queries several times; this reads v, v_prev
and q once and writes q once. Torch's builds for CUDA bring Triton; `fused` is how to ask for this.
"""

import torch
import triton  # pyright: ignore[reportMissingImports] - torch's builds for CUDA alone bring it
import triton.language as tl  # pyright: ignore[reportMissingImports] - see above
from torch import Tensor

_TILE, _WARPS = 8192, 8  # numbers that a program reads at a time, so that many are on their way
_LIMITS = torch.finfo(torch.float32)


@triton.jit
def _kernel(
    q,
    v,
    v_prev,
    q_batch,
    q_head,
    q_row,
    v_batch,
    v_head,
    v_row,
    prev_batch,
    prev_head,
    prev_row,
    heads,
    rows,
    width: tl.constexpr,
    padded: tl.constexpr,
    block: tl.constexpr,
    mean: tl.constexpr,
    least: tl.constexpr,
    most: tl.constexpr,
):
    """One head of one sample: sum |v - v_prev| over its rows, scale it, multiply its q by it."""
    batch = (tl.program_id(0) // heads).to(tl.int64)
    head = tl.program_id(0) % heads
    q += batch * q_batch + head * q_head
    v += batch * v_batch + head * v_head
    v_prev += batch * prev_batch + head * prev_head
    column = tl.arange(0, padded)
    row = tl.arange(0, block)
    total = tl.zeros((block, padded), tl.float32)
    for first in range(0, rows, block):
        at = (first + row)[:, None]
        inside = (at < rows) & (column[None, :] < width)
        now = tl.load(v + at * v_row + column[None, :], mask=inside, other=0.0)
        before = tl.load(v_prev + at * prev_row + column[None, :], mask=inside, other=0.0)
        total += tl.abs(now.to(tl.float32) - before.to(tl.float32))
    m = tl.minimum(tl.maximum(tl.sum(total, 0), least), most)
    m = tl.where(column < width, m, 0.0)
    if mean:
        m = m / (tl.sum(m, 0) / width)
    else:
        m = m / tl.max(m, 0)
    for first in range(0, rows, block):
        at = (first + row)[:, None]
        inside = (at < rows) & (column[None, :] < width)
        place = q + at * q_row + column[None, :]
        scaled = tl.load(place, mask=inside, other=0.0).to(tl.float32) * m[None, :]
        tl.store(place, scaled.to(q.dtype.element_ty), mask=inside)


def scale_queries(q: Tensor, v: Tensor, v_prev: Tensor, *, mean: bool) -> None:
    """Overwrite q by q * m, all (B, H, N, D) of one type below float64, last stride 1.

    m is that of `estimate_metric` without a mask, summed in float32 and scaled by its maximum or
    its mean; it is not rounded to the type of q before it is multiplied.
    """
    B, H, N, D = q.shape
    padded = triton.next_power_of_2(D)
    strides = [stride for each in (q, v, v_prev) for stride in each.stride()[:3]]
    _kernel[(B * H,)](
        q,
        v,
        v_prev,
        *strides,
        H,
        N,
        width=D,
        padded=padded,
        block=min(triton.next_power_of_2(N), _TILE // padded),
        mean=mean,
        least=_LIMITS.tiny,
        most=_LIMITS.max / D,
        num_warps=_WARPS,
    )
