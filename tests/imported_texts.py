"""A small graph that reads tokens, as other tools write them, for the tests of imports."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch import Tensor

from core.yaml import write_yaml
from export.importers.input_file import read_input
from export.importers.sources import open_source
from export.importers.write import import_graph
from runtimes.artifact import Artifact, open_artifact
from tests.conftest import Once

MOODS = ["bad", "dull", "good"]
WORDS = ["film", "plot", "bad", "dull", "good", "not", "very", "a", "the"]
NAMES = ("input_ids", "attention_mask", "token_type_ids")
LONGEST = 12
_WIDTH = 8


def write_tokenizer(folder: Path, *, words: list[str] = WORDS, cut: int | None = LONGEST) -> int:
    """A tokenizer of single words and letters, which adds marks as BERT's does; its entries."""
    letters = [f"{mark}{letter}" for letter in "abcdefghijklmnopqrstuvwxyz" for mark in ("", "##")]
    entries = dict.fromkeys(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *words, *letters])
    vocabulary = {entry: index for index, entry in enumerate(entries)}
    tokenizer = Tokenizer(models.WordPiece(vocab=vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    marks = [(mark, vocabulary[mark]) for mark in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", special_tokens=marks)
    if cut:
        tokenizer.enable_truncation(cut)
    tokenizer.save(str(folder / "tokenizer.json"))
    return len(vocabulary)


def weights(vocab_size: int) -> dict[str, np.ndarray]:
    """The numbers of `token_graph`."""
    random = np.random.default_rng(0)
    shapes = {
        "word": (vocab_size, _WIDTH),
        "type": (2, _WIDTH),
        "key": (_WIDTH, 1),
        "inner": (_WIDTH, 16),
        "head": (16, len(MOODS)),
    }
    found = {name: random.standard_normal(shape, np.float32) for name, shape in shapes.items()}
    return found | {"key": found["key"] / 9}  # no single token draws all attention


def token_graph(
    *,
    names: tuple[str, ...] = NAMES,
    dtype: int = TensorProto.INT64,
    batch: int | str = "N",
    length: int | str = "L",
    vocab_size: int = 65,
    softmax: bool = False,
) -> onnx.ModelProto:
    """Attention of one query over embeddings, whose sum a small network reads."""
    node = helper.make_node
    nodes = [node("Gather", ["word", names[0]], ["x"])]
    if len(names) > 2:
        nodes += [node("Gather", ["type", names[2]], ["t"]), node("Add", ["x", "t"], ["e"])]
    else:
        nodes += [node("Identity", ["x"], ["e"])]
    nodes += [node("MatMul", ["e", "key"], ["raw"])]
    if len(names) > 1:
        nodes += [
            node("Cast", [names[1]], ["m"], to=TensorProto.FLOAT),
            node("Unsqueeze", ["m", "last"], ["real"]),
            node("Sub", ["real", "one"], ["padding"]),
            node("Mul", ["padding", "much"], ["away"]),
            node("Add", ["raw", "away"], ["scores"]),
        ]
    else:
        nodes += [node("Identity", ["raw"], ["scores"])]
    nodes += [
        node("Softmax", ["scores"], ["attention"], axis=1),
        node("Mul", ["e", "attention"], ["weighted"]),
        node("ReduceSum", ["weighted", "middle"], ["read"], keepdims=0),
        node("MatMul", ["read", "inner"], ["drive"]),
        node("Tanh", ["drive"], ["state"]),
        node("MatMul", ["state", "head"], ["out"]),
        node("Softmax" if softmax else "Identity", ["out"], ["logits"]),
    ]
    constants: dict[str, Any] = {"last": np.array([2]), "middle": np.array([1])}
    constants |= {"one": np.float32(1), "much": np.float32(1e4)}
    graph = helper.make_graph(
        nodes,
        "foreign",
        [helper.make_tensor_value_info(name, dtype, [batch, length]) for name in names],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, [batch, len(MOODS)])],
        [
            numpy_helper.from_array(np.asarray(values), name)
            for name, values in (weights(vocab_size) | constants).items()
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def by_hand(embedded: Tensor, mask: Tensor | None = None, *, types: bool = True) -> Tensor:
    """The logits of `token_graph` in torch, of embeddings (B, N, E) and their mask (B, N)."""
    known = {name: torch.from_numpy(values) for name, values in weights(65).items()}
    x = embedded + known["type"][0] if types else embedded
    scores = x @ known["key"]
    if mask is not None:
        scores = scores.masked_fill(~mask[..., None], -1e4)
    read = (x * scores.softmax(1)).sum(1)
    return (read @ known["inner"]).tanh() @ known["head"]


def import_texts(
    folder: Path, model: onnx.ModelProto, given: dict[str, Any] | None = None, **options: Any
) -> Artifact:
    """Import a graph with an input file and a tokenizer beside it."""
    if not (folder / "tokenizer.json").exists():
        write_tokenizer(folder)
    path, written = folder / "moods.onnx", folder / "input.yaml"
    path.write_bytes(model.SerializeToString())
    written.write_text(write_yaml(given or {}))
    source = open_source(str(path))
    spec = read_input(str(written), type(source.told))
    options = {"differentiable": False} | options
    return import_graph(
        source, folder / "imported", name="moods", labels=MOODS, given=spec, **options
    )


@pytest.fixture(scope="session")
def imported_texts(once: Once) -> Artifact:
    """An artifact of a graph from elsewhere that reads texts, gradients too; never change it."""
    folder = once(
        "imported-texts", lambda folder: import_texts(folder, token_graph(), differentiable=True)
    )
    return open_artifact(folder / "imported")
