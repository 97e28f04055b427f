"""Which code made a verdict."""

import hashlib
from functools import lru_cache
from pathlib import Path

_ROOT = Path(__file__).parents[1]
_FOLDERS = (
    "core",
    "data",
    "export",
    "models",
    "robustness",
    "runtimes",
)  # what a result depends on


@lru_cache(maxsize=1)
def code_digest() -> str:
    """sha256 over the names and bytes of the source that reads, attacks and judges."""
    digest = hashlib.sha256()
    for folder in _FOLDERS:
        for path in sorted((_ROOT / folder).rglob("*.py")):
            content = hashlib.sha256(path.read_bytes()).hexdigest()
            digest.update(f"{path.relative_to(_ROOT).as_posix()} {content}\n".encode())
    return digest.hexdigest()
