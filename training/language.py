"""The texts of a language model: their splits, its vocabulary, segments of tokens."""

from pathlib import Path
from typing import cast

import torch

from data.errors import DataError
from data.formats.documents import Documents, split_documents
from data.tokenizer import TextTokenizer, load_tokenizer
from data.words import byte_stream, lines_of, train_words, word_stream
from models.attention.base import layers_of
from models.inference.generate import generate
from models.language import LanguageModel
from runtimes.manifest import TOKENIZER
from training.recipe import LanguageData, Recipe
from training.run import recorded_recipe, trained_model
from training.samples import Segments

_MOST_TOKENS = 1 << 20  # of a prompt


def open_segments(
    recipe: Recipe, data: LanguageData, saved: Path
) -> tuple[dict[str, Segments], TextTokenizer, str]:
    """Read a language model's texts.

    Args:
        recipe: what to train.
        data: its data.
        saved: the file of the run's own tokenizer; where it is missing, the recipe says which.

    Returns:
        The segments of each split, the tokenizer, and what was opened, in words.

    Raises:
        ValueError: the source is missing or broken, lacks a split, a split is shorter than a
            segment, there is no word, or the model has fewer tokens or positions.
    """
    documents = split_documents(data.source, data.valid, data.test, recipe.seed)
    own = _vocabulary(data, documents["train"], saved)
    if recipe.model["vocab_size"] < own.vocab_size:
        raise ValueError(
            f"model.vocab_size must be at least {own.vocab_size} for {data.source}, "
            f"got {recipe.model['vocab_size']}"
        )
    if recipe.model["seq_len"] < data.context:
        raise ValueError(
            f"model.seq_len must be at least data.context {data.context}, "
            f"got {recipe.model['seq_len']}"
        )
    samples = {name: _segments(data, part, own, name) for name, part in documents.items()}
    tokens = ", ".join(f"{len(part.stream):,} {name}" for name, part in samples.items())
    unit = "bytes" if data.is_bytes else "tokens"
    before = data.context - (data.stride or data.context)
    description = (
        f"{documents['train'].name}: {tokens} {unit}; segments of {data.context}, each token "
        f"predicted once after at least {max(before, 1)}"
    )
    return samples, own, description


def _vocabulary(data: LanguageData, train: Documents, saved: Path) -> TextTokenizer:
    if saved.is_file() or data.tokenizer != "words":
        return load_tokenizer(saved if saved.is_file() else data.tokenizer)
    try:
        return train_words(lines_of(train), vocab_size=data.vocab_size, raw=data.raw)
    except DataError:
        raise
    except ValueError as error:
        raise DataError(f"the training split of {train.name}: {error}") from error


def _segments(
    data: LanguageData, documents: Documents, tokenizer: TextTokenizer, split: str
) -> Segments:
    stream = byte_stream(documents) if data.is_bytes else word_stream(documents, tokenizer)
    if len(stream) <= data.context:
        raise DataError(
            f"the {split} split of {documents.name} must hold more tokens than data.context "
            f"{data.context}, got {len(stream)}"
        )
    stride = data.context if split == "train" else data.stride or data.context
    options = {"context": data.context, "stride": stride, "vocab_size": tokenizer.vocab_size}
    return Segments(stream, **options, whole=split != "train")


def continue_text(
    folder: Path, prompt: str, *, count: int, temperature: float = 0.0, seed: int = 0
) -> str:
    """Continue a text with the best weights of a language model's run.

    Args:
        folder: of the run.
        prompt: holds at least one token.
        count: tokens to add.
        temperature: see `models.inference.generate`.
        seed: of the draws.

    Raises:
        ValueError: the folder holds no run of a language model, or the prompt no token.
    """
    recipe = recorded_recipe(folder)
    data = recipe.data
    if not isinstance(data, LanguageData):
        raise ValueError(f"{folder.name} must be a run of a language model, got {recipe.name}")
    model = cast(LanguageModel, trained_model(folder, recipe))
    tokenizer = load_tokenizer(folder / TOKENIZER)
    (ids,) = tokenizer.rows([prompt], _MOST_TOKENS)
    # The padding of bytes is no byte; that of words ends their lines.
    banned = [tokenizer.pad] if data.is_bytes else []
    options = {"temperature": temperature, "seed": seed, "banned": banned}
    cached = not any(layer.no_cache for layer in layers_of(model))
    added = generate(model, torch.from_numpy(ids)[None], count=count, cache=cached, **options)
    return tokenizer.decode(added[0].tolist())
