"""Artifacts of language models: what is exported, compared, opened and told of them."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from export.card import CARD_TEXT, make_card, render
from export.inspect import compare_answers, inspect_artifact
from export.parity import Candidate, measure, require
from export.preflight import first_problem
from export.run import open_run
from export.samples import open_samples
from export.write import write_artifact
from runtimes.artifact import Artifact
from runtimes.gate import require_parity
from runtimes.manifest import TOKENIZER, Manifest
from runtimes.probe import read_probe
from runtimes.registry import open_runtime
from runtimes.tasks import LANGUAGE, TASKS
from runtimes.torch_model import load_torch_model


@pytest.mark.parametrize("name", ["onnx-cpu", "openvino", "torchscript"])
def test_every_runtime_answers_each_token_as_the_model(
    language_artifact: Artifact, name: str
) -> None:
    runtime = open_runtime(language_artifact, name=name, threads=1)
    require_parity(runtime, language_artifact)
    model, V = load_torch_model(language_artifact), language_artifact.manifest.output.shape[2]
    for count, length in ((1, 12), (5, 3), (2, 1)):
        tokens = np.random.default_rng(0).integers(0, V, (count, length))
        mask = np.arange(length) < np.arange(1, count + 1)[:, None]
        logits = runtime.predict({"tokens": tokens, "mask": mask})
        with torch.no_grad():
            expected = model(torch.from_numpy(tokens), torch.from_numpy(mask)).numpy()
        assert logits.shape == (count, length, V)
        assert np.abs(logits - expected)[mask].max() < 1e-4


def test_manifest_tells_the_task_the_tokenizer_and_the_shape(language_artifact: Artifact) -> None:
    manifest = language_artifact.manifest
    assert manifest.task == LANGUAGE and manifest.labels == [] and TOKENIZER in manifest.files
    vocabulary = language_artifact.tokenizer()
    assert manifest.output.shape == [-1, -1, vocabulary.vocab_size]
    assert manifest.parity.samples == 1000 and manifest.parity.accuracy is None
    assert {each.top1_mismatches for each in manifest.parity.formats.values()} == {0}
    fields = json.loads(manifest.to_json())
    for other, message in (
        ({"labels": ["a", "b"]}, "labels must be empty for a language model"),
        ({"output": fields["output"] | {"shape": [-1, 4]}}, "output.shape must be"),
        ({"task": "text-classification"}, "labels must name at least 2 classes"),
    ):
        with pytest.raises(ValueError, match=message):
            Manifest.model_validate(fields | other)
    probe = read_probe(language_artifact)
    assert probe.logits.shape[:2] == probe.inputs["tokens"].shape and len(probe) == 8


def test_card_and_inspection_speak_of_a_language_model(language_artifact: Artifact) -> None:
    card = (language_artifact.folder / CARD_TEXT).read_text()
    assert "Language model (lm_small_elliptical, elliptical attention): texts as token" in card
    assert "| test_perplexity | 40.0 |" in card and "labels" not in card
    fields = language_artifact.manifest.config["attention_options"] | {"causal_metric": "segment"}
    config = language_artifact.manifest.config | {"attention_options": fields}
    leak = replace(
        language_artifact,
        manifest=language_artifact.manifest.model_copy(update={"config": config}),
    )
    assert "It sees what it predicts" in render(make_card(leak)) and "It sees" not in card
    assert "language-model" in inspect_artifact(language_artifact)
    same = compare_answers(language_artifact, language_artifact)
    assert (same.samples, same.same, same.largest) == (8, 8, 0.0)
    assert first_problem([language_artifact], name="onnx-cpu", threads=1) is None


def test_text_is_scored_from_the_artifact_alone(language_artifact: Artifact) -> None:
    runtime = open_runtime(language_artifact, name="onnx-cpu", threads=1)
    tokens, mask = language_artifact.tokenizer().encode(["The FILM was good!"], 12)
    logits = runtime.predict({"tokens": tokens, "mask": mask}).astype(np.float64)
    losses = np.log(np.exp(logits[0, :-1]).sum(1)) - logits[0, np.arange(4), tokens[0, 1:]]
    assert tokens.shape == (1, 5) and (losses > 0).all()


def test_padding_and_few_tokens_do_not_count(language_run_folder: Path) -> None:
    run = open_run(language_run_folder)
    samples = open_samples(run, limit=1000)
    assert samples.task is TASKS[LANGUAGE] and len(samples) == 1000
    logits = np.random.default_rng(0).random((1000, 12, 5), np.float32)
    # Of the padded columns all differ, of the real ones none.
    lengths = [len(samples.inputs[i]) for i in range(1000)]
    other = logits.copy()
    for row, length in zip(other, lengths, strict=True):
        row[length:] += 1

    def part(values: np.ndarray, start: list[int]) -> Candidate:
        def predict(feed: dict[str, np.ndarray]) -> np.ndarray:
            rows = values[start[0] :][: len(feed["tokens"]), : feed["tokens"].shape[1]]
            start[0] += len(rows)
            return rows

        return Candidate(predict=predict, runtime="x")

    found = measure(part(logits, [0]).predict, {"other": part(other, [0])}, samples)
    require(found)
    other[3, 0] = logits[3, 0][::-1]
    found = measure(part(logits, [0]).predict, {"other": part(other, [0])}, samples)
    assert found.formats["other"].top1_mismatches <= 1 < 1000 * found.formats["other"].max_abs_diff


def test_samples_come_from_other_data_too_and_short_ones_are_refused(
    language_run_folder: Path, tmp_path: Path
) -> None:
    run, other = open_run(language_run_folder), tmp_path / "other.txt"
    other.write_text("the film was good and bad " * 20)
    assert len(open_samples(run, str(other), limit=1000)) > 100
    other.write_text("the film")
    with pytest.raises(ValueError, match="other.txt must hold at least 12 tokens, got 3"):
        open_samples(run, str(other), limit=1000)


def test_precisions_that_need_labels_are_refused(language_run_folder: Path, tmp_path: Path) -> None:
    run = open_run(language_run_folder)
    samples = open_samples(run, limit=1000)
    with pytest.raises(ValueError, match="samples must have labels to score fp16"):
        write_artifact(run, samples, tmp_path / "half", precision="fp16")
    assert not (tmp_path / "half").exists()


def test_one_token_between_two_equally_likely_ones_is_no_other_answer() -> None:
    task, draw = TASKS[LANGUAGE], np.random.default_rng(0)
    logits = draw.normal(size=(3, 400, 5)).astype(np.float32)
    mask = np.arange(400) < np.array([[40], [400], [400]])
    other = logits.copy()
    for row, count in enumerate((1, 2, 3)):
        other[row, :count] = -logits[row, :count]
    other[0, 40:] = -1  # padding
    feed = {"tokens": mask.astype(np.int64), "mask": mask}
    assert task.changed(other, logits, feed).tolist() == [False, False, True]
