"""Models in PyTorch as sources: programs, functions and folders of Hugging Face's."""

import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from export.__main__ import main
from export.importers import trace
from export.importers.huggingface import HuggingFaceFolder
from export.importers.input_file import InputFile
from export.importers.pytorch import (
    ANSWERS,
    GRAPH,
    SAMPLES,
    SPEC,
    Program,
    PythonFunction,
    Refused,
    TorchSource,
)
from export.importers.source import SourceGraph
from export.importers.sources import open_source
from runtimes.artifact import open_artifact
from runtimes.registry import open_runtime
from tests.imported import NAMES, SIDE
from tests.imported_texts import LONGEST, MOODS, write_tokenizer

SPEC_8 = InputFile(size=[SIDE, SIDE], channels="rgb", range=[0.0, 1.0], layout="nchw")
MODULE = """
import torch
from torch import nn

class Pair(nn.Module):
    def forward(self, x):
        return x.mean((2, 3)), x

class Branch(nn.Module):
    def forward(self, x):
        x = x.mean((2, 3))
        return x + 1 if x.sum() > 0 else x

def net():
    torch.manual_seed(3)
    layers = nn.Conv2d(3, 6, 3), nn.Dropout(), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    return nn.Sequential(*layers, nn.Linear(6, 4))

def raises():
    raise RuntimeError("first line\\nsecond line")

def weights():
    return net().state_dict()

def maps():
    return nn.Conv2d(3, 4, 1)

def narrow():
    return nn.Sequential(nn.Flatten(), nn.Linear(3, 4))
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module of the user's in the folder that the command is called from."""
    name = f"mine_{tmp_path.name}".replace("-", "_")
    (tmp_path / f"{name}.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return name


def ask(folder: Path, kind: type[TorchSource], given: str) -> np.ndarray:
    """What is answered to three images, and written beside, in this process."""
    pixels = np.random.default_rng(0).integers(0, 256, (3, 3, SIDE, SIDE), dtype=np.uint8)
    np.save(folder / SAMPLES, pixels)
    told = {"dtype": "float32", "input": SPEC_8.model_dump()}
    (folder / SPEC).write_text(json.dumps(told))
    trace.export(kind, given, folder)
    return pixels


@pytest.mark.slow
def test_a_function_is_imported_from_the_users_folder(module: str, tmp_path: Path) -> None:
    (tmp_path / "labels.txt").write_text("\n".join(NAMES))
    (tmp_path / "input.yaml").write_text("size: 8\nchannels: rgb\nrange: [-1, 1]")
    command = ["import", f"{module}:net", "--output", "out", "--name", "mine", "--no-gradients"]
    assert main([*command, "--labels", "labels.txt", "--input", "input.yaml"]) == 0
    artifact = open_artifact(tmp_path / "out")
    source = artifact.manifest.source
    assert source is not None
    assert (source.format, source.file, source.batch) == ("callable", f"{module}:net", None)
    images = np.random.default_rng(1).random((5, 3, SIDE, SIDE), np.float32)
    with torch.no_grad():
        model = PythonFunction.load(f"{module}:net").eval()
        expected = model(torch.from_numpy(images * 2 - 1)).numpy()
    found = open_runtime(artifact, threads=1).predict(images)
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("batch", [None, 2])
def test_a_program_tells_its_input_and_answers_as_itself(
    module: str, tmp_path: Path, batch: int | None
) -> None:
    model = PythonFunction.load(f"{module}:net").eval()
    shapes = None if batch else ({0: torch.export.Dim("batch")},)
    zeros = (torch.zeros(2, 3, SIDE, SIDE),)
    path = tmp_path / "net.pt2"
    torch.export.save(torch.export.export(model, zeros, dynamic_shapes=shapes), path)
    source = open_source(str(path))
    assert isinstance(source, Program)
    assert (source.dtype, source.shape, source.classes) == ("float32", [batch, 3, SIDE, SIDE], 4)
    assert source.missing(source.told) == ["range (with mean and std, if it has any)"]
    pixels = ask(tmp_path, Program, source.given)
    with torch.no_grad():
        expected = model(torch.from_numpy(pixels.astype(np.float32) / 255)).numpy()
    np.testing.assert_allclose(np.load(tmp_path / ANSWERS), expected, atol=1e-6)
    content = (tmp_path / GRAPH).read_bytes()
    assert SourceGraph.of("net.pt2", content).batch == batch
    assert str(tmp_path).encode() not in content


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("raises", "cannot be loaded: RuntimeError: first line$"),
        ("weights", "must return a torch.nn.Module, got OrderedDict"),
        ("nothing", "must be module:function; .* has no function 'nothing'"),
        ("Pair", "must give one tensor of scores, got tuple"),
        ("maps", r"must give a score for each class, \(B, K\), got \(2, 4, 8, 8\) of 2 inputs"),
        ("narrow", r"does not run on \(2, 3, 8, 8\): RuntimeError: mat1 and mat2"),
        ("Branch", "cannot be exported: GuardOnDataDependentSymNode"),
    ],
)
def test_what_cannot_be_exported_is_refused_in_one_line(
    module: str, tmp_path: Path, function: str, message: str
) -> None:
    with pytest.raises(Refused, match=message) as caught:
        ask(tmp_path, PythonFunction, f"{module}:{function}")
    assert "\n" not in str(caught.value)


class Two(nn.Module):
    def forward(self, images: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return (images * mask).mean((2, 3))


def test_sources_are_refused_before_anything_of_them_is_run(tmp_path: Path) -> None:
    image = torch.zeros(2, 3, SIDE, SIDE)
    for name, model, inputs in (
        ("two", Two(), (image, image)),
        ("maps", nn.Conv2d(3, 4, 1), (image,)),
        ("flat", nn.Linear(3, 4), (torch.zeros(2, 3),)),
    ):
        torch.export.save(torch.export.export(model, inputs), tmp_path / f"{name}.pt2")
    (tmp_path / "cut.pt2").write_bytes((tmp_path / "two.pt2").read_bytes()[:900])
    with zipfile.ZipFile(tmp_path / "other.pt2", "w") as archive:
        archive.writestr("data.pkl", b"")
    for given, message in (
        ("two.pt2", "two.pt2 must read one input, images, got 2"),
        ("maps.pt2", r"gives a score for each of 2 classes or more, got \(2, 4, 8, 8\)"),
        ("flat.pt2", r"flat.pt2 must read images of four axes, got \(2, 3\) float32"),
        ("cut.pt2", "cut.pt2 is no program of torch.export, or was cut short"),
        ("other.pt2", "other.pt2 is no program of torch.export, or was cut short"),
        ("none.pt2", "none.pt2 must be a program of torch.export: there is no such file"),
        ("none.onnx", "none.onnx must be an ONNX file: there is no such file"),
        ("none.pt", "holds weights without a model: give module:function, which builds it"),
        ("", "SOURCE must be a Hugging Face folder or .* or module:function, got"),
    ):
        with pytest.raises(ValueError, match=message):
            open_source(str(tmp_path / given))
    with pytest.raises(ValueError, match="nowhere:net must be .* there is no module 'nowhere'"):
        open_source("nowhere:net")


CONFIG = {
    "architectures": ["ResNetForImageClassification"],
    "model_type": "resnet",
    "num_channels": 3,
    "id2label": {"1": "bee", "0": "ant"},
}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"architectures": ["BertModel"]},
            "ForImageClassification or …ForSequenceClassification, got BertModel",
        ),
        ({"auto_map": {"AutoModel": "own.Net"}}, "auto_map names code of its own, which is not"),
        ({"id2label": {"a": "b"}}, "id2label must name classes by their index"),
        ({}, "needs transformers"),
    ],
)
def test_a_folder_that_cannot_be_taken_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any], message: str
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG | change))
    installed = None if not change else object()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: installed)
    if not change:
        with pytest.raises(ValueError, match="must hold model.safetensors; pickled weights are"):
            open_source(str(tmp_path))
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(ValueError, match=message):
        open_source(str(tmp_path))


def test_a_folder_tells_its_labels_and_its_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "model.safetensors").touch()
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(CONVNEXT))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    source = open_source(str(tmp_path))
    assert isinstance(source, HuggingFaceFolder)
    assert source.labels == ["ant", "bee"]
    assert source.complete(source.told).keys()["size"] == [224, 224]
    assert main(["inspect", str(tmp_path)]) == 0
    assert "names of classes  ant, bee" in capsys.readouterr().out


CONVNEXT: dict[str, Any] = {
    "image_processor_type": "ConvNextImageProcessor",
    "crop_pct": 0.875,
    "do_resize": True,
    "do_rescale": True,
    "do_normalize": True,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.25, 0.25, 0.25],
    "resample": 3,
    "rescale_factor": 0.00392156862745098,
    "size": {"shortest_edge": 224},
}


@pytest.mark.slow
def test_a_folder_is_imported_with_gradients(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    names = dict(enumerate(NAMES))
    config = transformers.ResNetConfig(
        embedding_size=8,
        hidden_sizes=[8, 16],
        depths=[1, 1],
        layer_type="basic",
        id2label=names,
        label2id={name: index for index, name in names.items()},
    )
    model = transformers.ResNetForImageClassification(config).eval()
    folder = tmp_path / "resnet"
    model.save_pretrained(folder)
    processor = transformers.ConvNextImageProcessorPil(size={"shortest_edge": 32})
    processor.save_pretrained(folder)
    output = tmp_path / "out"
    assert main(["import", str(folder), "--output", str(output), "--name", "resnet"]) == 0
    artifact = open_artifact(output)
    source = artifact.manifest.source
    assert artifact.labels == NAMES
    assert source is not None and source.gradients is not None and source.format == "huggingface"
    pixels = np.random.default_rng(0).integers(0, 256, (2, 36, 36, 3), dtype=np.uint8)
    with torch.no_grad():
        expected = model(**processor(list(pixels), return_tensors="pt")).logits.numpy()
    images = pixels[:, 2:34, 2:34].transpose(0, 3, 1, 2).astype(np.float32) / 255
    found = open_runtime(artifact, threads=1).predict(images)
    np.testing.assert_allclose(found, expected, atol=1e-4)


@pytest.mark.slow
def test_a_folder_of_texts_is_imported_with_gradients(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    folder, output = tmp_path / "bert", tmp_path / "out"
    names = dict(enumerate(MOODS))
    folder.mkdir()
    config = transformers.BertConfig(
        vocab_size=write_tokenizer(folder, cut=None),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=LONGEST,
        initializer_range=0.5,
        id2label=names,
        label2id={name: index for index, name in names.items()},
    )
    model = transformers.BertForSequenceClassification(config).eval()
    model.save_pretrained(folder)
    assert main(["inspect", str(folder)]) == 0
    assert "[CLS] text [SEP]" in capsys.readouterr().out
    assert main(["import", str(folder), "--output", str(output), "--name", "bert"]) == 0
    artifact = open_artifact(output)
    source = artifact.manifest.source
    assert artifact.labels == MOODS
    assert source is not None and source.gradients is not None, source
    tokens, mask = artifact.tokenizer().encode(["a good film", "bad"], LONGEST)
    found = open_runtime(artifact, threads=1).predict({"tokens": tokens, "mask": mask})
    for row, real, logits in zip(tokens, mask, found, strict=True):
        with torch.no_grad():
            expected = model(torch.tensor([[2, *row[real], 3]])).logits[0].numpy()
        np.testing.assert_allclose(logits, expected, atol=1e-4)
