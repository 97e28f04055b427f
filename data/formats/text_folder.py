"""Text folders (`class/name.txt`, or flat without labels), as aclImdb is laid out."""

from pathlib import Path

from data.formats.folder import folder_labels
from data.image_set import DataError
from data.text_set import TextSet

_UNLABELLED = "unsup"
"""aclImdb's folder of reviews without a label, beside those of its classes."""


def open_text_folder(folder: Path, label_names: list[str] | None) -> TextSet:
    """Open a folder of UTF-8 texts; sub-folders are classes, and files beside them are left out.

    Raises:
        DataError: no text, a class folder without texts, or one that is no known class.
    """
    classes = sorted(path for path in folder.iterdir() if path.is_dir())
    files: list[Path] = []
    for path in [path for path in classes if path.name != _UNLABELLED] or [folder]:
        found = sorted(file for file in path.rglob("*.txt") if not file.name.startswith("."))
        if not found:
            raise DataError(f"the folder {path.relative_to(folder.parent)} holds no text file")
        files += found
    names = [file.relative_to(folder).as_posix() for file in files]
    return TextSet(
        names=names,
        labels=folder_labels(names, label_names, source=folder.name),
        label_names=label_names,
        description=f"{folder.name}, {len(names)} texts",
        reader=lambda index: _read(files[index], f"{folder.name}/{names[index]}"),
    )


def _read(path: Path, name: str) -> str:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{name} is not readable UTF-8 text") from error
    if not text.strip():
        raise DataError(f"{name} holds no text")
    return text
