"""Open a data set of images with masks by what the user names: a folder, or a known name."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from data.datasets.known import data_folder
from data.datasets.scenes import PHOTOS, open_scenes
from data.errors import DataError
from data.formats.masks import has_masks, is_ade20k, open_mask_folder
from data.labels import normalize
from data.sets import ImageSet, MaskSet
from data.sources import KNOWN, open_images
from data.splits import find_splits

_ADE20K = Path(__file__).parent / "datasets" / "ade20k_classes.txt"
KNOWN_MASKS: dict[str, list[str]] = {
    "fashion-scenes": ["background", *KNOWN["fashion-mnist"]],
    "ade20k": _ADE20K.read_text(encoding="utf-8").splitlines(),
}
"""Names of sets with masks found in the folder ASSAY_DATA, with their labels in order of index."""
_FOLDERS = ("ade20k", "ADEChallengeData2016")


def open_masks(
    source: str | Path,
    *,
    split: str = "test",
    own_split: bool = False,
    label_names: Sequence[str] | None = None,
) -> MaskSet:
    """Open images with the class of every pixel.

    Args:
        source: a folder with `images` and `masks`, one of such folders by split, a folder in the
            form of ADE20K, or a name in `KNOWN_MASKS`.
        split: which part, where the source has several.
        own_split: refuse a source that is the same for every split.
        label_names: names of the classes in order of index, which masks tell by index; those of a
            known set must be the set's.

    Raises:
        DataError: the source is missing, broken, empty, lacks the split, or has other classes.
    """
    path = Path(source)
    known = next((name for name in KNOWN_MASKS if normalize(name) == normalize(str(source))), None)
    if path.is_dir():
        found = _open_folder(path, split, own_split, label_names)
        origin = dataclasses.replace(found.origin, name=path.resolve().name)
    elif known is not None:
        found = _open_known(known, split, label_names)
        origin = dataclasses.replace(found.origin, name=known, classes=found.label_names)
    else:
        names = ", ".join(KNOWN_MASKS)
        raise DataError(f"{source} is no folder with images and masks; known names: {names}")
    return dataclasses.replace(found, origin=origin)


def _open_folder(
    folder: Path, split: str, own_split: bool, label_names: Sequence[str] | None
) -> MaskSet:
    if label_names is None:
        raise DataError(f"{folder.name}: masks name classes by index, so their names must be given")
    splits = {} if has_masks(folder) else find_splits(folder)
    if splits and split not in splits:
        raise DataError(f"{folder} has no {split} split, only {', '.join(splits)}")
    part = splits[split][0] if splits else folder
    if not has_masks(part):
        raise DataError(f"{folder.name} must hold images/ and masks/, or images/ and annotations/")
    if own_split and not splits and not is_ade20k(part):
        raise DataError(
            f"{folder} is the same for every split, and no model may be tested on what it learned "
            "from: give a folder with train/ and test/"
        )
    found = open_mask_folder(part, split, label_names)
    if not splits:
        return found
    return dataclasses.replace(found, origin=dataclasses.replace(found.origin, split=split))


def _open_known(name: str, split: str, label_names: Sequence[str] | None) -> MaskSet:
    own = KNOWN_MASKS[name]
    if label_names is not None and list(map(normalize, label_names)) != list(map(normalize, own)):
        raise DataError(f"the classes of {name} are {own}, got {list(label_names)}")
    folder = data_folder(name)
    if name == "fashion-scenes":
        return open_scenes(folder, _photos(folder), split, own)
    for part in _FOLDERS:
        if (folder / part).is_dir():
            return open_mask_folder(folder / part, split, own)
    raise DataError(f"ade20k needs the folder {' or '.join(_FOLDERS)} in the folder ASSAY_DATA")


def _photos(folder: Path) -> ImageSet:
    path = folder / PHOTOS
    if not path.is_file():
        raise DataError(f"fashion-scenes needs {PHOTOS} in the folder ASSAY_DATA")
    return open_images(path)
