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
