"""Open a data set by what the user names: a path, a known name, or a name on the hub."""

import os
from collections.abc import Sequence
from pathlib import Path

from data.folder import open_folder, open_zip
from data.hub import hub_files
from data.idx import has_idx, open_idx
from data.image_set import DataError, ImageSet, load_inputs, load_pixels
from data.parquet import open_parquet

__all__ = ["DataError", "ImageSet", "KNOWN", "load_inputs", "load_pixels", "open_images"]

KNOWN: dict[str, list[str]] = {
    "fashion-mnist": [
        "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat",
        "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
    ],
    "cifar10": [
        "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck",
    ],
}  # fmt: skip
"""Names of data sets found in the folder ASSAY_DATA, with their labels in order of index."""


def open_images(
    source: str | Path, *, split: str = "test", label_names: Sequence[str] | None = None
) -> ImageSet:
    """Open a data set of images.

    Args:
        source: an image folder (`class/name.png`), a zip of one, a parquet file, a folder with idx
            or parquet files, `hf:NAME[:SPLIT]`, or a name in `KNOWN`.
        split: which part, where the source has several.
        label_names: names of the classes in order of index.

    Raises:
        DataError: the source is missing, broken, empty, or its labels are not these classes.
    """
    labels = list(label_names) if label_names is not None else None
    text = str(source)
    if text.startswith("hf:"):
        name, _, own_split = text.removeprefix("hf:").partition(":")
        return open_parquet(hub_files(name, own_split or split), labels)
    if text in KNOWN and not Path(text).exists():
        return _open_known(text, split, labels or KNOWN[text])
    path = Path(source)
    if path.is_dir():
        return _open_directory(path, split, labels)
    if not path.is_file():
        raise DataError(f"{text} is no file or folder; known names: {', '.join(KNOWN)}, hf:NAME")
    if path.suffix == ".parquet":
        return open_parquet([path], labels)
    if path.suffix == ".zip":
        return open_zip(path, labels)
    raise DataError(f"{path.name} must be a folder, a .zip or a .parquet file")


def _open_directory(folder: Path, split: str, labels: list[str] | None) -> ImageSet:
    if has_idx(folder):
        return open_idx(folder, split, labels)
    parquet = sorted(folder.glob("*.parquet"))
    if parquet:
        return open_parquet([path for path in parquet if split in path.name] or parquet, labels)
    return open_folder(folder, labels)


def _open_known(name: str, split: str, labels: list[str]) -> ImageSet:
    folder = os.environ.get("ASSAY_DATA")
    if not folder:
        raise DataError(f"set ASSAY_DATA to the folder that holds {name}")
    parquet = sorted(Path(folder).glob(f"{name}-{split}*.parquet"))
    if parquet:
        return open_parquet(parquet, labels)
    return open_idx(Path(folder), split, labels)
