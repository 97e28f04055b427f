"""Write a file that other processes may be writing too, or reading at this moment."""

import os
import tempfile
from pathlib import Path


def keep_file(path: Path, content: bytes) -> None:
    """Write a file whole or not at all; its folder is made when it is missing.

    Raises:
        OSError: it cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, partial = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        os.replace(partial, path)
    except OSError:
        os.unlink(partial)
        raise
