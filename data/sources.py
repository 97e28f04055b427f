"""Open a data set by what the user names: a path, a known name, or a name on the hub."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from data.csv_file import open_csv
from data.folder import open_folder, open_zip
from data.hub import hub_files
from data.idx import has_idx, open_idx
from data.image_set import DataError, ImageSet, load_inputs, load_pixels
from data.imagenet import open_imagenet
from data.images import MAX_PIXELS
from data.known import KNOWN, KNOWN_TEXTS, data_folder
from data.parquet import open_parquet, open_text_parquet
from data.text_folder import open_text_folder
from data.text_set import TextSet

__all__ = [
    "DataError",
    "ImageSet",
    "KNOWN",
    "KNOWN_TEXTS",
    "TextSet",
    "load_inputs",
    "load_pixels",
    "open_images",
    "open_texts",
]


def open_images(
    source: str | Path,
    *,
    split: str = "test",
    label_names: Sequence[str] | None = None,
    max_pixels: int = MAX_PIXELS,
) -> ImageSet:
    """Open a data set of images.

    Args:
        source: an image folder (`class/name.png`), a zip of one, a parquet file, a folder with idx
            or parquet files or with a folder of that split, `hf:NAME[:SPLIT]`, or a name in
            `KNOWN`.
        split: which part, where the source has several.
        label_names: names of the classes in order of index.
        max_pixels: of an image in a zip or parquet file; a larger one is not decoded.

    Raises:
        DataError: the source is missing, broken, empty, or its labels are not these classes.
    """
    labels = list(label_names) if label_names is not None else None
    text = str(source)
    if text.startswith("hf:"):
        return open_parquet(_hub(text, split), labels)
    if text in KNOWN and not Path(text).exists():
        return _open_known(text, split, labels or KNOWN[text])
    path = Path(source)
    if path.is_dir():
        return _open_directory(path, split, labels)
    if not path.is_file():
        raise DataError(f"{text} is no file or folder; known names: {', '.join(KNOWN)}, hf:NAME")
    if path.suffix == ".parquet":
        return open_parquet([path], labels, max_pixels=max_pixels)
    if path.suffix == ".zip":
        return open_zip(path, labels, max_pixels=max_pixels)
    raise DataError(f"{path.name} must be a folder, a .zip or a .parquet file")


def open_texts(
    source: str | Path, *, split: str = "test", label_names: Sequence[str] | None = None
) -> TextSet:
    """Open a data set of texts.

    Args:
        source: a text folder (`class/name.txt`), a csv or parquet file with the columns `text` and
            `label`, a folder with parquet files or with a folder of that split,
            `hf:NAME[:SPLIT]`, or a name in `KNOWN_TEXTS`.
        split: which part, where the source has several.
        label_names: names of the classes in order of index.

    Raises:
        DataError: the source is missing, broken, empty, holds a text of blanks only, or its labels
            are not these classes.
    """
    labels = list(label_names) if label_names is not None else None
    text = str(source)
    if text.startswith("hf:"):
        return open_text_parquet(_hub(text, split), labels)
    if text in KNOWN_TEXTS and not Path(text).exists():
        return _open_known_texts(text, split, labels)
    path = Path(source)
    if path.is_dir():
        parquet = _parquet_files(path, split)
        if parquet:
            return open_text_parquet(parquet, labels)
        return open_text_folder(_split_folder(path, split), labels)
    if not path.is_file():
        known = ", ".join(KNOWN_TEXTS)
        raise DataError(f"{text} is no file or folder; known names: {known}, hf:NAME")
    if path.suffix == ".parquet":
        return open_text_parquet([path], labels)
    if path.suffix == ".csv":
        return open_csv(path, labels)
    raise DataError(f"{path.name} must be a folder, a .csv or a .parquet file")


def _hub(source: str, split: str) -> list[Path]:
    name, _, own_split = source.removeprefix("hf:").partition(":")
    return hub_files(name, own_split or split)


def _split_folder(folder: Path, split: str) -> Path:
    """The folder of a split, told from a class of that name (a train) by its class folders."""
    part = folder / split
    return part if part.is_dir() and any(path.is_dir() for path in part.iterdir()) else folder


def _parquet_files(folder: Path, split: str) -> list[Path]:
    parquet = sorted(folder.glob("*.parquet"))
    return [path for path in parquet if split in path.name] or parquet


def _open_directory(folder: Path, split: str, labels: list[str] | None) -> ImageSet:
    if has_idx(folder):
        return open_idx(folder, split, labels)
    parquet = _parquet_files(folder, split)
    if parquet:
        return open_parquet(parquet, labels)
    return open_folder(_split_folder(folder, split), labels)


def _open_known(name: str, split: str, labels: list[str]) -> ImageSet:
    folder = data_folder(name)
    parquet = sorted(folder.glob(f"{name}-{split}*.parquet"))
    if parquet:
        return open_parquet(parquet, labels)
    if name == "imagenet":
        return open_imagenet(folder / name, split)
    return open_idx(folder, split, labels)


def _open_known_texts(name: str, split: str, labels: list[str] | None) -> TextSet:
    known = KNOWN_TEXTS[name]
    if split not in known.sizes:
        raise DataError(f"{name} has the splits {', '.join(known.sizes)}, got {split!r}")
    parquet = sorted(data_folder(name).glob(f"{known.prefix}-{split}*.parquet"))
    if not parquet:
        raise DataError(f"{name} needs {known.prefix}-{split}*.parquet in the folder ASSAY_DATA")
    # Next to the whole split, a part of it would only repeat its rows.
    whole = [path for path in parquet if "subset" not in path.name]
    texts = open_text_parquet(whole or parquet, labels or known.label_names)
    return dataclasses.replace(texts, description=known.describe(split, len(texts)))
