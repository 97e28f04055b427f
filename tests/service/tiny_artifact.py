"""A real artifact of an untrained model, small enough to be exported in a test."""

import dataclasses
import hashlib
from pathlib import Path

import numpy as np
import torch
from safetensors.numpy import save_file

import models
from data.images import ImageSpec
from export.artifact import MANIFEST, Artifact, open_artifact
from export.manifest import (
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
from export.to_onnx import to_onnx
from export.to_torchscript import to_torchscript
from models.checkpoints import save_weights

LABELS = ["Ankle boot", "Bag", "T-shirt/top"]
SPEC = ImageSpec(channels=1, height=8, width=8)
_SIZES = {
    "img_size": 8,
    "patch_size": 4,
    "in_chans": 1,
    "num_classes": len(LABELS),
    "embed_dim": 16,
    "depth": 2,
    "num_heads": 2,
    "mean": (0.5,),
    "std": (0.25,),
}


def write_artifact(folder: Path, name: str, *, elliptical: bool = True, seed: int = 0) -> Artifact:
    """Export an untrained model whose logits differ clearly between images."""
    architecture = "deit_tiny_elliptical" if elliptical else "deit_tiny"
    torch.manual_seed(seed)
    model = models.build(architecture, **_SIZES).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    folder.mkdir(parents=True)
    config = dataclasses.asdict(models.config(architecture, **_SIZES))
    example = torch.rand(2, SPEC.channels, SPEC.height, SPEC.width)
    save_weights(model, folder / WEIGHTS)
    metadata = {"weights_sha256": _sha256(folder / WEIGHTS), "config_sha256": config_digest(config)}
    (folder / ONNX).write_bytes(to_onnx(model, example, metadata))
    (folder / TORCHSCRIPT).write_bytes(to_torchscript(model, example))
    with torch.no_grad():
        logits = model(example).numpy()
    save_file({"images": example.numpy(), "logits": logits}, folder / PROBE)
    exact = FormatParity(max_abs_diff=0.0, top1_mismatches=0)
    manifest = Manifest(
        name=name,
        version="1",
        architecture=architecture,
        config=config,
        input=InputSpec(shape=[-1, SPEC.channels, SPEC.height, SPEC.width]),
        output=OutputSpec(shape=[-1, len(LABELS)]),
        labels=LABELS,
        preprocessing=SPEC.to_dict(),
        files={name: _sha256(folder / name) for name in (ONNX, TORCHSCRIPT, WEIGHTS, PROBE)},
        parity=Parity(
            samples=2, data="noise", tolerance=1e-4, formats={"onnx": exact, "torchscript": exact}
        ),
        metrics={},
        training={},
    )
    (folder / MANIFEST).write_text(manifest.to_json())
    return open_artifact(folder)


def noise(count: int, *, seed: int = 0, size: int = 8) -> np.ndarray:
    """(count, size, size) uint8 images."""
    return np.random.default_rng(seed).integers(0, 256, (count, size, size), dtype=np.uint8)


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
