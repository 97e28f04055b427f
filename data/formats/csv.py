"""csv files of texts: a header with `text` and, if labeled, `label` (RFC 4180, UTF-8)."""

import csv
from pathlib import Path

import numpy as np

from data.errors import DataError
from data.labels import label_index
from data.sets import TextSet

csv.field_size_limit(2**31 - 1)  # of 131,072 characters; who takes files of strangers has limits


def open_csv(path: Path, label_names: list[str] | None) -> TextSet:
    """Open a csv file of texts; further columns are left out, blank lines too.

    Raises:
        DataError: not UTF-8, no such columns, or a row that is broken, has no text or a label out
            of range; the message names the line in which the row ends.
    """
    texts: list[str] = []
    labels: list[int] = []
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.reader(file, strict=True)
        try:
            header = [name.strip() for name in next(reader, [])]
            if "text" not in header:
                raise DataError(f"{path.name} has no column 'text', only {header}")
            for cells in filter(None, reader):
                row = _row(cells, header)
                texts.append(row["text"])
                if "label" in header:
                    labels.append(label_index(row["label"].strip(), label_names))
        except DataError:
            raise
        except UnicodeDecodeError as error:
            raise DataError(f"{path.name} is not UTF-8 text: {error.reason}") from error
        except (csv.Error, ValueError) as error:
            raise DataError(f"{path.name}, line {reader.line_num}: {error}") from error
    if not texts:
        raise DataError(f"{path.name} holds no row")
    return TextSet(
        names=[f"{path.stem}/{index:06d}" for index in range(len(texts))],
        labels=np.array(labels, np.int64) if "label" in header else None,
        label_names=label_names,
        description=f"{path.stem}, {len(texts)} rows",
        reader=lambda index: texts[index],
    )


def _row(cells: list[str], header: list[str]) -> dict[str, str]:
    if len(cells) != len(header):
        raise ValueError(f"{len(header)} cells are needed, got {len(cells)}")
    row = dict(zip(header, cells, strict=True))
    if not row["text"].strip():
        raise ValueError("the row holds no text")
    return row
