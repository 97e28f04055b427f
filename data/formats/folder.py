"""Folders of images (`class/name.png`, or flat without labels), zips of one, folders of texts."""

import zipfile
from pathlib import Path, PurePosixPath

import numpy as np
from PIL import Image

from data.errors import DataError
from data.images import ImageError, decode_image
from data.labels import Classes
from data.sets import FileSet, ImageSet, Origin, TextSet

_SUFFIXES = {".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm"}
_UNLABELED = "unsup"
"""aclImdb's folder of reviews without a label, beside those of its classes."""


def open_folder(folder: Path, classes: Classes) -> ImageSet:
    """Open a folder of images; sub-folders are classes.

    Raises:
        DataError: no image, a class folder without images, or one that is no known class.
    """
    files = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))
    filled = {name.partition("/")[0] for name in files if _is_image(name)}
    for entry in sorted(folder.iterdir()):
        if entry.is_dir() and entry.name not in filled:
            raise DataError(f"{folder.name}: the class folder {entry.name} holds no image")

    names = image_names(folder.name, files)

    def read(index: int) -> Image.Image:
        """One image; the sets of two splits hold the same names, so the folder is named, too."""
        try:
            return decode_image(folder / names[index])
        except ImageError as error:
            raise DataError(f"{folder.name}/{names[index]}: {error}") from error

    labels, named = _folder_labels(names, classes, source=folder.name)
    return ImageSet(
        names=names,
        labels=labels,
        label_names=classes.names,
        reader=read,
        origin=Origin(source=folder.name, classes=named),
    )


def open_zip(path: Path, classes: Classes) -> FileSet:
    """Open a zip of an image folder, without unpacking it.

    Raises:
        DataError: not a zip, no image in it, or a class folder that is no known class.
    """
    try:
        archive = zipfile.ZipFile(path)
    except (zipfile.BadZipFile, OSError) as error:
        raise DataError(f"{path.name} is not a readable zip file") from error
    return zipped_files(archive, path.name, classes)


def zipped_files(archive: zipfile.ZipFile, source: str, classes: Classes) -> FileSet:
    """The image files in a zip of an image folder; raises as `open_zip`.

    Args:
        archive: stays open.
        source: its name.
        classes: among which the folders' names are found.
    """
    files = sorted(info.filename for info in archive.infolist() if not info.is_dir())
    names = image_names(source, files)
    labels, named = _folder_labels(names, classes, source=source)
    return FileSet(
        names=names,
        labels=labels,
        label_names=classes.names,
        reader=lambda index: unzip(archive, names[index]),
        origin=Origin(source=source, classes=named),
    )


def unzip(archive: zipfile.ZipFile, name: str) -> bytes:
    """A file of the size that the archive tells, however long what is packed becomes."""
    member = archive.getinfo(name)
    with archive.open(member) as file:
        return file.read(member.file_size)


def open_text_folder(folder: Path, classes: Classes) -> TextSet:
    """Open a folder of UTF-8 texts; sub-folders are classes, and files beside them are left out.

    Raises:
        DataError: no text, a class folder without texts, or one that is no known class.
    """
    folders = sorted(path for path in folder.iterdir() if path.is_dir())
    files: list[Path] = []
    for path in [path for path in folders if path.name != _UNLABELED] or [folder]:
        found = sorted(file for file in path.rglob("*.txt") if not file.name.startswith("."))
        if not found:
            raise DataError(f"the folder {path.relative_to(folder.parent)} holds no text file")
        files += found
    names = [file.relative_to(folder).as_posix() for file in files]
    labels, named = _folder_labels(names, classes, source=folder.name)
    return TextSet(
        names=names,
        labels=labels,
        label_names=classes.names,
        description=f"{folder.name}, {len(names)} texts",
        reader=lambda index: _read_text(files[index], f"{folder.name}/{names[index]}"),
        origin=Origin(source=folder.name, classes=named),
    )


def image_names(source: str, files: list[str]) -> list[str]:
    """Those of the files that are images by their suffix.

    Raises:
        DataError: there is none; it names the source.
    """
    names = [name for name in files if _is_image(name)]
    if not names:
        raise DataError(f"{source} holds no image")
    return names


def _folder_labels(
    names: list[str], classes: Classes, *, source: str
) -> tuple[np.ndarray | None, list[str] | None]:
    """Labels by the folders that files lie in, as `class/name`, and what the classes are called.

    Without any folder there are no labels.
    """
    folders = [PurePosixPath(name).parent.name for name in names]
    if not any(folders):
        return None, None
    if "" in folders:
        name = names[folders.index("")]
        raise DataError(f"{source}: {name} lies in no class folder, others do")
    return classes.find(folders, lambda _: f"{source}: the class folder ")


def _is_image(name: str) -> bool:
    path = PurePosixPath(name)
    return path.suffix.casefold() in _SUFFIXES and not path.name.startswith(".")


def _read_text(path: Path, name: str) -> str:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{name} is not readable UTF-8 text") from error
    if not text.strip():
        raise DataError(f"{name} holds no text")
    return text
