"""A real artifact of an untrained model, small enough to be exported in a test."""

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

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
from runtimes.tasks import TEXTS
from service.settings import ROOT

LABELS = ["Ankle boot", "Bag", "T-shirt/top"]
SHAPE = (1, 8, 8)
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
    return _write(
        folder,
        {"images": torch.from_numpy(noise(2, seed=seed)[:, None] / np.float32(255))},
        _SIZES | sizes,
        seed,
        name=name,
        architecture=architecture + ("_elliptical" if elliptical else ""),
        input=InputSpec(shape=[-1, *SHAPE]),
        labels=LABELS,
        preprocessing=ImageSpec(channels=1, height=8, width=8).to_dict(),
    )


def write_text_artifact(folder: Path, name: str, *, seed: int = 0, **sizes: Any) -> Artifact:
    """Export an untrained model whose logits differ clearly between texts."""
    tokenizer = train_wordpiece(["good bad film plot the a was is not very"], vocab_size=60)
    folder.mkdir(parents=True)
    tokenizer.save(folder / TOKENIZER)
    tokens, mask = tokenizer.encode(["good film", "the plot was bad"], MAX_LEN)
    return _write(
        folder,
        {"tokens": torch.from_numpy(tokens), "mask": torch.from_numpy(mask)},
        _TEXT_SIZES | sizes,
        seed,
        name=name,
        architecture="transject",
        task=TEXTS,
        input=TokensSpec(range=(0, 59)),
        labels=TEXT_LABELS,
        preprocessing={"max_len": MAX_LEN},
    )


def write_provable(folder: Path) -> None:
    """Export models that proofs know: of texts, and of images like the shipped ones."""
    apart: dict[str, Any] = {"random_eigenvalues": True, "num_experts": 1}
    write_text_artifact(folder / "words", "words", seed=2, **apart)
    labels = open_artifact(ROOT / "artifacts" / "fashion-dot").labels
    kept = ("in_chans", "patch_size", "mean", "std", "embed_dim")
    sizes = {key: _SIZES[key] for key in kept} | apart
    _write(
        folder / "patchwise",
        {"images": torch.from_numpy(noise(2, size=28)[:, None] / np.float32(255))},
        sizes | {"img_size": 28, "depth": 1, "num_classes": len(labels)},
        0,
        name="patchwise",
        architecture="transject_image",
        input=InputSpec(shape=[-1, 1, 28, 28]),
        labels=labels,
        preprocessing=ImageSpec(channels=1, height=28, width=28).to_dict(),
    )


def _write(
    folder: Path, probe: dict[str, torch.Tensor], sizes: dict[str, Any], seed: int, **fields: Any
) -> Artifact:
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(seed)
    model = models.build(fields["architecture"], **sizes).eval()
    example: Any = tuple(probe.values())
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
        logits = model(*example)
    config = dataclasses.asdict(models.config(fields["architecture"], **sizes))
    save_weights(model, folder / WEIGHTS)
    metadata = {"weights_sha256": sha256(folder / WEIGHTS), "config_sha256": config_digest(config)}
    (folder / ONNX).write_bytes(to_onnx(model, example, metadata))
    (folder / TORCHSCRIPT).write_bytes(to_torchscript(model, example))
    save_file(probe | {"logits": logits}, folder / PROBE)
    exact = FormatParity(max_abs_diff=0.0, top1_mismatches=0)
    manifest = Manifest(
        version="1",
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
