import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from data.errors import DataError
from data.images import ImageSpec
from tests.training.conftest import start
from training.draws import Draws, source
from training.recipe_file import read_recipe
from training.samples import crop, mask_window, window
from training.splits import Splits, open_splits

ROOT = Path(__file__).parents[2]
LAZY = ["data.in_memory=false", "data.random_crop=true", "data.repeats=2", "train.epochs=1"]


def splits(recipe: Path, *overrides: str) -> Splits:
    return open_splits(read_recipe(recipe, list(overrides)), recipe.parent / "tokenizer.json")


def test_images_are_split_as_export_will_split_them(recipe_file: Path) -> None:
    opened = splits(recipe_file)
    assert len(opened.train.labels) == 128 and len(opened.valid.labels) == 32
    (pixels,) = opened.train.batch(np.array([3, 5]))
    assert pixels.shape == (2, 1, 8, 8) and opened.train.lengths is None
    assert opened.digest() == splits(recipe_file).digest() != splits(recipe_file, "seed=1").digest()


@pytest.mark.parametrize("in_memory", [True, False])
def test_masks_are_the_targets_of_their_images(mask_recipe: Path, in_memory: bool) -> None:
    opened = splits(mask_recipe, f"data.in_memory={in_memory}")
    assert (len(opened.train), len(opened.valid), len(opened.test)) == (16, 8, 12)
    indices = np.array([3, 0])
    (pixels,), masks = opened.train.batch(indices), opened.train.targets(indices)
    assert masks.dtype == torch.int64 and (masks == 255).sum((1, 2)).tolist() == [1, 1]
    assert torch.equal(pixels[:, 0][masks != 255] >= 150, masks[masks != 255] == 1)
    assert opened.digest() == splits(mask_recipe, f"data.in_memory={in_memory}").digest()
    other = splits(mask_recipe, f"data.in_memory={in_memory}", "seed=1")
    assert opened.digest() != other.digest()


def test_random_windows_cut_masks_as_their_images(mask_recipe: Path) -> None:
    opened = splits(mask_recipe, "data.in_memory=false", "data.random_crop=true")
    images, same = (Draws(source(0, "decode", 0), 16) for _ in range(2))
    (pixels,) = opened.train.batch(np.arange(16), images)
    masks = opened.train.targets(np.arange(16), same)
    assert pixels.shape == (16, 1, 8, 8) and masks.shape == (16, 8, 8)
    inside = masks != 255
    assert 0.4 < inside.float().mean() < 0.95  # small images leave room
    right = (pixels[:, 0][inside] >= 125) == (masks[inside] == 1)
    assert right.float().mean() > 0.9  # but at borders, where pixels are mixed


@pytest.mark.parametrize("size", [(30, 20), (20, 30), (7, 5)])
def test_a_window_lies_inside_its_image_or_has_black_behind_its_edges(
    size: tuple[int, int],
) -> None:
    spec = ImageSpec(channels=1, height=10, width=10)
    image, mask = Image.new("L", size, 200), np.ones(size[::-1], np.uint8)
    for part in ([0.999, 0.999, 0.999], [0.999, 0.0, 0.0], [0.34, 0.5, 0.5]):  # at least 1 : 1
        assert (window(image, part, spec) == 200).all()
        assert (mask_window(mask, part, spec) == 1).all()
    pixels, classes = window(image, [0.0, 0.5, 0.5], spec), mask_window(mask, [0.0, 0.5, 0.5], spec)
    assert np.array_equal(pixels[0] == 0, classes == 255) and (classes == 255).any()
    assert (pixels[0, :5, :5] == 200).all()


@pytest.mark.parametrize(
    ("pixels", "message"),
    [
        (np.full((8, 8), 7), "masks/03.png, row 0, column 0: 7 is no class"),
        (np.zeros((8, 9)), "masks/03.png must have the size of its image, 8 x 8, got 9 x 8"),
    ],
)
@pytest.mark.parametrize("in_memory", [True, False])
def test_broken_masks_end_training_before_its_first_step(
    mask_recipe: Path, in_memory: bool, pixels: np.ndarray, message: str
) -> None:
    path = mask_recipe.parent / "set" / "train" / "masks" / "03.png"
    Image.fromarray(pixels.astype(np.uint8)).save(path)
    with pytest.raises(DataError, match=message):
        start(mask_recipe, "run", f"data.in_memory={in_memory}")


def test_tokenizer_learns_from_the_training_texts_alone(text_recipe: Path, imdb: Path) -> None:
    opened = splits(text_recipe, "variant=transject")
    tokens, mask = opened.train.batch(np.array([0, 1]))
    assert tokens.shape == mask.shape and mask.any(1).all()
    assert opened.tokenizer is not None
    opened.tokenizer.save(text_recipe.parent / "tokenizer.json")
    again = splits(text_recipe, "variant=transject", "data.vocab_size=40", "model.vocab_size=60")
    assert again.digest() == opened.digest()  # the saved one is used
    (text_recipe.parent / "tokenizer.json").unlink()
    overrides = ["data.tokenizer=bytes", "data.vocab_size=null", "model.vocab_size=257"]
    opened = splits(text_recipe, "variant=transject", *overrides)
    assert opened.train.lengths is not None and opened.train.lengths.max() == 12


def test_long_range_tasks_are_cut_and_trained(token_recipe: Path) -> None:
    opened = splits(token_recipe)
    assert opened.train.lengths is not None and opened.train.lengths.max() == 24
    trainer = start(token_recipe, "run", 'train.lr_factors={"head.*": 1.0e-12}')
    first = {key: each.clone() for key, each in trainer.model.state_dict().items()}
    metrics = trainer.run()
    moved = {key: (first[key] - each).abs().max() for key, each in trainer.model.named_parameters()}
    assert moved["token_embed.weight"] > 1e-4 > 1e-9 > moved["head.0.weight"]
    assert metrics["train_samples"] == 128
    floor = trainer.task.floor(opened.train, opened.test)
    assert floor == {"majority_accuracy": metrics["majority_accuracy"]}


def test_pairs_are_trained_by_two_towers(token_recipe: Path, imdb: Path) -> None:
    random = np.random.default_rng(0)
    for part, size in (("train", 32), ("eval", 8), ("test", 8)):
        lines = [f"{n % 2}.0\t1\t2\tone {random.random()}\ttwo" for n in range(size)]
        (imdb / f"new_aan_pairs.{part}.tsv").write_text("\n".join(lines) + "\n")
    pairs = ["labels=[unrelated, related]", "data={source: lra-retrieval}"]
    with pytest.raises(ValueError, match="model.towers must be 2 for lra-retrieval, got 1"):
        splits(token_recipe, *pairs)
    metrics = start(token_recipe, "run", *pairs, "model.towers=2").run()
    assert metrics["valid_samples"] == 8 and metrics["steps"] == 2


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """A folder of two images for each split and class."""
    for split in ("train", "test"):
        for label in ("dark", "light"):
            folder = tmp_path / "images" / split / label
            folder.mkdir(parents=True)
            for number in range(2):
                Image.new("L", (8, 8)).save(folder / f"{number}.png")
    return tmp_path / "images"


def of(source: Path) -> list[str]:
    return [f"data.source={source}", "data.valid=1", "train.batch_size=1", "train.epochs=1"]


def damage(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:45])


def test_images_need_a_test_split(recipe_file: Path, images: Path) -> None:
    with pytest.raises(ValueError, match="images/train is the same for every split.*give a folder"):
        splits(recipe_file, *of(images / "train"))


def test_texts_need_a_test_split(text_recipe: Path, imdb: Path) -> None:
    with pytest.raises(ValueError, match="imdb-train.parquet is the same for every split"):
        splits(text_recipe, "variant=transject", f"data.source={imdb / 'imdb-train.parquet'}")


@pytest.mark.parametrize(("split", "stored"), [("train", "no"), ("test", "no"), ("train", "yes")])
def test_unreadable_image_is_named_before_training(
    recipe_file: Path, images: Path, split: str, stored: str
) -> None:
    options = [*of(images), f"data.in_memory={stored}"]
    start(recipe_file, "run", *options)
    damage(images / split / "dark" / "0.png")
    with pytest.raises(DataError, match=rf"{split}/dark/0\.png: the image data is broken"):
        start(recipe_file, "run", *options)
    assert not (recipe_file.parent / "run").exists()


def fit_with_workers(recipe: Path, *options: str | Path) -> subprocess.CompletedProcess[str]:
    """In a process of its own: torch forks workers, and handles SIGCHLD from then until its end."""
    command = [sys.executable, "-m", "training", "fit", recipe, "data.workers=2", *options]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)


@pytest.mark.slow
def test_workers_try_all_images_before_the_first_batch(recipe_file: Path, images: Path) -> None:
    damage(images / "test" / "dark" / "0.png")
    run = recipe_file.parent / "run"
    ended = fit_with_workers(recipe_file, *of(images), "data.in_memory=false", "--output", run)
    assert ended.returncode == 2 and not run.exists()
    assert "test/dark/0.png: the image data is broken" in ended.stderr


def test_images_may_be_read_for_every_batch(recipe_file: Path) -> None:
    assert start(recipe_file, "run", *LAZY).run()["steps"] == 8


@pytest.mark.slow
def test_workers_read_what_one_process_reads(recipe_file: Path) -> None:
    alone, together = (recipe_file.parent / name for name in ("alone", "workers"))
    start(recipe_file, "alone", *LAZY).run()
    ended = fit_with_workers(recipe_file, *LAZY, "--output", together)
    assert ended.returncode == 0, ended.stderr
    last = "last.safetensors"
    assert (alone / last).read_bytes() == (together / last).read_bytes()


def test_crop_has_the_area_and_ratio_that_were_drawn_and_reaches_every_place() -> None:
    for part in ((0.0, 0.0, 0.0, 0.0), (0.5, 0.5, 0.99, 0.99), (0.999, 0.3, 0.5, 0)):
        cropped = crop(Image.new("L", (400, 300)), part)
        area, ratio = cropped.width * cropped.height / (400 * 300), cropped.width / cropped.height
        assert area == pytest.approx(0.08 + 0.92 * part[0], rel=0.35) and 0.7 < ratio < 1.4
        assert cropped.width <= 400 and cropped.height <= 300
    image = Image.fromarray(np.arange(64, dtype=np.uint8).reshape(8, 8))
    assert crop(image, (0.0, 0.5, 0.0, 0.0)).getpixel((0, 0)) == 0
    last = crop(image, (0.0, 0.5, 0.999, 0.999))
    assert last.getpixel((last.width - 1, last.height - 1)) == 63
    assert crop(Image.new("L", (1, 1)), (0.0, 0.0, 0.9, 0.9)).size == (1, 1)
