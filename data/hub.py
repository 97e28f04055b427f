"""Data sets of the Hugging Face hub, as parquet files in its local cache."""

import importlib
from pathlib import Path

from data.image_set import DataError


def hub_files(name: str, split: str) -> list[Path]:
    """Fetch the parquet files of one split of a data set; cached ones are not fetched again.

    Needs the package huggingface_hub, which is installed for training and not for serving.

    Raises:
        DataError: the package is missing, the data set cannot be had, or it has no such split.
    """
    try:
        hub = importlib.import_module("huggingface_hub")
    except ModuleNotFoundError as error:
        raise DataError("hf: sources need the package huggingface_hub") from error
    try:
        folder = Path(hub.snapshot_download(name, repo_type="dataset", allow_patterns="*.parquet"))
    except (OSError, ValueError) as error:  # its errors for no access, no network, a bad name
        raise DataError(f"hf:{name} cannot be had: {error}") from error
    files = sorted(path for path in folder.rglob("*.parquet") if path.name.startswith(split))
    if not files:
        raise DataError(f"hf:{name} has no parquet file of the split {split!r}")
    return files
