"""The classes of ImageNet-1K: WordNet identifiers and names, in order of index."""

import dataclasses
from pathlib import Path

from data.errors import DataError
from data.formats.folder import open_folder
from data.sets import ImageSet

_LINES = Path(__file__).with_name("imagenet_classes.txt").read_text(encoding="utf-8").splitlines()
WNIDS = [line.partition(" ")[0] for line in _LINES]
"""Names of the class folders, e.g. `n01440764`; the index is the place in this list."""
LABELS = [line.partition(" ")[2] for line in _LINES]
"""Names of the classes; the four that two classes share are told apart in brackets."""
_FOLDERS = {"train": "train", "valid": "val", "val": "val", "test": "val"}


def open_imagenet(folder: Path, split: str) -> ImageSet:
    """Open ImageNet in its usual layout, `train/WNID/*.JPEG` and `val/WNID/*.JPEG`.

    The labels of its test split are not public: `test` and `valid` are both the folder `val`.

    Args:
        folder: holds `train` and `val`.
        split: `train`, `valid` or `test`.

    Raises:
        DataError: the folder of the split is missing, has no class folders, or holds one that is
            no class or has no image.
    """
    if split not in _FOLDERS:
        raise DataError(f"split of imagenet must be one of {sorted(_FOLDERS)}, got {split!r}")
    part = folder / _FOLDERS[split]
    if not part.is_dir():
        raise DataError(f"imagenet needs the folder {folder.name}/{part.name} with class folders")
    images = open_folder(part, WNIDS)
    if images.labels is None:
        raise DataError(f"{folder.name}/{part.name} holds images outside class folders")
    return dataclasses.replace(images, label_names=LABELS)
