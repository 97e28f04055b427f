"""A tiny exported model and what it is made of, once a session, for the tests of all packages."""

import dataclasses
import functools
import gzip
import io
import json
import shutil
import struct
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
import yaml
from PIL import Image
from torch import nn
from torch.onnx._internal import _lazy_import as exporter

import export.write
import models
from core.files import sha256
from data.tokenizer import train_wordpiece
from data.words import train_words
from export.graphs import require_precision
from export.onnx import to_onnx
from export.run import open_run
from export.samples import open_samples
from export.write import write_artifact
from models.checkpoints import save_weights
from robustness.executors import run_inline
from runtimes.artifact import MANIFEST, Artifact, open_artifact
from runtimes.manifest import ONNX, PROBE
from runtimes.probe import Probe, read_probe, write_probe
from tests.conftest import Once

WORDS = "the film was a Very good one, and not at all as bad as they say it is"
LABELS = ["T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"]
TINY = {
    "img_size": 28,
    "patch_size": 7,
    "in_chans": 1,
    "num_classes": len(LABELS),
    "embed_dim": 32,
    "num_heads": 2,
    "depth": 3,
    "mlp_ratio": 2.0,
}


@functools.cache
def _operators() -> Any:
    from onnxscript._framework_apis.torch_2_11 import get_torchlib_ops

    return get_torchlib_ops()


# At each export torch would read them anew from the sources of 500 functions.
exporter.onnxscript_apis.get_torchlib_ops = _operators  # pyright: ignore[reportPrivateImportUsage]


def tiny_model(name: str = "deit_tiny_elliptical", **overrides: object) -> nn.Module:
    """A small model with weights large enough that m and every layer matter."""
    return drawn(models.config(name, **{**TINY, **overrides}), name)


def drawn(config: Any, name: str) -> nn.Module:
    """A model of a config with such weights."""
    torch.manual_seed(0)
    model = models.build(name, **dataclasses.asdict(config)).eval().requires_grad_(False)
    for name, parameter in model.named_parameters():
        parameter.normal_(std=0.3 if parameter.ndim > 1 else 0.1)
        if "norm" in name and name.endswith("weight"):
            parameter.add_(1.0)
    return model


def idx(array: np.ndarray) -> bytes:
    header = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    return header + array.astype(np.uint8).tobytes()


def write_idx(path: Path, array: np.ndarray) -> None:
    path.write_bytes(gzip.compress(idx(array), 1))


def zipped(files: Mapping[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return stream.getvalue()


@pytest.fixture(autouse=True)
def skip_without_bf16(request: pytest.FixtureRequest) -> None:
    """Skips what is marked, with the reason of the refusal, where nothing executes bf16."""
    if request.node.get_closest_marker("bf16"):
        try:
            require_precision("bf16")
        except ValueError as error:
            pytest.skip(str(error))


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands evaluate here; `test_executors` shows that processes leave the same bytes."""
    monkeypatch.setattr("robustness.__main__._executor", lambda *_: run_inline)


@pytest.fixture(scope="session")
def elliptical_graph(artifact: Artifact) -> bytes:
    """The tiny model as ONNX."""
    return artifact.read(ONNX)


@pytest.fixture(scope="session")
def dot_graph(once: Once) -> bytes:
    """Its dot-product counterpart."""

    def fill(folder: Path) -> None:
        content = to_onnx(tiny_model("deit_tiny"), torch.zeros(2, 1, 28, 28), {})
        (folder / ONNX).write_bytes(content)

    return (once("dot-graph", fill) / ONNX).read_bytes()


@pytest.fixture(scope="session")
def images_folder(once: Once) -> Path:
    def fill(folder: Path) -> None:
        generator = np.random.default_rng(0)
        for split, count in (("train", 1210), ("t10k", 20)):
            pixels = generator.integers(0, 256, (count, 28, 28), dtype=np.uint8)
            labels = generator.integers(0, len(LABELS), count, dtype=np.uint8)
            write_idx(folder / f"{split}-images-idx3-ubyte.gz", pixels)
            write_idx(folder / f"{split}-labels-idx1-ubyte.gz", labels)

    return once("noise", fill)


def write_run(folder: Path, recipe: dict[str, Any], metrics: dict[str, Any]) -> None:
    """A run as training leaves it, but for its weights."""
    config = models.config(**recipe["model"])
    recipe["model"] |= json.loads(json.dumps(asdict(config)))
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe, sort_keys=False))
    (folder / "metrics.json").write_text(json.dumps(metrics))


@pytest.fixture(scope="session")
def run_folder(once: Once, images_folder: Path) -> Path:
    """A run as training leaves it; its weights are random."""
    image = {"channels": 1, "height": 28, "width": 28, "resample": "bicubic"}
    recipe = {
        "name": "tiny-elliptical",
        "version": "1",
        "seed": 3,
        "labels": LABELS,
        "model": {"name": "deit_tiny_elliptical"} | TINY,
        "data": {"source": str(images_folder), "valid": 1200, "image": image},
        "train": {"epochs": 1},
        "adversarial": None,
    }
    metrics: dict[str, Any] = {"test_accuracy": 0.25, "test_loss": 1.25, "seconds": 1.5}
    metrics["environment"] = {"torch": torch.__version__}

    def fill(folder: Path) -> None:
        write_run(folder, recipe, metrics)
        save_weights(tiny_model(), folder / "best.safetensors")

    return once("tiny-run", fill)


def exported(once: Once, run_folder: Path, limit: int) -> Artifact:
    run = open_run(run_folder)

    def fill(folder: Path) -> None:
        write_artifact(run, open_samples(run, limit=limit), folder / run.name)

    return open_artifact(once(f"exported-{run.name}", fill) / run.name)


@pytest.fixture(scope="session")
def artifact(once: Once, run_folder: Path) -> Artifact:
    """An artifact of the run; never change it: use `artifact_folder` for that."""
    return exported(once, run_folder, limit=1200)


@pytest.fixture(scope="session")
def text_run_folder(once: Once) -> Path:
    """A run on texts as training leaves it; its weights are random."""
    sizes = {"embed_dim": 16, "depth": 2, "num_experts": 2, "vocab_size": 60, "seq_len": 12}

    def fill(folder: Path) -> None:
        generator = np.random.default_rng(0)
        rows = ["text,label"]
        for _ in range(1100):
            words = generator.choice(WORDS.split(), generator.integers(1, 16))
            rows.append(f'"{" ".join(words)}",{generator.choice(["neg", "pos"])}')
        (folder / "texts.csv").write_text("\n".join(rows))
        data = {"source": str(folder / "texts.csv"), "valid": 1050, "max_len": 12}
        recipe = {
            "name": "tiny-transject",
            "version": "1",
            "seed": 0,
            "labels": ["neg", "pos"],
            "model": {"name": "transject"} | sizes,
            "data": data | {"tokenizer": "wordpiece"},
            "train": {"epochs": 1},
        }
        write_run(folder, recipe, {"test_accuracy": 0.5, "test_loss": 0.7})
        train_wordpiece([WORDS], vocab_size=60).save(folder / "tokenizer.json")
        torch.manual_seed(0)
        model = models.build("transject", **sizes).requires_grad_(False)
        for name, parameter in model.named_parameters():
            if name.endswith(".r"):
                parameter.fill_(0.8)
        save_weights(model, folder / "best.safetensors")

    return once("tiny-text-run", fill)


@pytest.fixture(scope="session")
def text_artifact(once: Once, text_run_folder: Path) -> Artifact:
    """An artifact of a run on texts; never change it."""
    return exported(once, text_run_folder, limit=1050)


@pytest.fixture(scope="session")
def masks_folder(once: Once) -> Path:
    """Images of noise with masks of three classes, some pixels of none; two splits."""

    def fill(folder: Path) -> None:
        generator = np.random.default_rng(0)
        for split, count in (("train", 1010), ("test", 12)):
            for part in ("images", "masks"):
                (folder / split / part).mkdir(parents=True)
            for index in range(count):
                pixels = generator.integers(0, 256, (8, 8), dtype=np.uint8)
                mask = generator.choice(np.array([0, 1, 2, 255], np.uint8), (8, 8))
                Image.fromarray(pixels).save(folder / split / "images" / f"{index:04}.png")
                Image.fromarray(mask).save(folder / split / "masks" / f"{index:04}.png")

    return once("masks", fill)


@pytest.fixture(scope="session")
def mask_run_folder(once: Once, masks_folder: Path) -> Path:
    """A run on images with masks as training leaves it; its weights are random."""
    sizes = TINY | {"img_size": 8, "patch_size": 2, "num_classes": 3, "decoder_depth": 1}
    recipe = {
        "name": "tiny-segmenter",
        "version": "1",
        "seed": 3,
        "labels": ["sky", "road", "car"],
        "model": {"name": "segmenter_tiny_elliptical"} | sizes,
        "data": {
            "source": str(masks_folder),
            "valid": 1000,
            "image": {"channels": 1, "height": 8, "width": 8, "resample": "bilinear"},
            "background": 0,
        },
        "train": {"epochs": 1},
    }

    def fill(folder: Path) -> None:
        write_run(folder, recipe, {"test_accuracy": 0.25, "test_loss": 1.0, "test_mean_iou": 0.2})
        save_weights(tiny_model("segmenter_tiny_elliptical", **sizes), folder / "best.safetensors")

    return once("tiny-mask-run", fill)


@pytest.fixture(scope="session")
def mask_artifact(once: Once, mask_run_folder: Path) -> Artifact:
    """An artifact of a segmenter; never change it."""
    return exported(once, mask_run_folder, limit=1000)


@pytest.fixture(scope="session")
def language_run_folder(once: Once) -> Path:
    """A run of a language model of words as training leaves it; its weights are random."""
    sizes = {"embed_dim": 16, "depth": 2, "num_heads": 2, "mlp_ratio": 2.0, "seq_len": 12}

    def fill(folder: Path) -> None:
        generator = np.random.default_rng(0)
        for split, count in (("train", 20), ("valid", 300), ("test", 20)):
            lines = (" ".join(generator.choice(WORDS.split(), 4)) for _ in range(count))
            (folder / f"{split}.txt").write_text("\n".join(lines))
        tokenizer = train_words([WORDS], vocab_size=None, raw=True)
        model = {"name": "lm_small_elliptical", "vocab_size": tokenizer.vocab_size} | sizes
        recipe = {
            "name": "tiny-language",
            "version": "1",
            "seed": 0,
            "labels": [],
            "model": model,
            "data": {
                "source": str(folder),
                "context": 12,
                "valid": None,
                "test": None,
                "tokenizer": "words",
            },
            "train": {"epochs": 1},
        }
        write_run(folder, recipe, {"test_perplexity": 40.0, "test_loss": 3.7, "test_accuracy": 0.2})
        tokenizer.save(folder / "tokenizer.json")
        save_weights(drawn(models.config(**model), model["name"]), folder / "best.safetensors")

    return once("tiny-language-run", fill)


@pytest.fixture(scope="session")
def language_artifact(once: Once, language_run_folder: Path) -> Artifact:
    """An artifact of a language model; never change it."""
    return exported(once, language_run_folder, limit=1000)


@pytest.fixture
def traced(artifact: Artifact, monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """The files of the next exports of the run, already made."""
    made = {name: artifact.read(name) for name in artifact.manifest.files if name != PROBE}
    monkeypatch.setattr(export.write, "_export", lambda *_, **__: dict(made))
    return made


@pytest.fixture
def artifact_folder(artifact: Artifact, tmp_path: Path) -> Path:
    return Path(shutil.copytree(artifact.folder, tmp_path / "copy"))


def edit_manifest(folder: Path, **changes: object) -> None:
    """Changes fields of a manifest; files that are there are signed anew."""
    fields = json.loads((folder / MANIFEST).read_text())
    for name in fields["files"]:
        if (folder / name).is_file():
            fields["files"][name] = sha256(folder / name)
    (folder / MANIFEST).write_text(json.dumps(fields | changes))


Edit = Callable[[onnx.ModelProto], object]


def changed_graph(content: bytes, change: Edit) -> bytes:
    graph = onnx.load_from_string(content)
    change(graph)
    return graph.SerializeToString()


def change_tensor(name: str, change: Callable[[np.ndarray], np.ndarray]) -> Edit:
    """A change of the constant of that name."""

    def edit(graph: onnx.ModelProto) -> None:
        tensor = next(each for each in graph.graph.initializer if each.name == name)
        values = change(onnx.numpy_helper.to_array(tensor)).astype(np.float32)
        tensor.CopyFrom(onnx.numpy_helper.from_array(values, tensor.name))

    return edit


def with_file(folder: Path, name: str, content: bytes | Edit, /, **changes: object) -> Artifact:
    """Opens an artifact with another file in the place of one of its own, or another graph."""
    if callable(content):
        content = changed_graph((folder / name).read_bytes(), content)
    (folder / name).write_bytes(content)
    edit_manifest(folder, **changes)
    return open_artifact(folder)


def with_probe(folder: Path, change: Callable[[np.ndarray, np.ndarray], Any]) -> Artifact:
    """Opens an artifact whose stored images and logits are changed."""
    whole = read_probe(open_artifact(folder))
    images, logits = change(whole.inputs["images"], whole.logits)
    return with_file(folder, PROBE, write_probe(Probe(inputs={"images": images}, logits=logits)))


@pytest.fixture
def reopened(artifact_folder: Path) -> Artifact:
    return open_artifact(artifact_folder)
