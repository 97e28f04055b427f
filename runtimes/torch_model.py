"""A differentiable PyTorch module of an artifact: of its weights, or of an imported graph."""

from collections.abc import Mapping
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
    def forward(
        ctx: Any, start: Tensor, graph: OnnxGradient, others: Mapping[str, Tensor]
    ) -> Tensor:
        """Logits (B, K); `others` are what the graph reads beside its start."""
        feed = {graph.start: start.detach(), **others}
        ctx.graph, ctx.feed = graph, {name: value.numpy() for name, value in feed.items()}
        return torch.from_numpy(graph.logits(ctx.feed))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, seed: Tensor) -> tuple[Tensor, None, None]:  # pyright: ignore[reportIncompatibleMethodOverride] - torch takes any arguments
        """The gradient of the start."""
        gradient = ctx.graph.pull(ctx.feed, seed.contiguous().numpy())
        return torch.from_numpy(gradient), None, None


class ImportedCopy(nn.Module):
    """The differentiable copy of an imported model, on the CPU.

    The table of embeddings of a text model is a module of its own: gradients begin with what it
    gives.
    """

    def __init__(self, graph: OnnxGradient) -> None:
        super().__init__()
        self.graph = graph
        # Many ask the first parameter of a model where it computes.
        self.place = nn.Parameter(torch.zeros(0), requires_grad=False)
        table = graph.table
        self.embedding = (
            None if table is None else nn.Embedding.from_pretrained(torch.from_numpy(table))
        )

    def forward(self, inputs: Tensor, mask: Tensor | None = None) -> Tensor:
        """Logits (B, K) of images (B, C, H, W), or of tokens (B, N) and their mask (B, N)."""
        if self.embedding is None:
            return _Graph.apply(inputs.contiguous(), self.graph, {})
        mask = torch.ones_like(inputs, dtype=torch.bool) if mask is None else mask
        shift = self.embedding(inputs) - self.embedding.weight[inputs]
        return _Graph.apply(shift, self.graph, {"tokens": inputs, "mask": mask})


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
