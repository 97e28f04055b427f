"""LRA Retrieval: do two papers of the ACL anthology cite each other? Read, not shipped."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from data.datasets.known import data_folder
from data.errors import DataError
from data.token_set import Ragged, TokenSet

_FILES = {
    split: f"new_aan_pairs.{part}.tsv"
    for split, part in (("train", "train"), ("valid", "eval"), ("test", "test"))
}
_BYTES = 4000
_COLUMNS = ("label", "id of one", "id of the other", "text of one", "text of the other")
_LABELS = {b"0": 0, b"0.0": 0, b"1": 1, b"1.0": 1}


def open_retrieval(split: str) -> TokenSet:
    """Open the pairs of a split as bytes, the first 4,000 of each text.

    The files lie in the folder ASSAY_DATA or in `lra-retrieval` there. Each line is a label (1.0 or
    0.0), two identifiers and two texts, with tabs between them, without header or quotes.

    Raises:
        DataError: the file is missing, or a line of it is broken; the message names the line.
    """
    path = _find(_FILES[split])
    firsts: list[np.ndarray] = []
    seconds: list[np.ndarray] = []
    labels: list[int] = []
    for label, one, other in _pairs(path):
        labels.append(label)
        firsts.append(one)
        seconds.append(other)
    if not labels:
        raise DataError(f"{path.name} holds no pair")
    return TokenSet(
        sequences=(Ragged.of(firsts, np.uint16), Ragged.of(seconds, np.uint16)),
        labels=np.array(labels, np.int64),
        label_names=["unrelated", "related"],
        vocab_size=257,
        seq_len=_BYTES,
        pad=256,
        description=f"lra-retrieval: ACL anthology, {split}, {len(labels)} pairs",
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
