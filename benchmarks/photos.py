"""Photos of 224 x 224 pixels as files, from the folder ASSAY_DATA."""

import pyarrow.parquet as pq

from data.datasets.known import data_folder

_FILE = "imagenet1k-1perclass-224.parquet"


def photos(count: int) -> list[bytes]:
    """The contents of so many image files, each of another class.

    Raises:
        DataError: ASSAY_DATA names no folder.
        FileNotFoundError: the folder does not hold them.
    """
    images = pq.read_table(data_folder("photos") / _FILE, columns=["image"]).column("image")
    return [row["bytes"] for row in images.slice(0, count).to_pylist()]
