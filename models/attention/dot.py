"""Dot-product attention.

Source: Vaswani et al., "Attention is all you need", 2017, eq. 1.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from models.attention.base import Attention
from models.attention.graphs import PlainAttention
from models.attention.metric import attention_weights


class DotAttention(Attention):
    """softmax(Q K^T / sqrt(D)) V by torch's fused kernel; arguments as of `Attention`."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        """See `Attention.attend`."""
        trained_in_half = q.requires_grad and torch.is_autocast_enabled("cpu")
        if q.is_cpu and trained_in_half and q.shape[-2] <= 512:
            # There torch's fused attention takes up to six times as long, mostly in the gradient.
            return attention_weights(q, k, mask) @ v
        keys = None if mask is None else mask[:, None, None, :]
        return F.scaled_dot_product_attention(q, k, v, attn_mask=keys)

    def weights(self, q: Tensor, k: Tensor, mask: Tensor | None) -> Tensor:
        """See `Attention.weights`."""
        return attention_weights(q, k, mask)

    def graph_form(self) -> nn.Module:
        """See `Attention.graph_form`."""
        return PlainAttention(self.qkv, self.proj, self.num_heads)
