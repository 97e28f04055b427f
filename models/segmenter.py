"""Segmenter, a transformer that names the class of every pixel, with a DeiT for its encoder.

Parameter names are those of the public checkpoints: the encoder's those of a DeiT behind
`encoder.`, so that weights of a classifier load into it
(`models.checkpoints.load_public(model.encoder, path, skip_head=True)`).

Source: Strudel et al., "Segmenter: Transformer for semantic segmentation", ICCV 2021; the
elliptical form, whose decoder stays dot-product attention: Nielsen et al., "Elliptical Attention",
NeurIPS 2024 (EA).
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from core.fields import check_at_least, check_fraction
from models.deit import DeiTConfig, DeiTEncoder
from models.layers.block import Block, init_linear
from models.layers.images import ImageModel


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmenterConfig(DeiTConfig):
    """What defines a Segmenter: its DeiT, and a decoder of the same width, heads and MLPs.

    `attention` and `drop_path` are the encoder's; `dropout` is the share of each sublayer's output
    that training drops in the decoder's `decoder_depth` layers.
    """

    img_size: int = 512
    num_classes: int = 150
    decoder_depth: int = 2
    dropout: float = 0.1

    def __post_init__(self) -> None:
        """Check every rule, naming the field and the value received."""
        DeiTConfig.__post_init__(self)
        check_at_least(self, 1, "decoder_depth")
        check_fraction(self, "dropout")


class MaskTransformer(nn.Module):
    """From patch tokens to one mask per class: class embeddings join them in the last layers.

    Source: Strudel et al. 2021, section 3.2; the learned maps of patches and classes, and the norm
    over the classes' masks, are of the authors' code. That drops weights of attention and inside
    the MLPs as well.
    """

    def __init__(self, config: SegmenterConfig) -> None:
        super().__init__()
        dim = config.embed_dim
        self.proj_dec = nn.Linear(dim, dim)
        self.cls_emb = nn.Parameter(torch.empty(1, config.num_classes, dim))
        self.proj_patch = nn.Parameter(torch.randn(dim, dim) * dim**-0.5)
        self.proj_classes = nn.Parameter(torch.randn(dim, dim) * dim**-0.5)
        self.blocks = nn.ModuleList(
            Block(
                dim,
                config.num_heads,
                round(dim * config.mlp_ratio),
                norm_eps=config.norm_eps,
                dropout=config.dropout,
            )
            for _ in range(config.decoder_depth)
        )
        self.decoder_norm = nn.LayerNorm(dim, eps=config.norm_eps)
        self.mask_norm = nn.LayerNorm(config.num_classes, eps=config.norm_eps)
        self.apply(init_linear)
        nn.init.trunc_normal_(self.cls_emb, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        """(B, N, d) tokens of the patches to (B, N, K), how well each fits each class."""
        x, count = self.proj_dec(x), x.shape[1]
        x = torch.cat((x, self.cls_emb.expand(x.shape[0], -1, -1)), dim=1)
        for block in self.blocks:
            x, _ = block(x)
        x = self.decoder_norm(x)
        patches = F.normalize(x[:, :count] @ self.proj_patch, dim=2)
        classes = F.normalize(x[:, count:] @ self.proj_classes, dim=2)
        return self.mask_norm(patches @ classes.transpose(1, 2))


class Segmenter(ImageModel):
    """Name the class of every pixel; the normalization of pixels is part of the model."""

    config: SegmenterConfig

    def __init__(self, config: SegmenterConfig) -> None:
        super().__init__(config)
        self.encoder = DeiTEncoder(config)
        self.decoder = MaskTransformer(config)
        self.encoder.draw_weights()

    def forward(self, images: Tensor) -> Tensor:
        """(B, C, H, W), pixels in [0, 1], H = W = img_size, to (B, num_classes, H, W) logits."""
        tokens = self.encoder.tokens(self.normalize(images))
        masks = self.decoder(tokens[:, self.config.num_prefix_tokens :])
        size = self.config.grid_size
        masks = masks.transpose(1, 2).unflatten(2, (size, size))  # (B, K, size, size)
        sides = (self.config.img_size,) * 2
        return F.interpolate(masks, size=sides, mode="bilinear", align_corners=False)
