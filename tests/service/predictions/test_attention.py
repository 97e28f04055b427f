"""Attention maps: those of the torch model, and what `/classify` shows of them."""

import base64
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from starlette.testclient import TestClient

from data.images import decode_image, to_input
from models.analysis.diagnostics import diagnose
from runtimes.artifact import Artifact
from runtimes.torch_model import load_torch_model
from service.http.refusal import ApiError
from service.predictions.attention import AttentionMaps, patch_shares, to_picture
from tests.service.conftest import png
from tests.service.tiny_artifact import noise, write_artifact


def _images(count: int) -> np.ndarray:
    return noise(count)[:, None].astype(np.float32) / np.float32(255)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("architecture", "elliptical", "sizes"),
    [
        ("deit_tiny", False, {}),
        ("deit_tiny", True, {"distilled": True, "depth": 3}),
        ("fan_tiny", False, {"patch_size": 4}),
        # As many tokens as channels of a head, so that only the rank tells the maps apart.
        ("fan_tiny", True, {"patch_size": 2, "num_heads": 1, "depth": 3}),
    ],
)
def test_the_maps_of_further_models_are_their_rollouts(
    tmp_path: Path, architecture: str, elliptical: bool, sizes: dict[str, Any]
) -> None:
    options = {"architecture": architecture, "elliptical": elliptical, **sizes}
    _check_rollout(write_artifact(tmp_path / "a", "a", **options))


def test_the_map_is_the_rollout_of_the_torch_model(tiny_artifact: Artifact) -> None:
    _check_rollout(tiny_artifact)


def _check_rollout(artifact: Artifact) -> None:
    images = _images(3)
    found = AttentionMaps(artifact).predict(images)
    expected = diagnose(load_torch_model(artifact), torch.from_numpy(images)).rollout
    assert expected is not None and found.shape == expected.shape
    np.testing.assert_allclose(found, expected.numpy(), atol=1e-6)
    assert found.std() > 1e-4


def test_a_graph_without_attention_over_patches_is_told_apart() -> None:
    tokens = np.full((2, 2, 5, 5), 0.2, np.float32)
    head = np.full((2, 2, 1, 5), 0.2, np.float32)
    channels = np.full((2, 5, 16), 0.2, np.float32)
    shares = patch_shares([tokens, channels, tokens], 4, 2)
    assert shares is not None and shares.shape == (2, 4)
    assert patch_shares([tokens], 4, 2) is None  # a layer is missing
    assert patch_shares([channels, channels], 4, 2) is None
    assert patch_shares([tokens, tokens], 5, 2) is None  # nothing reads the patches
    assert patch_shares([tokens, tokens, head], 5, 2) is None  # it reads other tokens
    assert patch_shares([tokens, tokens[..., :3, :3]], 3, 2) is None


def test_a_model_with_other_maps_than_its_layers_have_is_refused(
    tiny_artifact: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(tiny_artifact.manifest.config, "depth", 9)
    with pytest.raises(ApiError) as refused:
        AttentionMaps(tiny_artifact).predict(_images(1))
    assert (refused.value.status, refused.value.code) == (422, "not_explainable")


def test_a_model_of_texts_has_none(client: TestClient, artifacts: dict[str, Artifact]) -> None:
    assert not AttentionMaps.may_have(artifacts["tiny-transject"])
    unasked = client.post("/classify_text", json={"texts": ["good"], "explain": False})
    assert unasked.status_code == 200


def test_the_most_attended_pixel_is_white_and_the_least_black() -> None:
    shares = np.array([[0.1, 0.2], [0.3, 0.05]], np.float32)
    picture = np.asarray(Image.open(io.BytesIO(to_picture(shares, 8, 16))))
    assert picture.shape == (8, 16) and picture.dtype == np.uint8
    assert (picture.min(), picture.max()) == (0, 255)
    assert picture[-1, 0] == 255 and picture[-1, -1] == 0
    flat = np.asarray(Image.open(io.BytesIO(to_picture(np.full((2, 2), 0.2), 4, 4))))
    assert (flat == 255).all()


def _picture(prediction: dict[str, Any]) -> np.ndarray:
    explanation = prediction["explanation"]
    assert explanation["kind"] == "attention-rollout"
    image = Image.open(io.BytesIO(base64.b64decode(explanation["png"])))
    assert (image.format, image.mode) == ("PNG", "L")
    return np.asarray(image)


def test_every_prediction_has_its_own_map_and_is_otherwise_the_same(
    client: TestClient, tiny_artifact: Artifact
) -> None:
    files = [png(seed) for seed in range(6)]  # more than are explained at once
    parts = [("images", ("a.png", file)) for file in files]
    found = client.post("/classify", files=parts, data={"explain": "true"}).json()
    spec = tiny_artifact.image_spec
    inputs = np.stack([to_input(decode_image(file), spec) for file in files])
    for prediction, shares in zip(found, AttentionMaps(tiny_artifact).predict(inputs), strict=True):
        expected = Image.open(io.BytesIO(to_picture(shares, spec.height, spec.width)))
        np.testing.assert_array_equal(_picture(prediction), np.asarray(expected))
    plain = client.post("/classify", files=parts).json()
    assert [{k: v for k, v in p.items() if k != "explanation"} for p in found] == plain
    refused = client.post("/classify", files={"images": png()}, data={"explain": "yes"})
    assert (refused.status_code, refused.json()["error"]["code"]) == (422, "invalid_explain")
