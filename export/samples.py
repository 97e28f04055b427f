"""Real inputs of a model: what parity is measured on, int8 is calibrated on, and probes are of."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from data.errors import DataError
from data.formats.documents import open_documents, split_documents
from data.images import ImageSpec
from data.masks import open_masks
from data.sets import ImageSet, MaskSet, TextSet, load_masks
from data.sources import load_pixels, open_images, open_texts
from data.splits import split_indices
from data.token_set import Ragged
from data.tokenizer import load_tokenizer
from data.words import byte_stream, word_stream
from export.run import Run
from runtimes.base import in_batches
from runtimes.manifest import TOKENIZER
from runtimes.tasks import IMAGES, LANGUAGE, MASKS, TASKS, TaskForm

TEXTS_AT_ONCE = 8
_NUMBERS = 1 << 24  # logits of a language model compared at a time
Feed = dict[str, np.ndarray]
"""What a graph reads, by the names of its inputs and in their order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """Inputs of one model, with labels where they are known.

    Attributes:
        inputs: pixels (N, C, H, W) uint8 of an image model, or N sequences of a text model.
        pad: id at places that the mask leaves out.
        labels: (N,) int64, or None; of a segmentation (N, H, W) uint8, see `data.sets.MaskSet`.
        description: what they are.
        task: what the model does with them.
        most: how many are compared at a time.
    """

    inputs: np.ndarray | Ragged
    pad: int = 0
    labels: np.ndarray | None
    description: str
    task: TaskForm = TASKS[IMAGES]
    most: int = 64

    def __len__(self) -> int:
        """Number of samples."""
        return len(self.inputs)

    def take(self, indices: np.ndarray) -> "Samples":
        """The samples at these indices, in this order."""
        if isinstance(self.inputs, np.ndarray):
            inputs = self.inputs[indices]
        else:
            inputs = self.inputs.take(indices)
        labels = None if self.labels is None else self.labels[indices]
        return replace(self, inputs=inputs, labels=labels)

    def in_disorder(self, seed: int) -> "Samples":
        """The same samples, the tokens of each in a drawn order: no text can be read from them.

        So are the pixels of images whose pixels have classes. The stored images of a classifier
        stay as they are, for int8 is calibrated on them.
        """
        random = np.random.default_rng(seed)
        if isinstance(self.inputs, np.ndarray):
            if not self.task.per_pixel:
                return self
            pixels = self.inputs.reshape(*self.inputs.shape[:2], -1)  # (N, C, H * W)
            mixed = [image[:, random.permutation(image.shape[1])] for image in pixels]
            return replace(self, inputs=np.stack(mixed).reshape(self.inputs.shape))
        rows = [random.permutation(self.inputs[i]) for i in range(len(self))]
        return replace(self, inputs=Ragged.of(rows, np.uint32))

    def first(self, tokens: int | None) -> "Samples":
        """The same samples, of each the first tokens; None for all of them."""
        if tokens is None or isinstance(self.inputs, np.ndarray):
            return self
        rows = [self.inputs[i][:tokens] for i in range(len(self))]
        return replace(self, inputs=Ragged.of(rows, np.uint32))

    def feed(self, indices: Sequence[int] | np.ndarray | None = None) -> Feed:
        """The inputs of some samples, or of all: images, or tokens padded to the longest of them.

        Returns:
            `images` (B, C, H, W) float32 in [0, 1], or `tokens` (B, N) int64 and `mask` (B, N)
            bool.
        """
        chosen = np.arange(len(self)) if indices is None else np.asarray(indices)
        if isinstance(self.inputs, np.ndarray):
            return {"images": self.inputs[chosen].astype(np.float32) / np.float32(255)}
        rows = self.inputs.take(chosen)
        tokens, mask = rows.padded(int(rows.lengths.max()), self.pad)
        return {"tokens": tokens, "mask": mask}


def open_samples(run: Run, data: str | None = None, *, limit: int) -> Samples:
    """Read what a run's model reads, evenly spread over a data set.

    Args:
        run: a finished run.
        data: a source of data, see `data.sources`; None takes what the run held out of its training
            set.
        limit: how many samples at most.

    Raises:
        ValueError: the data are missing or broken, or not of these classes.
    """
    if run.task == MASKS and isinstance(run.spec, ImageSpec):
        masks, name = _opened(open_masks, run, data)
        masks = masks.take(spread(len(masks), limit))
        labels = load_masks(masks, run.spec)
        pixels, task = load_pixels(masks, run.spec), TASKS[MASKS]
        return Samples(inputs=pixels, labels=labels, description=name, task=task)
    if isinstance(run.spec, ImageSpec):
        images, name = _opened(open_images, run, data)
        images = images.take(spread(len(images), limit))
        pixels = load_pixels(images, run.spec)
        return Samples(inputs=pixels, labels=images.labels, description=name)
    if run.task == LANGUAGE:
        return _segments(run, data, limit, context=run.spec.max_len)
    texts, name = _opened(open_texts, run, data)
    texts = texts.take(spread(len(texts), limit))
    tokenizer = load_tokenizer(run.folder / TOKENIZER)
    tokens = Ragged.of(tokenizer.rows(list(texts), run.spec.max_len), np.uint32)
    return Samples(inputs=tokens, pad=tokenizer.pad, labels=texts.labels, description=name)


def _segments(run: Run, data: str | None, limit: int, *, context: int) -> Samples:
    """Parts of a language model's texts, of all lengths up to its context, evenly spread."""
    own = run.recipe["data"]
    if data is None:
        documents = split_documents(own["source"], own["valid"], own["test"], run.seed)["valid"]
        name = f"{run.source}, validation split"
    else:
        documents, name = open_documents(data), data if data.startswith("hf:") else Path(data).name
    tokenizer = load_tokenizer(run.folder / TOKENIZER)
    stream = (
        byte_stream(documents) if own["tokenizer"] == "bytes" else word_stream(documents, tokenizer)
    )
    if len(stream) < context:
        raise DataError(f"{name} must hold at least {context} tokens, got {len(stream)}")
    starts = spread(len(stream) - context + 1, limit)
    lengths = np.random.default_rng(0).integers(1, context + 1, len(starts))
    rows = [stream[start : start + size] for start, size in zip(starts, lengths, strict=True)]
    return Samples(
        inputs=Ragged.of(rows, np.uint32),
        pad=tokenizer.pad,
        labels=None,
        description=name,
        task=TASKS[LANGUAGE],
        most=max(2, _NUMBERS // (context * run.config["vocab_size"])),
    )


def in_parts(run: Callable[[Feed], np.ndarray], feed: Feed, batch: int | None) -> np.ndarray:
    """Run a graph on inputs, few texts at once: attention among many long ones takes gigabytes.

    Args:
        run: from inputs by name to logits.
        feed: inputs by name.
        batch: how many it takes at once; None where it takes any number.
    """
    if batch is not None or "tokens" not in feed:
        return in_batches(run, feed, batch)
    count = len(feed["tokens"])
    starts = range(0, count, TEXTS_AT_ONCE)
    parts = [{k: v[start : start + TEXTS_AT_ONCE] for k, v in feed.items()} for start in starts]
    return np.concatenate([run(part) for part in parts])


def spread(count: int, limit: int) -> np.ndarray:
    """At most `limit` indices below `count`, evenly spread: a data set may be sorted by class."""
    size = min(count, limit)
    return np.arange(size) * count // max(size, 1)


def _opened(
    open_source: Callable[..., ImageSet | MaskSet | TextSet], run: Run, data: str | None
) -> tuple[Any, str]:
    """A set of samples, of which a run's own are those that it held out, and its name."""
    if data is not None:
        name = data if data.startswith("hf:") else Path(data).name
        return open_source(data, label_names=run.labels), name
    source, valid = run.recipe["data"]["source"], run.recipe["data"]["valid"]
    if valid is None:
        samples = open_source(source, split="valid", label_names=run.labels)
        return samples, f"{run.source}, validation split"
    samples = open_source(source, split="train", label_names=run.labels)
    held_out = split_indices(len(samples), valid, run.seed)[1]
    return samples.take(held_out), f"{run.source}, held-out validation split"
