"""Files that other processes may be reading or writing at this moment; files by their sha256."""

import hashlib
import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

_PARTIAL = ".tmp"


def write_whole(path: Path, content: bytes | str) -> None:
    """Write a file so that it is found either complete or not at all, also after a power cut.

    Args:
        path: the file; its folder is made when it is missing.
        content: bytes, or text to encode as UTF-8.

    Raises:
        OSError: it cannot be written.
    """
    with replacing(path) as partial:
        partial.write_bytes(content.encode() if isinstance(content, str) else content)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a temporary file that takes the place of `path` when the block ends without an error.

    Args:
        path: the file; its folder is made when it is missing.

    Raises:
        OSError: it cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    prefix = f".{path.name}.{os.getpid()}-"
    descriptor, name = tempfile.mkstemp(prefix=prefix, suffix=_PARTIAL, dir=path.parent)
    os.close(descriptor)
    partial = Path(name)
    try:
        yield partial
        with partial.open("rb") as file:
            os.fsync(file.fileno())
        partial.chmod(0o644)  # temporary files are made for their owner alone
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def allocate(path: Path, size: int) -> None:
    """Have the disk keep room for a file, so that writing to a map of it cannot fail.

    Args:
        path: made when it is missing; what it holds stays.
        size: bytes that it has at least; what is new is zero.

    Raises:
        OSError: there is no such room.
    """
    with path.open("ab") as file:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), 0, size)
        else:  # on a Mac
            file.write(bytes(max(0, size - file.tell())))


def remove_leftovers(folder: Path) -> None:
    """Remove the temporary files of a process that was killed while it wrote one.

    Those of a living process stay: another one may be at work in the same folder.
    """
    for path in folder.rglob(f".*{_PARTIAL}"):
        owner = path.name.split(".")[-2].split("-")[0]
        if not (owner.isdecimal() and _lives(int(owner))):
            path.unlink(missing_ok=True)


def sha256(content: bytes | Path) -> str:
    """The sha256 of bytes, or of a file that is read piece by piece; hexadecimal.

    Raises:
        OSError: the file cannot be read.
    """
    if isinstance(content, bytes):
        return hashlib.sha256(content).hexdigest()
    with content.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def find_by_digest(roots: Iterable[Path], name: str, digest: str) -> Path | None:
    """The first file of a name and sha256 that lies in a folder, or one level below it."""
    for root in roots:
        for path in (root / name, *sorted(root.glob(f"*/{name}"))):
            if path.is_file() and sha256(path) == digest:
                return path
    return None


def _lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # somebody else's
        return True
    return True
