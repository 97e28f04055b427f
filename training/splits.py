"""Open what a recipe trains on, training, validation and test samples, and check its images."""

import dataclasses
import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch.utils.data import DataLoader, Dataset

from core.progress import Bar
from data.datasets.lra import open_tokens
from data.errors import DataError
from data.images import fit_mask, to_pixels
from data.masks import open_masks
from data.sets import ImageSet, MaskSet, TextSet
from data.sources import open_images, open_texts
from data.splits import split_indices
from data.token_set import Ragged, TokenSet
from data.tokenizer import TextTokenizer, load_tokenizer, tokenize, train_wordpiece
from training.distributed import Processes
from training.language import open_segments
from training.recipe import ImageData, LanguageData, MaskData, Recipe, TextData, TokenData
from training.samples import (
    ReadImages,
    ReadMasks,
    Samples,
    Sequences,
    StoredImages,
    StoredMasks,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Splits:
    """What a run trains on."""

    train: Samples
    valid: Samples  # held out of the training data
    test: Samples  # for the last figure alone
    description: str  # says so where the data is only a part of a known set
    tokenizer: TextTokenizer | None = None  # what made the tokens of texts

    def digest(self) -> str:
        """The sha256 of all samples and labels, so that a run says which data it saw."""
        parts = (self.train.digest(), self.valid.digest(), self.test.digest())
        return hashlib.sha256("".join(parts).encode()).hexdigest()


def open_splits(recipe: Recipe, tokenizer: Path, *, progress: bool = False) -> Splits:
    """Read the data of a recipe and check that its model can take it.

    Args:
        recipe: what to train.
        tokenizer: the file of the run's own tokenizer; where it is missing, the recipe says which.
        progress: show progress bars.

    Raises:
        ValueError: the data is missing or broken, has no test split of its own, has no labels, has
            other classes than the recipe or is too long or too wide for the model.
    """
    if isinstance(recipe.data, LanguageData):
        segments, own, description = open_segments(recipe, recipe.data, tokenizer)
        return Splits(**segments, description=description, tokenizer=own)
    if isinstance(recipe.data, ImageData | MaskData):
        _check_image(recipe, recipe.data)
    train, test = _open(recipe, "train"), _open(recipe, "test")
    if isinstance(train, ImageSet):
        name = Path(recipe.data.source).name
        description = f"{name}, {len(train)} training and {len(test)} test images"
    else:
        description = train.description
    sets: dict[str, Any] = {"train": train, "valid": None, "test": test}
    if recipe.data.valid is None:
        try:
            sets["valid"] = _open(recipe, "valid")
        except DataError as error:
            raise DataError(f"data.valid must be given: {error}") from error
    else:
        chosen, held_out = split_indices(len(train), recipe.data.valid, recipe.seed)
        sets |= {"train": train.take(chosen), "valid": train.take(held_out)}
    own = _tokenizer(recipe.data, sets["train"], tokenizer)
    samples = {
        split: _samples(recipe, found, own, split, progress=progress)
        for split, found in sets.items()
    }
    return Splits(**samples, description=description, tokenizer=own)


def open_test(recipe: Recipe, tokenizer: Path, *, count: int | None) -> Samples:
    """Some test samples, the same ones for every recipe of a task.

    Args:
        recipe: what was trained.
        tokenizer: the file of the run's tokenizer.
        count: how many; None, or more than there are, takes all.

    Raises:
        ValueError: see `open_splits`.
    """
    if isinstance(recipe.data, LanguageData):
        segments = open_segments(recipe, recipe.data, tokenizer)[0]["test"]
        return segments.take(some(len(segments), count))
    found = _open(recipe, "test")
    own = load_tokenizer(tokenizer) if isinstance(recipe.data, TextData) else None
    return _samples(recipe, found.take(some(len(found), count)), own, "test")


def some(total: int, count: int | None) -> np.ndarray:
    """`count` of `total` indices, ascending and always the same; None or too many takes all."""
    if count is None or count >= total:
        return np.arange(total)
    return np.sort(np.random.default_rng(0).choice(total, count, replace=False))


def _open(recipe: Recipe, split: str) -> ImageSet | TextSet | TokenSet:
    data = recipe.data
    if isinstance(data, TokenData):
        size, workers = data.size if split == "train" else None, max(1, data.workers)
        return open_tokens(data.source, split=split, size=size, cache=data.cache, workers=workers)
    kinds = ((ImageData, open_images), (MaskData, open_masks), (TextData, open_texts))
    open_: Any = next(opener for kind, opener in kinds if isinstance(data, kind))
    return open_(data.source, split=split, own_split=True, label_names=recipe.labels)


def _tokenizer(data: Any, texts: TextSet, saved: Path) -> TextTokenizer | None:
    """That of the run, or the one that a recipe on texts asks for."""
    if not isinstance(data, TextData):
        return None
    if saved.is_file() or data.tokenizer != "wordpiece":
        return load_tokenizer(saved if saved.is_file() else data.tokenizer)
    return train_wordpiece(texts, vocab_size=data.vocab_size or 0)


def _samples(
    recipe: Recipe,
    found: ImageSet | TextSet | TokenSet,
    tokenizer: Any,
    split: str,
    *,
    progress: bool = False,
) -> Samples:
    """What was opened, as the model takes it."""
    data: Any = recipe.data  # of the kind that was opened
    if isinstance(found, MaskSet):
        return _masks(found, data, split, progress)
    if isinstance(found, ImageSet):
        return _images(found, data, split, progress)
    if isinstance(found, TextSet):
        found = tokenize(found, tokenizer, max_len=data.max_len)
    elif data.max_len is not None:
        found = _cut(found, data.max_len)
    _check_tokens(recipe, found)
    return Sequences(found)


def _images(images: ImageSet, data: ImageData, split: str, progress: bool) -> Samples:
    if images.labels is None:
        raise DataError(f"the {split} split of {data.source} has no labels")
    if not data.in_memory:
        return ReadImages(images, data.image, images.labels, random_crop=data.random_crop)
    spec = data.image
    pixels = np.empty((len(images), spec.channels, spec.height, spec.width), np.uint8)
    bar = Bar(range(len(images)), f"read {split}", unit="image", disable=not progress)
    for index in bar:
        pixels[index] = to_pixels(images.read(index), spec)
    return StoredImages(pixels, images.labels)


def _masks(images: MaskSet, data: MaskData, split: str, progress: bool) -> Samples:
    spec = data.image
    if not data.in_memory:
        return ReadMasks(images, spec, random_crop=data.random_crop)
    pixels = np.empty((len(images), spec.channels, spec.height, spec.width), np.uint8)
    masks = np.empty((len(images), spec.height, spec.width), np.uint8)
    for index in Bar(range(len(images)), f"read {split}", unit="image", disable=not progress):
        pixels[index] = to_pixels(images.read(index), spec)
        masks[index] = fit_mask(images.mask(index), spec)
    return StoredMasks(pixels, masks)


def _check_image(recipe: Recipe, data: ImageData | MaskData) -> None:
    spec, model = data.image, recipe.model
    takes = tuple(model.get(key) for key in ("in_chans", "img_size", "img_size"))
    if takes != (spec.channels, spec.height, spec.width):
        raise ValueError(
            f"data.image must be what the model {model['name']} takes, "
            f"got {spec.channels} x {spec.height} x {spec.width} for {takes}"
        )


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
    if (towers := model.get("towers", 1)) != tokens.towers:
        source = recipe.data.source
        raise ValueError(f"model.towers must be {tokens.towers} for {source}, got {towers}")


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
    splits: Splits, processes: Processes, *, workers: int, progress: bool = False
) -> None:
    """Check the images that are decoded for every batch; others were when they were opened.

    Raises:
        DataError: an image cannot be decoded; the message names it.
    """
    for name, samples in (("train", splits.train), ("valid", splits.valid), ("test", splits.test)):
        if not isinstance(samples, ReadImages):
            continue
        own = range(processes.rank, len(samples), processes.size)
        faults = DataLoader(
            _Faults(samples), _CHUNK, sampler=own, num_workers=workers, collate_fn=list
        )
        with Bar(desc=f"check {name}", total=len(own), unit="image", disable=not progress) as bar:
            for chunk in faults:
                bar.update(len(chunk))
                if found := next(filter(None, chunk), None):
                    raise DataError(found)
