"""Dot-product attention.

Source: Vaswani et al., "Attention is all you need", 2017, eq. 1.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from models.attention.base import Attention
from models.attention.graphs import PlainAttention
from models.attention.metric import attention_weights, for_heads


class DotAttention(Attention):
    """softmax(Q K^T / sqrt(D)) V by torch's fused kernel; arguments as of `Attention`."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        """See `Attention.attend`."""
        return attend(q, k, v, mask)

    def weights(self, q: Tensor, k: Tensor, mask: Tensor | None) -> Tensor:
        """See `Attention.weights`."""
        return attention_weights(q, k, mask)

    def graph_form(self) -> nn.Module:
        """See `Attention.graph_form`."""
        return PlainAttention(self.qkv, self.proj, self.num_heads, causal=self.causal)


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """softmax(q k^T / sqrt(D)) v over the real keys, by torch's fused kernel where that is fast.

    (B, H, Q, D) and (B, H, N, D) twice, and (B, N) bool or None, to (B, H, Q, D). A mask (B, Q, N)
    tells which keys each query sees, at least one.
    """
    trained_in_half = q.requires_grad and torch.is_autocast_enabled("cpu")
    if q.is_cpu and trained_in_half and q.shape[-2] <= 512:
        # There torch's fused attention takes up to six times as long, most of it in the gradient.
        return attention_weights(q, k, mask) @ v
    seen = None if mask is None else for_heads(mask)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
