"""An artifact of DeiT-tiny at 224 x 224 to measure runtimes on, made without any data.

The backbone is random; the head tells ten patterns apart, so that top-1 means something and the
parity gate scores this artifact as it would score a trained one.
"""

import dataclasses
from pathlib import Path

import numpy as np
import torch
from torch import nn

import models
from core.files import sha256
from data.images import ImageSpec
from export.onnx import to_onnx
from export.torch_files import to_torchscript
from models.checkpoints import save_weights
from runtimes.artifact import MANIFEST, Artifact, open_artifact
from runtimes.manifest import (
    ONNX,
    PROBE,
    TORCHSCRIPT,
    WEIGHTS,
    FormatParity,
    InputSpec,
    Manifest,
    OutputSpec,
    Parity,
    config_digest,
)
from runtimes.onnx import METADATA_CONFIG, METADATA_WEIGHTS
from runtimes.probe import PROBE_SAMPLES, Probe, write_probe

SIZE = 224
_NAME = "deit_tiny_elliptical"
_CLASSES = 10
_SEEN = 4


def write_deit_tiny(folder: Path) -> Artifact:
    """Write and open the artifact; `folder` does not exist yet."""
    patterns = _patterns()
    model = _model(patterns)
    probe = _probe(model, patterns)
    folder.mkdir()
    save_weights(model, folder / WEIGHTS)
    config = dataclasses.asdict(models.config(_NAME, num_classes=_CLASSES))
    metadata = {METADATA_WEIGHTS: sha256(folder / WEIGHTS), METADATA_CONFIG: config_digest(config)}
    example = torch.zeros(2, 3, SIZE, SIZE)
    (folder / ONNX).write_bytes(to_onnx(model, example, metadata))
    (folder / TORCHSCRIPT).write_bytes(to_torchscript(model, example))
    (folder / PROBE).write_bytes(write_probe(probe))
    (folder / MANIFEST).write_text(_manifest(folder, config).to_json())
    return open_artifact(folder)


def pictures(count: int) -> np.ndarray:
    """(count, 3, 224, 224) float32 in [0, 1]: the patterns in turn, each under noise of its own."""
    return _pixels(_noisy(_patterns(), count, seed=0))


def _patterns() -> np.ndarray:
    """(10, 3, 224, 224) float32 in [0, 255]: coarse colored fields."""
    coarse = np.random.default_rng(0).uniform(0, 255, (_CLASSES, 3, 7, 7))
    return np.kron(coarse, np.ones((SIZE // 7, SIZE // 7))).astype(np.float32)


def _noisy(patterns: np.ndarray, count: int, *, seed: int) -> np.ndarray:
    draw = np.random.default_rng(seed)
    noise = 8 * draw.standard_normal((count, *patterns.shape[1:]), np.float32)
    shown = patterns[np.arange(count) % _CLASSES] + noise
    return shown.clip(0, 255).round().astype(np.uint8)


def _pixels(images: np.ndarray) -> np.ndarray:
    return images.astype(np.float32) / np.float32(255)


def _model(patterns: np.ndarray) -> nn.Module:
    """A random backbone under a head of nearest centers."""
    torch.manual_seed(0)
    model = models.build(_NAME, num_classes=_CLASSES).eval().requires_grad_(False)
    head = model.get_submodule("head")
    kept: list[torch.Tensor] = []
    handle = head.register_forward_pre_hook(lambda _, inputs: kept.append(inputs[0]))
    model(torch.from_numpy(_pixels(_noisy(patterns, _SEEN * _CLASSES, seed=1))))
    handle.remove()
    [features] = kept
    centers = features.unflatten(0, (_SEEN, _CLASSES)).mean(0)
    middle = centers.mean(0)
    scale = 10 / (centers - middle).square().sum(1).mean()
    model.get_parameter("head.weight").copy_(scale * (centers - middle))
    # The distance to each center, less what is the same for all of them.
    offset = (centers.square().sum(1) - middle.square().sum()) / 2
    model.get_parameter("head.bias").copy_(-scale * offset)
    return model


def _probe(model: nn.Module, patterns: np.ndarray) -> Probe:
    images = _noisy(patterns, PROBE_SAMPLES, seed=2)
    with torch.inference_mode():
        logits = torch.cat([model(x) for x in torch.from_numpy(_pixels(images)).split(50)])
    return Probe(inputs={"images": images}, logits=logits.numpy())


def _manifest(folder: Path, config: dict[str, object]) -> Manifest:
    names = (ONNX, TORCHSCRIPT, WEIGHTS, PROBE)
    exact = FormatParity(max_abs_diff=0, top1_mismatches=0)
    return Manifest(
        name="deit-tiny",
        version="1",
        architecture=_NAME,
        config=config,
        input=InputSpec(shape=[-1, 3, SIZE, SIZE]),
        output=OutputSpec(shape=[-1, _CLASSES]),
        labels=[f"pattern {index}" for index in range(_CLASSES)],
        preprocessing=ImageSpec(channels=3, height=SIZE, width=SIZE).to_dict(),
        files={name: sha256(folder / name) for name in names},
        parity=Parity(
            samples=PROBE_SAMPLES,
            data="patterns",
            tolerance=1e-4,
            formats={ONNX: exact, TORCHSCRIPT: exact},
        ),
        metrics={},
        training={},
    )
