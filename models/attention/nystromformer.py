"""Nyströmformer: softmax attention by way of landmarks, the means of segments.

Source: Xiong et al., "Nyströmformer: a Nyström-based algorithm for approximating self-attention",
AAAI 2021.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from core.fields import check_between
from models.attention.aligned import AlignedAttention, real_lengths, without_padding
from models.attention.base import ANYWHERE, AttentionOptions, Place
from models.attention.dot import attend
from models.attention.metric import attention_weights
from models.attention.segments import segment_counts, segment_means
from models.layers.tracing import full_precision, is_traced


@dataclass(frozen=True, slots=True, kw_only=True)
class NystromformerOptions(AttentionOptions):
    """Options of Nyströmformer.

    Attributes:
        landmarks: number of segments whose means stand for all queries and keys.
        kernel: how many tokens the convolution of the values sees, an odd number.
        steps: of the iteration for the pseudo-inverse.
    """

    landmarks: int = 64
    kernel: int = 33
    steps: int = 6

    def __post_init__(self) -> None:
        """Check every rule, naming the option and the value received."""
        AttentionOptions.__post_init__(self)
        check_between(self, 1, 2**12, "landmarks", "kernel")
        check_between(self, 1, 100, "steps")
        if self.kernel % 2 == 0:
            raise ValueError(f"kernel must be odd, got {self.kernel}")


class NystromformerAttention(AlignedAttention):
    """softmax(Q L_k^T) softmax(L_q L_k^T)^+ softmax(L_q K^T) V, plus a convolution of V.

    L are the means of equal segments of the real tokens, all scores are divided by sqrt(D). A
    sequence of no more tokens than landmarks has exact softmax attention, since each token is its
    own landmark then. Arguments as of `Attention`.

    Source: Xiong et al. 2021, eq. 13 and algorithm 1; the exact form is theirs where both numbers
        are equal, segments that do not divide the sequence evenly are ours.
    """

    Options = NystromformerOptions
    not_causal = "its landmarks are means over segments of all tokens"
    no_map = "Nyströmformer compares queries and keys with landmarks, not with each other"

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        options: NystromformerOptions | None = None,
        place: Place = ANYWHERE,
    ) -> None:
        super().__init__(embed_dim, num_heads)
        options = options or NystromformerOptions()
        self.landmarks, self.steps = options.landmarks, options.steps
        size, padding = (options.kernel, 1), (options.kernel // 2, 0)
        self.conv = nn.Conv2d(
            num_heads, num_heads, size, padding=padding, groups=num_heads, bias=False
        )

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        """See `Attention.attend`."""
        v, lengths = without_padding(v, mask), real_lengths(q, mask)
        same = mask is None and not is_traced()  # all samples have N tokens, known here
        if same and q.shape[2] <= self.landmarks:
            return attend(q, k, v) + self.conv(v)
        numbers = torch.arange(self.landmarks, device=q.device)
        used = None if same else numbers < segment_counts(lengths, self.landmarks)  # (B, m)
        queries, keys = (self._means(each, lengths, mask) for each in (q, k))  # (B, H, m, D)
        between = attention_weights(queries, keys, used)
        if used is not None:
            between = between * used[:, None, :, None]
        with full_precision(q):
            inverse = pseudo_inverse(between, self.steps)
        gathered = attend(queries, k, v, mask)
        given = inverse.to(gathered.dtype) @ gathered
        if not same:
            exact = (lengths <= self.landmarks)[:, :, None, None]
            given = torch.where(exact, self._means(v, lengths, mask), given)
        return attend(q, keys, given, used) + self.conv(v)

    def _means(self, x: Tensor, lengths: Tensor, mask: Tensor | None) -> Tensor:
        return segment_means(x, lengths, self.landmarks, padded=mask is not None)


def pseudo_inverse(a: Tensor, steps: int) -> Tensor:
    """The Moore-Penrose inverse of matrices (..., m, m), approximately, at least in float32.

    Rows and columns of zeros stay so. Without steps it is the transpose, scaled.

    Source: Xiong et al. 2021, eq. 11, after Razavi et al. 2014; from A^T / (|A|_1 |A|_inf) of each
        matrix itself.
    """
    a = a.to(torch.promote_types(a.dtype, torch.float32))
    sizes = a.abs()
    norm = sizes.sum(-1).amax(-1) * sizes.sum(-2).amax(-1)
    z = a.transpose(-1, -2) / norm[..., None, None]
    one = torch.eye(a.shape[-1], dtype=a.dtype, device=a.device)
    for _ in range(steps):
        az = a @ z
        z = 0.25 * z @ (13 * one - az @ (15 * one - az @ (7 * one - az)))
    return z
