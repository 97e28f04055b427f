"""Files that are on the disk to stay when a function returns."""

import os
from pathlib import Path
from typing import BinaryIO


def write_durably(path: Path, content: bytes) -> None:
    """Write a file and flush it to the disk.

    Raises:
        OSError: the disk is full, or cannot be written.
    """
    with path.open("wb") as file:
        file.write(content)
        sync(file)


def sync(file: BinaryIO) -> None:
    """Flush an open file to the disk."""
    file.flush()
    os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Flush the list of a folder's files to the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
