import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from tests.training.conftest import start
from training import run as records
from training.__main__ import main
from training.distributed import Processes
from training.recipe_file import read_recipe
from training.samples import UNSCORED, Segments
from training.splits import open_splits, open_test
from training.tasks import Language
from training.validation import evaluate

CLASSIFIER = """
name: sentiment
labels: [neg, pos]
logs: []
init: FOLDER/best.safetensors
model: {name: lm_classifier_elliptical, vocab_size: 20, embed_dim: 16, num_heads: 2, depth: 2,
        mlp_ratio: 2.0, dropout: 0.0, seq_len: 12}
data: {source: imdb, valid: 16, max_len: 12, tokenizer: FOLDER/tokenizer.json}
train: {epochs: 8, batch_size: 16, lr: 1.0e-2, optimizer: adam, weight_decay: 0}
"""
BYTES = ["data.tokenizer=bytes", "data.raw=false", "data.vocab_size=null", "model.vocab_size=257"]


def cut(length: int, context: int, stride: int, *, whole: bool = True) -> Segments:
    stream = np.arange(length).astype(np.uint8)
    return Segments(stream, context=context, stride=stride, vocab_size=length, whole=whole)


@pytest.mark.parametrize(
    ("length", "context", "stride"), [(20, 4, 4), (21, 4, 4), (5, 4, 4), (23, 6, 2), (23, 6, 1)]
)
def test_every_token_but_the_first_is_predicted_once_with_enough_before_it(
    length: int, context: int, stride: int
) -> None:
    samples = cut(length, context, stride)
    everything = np.arange(len(samples))
    (tokens,), targets = samples.batch(everything), samples.targets(everything)
    counted = targets != UNSCORED
    assert sorted(targets[counted].tolist()) == list(range(1, length))
    assert torch.equal(targets[counted], tokens[counted] + 1)
    seen = counted.nonzero()[:, 1] + 1
    assert (seen[targets[counted] > context] > context - stride).all()
    some = samples.take(np.array([len(samples) - 1]))
    assert torch.equal(some.targets(np.array([0])), targets[-1:])


def test_training_leaves_out_what_fills_no_segment() -> None:
    samples = cut(23, 6, 6, whole=False)
    assert len(samples) == 3 and samples.targets(np.arange(3)).max() == 18
    assert cut(24, 6, 6, whole=False).digest() != samples.digest() != cut(23, 6, 3).digest()


def test_documents_are_held_out_whole_and_words_are_those_of_the_training_split(
    language_recipe: Path,
) -> None:
    saved = language_recipe.parent / "tokenizer.json"
    recipe = read_recipe(language_recipe)
    splits = open_splits(recipe, saved)
    assert splits.tokenizer is not None and splits.tokenizer.vocab_size == 13
    end = splits.tokenizer.id_of("<eos>")
    counts = [int((part.stream == end).sum()) for part in (splits.train, splits.valid, splits.test)]  # type: ignore[attr-defined]
    assert counts == [144 + 32 - 32, 16, 16]
    assert "imdb: " in splits.description and "segments of 8" in splits.description
    assert splits.digest() == open_splits(recipe, saved).digest()
    other = open_splits(read_recipe(language_recipe, ["seed=1"]), saved)
    assert other.test.digest() != splits.test.digest()
    splits.tokenizer.save(saved)
    few = open_test(recipe, saved, count=3)
    assert len(few) == 3 and len(open_test(recipe, saved, count=None)) == len(splits.test)


def test_language_is_learned_evaluated_and_resumed(language_recipe: Path) -> None:
    trainer = start(language_recipe, "run")
    metrics = trainer.run()
    assert metrics["test_perplexity"] < 0.85 * metrics["unigram_perplexity"]
    assert metrics["test_tokens"] == len(trainer.splits.test.stream) - 1  # type: ignore[attr-defined]
    assert json.loads((trainer.folder / records.METRICS).read_text()) == metrics
    task, samples = Language(characters=False), trainer.splits.test
    again = evaluate(trainer.model, samples, task, Processes())
    assert again["loss"] == pytest.approx(metrics["test_loss"])
    # More context helps or changes little, and each token still counts once.
    recipe = read_recipe(language_recipe, ["data.stride=1"])
    strided = open_splits(recipe, trainer.folder / records.TOKENIZER).test
    longer = evaluate(trainer.model, strided, task, Processes())
    assert longer["tokens"] == again["tokens"] and longer["loss"] < again["loss"] + 0.05
    assert start(language_recipe, "run").finished


def test_bytes_have_bits_per_character_and_short_steps(language_recipe: Path) -> None:
    options = ["train.steps=4", "train.validate_steps=4", "train.short_steps=2"]
    trainer = start(language_recipe, "run", *BYTES, *options, "train.short_len=4")
    metrics = trainer.run()
    assert metrics["test_bits_per_character"] == pytest.approx(metrics["test_loss"] / np.log(2))
    assert "bytes" in metrics["data"]


def test_plan_and_command_take_a_language_model(
    language_recipe: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = language_recipe.parent / "runs"
    assert main(["plan", str(language_recipe), "--runs", str(runs), "--steps", "1"]) == 0
    assert "next" in capsys.readouterr().out
    few = ["train.steps=2", "train.validate_steps=2", "--output", str(runs / "next")]
    assert main(["fit", str(language_recipe), *few]) == 0
    assert '"test_perplexity"' in capsys.readouterr().out


def test_text_without_a_word_is_refused_before_training(
    language_recipe: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = language_recipe.parent / "texts"
    folder.mkdir()
    for split in ("train", "valid", "test"):
        (folder / f"{split}.txt").write_text(" \n" * 40)
    given = [f"data.source={folder}", "data.test=null", "data.valid=null"]
    run = language_recipe.parent / "run"
    assert main(["fit", str(language_recipe), *given, "--output", str(run)]) == 2
    told = capsys.readouterr().err
    assert "the training split of texts: the vocabulary must hold a word, got none" in told
    assert not run.exists()


@pytest.mark.parametrize("options", [[], BYTES])
def test_text_is_continued_with_the_best_weights(
    language_recipe: Path, capsys: pytest.CaptureFixture[str], options: list[str]
) -> None:
    run = start(language_recipe, "run", "train.steps=2", "train.validate_steps=2", *options)
    run.run()
    command = ["generate", str(run.folder), "the film", "--count", "6"]
    texts = []
    for more in ([], [], ["--temperature", "2", "--seed", "1"]):
        assert main([*command, *more]) == 0
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1] != texts[2] and texts[0].startswith("the film")
    assert main(["generate", str(run.folder), " "]) == 2 or options
    assert main(["generate", str(run.folder / "none"), "a"]) == 2
    assert "holds no run: recipe.yaml is missing" in capsys.readouterr().err


def test_classifier_starts_from_a_mixture_and_its_words(language_recipe: Path) -> None:
    experts = ["model.experts=switch", "model.num_experts=3"]
    language = start(language_recipe, "language", *experts)
    language.run()
    recipe = language_recipe.with_name("sentiment.yaml")
    recipe.write_text(CLASSIFIER.replace("FOLDER", str(language.folder)))
    classifier = start(recipe, "classifier", *experts)
    weights = load_file(language.folder / records.BEST)
    own = classifier.model.state_dict()
    assert own.keys() - weights.keys() == {"head.weight", "head.bias"}
    assert all(torch.equal(value, own[name]) for name, value in weights.items())
    metrics = classifier.run()
    assert metrics["test_accuracy"] > 0.75
    assert "init_digest" in json.loads((classifier.folder / records.RUN).read_text())
    expected = (language.folder / records.TOKENIZER).read_bytes()
    assert (classifier.folder / records.TOKENIZER).read_bytes() == expected
