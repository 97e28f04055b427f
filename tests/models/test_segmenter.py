"""Segmenter against a plain forward pass, and from windows of a larger image."""

from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import models
from models.attention.base import layers_of
from models.checkpoints import load_public, save_weights
from models.inference.windows import coverage, segment, windows
from models.segmenter import Segmenter
from tests.models import plain_transformer as plain
from tests.models.small import small


def plain_segmenter(w: dict[str, Tensor], config: Any, image: Tensor, elliptical: bool) -> Tensor:
    """Logits (K, S, S) of one image (C, S, S)."""
    own = {key.removeprefix("encoder."): value for key, value in w.items()}
    prefix = [own[key][0] for key in ("cls_token", "dist_token") if key in own]
    x, v = torch.cat([*prefix, plain.patches(image, own, config)]) + own["pos_embed"][0], None
    for i in range(config.depth):
        x, v = plain.pre_norm_block(x, own, f"blocks.{i}", 2, v if elliptical else None)
    x = plain.norm(x, own, "norm")[len(prefix) :]
    own = {key.removeprefix("decoder."): value for key, value in w.items()}
    x = torch.cat([plain.linear(x, own, "proj_dec"), own["cls_emb"][0]])
    for i in range(config.decoder_depth):
        x, _ = plain.pre_norm_block(x, own, f"blocks.{i}", 2)
    x = plain.norm(x, own, "decoder_norm")
    patches, classes = x[: -config.num_classes], x[-config.num_classes :]
    patches, classes = patches @ own["proj_patch"], classes @ own["proj_classes"]
    cosines = [[p @ c / (p @ p * (c @ c)).sqrt() for c in classes] for p in patches]
    masks = plain.norm(torch.stack([torch.stack(row) for row in cosines]), own, "mask_norm")
    return enlarged(masks.T.unflatten(1, (config.grid_size, -1)), config.img_size)


def enlarged(masks: Tensor, size: int) -> Tensor:
    """(K, G, G) to (K, size, size): along each axis the two nearest cells, weighted by distance."""
    G = masks.shape[1]
    at = ((torch.arange(size) + 0.5) * G / size - 0.5).clamp(0, G - 1).double()
    weights = (1 - (at[:, None] - torch.arange(G)).abs()).clamp(min=0)  # (size, G)
    return torch.einsum("ig,kgh,jh->kij", weights, masks, weights)


@pytest.mark.parametrize("name", ["segmenter_tiny", "segmenter_tiny_elliptical"])
@pytest.mark.parametrize("distilled", [False, True])
@pytest.mark.parametrize("decoder_depth", [1, 2])
def test_logits_of_pixels_are_the_published_ones(
    name: str, distilled: bool, decoder_depth: int
) -> None:
    model = small(name, depth=3, distilled=distilled, decoder_depth=decoder_depth)
    images = torch.rand(2, 3, 12, 12, dtype=torch.float64)
    elliptical = name.endswith("elliptical")
    for image, found in zip(images, model(images), strict=True):
        expected = plain_segmenter(model.state_dict(), model.config, image, elliptical)
        assert found.shape == (3, 12, 12)
        assert (found - expected).abs().max() < 1e-10


def test_only_the_encoder_is_elliptical() -> None:
    model = cast(Segmenter, models.build("segmenter_tiny_elliptical", img_size=32, num_classes=3))
    ways = [layer.metric_gradient is not None for layer in layers_of(model)]
    assert ways == [False] + [True] * 11 + [False] * 2
    assert len(layers_of(model.decoder)) == 2


@pytest.mark.parametrize("distilled", [False, True])
def test_encoder_starts_from_the_weights_of_a_classifier(tmp_path: Path, distilled: bool) -> None:
    sizes = {"embed_dim": 16, "num_heads": 2, "depth": 2, "patch_size": 4, "distilled": distilled}
    classifier = models.build("deit_tiny", img_size=16, num_classes=7, **sizes)
    save_weights(classifier, tmp_path / "deit.safetensors")
    model = cast(
        Segmenter, models.build("segmenter_tiny_elliptical", img_size=24, num_classes=3, **sizes)
    )
    load_public(model.encoder, tmp_path / "deit.safetensors", skip_head=True)
    public, own = classifier.state_dict(), model.state_dict()
    assert own["encoder.pos_embed"].shape[1] == 36 + 1 + distilled
    for key, value in public.items():
        if not key.startswith(("head", "pos_embed")):
            assert torch.equal(own[f"encoder.{key}"], value), key
    with pytest.raises(ValueError, match="unexpected tensors: dist_token|missing tensors"):
        other = models.build("segmenter_tiny", **sizes | {"distilled": not distilled})
        load_public(cast(Segmenter, other).encoder, tmp_path / "deit.safetensors", skip_head=True)


def test_windows_of_the_training_size_are_the_model() -> None:
    model = small("segmenter_tiny")
    images = torch.rand(2, 3, 12, 12, dtype=torch.float64)
    for stride in (None, 5, 12):
        assert torch.equal(segment(model, images, stride=stride), model(images))


@pytest.mark.parametrize(("height", "width", "stride"), [(12, 30, 9), (25, 24, 12), (13, 12, None)])
def test_larger_images_get_the_mean_over_all_windows_that_hold_a_pixel(
    height: int, width: int, stride: int | None
) -> None:
    model = small("segmenter_tiny_elliptical")
    images = torch.rand(2, 3, height, width, dtype=torch.float64)
    found = segment(model, images, stride=stride)
    tops = [t for t in range(0, height - 11) if t % (stride or 12) == 0 or t == height - 12]
    lefts = [t for t in range(0, width - 11) if t % (stride or 12) == 0 or t == width - 12]
    parts = [
        F.pad(model(images[..., t : t + 12, s : s + 12]), (s, width - s - 12, t, height - t - 12))
        for t in tops
        for s in lefts
    ]
    counts = torch.stack([part[0, 0] != 0 for part in parts]).sum(0)
    assert torch.equal(counts, coverage(height, width, 12, stride or 12)) and counts.min() >= 1
    assert (found - torch.stack(parts).sum(0) / counts).abs().max() < 1e-12
    assert len(parts) == len(list(windows(height, width, 12, stride or 12)))


def test_windows_that_cannot_be_are_refused() -> None:
    model = small("segmenter_tiny")
    for stride in (0, 13):
        with pytest.raises(ValueError, match=f"from 1 to the window's size 12, got {stride}"):
            segment(model, torch.rand(1, 3, 24, 24).double(), stride=stride)
    with pytest.raises(ValueError, match="as large as the window, 12, got 24 x 11"):
        segment(model, torch.rand(1, 3, 24, 11).double())
