"""An artifact's weights as a differentiable PyTorch model."""

from safetensors import SafetensorError
from safetensors.torch import load
from torch import nn

import models
from runtimes.artifact import Artifact, ArtifactError
from runtimes.manifest import WEIGHTS


def load_torch_model(artifact: Artifact) -> nn.Module:
    """Build the artifact's model with its weights, in eval mode, its parameters frozen.

    Gradients with respect to the input still flow.

    Raises:
        ArtifactError: it was imported, the architecture is unknown, or the weights changed or do
            not fit it.
    """
    manifest = artifact.manifest
    if manifest.architecture is None:
        raise ArtifactError(f"{artifact.name} was imported, and has no PyTorch model")
    try:
        model = models.build(manifest.architecture, **manifest.config)
    except (ValueError, TypeError) as error:
        raise ArtifactError(f"the config of {artifact.name} builds no model: {error}") from error
    try:
        model.load_state_dict(load(artifact.read(WEIGHTS)), strict=True)
    except (SafetensorError, RuntimeError) as error:
        raise ArtifactError(f"{WEIGHTS} does not fit {manifest.architecture}") from error
    return model.eval().requires_grad_(False)
