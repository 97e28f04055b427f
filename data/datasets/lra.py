"""The tasks of the Long Range Arena as token sets.

Source: Tay et al. 2021. ListOps and Pathfinder are drawn here; Text and Image are made of IMDb and
CIFAR-10; Retrieval is read from the files of the original release.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from data.datasets import listops, pathfinder
from data.datasets.generated import Stream, open_generated
from data.datasets.known import data_folder
from data.errors import DataError
from data.images import ImageSpec
from data.sources import load_pixels, open_images, open_texts
from data.token_set import Ragged, TokenSet

LRA = ("lra-listops", "lra-text", "lra-retrieval", "lra-image", "lra-pathfinder")
"""Names for `open_tokens`."""
_STREAMS = {
    "lra-listops": Stream(
        name="listops",
        version=1,
        block=listops.draw_block,
        splits={"test": (0, 2000), "valid": (2000, 4000), "train": (4000, 100_000)},
    ),
    "lra-pathfinder": Stream(
        name="pathfinder",
        version=1,
        block=pathfinder.draw_block,
        splits={"test": (0, 20_000), "valid": (20_000, 40_000), "train": (40_000, 200_000)},
    ),
}
_PARTS = {"train": "train", "valid": "eval", "test": "test"}
_COLUMNS = ("label", "id of one", "id of the other", "text of one", "text of the other")
_LABELS = {b"0": 0, b"0.0": 0, b"1": 1, b"1.0": 1}
_BYTES = 4000
_RGB = ImageSpec(channels=3, height=32, width=32)


def open_tokens(
    name: str,
    *,
    split: str = "test",
    cache: str | Path | None = None,
    size: int | None = None,
    workers: int = 1,
) -> TokenSet:
    """Open a task of the Long Range Arena.

    Args:
        name: one of `LRA`.
        split: `train`, `valid` or `test`; Text and Image have no `valid`: hold it out of `train`.
        cache: folder in which ListOps and Pathfinder are kept once they are drawn.
        size: draw only so many samples of ListOps or Pathfinder.
        workers: processes that draw them.

    Raises:
        DataError: an unknown name or split, no cache, or data that is missing or broken.
    """
    _check(name, split, size)
    if name not in _STREAMS:
        openers = {"lra-text": _text, "lra-image": _image, "lra-retrieval": _retrieval}
        return openers[name](split)
    if cache is None:
        raise DataError(f"{name} is drawn here: cache must name a folder to keep it in")
    stream = _STREAMS[name]
    kept = Path(cache)
    sequences, labels = open_generated(stream, split, cache=kept, size=size, workers=workers)
    is_listops = name == "lra-listops"
    return TokenSet(
        sequences=(sequences,),
        labels=labels,
        label_names=listops.TOKENS[:10] if is_listops else ["apart", "joined"],
        vocab_size=listops.PAD + 1 if is_listops else 256,
        seq_len=listops.LONGEST + 1 if is_listops else pathfinder.SIZE**2,
        pad=listops.PAD if is_listops else 0,
        description=f"{name}, {split}, {len(labels)} samples drawn here",
    )


def _check(name: str, split: str, size: int | None) -> None:
    if name not in LRA:
        raise DataError(f"name must be one of {', '.join(LRA)}, got {name!r}")
    splits = ("train", "test") if name in ("lra-text", "lra-image") else ("train", "valid", "test")
    if split not in splits:
        raise DataError(f"{name} has the splits {', '.join(splits)}, got {split!r}")
    if size is not None and name not in _STREAMS:
        raise DataError(f"{name} is not drawn here, it has no size to choose")


def _text(split: str) -> TokenSet:
    """IMDb as bytes of UTF-8, the first 4,000; ids as of `tokenizer.byte_tokenizer`."""
    texts = open_texts("imdb", split=split)
    rows = (np.frombuffer(text.encode()[:_BYTES], np.uint8) for text in texts)
    labels, names = _known(texts.labels), texts.label_names or []
    return _bytes((Ragged.of(rows, np.uint16),), labels, names, f"lra-text: {texts.description}")


def _retrieval(split: str) -> TokenSet:
    """Pairs of papers as bytes, the first 4,000 of each; do they cite each other?

    The files lie in the folder ASSAY_DATA or in `lra-retrieval` there. Each line is a label (1.0 or
    0.0), two identifiers and two texts, with tabs between them, without header or quotes.
    """
    path = _find(f"new_aan_pairs.{_PARTS[split]}.tsv")
    pairs = list(_pairs(path))
    if not pairs:
        raise DataError(f"{path.name} holds no pair")
    labels, firsts, seconds = zip(*pairs, strict=True)
    towers = Ragged.of(firsts, np.uint16), Ragged.of(seconds, np.uint16)
    about = f"lra-retrieval: ACL anthology, {split}, {len(labels)} pairs"
    return _bytes(towers, np.array(labels, np.int64), ["unrelated", "related"], about)


def _bytes(
    sequences: tuple[Ragged, ...], labels: np.ndarray, label_names: list[str], description: str
) -> TokenSet:
    return TokenSet(
        sequences=sequences,
        labels=labels,
        label_names=label_names,
        vocab_size=257,
        seq_len=_BYTES,
        pad=256,
        description=description,
    )


def _find(name: str) -> Path:
    folder = data_folder("lra-retrieval")
    for path in (folder / "lra-retrieval" / name, folder / name):
        if path.is_file():
            return path
    raise DataError(
        f"lra-retrieval needs {name}, from the folder tsv_data of the Long Range Arena release, "
        "in the folder ASSAY_DATA or in lra-retrieval there"
    )


def _pairs(path: Path) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            cells = line.rstrip(b"\r\n").split(b"\t")
            if len(cells) != len(_COLUMNS):
                needed = ", ".join(_COLUMNS)
                raise DataError(f"{path.name}, line {number}: {needed} needed, {len(cells)} found")
            if cells[0] not in _LABELS:
                raise DataError(f"{path.name}, line {number}: label must be 0.0 or 1.0")
            texts = [np.frombuffer(cell[:_BYTES], np.uint8) for cell in cells[3:]]
            if not all(len(text) for text in texts):
                raise DataError(f"{path.name}, line {number}: a text is empty")
            yield _LABELS[cells[0]], texts[0], texts[1]


def _image(split: str) -> TokenSet:
    """CIFAR-10 in grey, row by row; every pixel is a token."""
    images = open_images("cifar10", split=split)
    colored = load_pixels(images, _RGB)
    pixels = np.stack([grey(image).ravel() for image in colored])
    return TokenSet(
        sequences=(Ragged.of(pixels, np.uint8),),
        labels=_known(images.labels),
        label_names=images.label_names or [],
        vocab_size=256,
        seq_len=pixels.shape[1],
        pad=0,
        description=f"lra-image: CIFAR-10 in grey, {split}, {len(images)} images",
    )


def grey(pixels: np.ndarray) -> np.ndarray:
    """Brightness of colors as the original benchmark has it: (3, H, W) to (H, W) uint8.

    floor((0.2989 R + 0.587 G + 0.114 B) / 255 * 255.5) in float32, which is what TensorFlow's
    `rgb_to_grayscale` makes of 8-bit images; Pillow's conversion is another one.
    """
    scaled = pixels.astype(np.float32) * np.float32(1 / 255)
    brightness = np.tensordot(np.array([0.2989, 0.587, 0.114], np.float32), scaled, axes=1)
    return np.floor(brightness * np.float32(255.5)).astype(np.uint8)


def _known(labels: np.ndarray | None) -> np.ndarray:
    if labels is None:
        raise DataError("the data set has no labels")
    return labels
