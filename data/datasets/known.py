"""Data sets known by name: their classes, their sizes and their files in the folder ASSAY_DATA.

The classes of ImageNet-1K are WordNet identifiers and names, in order of index.
"""

import dataclasses
import os
from dataclasses import dataclass, field
from pathlib import Path

from data.errors import DataError
from data.formats.folder import open_folder
from data.labels import Classes
from data.sets import ImageSet

_LINES = Path(__file__).with_name("imagenet_classes.txt").read_text(encoding="utf-8").splitlines()
WNIDS = [line.partition(" ")[0] for line in _LINES]
"""Names of the class folders, e.g. `n01440764`; the index is the place in this list."""
IMAGENET_LABELS = [line.partition(" ")[2] for line in _LINES]
"""Names of the classes; the four that two classes share are told apart in brackets."""
_FOLDERS = {"train": "train", "valid": "val", "val": "val", "test": "val"}

KNOWN: dict[str, list[str]] = {
    "fashion-mnist": [
        "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat",
        "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
    ],
    "cifar10": [
        "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck",
    ],
    "imagenet": IMAGENET_LABELS,
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
        files: by split, what its files are called, where they have another name.
    """

    title: str
    label_names: list[str]
    sizes: dict[str, int]
    prefix: str
    files: dict[str, str] = field(default_factory=dict)

    def pattern(self, split: str) -> str:
        """Which files of the folder are of a split."""
        return f"{self.prefix}-{self.files.get(split, split)}*.parquet"

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
    # The labels of its own test set are not public.
    "sst2": KnownTexts(
        title="SST-2 (Socher et al. 2013)",
        label_names=["negative", "positive"],
        sizes={"train": 67_349, "test": 872},
        prefix="sst2",
        files={"test": "validation"},
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


def open_imagenet(folder: Path, split: str) -> ImageSet:
    """Open ImageNet in its usual layout, `train/WNID/*.JPEG` and `val/WNID/*.JPEG`.

    The labels of its test split are not public: `test` and `valid` are both the folder `val`.

    Args:
        folder: holds `train` and `val`.
        split: `train`, `valid` or `test`.

    Raises:
        DataError: the folder of the split is missing, has no class folders, or holds one that is
            no class or has no image.
    """
    if split not in _FOLDERS:
        raise DataError(f"split of imagenet must be one of {sorted(_FOLDERS)}, got {split!r}")
    part = folder / _FOLDERS[split]
    if not part.is_dir():
        raise DataError(f"imagenet needs the folder {folder.name}/{part.name} with class folders")
    images = open_folder(part, Classes(label_names=WNIDS))
    if images.labels is None:
        raise DataError(f"{folder.name}/{part.name} holds images outside class folders")
    return dataclasses.replace(images, label_names=IMAGENET_LABELS)
