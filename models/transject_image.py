"""TransJect over image patches: continuous tokens, so that pixel attacks apply to it [ours].

An image gives [patch; position] where a text gives [token; position]; the encoder is the same.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from core.fields import check_types
from models.deit import PatchEmbed
from models.layers.contributions import contributions, head_input, head_of
from models.layers.images import ImageModel, check_images
from models.layers.tokens import SinusoidalPositions
from models.transject import Encoder, check_encoder


@dataclass(frozen=True, slots=True, kw_only=True)
class TransJectImageConfig:
    """What defines a TransJect over image patches; the defaults fit CIFAR-10.

    The embedding is injective when a patch has no more than embed_dim / 2 values. `token_bound`
    limits what one patch adds to the mean, see `models.layers.contributions`.
    """

    img_size: int = 32
    patch_size: int = 4
    in_chans: int = 3
    mean: tuple[float, ...] = (0.5, 0.5, 0.5)
    std: tuple[float, ...] = (0.5, 0.5, 0.5)
    embed_dim: int = 512
    depth: int = 6
    num_experts: int = 4
    num_classes: int = 10
    pooling: Literal["mean", "max"] = "mean"
    random_eigenvalues: bool = False
    token_bound: float | None = None

    def __post_init__(self) -> None:
        """Check every rule, naming the field and the value received."""
        check_types(self)
        check_images(self)
        check_encoder(self)

    @property
    def seq_len(self) -> int:
        """Number of patches."""
        return (self.img_size // self.patch_size) ** 2


class TransJectImage(ImageModel):
    """Classify images."""

    config: TransJectImageConfig

    def __init__(self, config: TransJectImageConfig) -> None:
        super().__init__(config)
        half = config.embed_dim // 2
        self.patch_embed = PatchEmbed(config.in_chans, half, config.patch_size)
        self.positions = SinusoidalPositions(config.seq_len, half)
        self.encoder = Encoder(config)
        self.head = head_of(config)

    def forward(self, images: Tensor) -> Tensor:
        """(B, C, H, W), pixels in [0, 1], H = W = img_size, to (B, num_classes) logits."""
        return self._classify(self.encoder(self.embed(images)))

    def contributions(self, images: Tensor) -> Tensor:
        """What each patch adds to the logits before mean and bias, (B, N, K)."""
        return contributions(self.head, self.encoder(self.embed(images)))

    def embed(self, images: Tensor) -> Tensor:
        """X0 = [patch; position], (B, N, embed_dim)."""
        patches = self.patch_embed(self.normalize(images))
        B, N, _ = patches.shape
        return torch.cat((patches, self.positions(N).expand(B, -1, -1)), dim=-1)

    def logits_and_reconstruction(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """The logits and the reconstruction loss that training adds to the task's loss."""
        x = self.embed(images)
        return self._classify(self.encoder(x)), self.encoder.reconstruction_loss(x)

    def _classify(self, x: Tensor) -> Tensor:
        """Encoded patches (B, N, embed_dim) to the logits."""
        return self.head(head_input(self.head, x, None, self.config.pooling))
