"""Open a data set by what the user names: a path, a known name, or a name on the hub."""

import dataclasses
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import ModuleType
from typing import TypeVar

from data.datasets.known import KNOWN, KNOWN_TEXTS, data_folder, open_imagenet
from data.errors import DataError
from data.formats.csv import open_csv
from data.formats.folder import open_folder, open_text_folder, open_zip
from data.formats.hub import hub_files
from data.formats.idx import has_idx, open_idx
from data.labels import Classes, ClassMap, normalize
from data.sets import FileSet, ImageSet, TextSet, load_inputs, load_pixels
from data.splits import find_splits, split_paths

__all__ = [
    "FileSet",
    "ImageSet",
    "KNOWN",
    "KNOWN_TEXTS",
    "TextSet",
    "load_inputs",
    "load_pixels",
    "open_images",
    "open_texts",
]

_Found = TypeVar("_Found", ImageSet, TextSet)


def open_images(
    source: str | Path,
    *,
    split: str = "test",
    own_split: bool = False,
    label_names: Sequence[str] | None = None,
    class_map: ClassMap | None = None,
) -> ImageSet:
    """Open a data set of images.

    Args:
        source: an image folder (`class/name.png`), a zip of one, a parquet file, a folder with idx
            or parquet files or with a folder of that split, `hf:NAME[:SPLIT]`, or a name in
            `KNOWN`.
        split: which part, where the source has several.
        own_split: refuse a source that is the same for every split.
        label_names: names of a model's classes in order of index; those that the data name must be
            among them, and are looked up by name.
        class_map: for classes that are called otherwise in the data.

    Raises:
        ClassMismatch: the data name other classes.
        DataError: the source is missing, broken, empty, lacks the split, or a label is out of
            range.
    """
    classes = Classes(label_names=label_names, class_map=class_map)
    found = _find(str(source), split, KNOWN, csv=False, own_split=own_split)
    return _located(_open_images(found, split, classes), str(source), split, csv=False)


def _open_images(found: list[Path] | str, split: str, classes: Classes) -> ImageSet:
    if isinstance(found, str):
        return _open_known(found, split, classes)
    path = found[0]
    if len(found) > 1 or path.suffix == ".parquet" and path.is_file():
        return _parquet().open_parquet(found, "image", classes).decoded()
    if path.is_dir():
        if has_idx(path):
            return open_idx(path, split, classes.names)
        return open_folder(path, classes)
    if path.suffix == ".zip":
        return open_zip(path, classes).decoded()
    raise DataError(f"{path.name} must be a folder, a .zip or a .parquet file")


def open_texts(
    source: str | Path,
    *,
    split: str = "test",
    own_split: bool = False,
    label_names: Sequence[str] | None = None,
    class_map: ClassMap | None = None,
) -> TextSet:
    """Open a data set of texts.

    Args:
        source: a text folder (`class/name.txt`), a csv or parquet file with the columns `text` and
            `label`, a folder with parquet files or with a folder or csv file of that split,
            `hf:NAME[:SPLIT]`, or a name in `KNOWN_TEXTS`.
        split: which part, where the source has several.
        own_split: refuse a source that is the same for every split.
        label_names: as in `open_images`.
        class_map: as in `open_images`.

    Raises:
        ClassMismatch: the data name other classes.
        DataError: the source is missing, broken, empty, lacks the split, holds a text of blanks
            only, or a label is out of range.
    """
    classes = Classes(label_names=label_names, class_map=class_map)
    found = _find(str(source), split, KNOWN_TEXTS, csv=True, own_split=own_split)
    return _located(_open_texts(found, split, classes), str(source), split, csv=True)


def _open_texts(found: list[Path] | str, split: str, classes: Classes) -> TextSet:
    if isinstance(found, str):
        return _open_known_texts(found, split, classes)
    path = found[0]
    if len(found) > 1 or path.suffix == ".parquet" and path.is_file():
        return _parquet().open_parquet(found, "text", classes)
    if path.is_dir():
        return open_text_folder(path, classes)
    if path.suffix == ".csv":
        return open_csv(path, classes)
    raise DataError(f"{path.name} must be a folder, a .csv or a .parquet file")


def _find(
    source: str, split: str, known: Iterable[str], *, csv: bool, own_split: bool
) -> list[Path] | str:
    """The parquet files, or the one file or folder, of a split; or a known name."""
    if own_split:
        _check_splits(source, csv=csv)
    path = Path(source)
    if source.startswith("hf:"):
        name, _, named = source.removeprefix("hf:").partition(":")
        return hub_files(name, named or split)
    if path.is_dir():
        return [path] if not csv and has_idx(path) else split_paths(path, split, csv=csv)
    if path.is_file():
        return [path]
    if name := _known_name(source, known):
        return name
    read, other = ("texts", "images") if csv else ("images", "texts")
    if _known_name(source, KNOWN if csv else KNOWN_TEXTS):
        raise DataError(f"{source} is a set of {other}, and {read} are needed")
    raise DataError(f"{source} is no file or folder; known names: {', '.join(known)}, hf:NAME")


def _known_name(source: str, known: Iterable[str]) -> str | None:
    """A known name, whatever its case, with `-` or `_`."""
    return next((name for name in known if normalize(name) == normalize(source)), None)


def _located(samples: _Found, source: str, split: str, *, csv: bool) -> _Found:
    """The same samples, and what the set is called that they are of."""
    path = Path(source)
    name: str | None = path.resolve().name
    if source.startswith("hf:"):
        name, _, named = source.partition(":")[2].partition(":")
        name, split = f"hf:{name}", named or split
    elif not path.exists():
        name = _known_name(source, KNOWN_TEXTS if csv else KNOWN)
    elif not path.is_dir() or not (samples.origin.split or find_splits(path, csv=csv)):
        split = ""
    origin = dataclasses.replace(samples.origin, name=name, split=split or None)
    return dataclasses.replace(samples, origin=origin)


def _check_splits(source: str, *, csv: bool) -> None:
    """Refuse a source of which the same samples are read for every split."""
    path = Path(source)
    if source.startswith("hf:"):
        splits = ":" not in source.removeprefix("hf:")
    elif path.is_dir():
        splits = has_idx(path) or bool(find_splits(path, csv=csv))
    else:
        splits = not path.is_file()  # a known name
    if not splits:
        raise DataError(
            f"{source} is the same for every split, and no model may be tested on what it learned "
            f"from: give a folder with train/ and test/, {'train.csv and test.csv, ' * csv}"
            "or parquet files named by their split"
        )


def _open_known(name: str, split: str, classes: Classes) -> ImageSet:
    """A known set: its own classes are translated, never replaced by the model's."""
    folder, known = data_folder(name), KNOWN[name]
    parquet = sorted(folder.glob(f"{name}-{split}*.parquet"))
    if parquet:
        return _parquet().open_parquet(parquet, "image", classes, known).decoded()
    if name == "imagenet":
        images = open_imagenet(folder / name, split)
    else:
        images = open_idx(folder, split, known)
    labels, named = classes.translate(images.labels, known, name)
    origin = dataclasses.replace(images.origin, classes=named)
    names = classes.names or known
    return dataclasses.replace(images, labels=labels, label_names=names, origin=origin)


def _open_known_texts(name: str, split: str, classes: Classes) -> TextSet:
    known = KNOWN_TEXTS[name]
    if split not in known.sizes:
        raise DataError(f"{name} has the splits {', '.join(known.sizes)}, got {split!r}")
    parquet = sorted(data_folder(name).glob(known.pattern(split)))
    if not parquet:
        raise DataError(f"{name} needs {known.pattern(split)} in the folder ASSAY_DATA")
    # Next to the whole split, a part of it would only repeat its rows.
    whole = [path for path in parquet if "subset" not in path.name]
    texts = _parquet().open_parquet(whole or parquet, "text", classes, known.label_names)
    return dataclasses.replace(texts, description=known.describe(split, len(texts)))


def _parquet() -> ModuleType:
    from data.formats import parquet  # pyarrow takes 35 MB of every server

    return parquet
