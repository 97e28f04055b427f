"""idx files, the format of MNIST and Fashion-MNIST."""

import gzip
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from data.errors import DataError
from data.sets import ImageSet, Origin

_UNSIGNED_BYTE = 8
_PREFIXES = {"train": ("train",), "test": ("t10k", "test")}


def read_idx(path: Path) -> np.ndarray:
    """Read one idx file of unsigned bytes, gzipped or not.

    Raises:
        DataError: not such a file, or its length is not what its header says.
    """
    try:
        raw = path.read_bytes()
        content = gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path.name} cannot be read: {error}") from error
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] != _UNSIGNED_BYTE:
        raise DataError(f"{path.name} is not an idx file of unsigned bytes")
    header = 4 + 4 * content[3]
    if len(content) < header:
        raise DataError(f"{path.name} ends inside its header")
    shape = struct.unpack_from(f">{content[3]}I", content, 4)
    if len(content) - header != int(np.prod(shape, dtype=np.int64)):
        raise DataError(f"{path.name} is broken: its header says {shape}, its length does not")
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape)


def open_idx(folder: Path, split: str, label_names: Sequence[str] | None) -> ImageSet:
    """Open the images and labels of a split among the idx files of a folder.

    Raises:
        DataError: files are missing or broken, or images and labels do not match.
    """
    path = _find(folder, split, "images-idx3-ubyte")
    images = read_idx(path)
    labels_path = _find(folder, split, "labels-idx1-ubyte")
    labels = read_idx(labels_path).astype(np.int64)
    if images.ndim != 3 or labels.shape != images.shape[:1]:
        shapes = f"shape {images.shape}, the labels of {labels_path.name} {labels.shape}"
        raise DataError(f"the images of {path.name} have {shapes}")
    if not len(images):
        raise DataError(f"{path.name} holds no image")
    if label_names is not None and labels.max() >= len(label_names):
        row = int((labels >= len(label_names)).argmax())
        raise DataError(
            f"{labels_path.name}, row {row}: label {labels[row]} is out of range: "
            f"there are {len(label_names)} classes"
        )
    return ImageSet(
        names=[f"{split}/{index:05d}" for index in range(len(images))],
        labels=labels,
        label_names=None if label_names is None else list(label_names),
        reader=lambda index: Image.fromarray(images[index]),
        origin=Origin(split=split, source=path.name),
    )


def has_idx(folder: Path) -> bool:
    """Whether a folder holds idx image files."""
    return any(folder.glob("*images-idx3-ubyte*"))


def _find(folder: Path, split: str, kind: str) -> Path:
    for prefix in _PREFIXES.get(split, (split,)):
        for path in sorted(folder.glob(f"*{prefix}-{kind}*")):
            return path
    raise DataError(f"no {split} file *-{kind} in the folder {folder.name}")
