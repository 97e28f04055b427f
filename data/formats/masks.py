"""Folders and zips of images with masks: pairs of one name, and the form of ADE20K.

A mask is a PNG whose pixels hold the indices of classes. In pairs, `images/` and `masks/`, 255
stands for pixels that belong to none; in the form of ADE20K, `images/training` and
`annotations/training`, 0 does, and class i is i + 1.
"""

import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np
from PIL import Image

from data.errors import DataError
from data.formats.folder import image_names, unzip
from data.images import MAX_PIXELS, ImageError, decode_image, image_format, image_size
from data.sets import IGNORED, MaskFiles, MaskSet, Origin

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
    _check_classes(folder.name, label_names)
    ade20k = is_ade20k(folder)
    part, form = Path(_PARTS.get(split, split) if ade20k else ""), _ADE20K if ade20k else _PAIRS
    for needed in (Path("images") / part, form.folder / part):
        if not (folder / needed).is_dir():
            raise DataError(f"{folder.name} needs the folder {needed}")
    files = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))
    pairs = _Pairs(folder.name, files, part.as_posix(), form, lambda name: folder / name)
    return MaskSet(
        names=pairs.names,
        labels=None,
        label_names=list(label_names),
        reader=lambda i: pairs.decoded(pairs.images[i]),
        origin=Origin(source=folder.name, split=str(part) if ade20k else None),
        mask_reader=lambda i: pairs.mask(i, len(label_names)),
    )


def zipped_masks(
    archive: zipfile.ZipFile,
    source: str,
    label_names: Sequence[str],
    *,
    max_pixels: int = MAX_PIXELS,
) -> MaskFiles:
    """The image files in a zip of `images/` and `masks/`, or of one folder that holds them.

    Args:
        archive: stays open.
        source: its name.
        label_names: names of the classes in order of index.
        max_pixels: of a mask.

    Raises:
        DataError: see `open_mask_folder`.
    """
    _check_classes(source, label_names)
    files = sorted(info.filename for info in archive.infolist() if not info.is_dir())
    hidden = [name for name in files if name.startswith("__MACOSX/")]
    files = [name for name in files if name not in hidden]
    roots = {name.partition("/")[0] for name in files}
    root = "" if len(roots) != 1 or roots <= {"images", "masks"} else f"{roots.pop()}/"
    files = [name.removeprefix(root) for name in files]
    if not all(any(name.startswith(f"{part}/") for name in files) for part in ("images", "masks")):
        raise DataError(f"{source} must hold the folders images and masks")
    pairs = _Pairs(
        source, files, "", _PAIRS, lambda name: unzip(archive, root + name), max_pixels=max_pixels
    )
    return MaskFiles(
        names=pairs.names,
        labels=None,
        label_names=list(label_names),
        reader=lambda i: unzip(archive, root + pairs.images[i]),
        origin=Origin(source=source),
        mask_reader=lambda i: pairs.mask(i, len(label_names)),
    )


def _check_classes(source: str, label_names: Sequence[str]) -> None:
    if not 2 <= len(label_names) <= MOST_CLASSES:
        raise DataError(
            f"{source}: masks need from 2 to {MOST_CLASSES} classes, got {len(label_names)}"
        )


class _Pairs:
    """Images and their masks by path below a folder.

    Args:
        source: name of the folder.
        files: all paths in it, in order.
        part: folder below those of images and of masks.
        form: how masks lie there.
        load: a file by its path, as bytes or where it lies.
        max_pixels: of an image or a mask.

    Raises:
        DataError: they do not fit together.
    """

    def __init__(
        self,
        source: str,
        files: list[str],
        part: str,
        form: _Form,
        load: Callable[[str], bytes | Path],
        *,
        max_pixels: int = MAX_PIXELS,
    ) -> None:
        self._source, self._form, self._load = source, form, load
        self._max_pixels = max_pixels
        images, masks = (PurePosixPath(top, part) for top in ("images", form.folder))
        own = [PurePosixPath(name) for name in files]
        inside = [str(path.relative_to(images)) for path in own if path.is_relative_to(images)]
        self.names = image_names(f"{source}/{images}", inside)
        self.images = [str(images / name) for name in self.names]
        known = {
            path.relative_to(masks).with_suffix(""): str(path)
            for path in own
            if path.is_relative_to(masks) and path.suffix == ".png" and path.name[0] != "."
        }
        self.masks = [self._own(name, masks, known) for name in self.names]
        if known:
            raise DataError(f"{source}/{min(known.values())} has no image in images")

    def _own(self, name: str, masks: PurePosixPath, known: dict[PurePosixPath, str]) -> str:
        """The mask of an image, of its size, which is then no longer known."""
        stem = PurePosixPath(name).with_suffix("")
        image, found = PurePosixPath("images", *masks.parts[1:], name), known.pop(stem, None)
        if found is None:
            raise DataError(f"{self._source}/{image} has no mask {masks / stem}.png")
        (width, height), (w, h) = (self._size(each) for each in (str(image), found))
        if (width, height) != (w, h):
            raise DataError(
                f"{self._source}/{found} must have the size of its image, {width} x {height}, "
                f"got {w} x {h}"
            )
        return found

    def _size(self, name: str) -> tuple[int, int]:
        try:
            return image_size(self._load(name))
        except ImageError as error:
            raise DataError(f"{self._source}/{name}: {error}") from error

    def decoded(self, name: str) -> Image.Image:
        """An image or a mask."""
        try:
            return decode_image(self._load(name), max_pixels=self._max_pixels)
        except ImageError as error:
            raise DataError(f"{self._source}/{name}: {error}") from error

    def mask(self, index: int, num_classes: int) -> np.ndarray:
        """The classes of a mask, (h, w) uint8."""
        name, form = f"{self._source}/{self.masks[index]}", self._form
        image = self.decoded(self.masks[index])
        if image_format(self._load(self.masks[index])) != "PNG":
            raise DataError(f"{name} must be a PNG: other formats change indices")
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
