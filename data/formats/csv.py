"""csv files of texts: a header with `text` and, if labeled, `label` (RFC 4180, UTF-8)."""

import csv
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from pathlib import Path, PurePath

from data.errors import DataError
from data.labels import Classes
from data.sets import Origin, TextSet

csv.field_size_limit(2**31 - 1)  # of 131,072 characters; who takes files of strangers has limits


def open_csv(path: Path, classes: Classes) -> TextSet:
    """Open a csv file of texts; raises as `read_csv`."""
    with path.open(encoding="utf-8-sig", newline="") as file:
        return read_csv(file, path.name, classes)


def read_csv(
    lines: Iterable[str],
    source: str,
    classes: Classes,
    on_row: Callable[[list[str]], None] | None = None,
) -> TextSet:
    """Read texts in csv; further columns are left out, blank lines too.

    Args:
        lines: with their ends.
        source: name of the file.
        classes: among which labels are found.
        on_row: is called with the cells of every row, of the header and of blank lines too.

    Raises:
        DataError: not UTF-8, no such columns, or a row that is broken, has no text or a label out
            of range; the message names the line in which the row ends.
        ClassMismatch: a label is none of these classes.
    """
    texts: list[str] = []
    labels: list[str] = []
    ends: list[int] = []
    reader = csv.reader(lines, strict=True)
    try:
        for row in _rows(reader, source, on_row):
            texts.append(row["text"])
            if "label" in row:
                labels.append(row["label"].strip())
                ends.append(reader.line_num)
    except DataError:
        raise
    except UnicodeDecodeError as error:
        raise DataError(f"{source} is not UTF-8 text: {error.reason}") from error
    except (csv.Error, ValueError) as error:
        raise DataError(f"{source}, line {reader.line_num}: {error}") from error
    if not texts:
        raise DataError(f"{source} holds no row")
    found, named = classes.find(labels, lambda row: f"{source}, line {ends[row]}: ")
    name = PurePath(source).stem
    return TextSet(
        names=[f"{name}/{index:06d}" for index in range(len(texts))],
        labels=found if labels else None,
        label_names=classes.names,
        description=f"{name}, {len(texts)} rows",
        reader=lambda index: texts[index],
        origin=Origin(source=source, classes=named),
    )


def _rows(
    reader: Iterator[list[str]], source: str, on_row: Callable[[list[str]], None] | None
) -> Iterator[dict[str, str]]:
    """The cells of every row but blank ones, by the names in the header."""
    header: list[str] | None = None
    for cells in chain(reader, [[]]):  # an empty file has no column either
        if on_row is not None:
            on_row(cells)
        if header is None:
            header = [name.strip() for name in cells]
            if "text" not in header:
                raise DataError(f"{source} has no column 'text', only {header}")
        elif cells:
            yield _row(cells, header)


def _row(cells: list[str], header: list[str]) -> dict[str, str]:
    if len(cells) != len(header):
        raise ValueError(f"{len(header)} cells are needed, got {len(cells)}")
    row = dict(zip(header, cells, strict=True))
    if not row["text"].strip():
        raise ValueError("the row holds no text")
    return row
