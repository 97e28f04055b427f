from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from tests.exported import write_idx
from training.recipe_file import read_recipe
from training.trainer import Trainer

IMAGES = """
name: tiny
labels: [dark, light]
logs: []
model: {name: deit_tiny_elliptical, img_size: 8, patch_size: 4, in_chans: 1, num_classes: 2,
        embed_dim: 16, num_heads: 2, depth: 2, mlp_ratio: 2.0}
data: {source: FOLDER, valid: 32, image: {channels: 1, height: 8, width: 8}, flip: true, shift: 1}
train: {epochs: 3, batch_size: 16, lr: 3.0e-3, warmup_epochs: 0.5}
"""
TEXTS = """
name: words
labels: [neg, pos]
logs: []
data: {source: imdb, valid: 16, max_len: 12, vocab_size: 60}
train: {epochs: 8, batch_size: 16, lr: 5.0e-2, optimizer: adam, weight_decay: 0}
variants:
  transject: {model: {name: transject, embed_dim: 16, depth: 2}}
  transformer: {model: {name: transformer, embed_dim: 16, depth: 1, num_heads: 2}}
sizes:
  small: {train: {epochs: 1}}
"""
TOKENS = """
name: bytes
labels: [neg, pos]
model: {name: lra_transformer, vocab_size: 257, embed_dim: 16, num_heads: 2}
data: {source: lra-text, valid: 16, max_len: 24}
train: {epochs: 1, batch_size: 16}
"""
MASKS = """
name: squares
labels: [ground, square]
logs: []
model: {name: segmenter_tiny, img_size: 8, patch_size: 2, in_chans: 1, num_classes: 2, dropout: 0.0,
        embed_dim: 16, num_heads: 2, depth: 2, decoder_depth: 1, mlp_ratio: 2.0}
data: {source: FOLDER, valid: 8, image: {channels: 1, height: 8, width: 8}, background: 0}
train: {epochs: 2, batch_size: 8, lr: 1.0e-2, warmup_epochs: 0.5}
"""
LANGUAGE = """
name: next
logs: []
model: {name: lm_small_elliptical, vocab_size: 20, embed_dim: 16, num_heads: 2, depth: 2,
        mlp_ratio: 2.0, dropout: 0.0}
data: {source: imdb, context: 8, test: 16, valid: 16, raw: true, vocab_size: 16}
train: {steps: 60, validate_steps: 30, batch_size: 8, lr: 1.0e-2, warmup_steps: 5, monitor: loss}
"""
_WORDS = (["bad", "awful", "boring"], ["good", "lovely", "great"])


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


@pytest.fixture
def mask_recipe(tmp_path: Path) -> Path:
    """A recipe for finding bright squares in images, beside its data."""
    random = np.random.default_rng(0)
    for split, size in (("train", 24), ("test", 12)):
        for folder in ("images", "masks"):
            (tmp_path / "set" / split / folder).mkdir(parents=True)
        for index in range(size):
            mask, (row, column) = np.zeros((8, 8), np.uint8), random.integers(0, 5, 2)
            mask[row : row + 4, column : column + 4] = 1
            pixels = random.integers(0, 100, (8, 8)) + 150 * mask
            mask[random.integers(8), random.integers(8)] = 255
            for folder, array in (("images", pixels.astype(np.uint8)), ("masks", mask)):
                Image.fromarray(array).save(tmp_path / "set" / split / folder / f"{index:02}.png")
    return write(tmp_path / "recipe.yaml", MASKS.replace("FOLDER", str(tmp_path / "set")))


@pytest.fixture
def recipe_file(tmp_path: Path) -> Path:
    """A recipe for telling dark images from light ones, beside its data."""
    random = np.random.default_rng(0)
    for split, size in (("train", 160), ("t10k", 64)):
        labels = random.integers(0, 2, size).astype(np.uint8)
        pixels = random.integers(0, 150, (size, 8, 8)) + 100 * labels[:, None, None]
        write_idx(tmp_path / f"{split}-images-idx3-ubyte.gz", pixels.astype(np.uint8))
        write_idx(tmp_path / f"{split}-labels-idx1-ubyte.gz", labels)
    return write(tmp_path / "recipe.yaml", IMAGES.replace("FOLDER", str(tmp_path)))


@pytest.fixture
def imdb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of known data with a tiny IMDb: one word of each text tells its label."""
    random = np.random.default_rng(0)
    folder = tmp_path / "data"
    folder.mkdir()
    for split, size in (("train", 144), ("test", 32)):
        labels = random.integers(0, 2, size)
        texts = []
        for label in labels:
            filling = random.choice(["the", "film", "was", "so", "very"], random.integers(2, 9))
            texts.append(" ".join([*filling, str(random.choice(_WORDS[label]))]))
        table = pa.table({"text": texts, "label": labels.astype(np.int64)})
        pq.write_table(table, folder / f"imdb-{split}.parquet")
    monkeypatch.setenv("ASSAY_DATA", str(folder))
    return folder


@pytest.fixture
def text_recipe(tmp_path: Path, imdb: Path) -> Path:
    """A recipe for telling bad films from good ones, with variants and a size."""
    return write(tmp_path / "recipe.yaml", TEXTS)


@pytest.fixture
def token_recipe(tmp_path: Path, imdb: Path) -> Path:
    """A recipe for the same texts as a task of the Long Range Arena."""
    return write(tmp_path / "recipe.yaml", TOKENS)


@pytest.fixture
def language_recipe(tmp_path: Path, imdb: Path) -> Path:
    """A recipe for the next words of the same texts."""
    return write(tmp_path / "recipe.yaml", LANGUAGE)


def start(recipe: Path, folder: str, *overrides: str) -> Trainer:
    """A trainer for a recipe file, in a folder beside it."""
    return Trainer(read_recipe(recipe, list(overrides)), recipe.parent / folder)
