"""Data sets known by name: their classes, their sizes and their files in the folder ASSAY_DATA."""

import os
from dataclasses import dataclass
from pathlib import Path

from data.datasets import imagenet
from data.errors import DataError

KNOWN: dict[str, list[str]] = {
    "fashion-mnist": [
        "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat",
        "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
    ],
    "cifar10": [
        "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck",
    ],
    "imagenet": imagenet.LABELS,
}  # fmt: skip
"""Names of image sets found in the folder ASSAY_DATA, with their labels in order of index."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownTexts:
    """A set of texts that is known by name.

    Attributes:
        title: its name in full.
        label_names: classes in order of index.
        sizes: texts in each split of the whole set.
        prefix: how the names of its parquet files begin.
    """

    title: str
    label_names: list[str]
    sizes: dict[str, int]
    prefix: str

    def describe(self, split: str, rows: int) -> str:
        """What was opened, e.g. "IMDb, train, 25000 texts"; says so where rows are missing."""
        whole = self.sizes[split]
        part = "" if rows == whole else f" of {whole}: a part, not the whole split"
        return f"{self.title}, {split}, {rows}{part or ' texts'}"


KNOWN_TEXTS: dict[str, KnownTexts] = {
    "imdb": KnownTexts(
        title="IMDb (Maas et al. 2011)",
        label_names=["neg", "pos"],
        sizes={"train": 25_000, "test": 25_000},
        prefix="imdb",
    ),
    "ag-news": KnownTexts(
        title="AG News (Zhang et al. 2015)",
        label_names=["World", "Sports", "Business", "Sci/Tech"],
        sizes={"train": 120_000, "test": 7_600},
        prefix="ag_news",
    ),
}
"""Sets of texts found in the folder ASSAY_DATA."""


def data_folder(name: str) -> Path:
    """The folder of known data sets.

    Raises:
        DataError: the environment variable ASSAY_DATA names none.
    """
    folder = os.environ.get("ASSAY_DATA")
    if not folder:
        raise DataError(f"set ASSAY_DATA to the folder that holds {name}")
    if not Path(folder).is_dir():
        raise DataError("ASSAY_DATA must name a folder that exists")
    return Path(folder)
