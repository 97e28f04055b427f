"""Open what a recipe trains on, training, validation and test samples, and check its images."""

import dataclasses
import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch.utils.data import DataLoader, Dataset
from tqdm import tqdm

from data.datasets.lra import open_tokens
from data.errors import DataError
from data.images import to_pixels
from data.sets import ImageSet
from data.sources import open_images, open_texts
from data.splits import split_indices
from data.token_set import Ragged, TokenSet
from data.tokenizer import TextTokenizer, load_tokenizer, tokenize, train_wordpiece
from training.distributed import Processes
from training.recipe import ImageData, Recipe, TextData, TokenData
from training.samples import ReadImages, Samples, Sequences, StoredImages


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What a run trains on.

    Attributes:
        train: to learn from.
        valid: held out of the training data.
        test: for the last figure alone.
        description: what the data is; says so where it is only a part of a known set.
        tokenizer: what made the tokens of texts.
    """

    train: Samples
    valid: Samples
    test: Samples
    description: str
    tokenizer: TextTokenizer | None = None

    def digest(self) -> str:
        """The sha256 of all samples and labels, so that a run says which data it saw."""
        parts = (self.train.digest(), self.valid.digest(), self.test.digest())
        return hashlib.sha256("".join(parts).encode()).hexdigest()


def open_task(recipe: Recipe, tokenizer: Path, *, progress: bool = False) -> Task:
    """Read the data of a recipe and check that its model can take it.

    Args:
        recipe: what to train.
        tokenizer: the file of the run's own tokenizer; where it is missing, the recipe says which.
        progress: show progress bars.

    Raises:
        ValueError: the data is missing or broken, has no test split of its own, has no labels, has
            other classes than the recipe or is too long or too wide for the model.
    """
    match recipe.data:
        case ImageData():
            return _images(recipe, recipe.data, progress)
        case TextData():
            return _texts(recipe, recipe.data, tokenizer)
        case TokenData():
            return _tokens(recipe, recipe.data)


def open_test(recipe: Recipe, tokenizer: Path, *, count: int | None) -> Samples:
    """Some test samples, the same ones for every recipe of a task.

    Args:
        recipe: what was trained.
        tokenizer: the file of the run's tokenizer.
        count: how many; None, or more than there are, takes all.

    Raises:
        ValueError: see `open_task`.
    """
    data = recipe.data
    if isinstance(data, ImageData):
        images = open_images(data.source, split="test", own_split=True, label_names=recipe.labels)
        return _image_samples(images.take(some(len(images), count)), "test", data, progress=False)
    if isinstance(data, TextData):
        texts = open_texts(data.source, split="test", own_split=True, label_names=recipe.labels)
        texts = texts.take(some(len(texts), count))
        tokens = tokenize(texts, load_tokenizer(tokenizer), max_len=data.max_len)
    else:
        options: dict[str, Any] = {"cache": data.cache, "workers": max(1, data.workers)}
        tokens = open_tokens(data.source, split="test", **options)
        tokens = tokens.take(some(len(tokens), count))
        tokens = tokens if data.max_len is None else _cut(tokens, data.max_len)
    _check_tokens(recipe, tokens)
    return Sequences(tokens)


def some(total: int, count: int | None) -> np.ndarray:
    """`count` of `total` indices, ascending and always the same; None or too many takes all."""
    if count is None or count >= total:
        return np.arange(total)
    return np.sort(np.random.default_rng(0).choice(total, count, replace=False))


def _images(recipe: Recipe, data: ImageData, progress: bool) -> Task:
    spec, model = data.image, recipe.model
    takes = tuple(model.get(key) for key in ("in_chans", "img_size", "img_size"))
    if takes != (spec.channels, spec.height, spec.width):
        raise ValueError(
            f"data.image must be what the model {model['name']} takes, "
            f"got {spec.channels} x {spec.height} x {spec.width} for {takes}"
        )
    train, test = (
        open_images(data.source, split=split, own_split=True, label_names=recipe.labels)
        for split in ("train", "test")
    )
    chosen, held_out = split_indices(len(train), data.valid, recipe.seed)
    parts = {"train": train.take(chosen), "valid": train.take(held_out), "test": test}
    samples: dict[str, Any] = {
        split: _image_samples(part, split, data, progress=progress) for split, part in parts.items()
    }
    description = f"{Path(data.source).name}, {len(train)} training and {len(test)} test images"
    return Task(**samples, description=description)


def _image_samples(images: ImageSet, split: str, data: ImageData, *, progress: bool) -> Samples:
    if images.labels is None:
        raise DataError(f"the {split} split of {data.source} has no labels")
    if not data.in_memory:
        return ReadImages(images, data.image, images.labels, random_crop=data.random_crop)
    spec = data.image
    pixels = np.empty((len(images), spec.channels, spec.height, spec.width), np.uint8)
    bar = tqdm(range(len(images)), f"read {split}", unit="image", disable=not progress)
    for index in bar:
        pixels[index] = to_pixels(images.read(index), spec)
    return StoredImages(pixels, images.labels)


def _texts(recipe: Recipe, data: TextData, saved: Path) -> Task:
    train, test = (
        open_texts(data.source, split=split, own_split=True, label_names=recipe.labels)
        for split in ("train", "test")
    )
    chosen, held_out = split_indices(len(train), data.valid, recipe.seed)
    parts = {"train": train.take(chosen), "valid": train.take(held_out), "test": test}
    if saved.is_file():
        tokenizer = load_tokenizer(saved)
    elif data.tokenizer != "wordpiece":
        tokenizer = load_tokenizer(data.tokenizer)
    else:
        tokenizer = train_wordpiece(parts["train"], vocab_size=data.vocab_size or 0)
    sets = {part: tokenize(parts[part], tokenizer, max_len=data.max_len) for part in parts}
    return _sequences(recipe, sets, train.description, tokenizer)


def _tokens(recipe: Recipe, data: TokenData) -> Task:
    options: dict[str, Any] = {"cache": data.cache, "workers": max(1, data.workers)}
    train = open_tokens(data.source, split="train", size=data.size, **options)
    sets = {"train": train, "test": open_tokens(data.source, split="test", **options)}
    if data.valid is None:
        try:
            sets["valid"] = open_tokens(data.source, split="valid", **options)
        except DataError as error:
            raise DataError(f"data.valid must be given: {error}") from error
    else:
        chosen, held_out = split_indices(len(train), data.valid, recipe.seed)
        sets |= {"train": train.take(chosen), "valid": train.take(held_out)}
    if data.max_len is not None:
        sets = {split: _cut(tokens, data.max_len) for split, tokens in sets.items()}
    return _sequences(recipe, sets, train.description, None)


def _sequences(
    recipe: Recipe, sets: dict[str, TokenSet], description: str, tokenizer: TextTokenizer | None
) -> Task:
    for tokens in sets.values():
        _check_tokens(recipe, tokens)
    samples: dict[str, Any] = {split: Sequences(tokens) for split, tokens in sets.items()}
    return Task(**samples, description=description, tokenizer=tokenizer)


def _check_tokens(recipe: Recipe, tokens: TokenSet) -> None:
    model = recipe.model
    if recipe.labels != list(tokens.label_names):
        found = f"{list(tokens.label_names)} for {tokens.description}"
        raise ValueError(f"labels must be {found}, got {recipe.labels}")
    if "vocab_size" not in model:
        raise ValueError(f"model {model['name']} takes images, {recipe.data.source} gives tokens")
    for field, needed in (("vocab_size", tokens.vocab_size), ("seq_len", tokens.seq_len)):
        if model[field] < needed:
            raise ValueError(
                f"model.{field} must be at least {needed} for {recipe.data.source}, "
                f"got {model[field]}"
            )
    if model.get("towers", 1) != tokens.towers:
        raise ValueError(
            f"model.towers must be {tokens.towers} for {recipe.data.source}, "
            f"got {model.get('towers', 1)}"
        )


def _cut(tokens: TokenSet, max_len: int) -> TokenSet:
    """Cut every sequence after its first `max_len` tokens."""
    sequences = tuple(
        Ragged.of((part[i][:max_len] for i in range(len(part))), part.values.dtype.type)
        for part in tokens.sequences
    )
    return dataclasses.replace(tokens, sequences=sequences, seq_len=min(max_len, tokens.seq_len))


_CHUNK = 32


class _Faults(Dataset[str]):
    def __init__(self, samples: ReadImages) -> None:
        self._samples = samples

    def __getitem__(self, index: int) -> str:
        return self._samples.fault(index)


def check_readable(
    task: Task, processes: Processes, *, workers: int, progress: bool = False
) -> None:
    """Check the images of a task that are decoded for every batch; others were when it was opened.

    Args:
        task: what will be trained on.
        processes: among which the images are shared.
        workers: processes that decode; 0 decodes in this one.
        progress: show a progress bar for each split.

    Raises:
        DataError: an image cannot be decoded; the message names it.
    """
    for split, samples in (("train", task.train), ("valid", task.valid), ("test", task.test)):
        if not isinstance(samples, ReadImages):
            continue
        own = range(processes.rank, len(samples.labels), processes.size)
        faults = DataLoader(
            _Faults(samples), _CHUNK, sampler=own, num_workers=workers, collate_fn=list
        )
        bar = tqdm(desc=f"check {split}", total=len(own), unit="image", disable=not progress)
        with bar:
            for chunk in faults:
                bar.update(len(chunk))
                if found := next(filter(None, chunk), None):
                    raise DataError(found)
