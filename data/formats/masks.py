"""Folders of images with masks: pairs of one name, and the form of ADE20K.

A mask is a PNG whose pixels hold the indices of classes. In pairs, `images/` and `masks/`, 255
stands for pixels that belong to none; in the form of ADE20K, `images/training` and
`annotations/training`, 0 does, and class i is i + 1.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from data.errors import DataError
from data.formats.folder import image_names
from data.images import ImageError, decode_image, image_size
from data.sets import IGNORED, MaskSet, Origin

MOST_CLASSES = IGNORED
"""Indices of classes are bytes, of which the last means none."""
_MODES = ("P", "L", "1", "I;16", "I")
_PARTS = {"train": "training", "valid": "validation", "val": "validation", "test": "validation"}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Form:
    """How masks lie in a folder: its name, the value that means no class, and of class 0."""

    folder: str
    ignored: int
    first: int


_PAIRS = _Form(folder="masks", ignored=IGNORED, first=0)
_ADE20K = _Form(folder="annotations", ignored=0, first=1)


def has_masks(folder: Path) -> bool:
    """Whether a folder holds images with masks, in either form."""
    forms = (_PAIRS.folder, _ADE20K.folder)
    return (folder / "images").is_dir() and any((folder / form).is_dir() for form in forms)


def is_ade20k(folder: Path) -> bool:
    """Whether a folder has the form of ADE20K, whose splits lie inside."""
    return (folder / _ADE20K.folder / "training").is_dir()


def open_mask_folder(folder: Path, split: str, label_names: Sequence[str]) -> MaskSet:
    """Open images with masks; in the form of ADE20K those of a split.

    The labels of ADE20K's test split are not public: `test` and `valid` are both `validation`.

    Args:
        folder: holds `images` and `masks`, or `images` and `annotations`.
        split: `train`, `valid` or `test`.
        label_names: names of the classes in order of index.

    Raises:
        DataError: no image, an image without a mask or a mask without an image, or of another
            size; too many classes. Masks are read later: one that is no PNG of indices, or names
            other classes, is named then.
    """
    if not 2 <= len(label_names) <= MOST_CLASSES:
        raise DataError(
            f"{folder.name}: masks need from 2 to {MOST_CLASSES} classes, got {len(label_names)}"
        )
    ade20k = is_ade20k(folder)
    part, form = Path(_PARTS.get(split, split) if ade20k else ""), _ADE20K if ade20k else _PAIRS
    images, masks = folder / "images" / part, folder / form.folder / part
    for needed in (images, masks):
        if not needed.is_dir():
            raise DataError(f"{folder.name} needs the folder {needed.relative_to(folder)}")
    files = sorted(path.relative_to(images).as_posix() for path in images.rglob("*"))
    names = image_names(_name(folder, images), files)
    paths = _paired(folder, images, masks, names)
    return MaskSet(
        names=names,
        labels=None,
        label_names=list(label_names),
        reader=lambda i: _decoded(folder, images / names[i]),
        origin=Origin(source=folder.name, split=str(part) if ade20k else None),
        mask_reader=lambda i: _mask(folder, paths[i], form, len(label_names)),
    )


def _paired(folder: Path, images: Path, masks: Path, names: list[str]) -> list[Path]:
    """The mask of each image, of its size."""
    own = {path.relative_to(masks).with_suffix(""): path for path in masks.rglob("*.png")}
    found = []
    for name in names:
        path = own.pop(Path(name).with_suffix(""), None)
        if path is None:
            raise DataError(f"{_name(folder, images / name)} has no mask in {masks.name}")
        sizes = [_size(folder, each) for each in (images / name, path)]
        if sizes[0] != sizes[1]:
            (width, height), (w, h) = sizes
            raise DataError(
                f"{_name(folder, path)} must have the size of its image, {width} x {height}, "
                f"got {w} x {h}"
            )
        found.append(path)
    if own:
        raise DataError(f"{_name(folder, min(own.values()))} has no image in {images.name}")
    return found


def _name(folder: Path, path: Path) -> str:
    return path.relative_to(folder.parent).as_posix()


def _size(folder: Path, path: Path) -> tuple[int, int]:
    try:
        return image_size(path)
    except ImageError as error:
        raise DataError(f"{_name(folder, path)}: {error}") from error


def _decoded(folder: Path, path: Path) -> Image.Image:
    try:
        return decode_image(path)
    except ImageError as error:
        raise DataError(f"{_name(folder, path)}: {error}") from error


def _mask(folder: Path, path: Path, form: _Form, num_classes: int) -> np.ndarray:
    """The classes of a mask, (h, w) uint8."""
    image, name = _decoded(folder, path), _name(folder, path)
    if image.mode not in _MODES:
        raise DataError(f"{name} must hold an index for each pixel, got colors ({image.mode})")
    values = np.asarray(image).astype(np.int64)
    known = (values >= form.first) & (values < form.first + num_classes)
    wrong = np.argwhere(~known & (values != form.ignored))
    if len(wrong):
        row, column = wrong[0]
        last = form.first + num_classes - 1
        raise DataError(
            f"{name}, row {row}, column {column}: {values[row, column]} is no class: they are "
            f"{form.first} to {last}, and {form.ignored} is ignored"
        )
    return np.where(known, values - form.first, IGNORED).astype(np.uint8)
