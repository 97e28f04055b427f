from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load, save

from runtimes.artifact import Artifact, ArtifactError, open_artifact
from runtimes.probe import read_probe
from runtimes.torch_model import load_torch_model


def test_torch_model_repeats_the_logits_of_the_probe_and_passes_gradients_to_its_input(
    artifact: Artifact,
) -> None:
    feed, logits = next(read_probe(artifact).batches(50))
    images = torch.from_numpy(feed["images"]).requires_grad_()
    torch_model = load_torch_model(artifact)
    found = torch_model(images)
    torch.testing.assert_close(found.detach(), torch.from_numpy(logits))
    found.sum().backward()
    assert not torch_model.training
    assert not any(parameter.requires_grad for parameter in torch_model.parameters())
    assert images.grad is not None and images.grad.abs().sum() > 0


def test_weights_that_do_not_fit_are_refused(
    artifact_folder: Path, edit_manifest: Callable[..., None]
) -> None:
    path = artifact_folder / "weights.safetensors"
    state = load(path.read_bytes())
    del state["head.bias"]
    path.write_bytes(save(state))
    edit_manifest(artifact_folder)
    with pytest.raises(ArtifactError, match="weights.safetensors does not fit"):
        load_torch_model(open_artifact(artifact_folder))


@pytest.mark.parametrize(("architecture", "config"), [("nobody", {}), ("deit_tiny", {"a": 1})])
def test_an_unknown_architecture_is_refused(
    artifact_folder: Path, edit_manifest: Callable[..., None], architecture: str, config: dict
) -> None:
    edit_manifest(artifact_folder, architecture=architecture, config=config)
    with pytest.raises(ArtifactError, match="builds no model"):
        load_torch_model(open_artifact(artifact_folder))
