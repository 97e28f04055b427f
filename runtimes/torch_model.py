"""A differentiable PyTorch module of an artifact: of its weights, or of an imported graph."""

from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

import models
from runtimes.artifact import Artifact, ArtifactError
from runtimes.gradient import OnnxGradient
from runtimes.manifest import GRADIENT, WEIGHTS


class _Graph(torch.autograd.Function):
    """An imported graph as one operation."""

    @staticmethod
    def forward(ctx: Any, images: Tensor, graph: OnnxGradient) -> Tensor:
        """Logits (B, K)."""
        ctx.save_for_backward(images)
        ctx.graph = graph
        return torch.from_numpy(graph.logits(images.detach().numpy()))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, seed: Tensor) -> tuple[Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride] - torch takes any arguments
        """The gradient of the images."""
        (images,) = ctx.saved_tensors
        return torch.from_numpy(ctx.graph.pull(images.numpy(), seed.contiguous().numpy())), None


class ImportedCopy(nn.Module):
    """The differentiable copy of an imported model, from images to logits, on the CPU."""

    def __init__(self, graph: OnnxGradient) -> None:
        super().__init__()
        self.graph = graph
        # Many ask the first parameter of a model where it computes.
        self.place = nn.Parameter(torch.zeros(0), requires_grad=False)

    def forward(self, images: Tensor) -> Tensor:
        """Logits (B, K) of images (B, C, H, W)."""
        return _Graph.apply(images.contiguous(), self.graph)


def load_torch_model(artifact: Artifact) -> nn.Module:
    """Build the artifact's model with its weights, in eval mode, its parameters frozen.

    Gradients with respect to the input still flow; those of an imported model are computed by ONNX
    Runtime, with as many threads as torch has now.

    Raises:
        ArtifactError: the architecture is unknown, the weights changed or do not fit it; or it was
            imported, and has no gradients or they cannot be opened.
    """
    manifest = artifact.manifest
    if manifest.architecture is None:
        graph = OnnxGradient(artifact.read(GRADIENT), threads=torch.get_num_threads())
        return ImportedCopy(graph).eval()
    try:
        model = models.build(manifest.architecture, **manifest.config)
    except (ValueError, TypeError) as error:
        raise ArtifactError(f"the config of {artifact.name} builds no model: {error}") from error
    try:
        model.load_state_dict(load(artifact.read(WEIGHTS)), strict=True)
    except (SafetensorError, RuntimeError) as error:
        raise ArtifactError(f"{WEIGHTS} does not fit {manifest.architecture}") from error
    return model.eval().requires_grad_(False)
