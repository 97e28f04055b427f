"""Data sets that are drawn here: in blocks, on several processes, kept in a cache folder.

A set is a stream of samples without duplicates; the test split comes first and the training split
last, so that smaller training sets share the test split. Every block has a random source of its
own, seeded with its number: what is drawn does not depend on how many processes draw it.
"""

import hashlib
import itertools
import multiprocessing
import zipfile
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from core.files import replacing
from data.errors import DataError
from data.token_set import Ragged

Block = tuple[Ragged, np.ndarray]
"""Sequences of uint8, and their labels, (N,) int64."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """How a set is drawn.

    Attributes:
        name: begins the names of its files.
        version: to be raised when what is drawn changes.
        block: draws block `number`, every sample verified.
        splits: first and last sample (exclusive) of each split in the stream.
    """

    name: str
    version: int
    block: Callable[[int], Block]
    splits: dict[str, tuple[int, int]]


def open_generated(
    stream: Stream, split: str, *, cache: Path, size: int | None, workers: int
) -> Block:
    """Read a split from the cache, or draw it and keep it there.

    Args:
        stream: what to draw.
        split: one of its splits.
        cache: folder for the files, made if needed; several processes may share it.
        size: samples, if not all of the split.
        workers: processes that draw.

    Raises:
        DataError: `size` is out of range, the cache cannot be written, or its file is broken.
    """
    start, stop = stream.splits[split]
    if size is not None and not 1 <= size <= stop - start:
        raise DataError(f"size of {stream.name} must be from 1 to {stop - start}, got {size}")
    stop = stop if size is None else start + size
    file = cache / f"{stream.name}-v{stream.version}-seed0-{start}-{stop}.npz"
    if not file.exists():
        _save(file, *_draw(stream, start, stop, workers=workers))
    return _load(file)


def _draw(stream: Stream, start: int, stop: int, *, workers: int) -> Block:
    """Draw samples `start` to `stop` of a stream; those before are drawn and left out."""
    seen: set[bytes] = set()
    rows: list[np.ndarray] = []
    labels: list[int] = []
    for sequences, block_labels in _blocks(stream.block, workers):
        for index, label in enumerate(block_labels.tolist()):
            digest = hashlib.blake2b(sequences[index].tobytes(), digest_size=16).digest()
            if digest in seen:
                continue
            seen.add(digest)
            if len(seen) > start:
                rows.append(sequences[index])
                labels.append(label)
            if len(seen) == stop:
                return Ragged.of(rows, np.uint8), np.array(labels, np.int64)
    raise ValueError(f"{stream.name} ended after {len(seen)} samples")


def _blocks(draw: Callable[[int], Block], workers: int) -> Iterator[Block]:
    """Blocks in order, without end; `workers` processes draw ahead."""
    if workers <= 1:
        yield from map(draw, itertools.count())
        return
    # Forked processes would inherit the threads of whoever calls, and their locks.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        pending = deque(pool.submit(draw, number) for number in range(2 * workers))
        try:
            for number in itertools.count(2 * workers):
                yield pending.popleft().result()
                pending.append(pool.submit(draw, number))
        finally:
            pool.shutdown(cancel_futures=True)


def _save(file: Path, sequences: Ragged, labels: np.ndarray) -> None:
    """Write a file as a whole or not at all."""
    arrays = {"values": sequences.values, "offsets": sequences.offsets, "labels": labels}
    arrays["digest"] = np.array(_digest(arrays))
    try:
        with replacing(file) as partial, partial.open("wb") as stream:
            np.savez(stream, allow_pickle=False, **arrays)
    except OSError as error:
        raise DataError(f"{file.name} cannot be written to the cache: {error.strerror}") from error


def _load(file: Path) -> Block:
    try:
        with file.open("rb") as raw, np.load(raw, allow_pickle=False) as content:
            arrays = {name: content[name] for name in ("values", "offsets", "labels")}
            digest = str(content["digest"])
    except (OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise DataError(f"{file.name} is broken, delete it to draw it again: {error}") from error
    if digest != _digest(arrays):
        raise DataError(f"{file.name} was changed, delete it to draw it again")
    return Ragged(values=arrays["values"], offsets=arrays["offsets"]), arrays["labels"]


def _digest(arrays: dict[str, np.ndarray]) -> str:
    state = hashlib.sha256()
    for name in sorted(arrays):
        state.update(arrays[name].tobytes())
    return state.hexdigest()
