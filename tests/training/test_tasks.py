from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from PIL import Image

from data.image_set import DataError
from training.fit import Trainer
from training.recipe_file import read_recipe
from training.tasks import Task, open_task

Start = Callable[..., Trainer]
LRA: dict[str, Any] = {
    "name": "bytes",
    "labels": ["neg", "pos"],
    "model": {"name": "lra_transformer", "vocab_size": 257, "embed_dim": 16, "num_heads": 2},
    "data": {"source": "lra-text", "valid": 16, "max_len": 24},
    "train": {"epochs": 1, "batch_size": 16},
}


def write(path: Path, recipe: dict[str, Any]) -> Path:
    path.write_text(yaml.safe_dump(recipe))
    return path


def task(recipe: Path, *overrides: str) -> Task:
    return open_task(read_recipe(recipe, list(overrides)), recipe.parent / "tokenizer.json")


def test_images_are_split_as_export_will_split_them(recipe_file: Path) -> None:
    opened = task(recipe_file)
    assert len(opened.train.labels) == 128 and len(opened.valid.labels) == 32
    (pixels,) = opened.train.batch(np.array([3, 5]))
    assert pixels.shape == (2, 1, 8, 8) and opened.train.lengths is None
    assert opened.digest() == task(recipe_file).digest() != task(recipe_file, "seed=1").digest()


def test_tokenizer_learns_from_the_training_texts_alone(text_recipe: Path, imdb: Path) -> None:
    opened = task(text_recipe, "variant=transject")
    tokens, mask = opened.train.batch(np.array([0, 1]))
    assert tokens.shape == mask.shape and mask.any(1).all()
    assert opened.tokenizer is not None
    opened.tokenizer.save(text_recipe.parent / "tokenizer.json")
    again = task(text_recipe, "variant=transject", "data.vocab_size=40", "model.vocab_size=60")
    assert again.digest() == opened.digest()  # the saved one is used


def test_loaded_tokenizer_gives_bytes(text_recipe: Path) -> None:
    overrides = ["data.tokenizer=bytes", "data.vocab_size=null", "model.vocab_size=257"]
    opened = task(text_recipe, "variant=transject", *overrides)
    assert opened.train.lengths is not None and opened.train.lengths.max() == 12


def test_long_range_tasks_are_cut_and_trained(imdb: Path, tmp_path: Path, start: Start) -> None:
    recipe = write(tmp_path / "lra.yaml", LRA)
    opened = task(recipe)
    assert opened.train.lengths is not None and opened.train.lengths.max() == 24
    assert start(recipe, tmp_path / "run").run()["train_samples"] == 128


def test_pairs_are_trained_by_two_towers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: Start
) -> None:
    monkeypatch.setenv("ASSAY_DATA", str(tmp_path))
    random = np.random.default_rng(0)
    for part, size in (("train", 32), ("eval", 8), ("test", 8)):
        lines = [f"{n % 2}.0\t1\t2\tone {random.random()}\ttwo" for n in range(size)]
        (tmp_path / f"new_aan_pairs.{part}.tsv").write_text("\n".join(lines) + "\n")
    recipe = LRA | {"labels": ["unrelated", "related"], "data": {"source": "lra-retrieval"}}
    path = write(tmp_path / "pairs.yaml", recipe)
    with pytest.raises(ValueError, match="model.towers must be 2 for lra-retrieval, got 1"):
        task(path)
    metrics = start(path, tmp_path / "run", "model.towers=2").run()
    assert metrics["valid_samples"] == 8 and metrics["steps"] == 2


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("data.valid=null", "data.valid must be given: lra-text has the splits train, test"),
        ("labels=[pos, neg]", "labels must be"),
        ("model.vocab_size=100", "model.vocab_size must be at least 257 for lra-text, got 100"),
        ("data.size=5", "lra-text is not drawn here"),
        ("data.source=lra-nothing", "name must be one of lra-listops"),
    ],
)
def test_tokens_that_do_not_fit_are_refused(
    imdb: Path, tmp_path: Path, override: str, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        task(write(tmp_path / "lra.yaml", LRA), override)


def test_image_model_does_not_take_tokens(imdb: Path, tmp_path: Path) -> None:
    recipe = LRA | {"model": {"name": "deit_tiny", "num_classes": 2}}
    recipe |= {"data": {"source": "lra-text", "valid": 16}}
    with pytest.raises(ValueError, match="deit_tiny takes images, lra-text gives tokens"):
        task(write(tmp_path / "lra.yaml", recipe))


def write_images(folder: Path) -> None:
    for split in ("train", "test"):
        for label in ("dark", "light"):
            (folder / split / label).mkdir(parents=True)
            for number in range(2):
                Image.new("L", (8, 8)).save(folder / split / label / f"{number}.png")


def test_unreadable_image_is_named_before_training(recipe_file: Path, tmp_path: Path) -> None:
    write_images(tmp_path / "images")
    broken = tmp_path / "images" / "train" / "light" / "1.png"
    broken.write_bytes(broken.read_bytes()[:45])
    options = [f"data.source={tmp_path / 'images'}", "data.valid=1", "train.batch_size=1"]
    with pytest.raises(DataError, match=r"light/1\.png: the image data is broken"):
        task(recipe_file, *options)
    broken.unlink()
    (tmp_path / "images" / "train" / "light" / "0.png").unlink()
    with pytest.raises(DataError, match="the class folder light holds no image"):
        task(recipe_file, *options)


@pytest.mark.parametrize("split", ["train", "test"])
@pytest.mark.parametrize("workers", [0, 2])
def test_images_read_for_every_batch_are_all_tried_before_it(
    recipe_file: Path, tmp_path: Path, start: Start, split: str, workers: int
) -> None:
    write_images(tmp_path / "images")
    options = [f"data.source={tmp_path / 'images'}", "data.valid=1", "train.batch_size=1"]
    options += ["data.in_memory=false", f"data.workers={workers}", "train.epochs=1"]
    start(recipe_file, tmp_path / "run", *options)
    broken = tmp_path / "images" / split / "dark" / "0.png"
    broken.write_bytes(broken.read_bytes()[:45])
    with pytest.raises(DataError, match=r"dark/0\.png: the image data is broken"):
        start(recipe_file, tmp_path / "run", *options)
    assert not (tmp_path / "run").exists()


def test_images_may_be_read_for_every_batch_by_workers(
    recipe_file: Path, tmp_path: Path, start: Start
) -> None:
    lazy = ["data.in_memory=false", "data.workers=2", "data.repeats=2", "train.epochs=1"]
    trainer = start(recipe_file, tmp_path / "run", "data.random_crop=true", *lazy)
    assert trainer.run()["steps"] == 8
    losses = []
    for workers in (0, 2):
        trainer = start(recipe_file, tmp_path / str(workers), *lazy, f"data.workers={workers}")
        trainer.run()
        losses.append(trainer.state.history[0]["loss"])
    assert losses[0] == losses[1]
    with pytest.raises(ValueError, match="random_crop needs in_memory false"):
        start(recipe_file, tmp_path / "other", "data.random_crop=true")
