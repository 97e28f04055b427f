"""Imported graphs that read tokens: served, attacked with their gradients, or refused by name."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper
from onnxruntime.quantization import quantize_dynamic

from data.sets import TextSet
from export.__main__ import main
from robustness.evaluation import evaluate
from robustness.kinds import NotPossible
from robustness.spec import EvaluationSpec
from robustness.text_target import TextTarget, open_model
from robustness.verify import verify
from runtimes.artifact import Artifact
from runtimes.manifest import ONNX, RANDOM_TOKENS
from runtimes.registry import open_runtime
from runtimes.tasks import TEXTS
from tests.imported_texts import (
    LONGEST,
    MOODS,
    NAMES,
    by_hand,
    import_texts,
    token_graph,
    weights,
    write_tokenizer,
)

TEXT = ["a very good film", "the plot", "not bad", "dull dull dull dull dull a b c d e f g h"]
IDS = {"[CLS]": 2, "[SEP]": 3}

CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "as BERT's": ({}, {}),
    "int32, one at a time": ({"dtype": TensorProto.INT32, "batch": 1}, {"max_len": 8}),
    "of one length, three at a time": ({"length": LONGEST, "batch": 3}, {"behind": []}),
    "without a mask": ({"names": ("ids",), "length": LONGEST}, {}),
    "of any length without a mask": ({"names": ("ids",)}, {"before": [], "behind": []}),
    "strange names": ({"names": ("a", "b")}, {"tokens": "a", "mask": "b"}),
    "probabilities": ({"softmax": True}, {}),
}


@pytest.mark.parametrize("case", CASES)
def test_an_imported_graph_reads_texts_as_its_source_does(tmp_path: Path, case: str) -> None:
    options, given = CASES[case]
    artifact = import_texts(tmp_path, token_graph(**options), given)
    assert artifact.read(ONNX) == (tmp_path / "moods.onnx").read_bytes()
    assert artifact.manifest.task == TEXTS
    before, behind = ([IDS[mark] for mark in given.get(key, [name])] for key, name in (
        ("before", "[CLS]"), ("behind", "[SEP]")
    ))  # fmt: skip
    longest = given.get("max_len", LONGEST)
    assert artifact.text_spec.max_len == longest - len(before) - len(behind)
    tokens, mask = artifact.tokenizer().encode(TEXT, artifact.text_spec.max_len)
    logits = open_runtime(artifact, threads=1).predict({"tokens": tokens, "mask": mask})
    names, table = options.get("names", NAMES), torch.from_numpy(weights(65)["word"])
    for row, real, found in zip(tokens, mask, logits, strict=True):
        ids = [*before, *row[real], *behind]
        if len(names) == 1:
            ids += [0] * (longest - len(ids))
        known = by_hand(table[torch.tensor([ids])], types=len(names) == 3)[0]
        known = known.log_softmax(0) if case == "probabilities" else known
        np.testing.assert_allclose(found, known.numpy(), rtol=1e-4, atol=1e-4)


def text_set(texts: list[str]) -> TextSet:
    names = [str(index) for index in range(len(texts))]
    return TextSet(
        names=names, labels=None, label_names=None, reader=texts.__getitem__, description="texts"
    )


def test_it_is_attacked_with_gradients_of_its_embeddings(
    imported_texts: Artifact, tmp_path: Path
) -> None:
    target = open_model(imported_texts, threads=1)
    assert isinstance(target, TextTarget)
    [tokens], _ = target.encode(TEXT[:1])
    found = target.margin_gradient(tokens, 0, variant="plain")
    whole = torch.tensor([[2, *tokens, 3]])
    embedded = torch.from_numpy(weights(65)["word"])[whole].requires_grad_()
    [logits] = by_hand(embedded)
    (known,) = torch.autograd.grad(logits[0] - logits[1:].max(), embedded)
    np.testing.assert_allclose(found, known[0, 1:-1], rtol=1e-3, atol=1e-5)
    attacks = [{"name": name, "edits": [3]} for name in ("hotflip", "typos")]
    spec = EvaluationSpec.model_validate({"attacks": [*attacks, {"name": "word-swap"}]})
    report = evaluate(spec, [imported_texts], text_set(TEXT), tmp_path)
    flips = report.summary.models[0].attacks[0]
    assert flips.robust.top1 == flips.confirmed < 0.5
    assert not [w for w in report.summary.warnings if w.code != "not_above_chance"]
    assert any(f"on {RANDOM_TOKENS} alone" in note for note in report.notes)
    assert verify(tmp_path, folders=[imported_texts.folder]).confirmed


def test_int8_with_dynamic_scales_does_not_depend_on_padding(tmp_path: Path) -> None:
    plain, small = tmp_path / "plain.onnx", tmp_path / "small.onnx"
    onnx.save(token_graph(), plain)
    quantize_dynamic(plain, small)
    artifact = import_texts(tmp_path, onnx.load(small), differentiable=True)
    source = artifact.manifest.source
    assert source is not None and source.gradients is not None, source
    assert (artifact.manifest.quantization, source.batch) == ("dynamic", 1)
    target = open_model(artifact, threads=1)
    together = target.predict(TEXT)
    for text, logits in zip(TEXT, together, strict=True):
        assert (target.predict([text]) == logits).all()


def test_where_nothing_is_differentiable_hotflip_is_refused(tmp_path: Path) -> None:
    model = token_graph()
    [node] = [node for node in model.graph.node if node.op_type == "Tanh"]
    node.op_type, node.domain = "QuickGelu", "com.microsoft"
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    artifact = import_texts(tmp_path, model, differentiable=True)
    spec = EvaluationSpec.model_validate({"attacks": [{"name": "hotflip"}]})
    with pytest.raises(NotPossible, match="'moods' has none: use typos"):
        evaluate(spec, [artifact], text_set(TEXT), tmp_path / "refused")
    spec = EvaluationSpec.model_validate({"attacks": [{"name": "typos", "edits": [1]}]})
    report = evaluate(spec, [artifact], text_set(TEXT), tmp_path / "report")
    assert any("no derivative of com.microsoft::QuickGelu" in note for note in report.notes)


def each_token(model: onnx.ModelProto) -> None:
    model.graph.output[0].CopyFrom(
        helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["N", "L", 9])
    )


def positions(model: onnx.ModelProto) -> None:
    model.graph.input.append(helper.make_tensor_value_info("positions", TensorProto.INT64, [1, 8]))


@pytest.mark.parametrize(
    ("change", "given", "message"),
    [
        (each_token, {}, r"a score for each class, got logits \(any, any, 9\) float"),
        (
            positions,
            {},
            "read tokens, their mask and types, and nothing else, got input_ids, .*pos",
        ),
        (None, {"mask": "masks"}, "reads input_ids, .*; the input file says mask: masks"),
        (None, {"tokenizer": "none.json"}, "none.json is no file; tokenizers are"),
        (None, {"max_len": 2}, "max_len must be above 2, the marks of a text, got 2"),
        (None, {"before": ["[BOS]"]}, r"the tokenizer has no token '\[BOS\]'"),
        (None, {"size": 8}, "input.yaml: unknown key 'size'; known: tokenizer, max_len"),
        (
            None,
            {"max_len": 13, "tokens": "input_ids"},
            "reads 12 tokens; the input file says max_len 13",
        ),
    ],
)
def test_what_no_text_classifier_reads_is_refused_in_one_sentence(
    tmp_path: Path, change: Any, given: dict[str, Any], message: str
) -> None:
    model = token_graph(length=LONGEST if "tokens" in given else "L")
    if change is not None:
        change(model)
    with pytest.raises(ValueError, match=message) as caught:
        import_texts(tmp_path, model, given)
    assert "\n" not in str(caught.value)
    assert str(tmp_path) not in str(caught.value)


def test_a_tokenizer_must_fit(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, words=["more", "words", *map(str, range(22))])
    with pytest.raises(ValueError, match="tokenizer.json has ids up to 79, .* up to 64: they belo"):
        import_texts(tmp_path, token_graph())


def test_the_command_says_what_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, labels = tmp_path / "moods.onnx", tmp_path / "labels.txt"
    onnx.save(token_graph(), file)
    labels.write_text("\n".join(MOODS))
    command = ["import", str(file), "--output", str(tmp_path / "out"), "--name", "moods"]
    assert main([*command, "--labels", str(labels)]) == 2
    beside = "moods.onnx does not tell tokenizer (a tokenizer.json beside it would do), max_len"
    assert beside in capsys.readouterr().err
    assert main(["inspect", str(file)]) == 0
    shown = capsys.readouterr().out
    assert beside in shown
    assert "tokens            input_ids (any, any) int64" in shown
    write_tokenizer(tmp_path)
    assert main(["inspect", str(file)]) == 0
    assert "[CLS] text [SEP], at most 12" in capsys.readouterr().out
    assert main([*command, "--labels", str(labels), "--no-gradients"]) == 0
