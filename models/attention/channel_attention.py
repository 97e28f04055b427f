"""Channel attention, which takes the place of the MLP in a FAN block.

Source of each choice: [paper] Zhou et al., "Understanding the robustness in vision transformers",
ICML 2022; [code] the authors' public code; [ours].
"""

import math

import torch
from torch import Tensor, nn


class ShiftedBatchNorm(nn.BatchNorm2d):
    """Batch norm with a learned shift and no learned scale.

    The scale of each channel belongs to the depth-wise convolution that follows [ours].
    """

    def __init__(self, channels: int) -> None:
        super().__init__(channels)
        # A constant in the place of the parameter keeps the fused kernel and its one graph node.
        del self.weight
        self.register_buffer("weight", torch.ones(channels), persistent=False)


class DepthwiseConv(nn.Module):
    """Two 3 x 3 convolutions of each channel alone, with GELU and batch norm between them.

    The tokens form a square grid of side `grid_size`.

    Source: [code]; the second convolution has no bias, since the linear layer behind it has one
    [ours].
    """

    def __init__(self, channels: int, grid_size: int) -> None:
        super().__init__()
        self.grid_size = grid_size
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, groups=channels)
        self.act = nn.GELU()
        self.bn = ShiftedBatchNorm(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, groups=channels, bias=False)
        for conv in (self.conv1, self.conv2):
            nn.init.normal_(conv.weight, std=math.sqrt(2 / 9))
            if conv.bias is not None:
                nn.init.zeros_(conv.bias)

    def forward(self, x: Tensor) -> Tensor:
        """(B, N, channels) to the same shape."""
        x = x.transpose(1, 2).unflatten(2, (self.grid_size, self.grid_size))  # (B, C, H, W)
        x = self.conv2(self.bn(self.act(self.conv1(x))))
        return x.flatten(2).transpose(1, 2)


class ConvMlp(nn.Module):
    """The MLP of the values: its only nonlinearity is a residual depth-wise convolution.

    Source: [code], whose scale of the residual belongs to its last convolution here [ours].
    """

    def __init__(self, embed_dim: int, hidden_dim: int, grid_size: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(embed_dim, hidden_dim)
        self.dwconv = DepthwiseConv(hidden_dim, grid_size)
        self.fc2 = nn.Linear(hidden_dim, embed_dim)

    def forward(self, x: Tensor) -> Tensor:
        """(B, N, embed_dim) to the same shape."""
        x = self.fc1(x)
        return self.fc2(x + self.dwconv(x))


class ChannelAttention(nn.Module):
    """Weigh the channels of the values by how well they agree with a prototype of the tokens.

    For head h with channels d and tokens n,

        p[n, h]   = mean over d of softmax over n of x[n, h, d]           the prototype
        w[h, d]   = t[h] * sigmoid(sum over n of softmax over n of q[n, h, d] * p[n, h])
        out[n, :] = w * LayerNorm(MLP(x))[n, :]

    with q = W x. The cost is linear in tokens and channels. A bias of q would add the same to every
    token, which the softmax takes away again, so q has none [ours].

    Args:
        embed_dim: width d; a multiple of num_heads.
        num_heads: number of heads H.
        hidden_dim: width inside the MLP.
        grid_size: side of the square grid that the tokens form.

    Source: [paper] for efficient channel attention; [code] for the formulas as they are here.
    """

    def __init__(self, embed_dim: int, num_heads: int, hidden_dim: int, grid_size: int) -> None:
        super().__init__()
        self.heads = (num_heads, embed_dim // num_heads)
        self.temperature = nn.Parameter(torch.ones(num_heads, 1, 1))
        self.q = nn.Linear(embed_dim, embed_dim, bias=False)
        self.mlp_v = ConvMlp(embed_dim, hidden_dim, grid_size)
        self.norm_v = nn.LayerNorm(embed_dim)  # torch's eps 1e-5, unlike the other norms [code]

    def forward(self, x: Tensor) -> Tensor:
        """(B, N, embed_dim) to the same shape."""
        return self.weights(x) * self.norm_v(self.mlp_v(x))

    def weights(self, x: Tensor) -> Tensor:
        """(B, N, embed_dim) tokens to the weights w (B, 1, embed_dim) of their channels."""
        prototype = x.softmax(1).unflatten(2, self.heads).mean(3, keepdim=True)  # (B, N, H, 1)
        q = self.q(x).softmax(1).unflatten(2, self.heads)  # (B, N, H, D)
        weights = (q * prototype).sum(1).sigmoid() * self.temperature[:, 0]  # (B, H, D)
        return weights.flatten(1).unsqueeze(1)
