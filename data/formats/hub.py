"""Data sets and tokenizers of the Hugging Face hub, as files in its local cache."""

import importlib
from pathlib import Path
from typing import Any

from data.errors import DataError


def hub_files(name: str, split: str) -> list[Path]:
    """Fetch the parquet files of one split of a data set; cached ones are not fetched again.

    Raises:
        DataError: the data set cannot be had, or it has no such split.
    """
    try:
        got = _hub().snapshot_download(name, repo_type="dataset", allow_patterns="*.parquet")
    except (OSError, ValueError) as error:  # its errors for no access, no network, a bad name
        raise DataError(f"hf:{name} cannot be had: {error}") from error
    files = sorted(path for path in Path(got).rglob("*.parquet") if path.name.startswith(split))
    if not files:
        raise DataError(f"hf:{name} has no parquet file of the split {split!r}")
    return files


def hub_folder(name: str) -> Path:
    """Fetch a data set, `OWNER/NAME` or `OWNER/NAME/FOLDER`; cached files are not fetched again.

    Returns:
        Its folder in the cache, or that folder within.

    Raises:
        DataError: it cannot be had, or the folder holds neither parquet nor text files.
    """
    owner, _, rest = name.partition("/")
    repository, _, folder = rest.partition("/")
    within = f"{folder}/" if folder else ""
    wanted = [f"{within}*.{ending}" for ending in ("parquet", "txt", "zip")]
    try:
        got = _hub().snapshot_download(
            f"{owner}/{repository}", repo_type="dataset", allow_patterns=wanted
        )
    except (OSError, ValueError) as error:
        raise DataError(f"hf:{name} cannot be had: {error}") from error
    path = Path(got) / folder
    if not path.is_dir() or not any(path.iterdir()):
        raise DataError(f"hf:{name} holds no text: name its folder, as in hf:OWNER/NAME/FOLDER")
    return path


def hub_file(name: str, file: str) -> Path:
    """Fetch one file of a model; a cached one is not fetched again.

    Raises:
        DataError: it cannot be had.
    """
    try:
        return Path(_hub().hf_hub_download(name, file))
    except (OSError, ValueError) as error:
        raise DataError(f"{file} of hf:{name} cannot be had: {error}") from error


def _hub() -> Any:
    """The hub's client, loaded only by those who name a source on it."""
    try:
        return importlib.import_module("huggingface_hub")
    except ModuleNotFoundError as error:
        raise DataError("hf: sources need the package huggingface_hub") from error
