"""Image folders (`class/name.png`, or flat without labels) and zips of one."""

import zipfile
from collections.abc import Callable
from pathlib import Path, PurePosixPath

import numpy as np
from PIL import Image

from data.image_set import DataError, ImageSet
from data.images import MAX_PIXELS, ImageError, decode_image
from data.labels import label_index

_SUFFIXES = {".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm"}


def open_folder(folder: Path, label_names: list[str] | None) -> ImageSet:
    """Open a folder of images; sub-folders are classes.

    Raises:
        DataError: no image, a class folder without images, or one that is no known class.
    """
    files = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))
    filled = {name.partition("/")[0] for name in files if _is_image(name)}
    for entry in sorted(folder.iterdir()):
        if entry.is_dir() and entry.name not in filled:
            raise DataError(f"{folder.name}: the class folder {entry.name} holds no image")

    def read(name: str) -> Image.Image:
        """One image; the sets of two splits hold the same names, so the folder is named, too."""
        try:
            return decode_image(folder / name)
        except ImageError as error:
            raise DataError(f"{folder.name}/{name}: {error}") from error

    return _open(folder.name, files, read, label_names)


def open_zip(
    path: Path, label_names: list[str] | None, *, max_pixels: int = MAX_PIXELS
) -> ImageSet:
    """Open a zip of an image folder, without unpacking it; no image may have more pixels.

    Raises:
        DataError: not a zip, no image in it, or a class folder that is no known class.
    """
    try:
        archive = zipfile.ZipFile(path)
    except (zipfile.BadZipFile, OSError) as error:
        raise DataError(f"{path.name} is not a readable zip file") from error
    files = sorted(info.filename for info in archive.infolist() if not info.is_dir())

    def read(name: str) -> Image.Image:
        """One image."""
        return decode_image(archive.read(name), max_pixels=max_pixels)

    return _open(path.name, files, read, label_names)


def _open(
    source: str,
    files: list[str],
    read: Callable[[str], Image.Image],
    label_names: list[str] | None,
) -> ImageSet:
    names = [name for name in files if _is_image(name)]
    if not names:
        raise DataError(f"{source} holds no image")
    return ImageSet(
        names=names,
        labels=folder_labels(names, label_names, source=source),
        label_names=label_names,
        reader=lambda index: read(names[index]),
    )


def folder_labels(
    names: list[str], label_names: list[str] | None, *, source: str
) -> np.ndarray | None:
    """Label files by the folders they lie in.

    Args:
        names: files as `class/name`; without any folder there are no labels.
        label_names: names of the classes in order of index.
        source: what holds the files, for messages.

    Raises:
        DataError: a folder that is no known class, or a file in none.
    """
    folders = [PurePosixPath(name).parent.name for name in names]
    if not any(folders):
        return None
    index: dict[str, int] = {}
    for folder, name in zip(folders, names, strict=True):
        if not folder:
            raise DataError(f"{source}: {name} lies in no class folder, others do")
        try:
            index.setdefault(folder, label_index(folder, label_names))
        except ValueError as error:
            raise DataError(f"{source}: the class folder {error}") from error
    return np.array([index[folder] for folder in folders], np.int64)


def _is_image(name: str) -> bool:
    path = PurePosixPath(name)
    return path.suffix.casefold() in _SUFFIXES and not path.name.startswith(".")
