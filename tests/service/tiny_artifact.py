"""A real artifact of an untrained model, small enough to be exported in a test."""

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import save_file
from torch import nn

import models
from core.files import sha256
from data.images import ImageSpec
from data.tokenizer import train_wordpiece
from export.onnx import to_onnx
from export.torch_files import to_torchscript
from models.checkpoints import save_weights
from runtimes.artifact import MANIFEST, Artifact, open_artifact
from runtimes.manifest import (
    ONNX,
    PROBE,
    TEXTS,
    TOKENIZER,
    TORCHSCRIPT,
    WEIGHTS,
    FormatParity,
    InputSpec,
    Manifest,
    OutputSpec,
    Parity,
    TokensSpec,
    config_digest,
)

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


TEXT_LABELS = ["neg", "pos"]
MAX_LEN = 8
_WORDS = "good bad film plot the a was is not very"
_TEXT_SIZES = {
    "vocab_size": 60,
    "seq_len": MAX_LEN,
    "num_classes": 2,
    "embed_dim": 16,
    "depth": 1,
    "num_experts": 2,
}


def write_artifact(
    folder: Path,
    name: str,
    *,
    elliptical: bool = True,
    seed: int = 0,
    architecture: str = "deit_tiny",
    **sizes: Any,
) -> Artifact:
    """Export an untrained model whose logits differ clearly between images."""
    architecture += "_elliptical" if elliptical else ""
    sizes = {key: size for key, size in (_SIZES | sizes).items() if size is not None}
    model = _model(architecture, sizes, seed)
    shape = (SPEC.channels, SPEC.height, SPEC.width)
    example = torch.rand(2, *shape)
    reads: dict[str, Any] = {"name": name, "input": InputSpec(shape=[-1, *shape])}
    reads |= {"labels": LABELS, "preprocessing": SPEC.to_dict()}
    return _write(folder, model, architecture, sizes, example, {"images": example}, reads)


def write_text_artifact(folder: Path, name: str, *, seed: int = 0) -> Artifact:
    """Export an untrained model whose logits differ clearly between texts."""
    model = _model("transject", _TEXT_SIZES, seed)
    tokenizer = train_wordpiece([_WORDS], vocab_size=60)
    folder.mkdir(parents=True)
    tokenizer.save(folder / TOKENIZER)
    arrays = tokenizer.encode(["good film", "the plot was bad"], MAX_LEN)
    example = (torch.from_numpy(arrays[0]), torch.from_numpy(arrays[1]))
    reads: dict[str, Any] = {"name": name, "task": TEXTS, "input": TokensSpec(range=(0, 59))}
    reads |= {"labels": TEXT_LABELS, "preprocessing": {"max_len": MAX_LEN}}
    stored = {"tokens": example[0], "mask": example[1]}
    return _write(folder, model, "transject", _TEXT_SIZES, example, stored, reads)


def _model(architecture: str, sizes: dict[str, Any], seed: int) -> nn.Module:
    torch.manual_seed(seed)
    model = models.build(architecture, **sizes).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def _write(
    folder: Path,
    model: nn.Module,
    architecture: str,
    sizes: dict[str, Any],
    example: torch.Tensor | tuple[torch.Tensor, torch.Tensor],
    stored: dict[str, torch.Tensor],
    fields: dict[str, Any],
) -> Artifact:
    folder.mkdir(parents=True, exist_ok=True)
    config = dataclasses.asdict(models.config(architecture, **sizes))
    save_weights(model, folder / WEIGHTS)
    metadata = {"weights_sha256": sha256(folder / WEIGHTS), "config_sha256": config_digest(config)}
    (folder / ONNX).write_bytes(to_onnx(model, example, metadata))
    (folder / TORCHSCRIPT).write_bytes(to_torchscript(model, example))
    with torch.no_grad():
        logits = model(*stored.values()).numpy()
    arrays = {key: value.numpy() for key, value in stored.items()}
    save_file(arrays | {"logits": logits}, folder / PROBE)
    exact = FormatParity(max_abs_diff=0.0, top1_mismatches=0)
    manifest = Manifest(
        version="1",
        architecture=architecture,
        config=config,
        files={path.name: sha256(path) for path in sorted(folder.iterdir())},
        parity=Parity(
            samples=2, data="noise", tolerance=1e-4, formats={"onnx": exact, "torchscript": exact}
        ),
        output=OutputSpec(shape=[-1, len(fields["labels"])]),
        metrics={},
        training={},
        **fields,
    )
    (folder / MANIFEST).write_text(manifest.to_json())
    return open_artifact(folder)


def noise(count: int, *, seed: int = 0, size: int = 8) -> np.ndarray:
    """(count, size, size) uint8 images."""
    return np.random.default_rng(seed).integers(0, 256, (count, size, size), dtype=np.uint8)


def copy_artifact(artifact: Artifact, folder: Path, **fields: str) -> Path:
    """The same model under another version or name, complete at once."""
    half = folder.parent / f".{folder.name}"
    shutil.copytree(artifact.folder, half)
    manifest = json.loads((half / MANIFEST).read_text())
    (half / MANIFEST).write_text(json.dumps(manifest | fields))
    return half.rename(folder)
