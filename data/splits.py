"""Splits: those that a folder holds, and validation samples held out of the training set."""

import re
from pathlib import Path

import numpy as np

from data.errors import DataError

_SPLITS = ("train", "test", "validation", "valid", "val")
_IN_NAME = re.compile(rf"(?<![a-z])({'|'.join(_SPLITS)})")


def find_splits(folder: Path, *, csv: bool = False) -> dict[str, list[Path]]:
    """Find what a folder holds of each split; nothing where it is one set of samples.

    Parquet files are told by a word of their names that begins with the split's. Without any, the
    folder of a split counts if it holds class folders, since a class may be called train, too.

    Args:
        folder: of a data set.
        csv: whether `train.csv` is a split, in a folder without folders.

    Returns:
        The parquet files, the one folder or the one csv file of each split.
    """
    splits: dict[str, list[Path]] = {}
    parquet = sorted(folder.glob("*.parquet"))
    for path in parquet:
        if found := _IN_NAME.search(path.name.lower()):
            splits.setdefault(found[1], []).append(path)
    if parquet:
        return splits
    if csv and not _holds_folders(folder):
        files = {split: folder / f"{split}.csv" for split in _SPLITS}
        return {split: [file] for split, file in files.items() if file.is_file()}
    folders = {split: folder / split for split in _SPLITS}
    return {split: [part] for split, part in folders.items() if _holds_folders(part)}


def split_paths(folder: Path, split: str, *, csv: bool = False) -> list[Path]:
    """Find the parquet files, the folder or the csv file of a split; of all where there are none.

    Raises:
        DataError: the folder has splits, but not this one.
    """
    splits = find_splits(folder, csv=csv)
    if splits and split not in splits:
        raise DataError(f"{folder} has no {split} split, only {', '.join(splits)}")
    return splits.get(split) or sorted(folder.glob("*.parquet")) or [folder]


def split_indices(num_samples: int, valid: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw a validation split, the same for the same arguments.

    Args:
        num_samples: size of the training set.
        valid: how many samples to hold out, at least 1 and fewer than num_samples.
        seed: seed of the draw.

    Returns:
        Indices to train on and indices held out, each in ascending order.

    Raises:
        ValueError: `valid` is out of range.
    """
    if not 1 <= valid < num_samples:
        raise ValueError(f"valid must be from 1 to {num_samples - 1}, got {valid}")
    order = np.random.default_rng(seed).permutation(num_samples)
    return np.sort(order[valid:]), np.sort(order[:valid])


def _holds_folders(path: Path) -> bool:
    return path.is_dir() and any(part.is_dir() for part in path.iterdir())
