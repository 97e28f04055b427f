"""Parquet files in the convention of the Hugging Face hub: `image` or `text`, and `label`."""

import json
from collections.abc import Mapping, Sequence
from functools import cache, partial
from pathlib import Path, PurePath
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from data.errors import DataError
from data.labels import label_index, normalize
from data.sets import FileSet, TextSet

_MOST_CLASSES = 30_000  # each label is looked for among them

Tables = Mapping[PurePath, pa.Table]
"""By the file that each was read from."""


def open_parquet(paths: Sequence[Path], label_names: list[str] | None) -> FileSet:
    """Open parquet files of images as one data set; raises as `image_files`.

    Raises:
        DataError: not a parquet file, or no image column.
    """
    return image_files(_read(paths, "image"), label_names)


def open_text_parquet(paths: Sequence[Path], label_names: list[str] | None) -> TextSet:
    """Open parquet files of texts as one data set; raises as `text_rows`.

    Raises:
        DataError: not a parquet file, or no text column.
    """
    return text_rows(_read(paths, "text"), label_names)


def image_files(tables: Tables, label_names: list[str] | None) -> FileSet:
    """Images in tables; they are bytes or struct{bytes, path}.

    Where the file's own class names are `label_names` in another order, its indices are
    translated by name.

    Raises:
        DataError: no row, a row without image, or a label out of range.
    """
    _check(tables)
    own_names = _class_names(next(iter(tables.values())).schema)
    label_names = label_names or own_names
    parts = [_image_bytes(path, table) for path, table in tables.items()]
    column = pa.chunked_array([chunk for part in parts for chunk in part.chunks])
    return FileSet(
        names=_names(tables),
        labels=_labels(tables, label_names, own_names),
        label_names=label_names,
        reader=lambda index: column[index].as_py(),
    )


def text_rows(tables: Tables, label_names: list[str] | None) -> TextSet:
    """Texts in tables; labels as in `image_files`.

    Raises:
        DataError: no row, a row without text, or a label out of range.
    """
    _check(tables)
    first = next(iter(tables))
    own_names = _class_names(tables[first].schema)
    label_names = label_names or own_names
    texts = [text for path, table in tables.items() for text in _texts(path, table)]
    return TextSet(
        names=_names(tables),
        labels=_labels(tables, label_names, own_names),
        label_names=label_names,
        description=f"{first.stem}, {len(texts)} rows",
        reader=lambda index: texts[index],
    )


def columns_of(schema: pa.Schema, source: str, content: str) -> list[str]:
    """The columns to read of a file of that name.

    Raises:
        DataError: the one with the content is not there.
    """
    if content not in schema.names:
        raise DataError(f"{source} has no column {content!r}, only {schema.names}")
    return [name for name in (content, "label") if name in schema.names]


def _read(paths: Sequence[Path], content: str) -> Tables:
    tables: dict[PurePath, pa.Table] = {}
    for path in paths:
        try:
            columns = columns_of(pq.read_schema(path), path.name, content)
            tables[path] = pq.read_table(path, columns=columns)
        except (pa.ArrowException, OSError) as error:
            raise DataError(f"{path.name} is not a readable parquet file: {error}") from error
    return tables


def _check(tables: Tables) -> None:
    first = next(iter(tables))
    for path, table in tables.items():
        if not table.schema.equals(tables[first].schema):
            raise DataError(f"{path.name} has other columns than {first.name}")
    if not any(map(len, tables.values())):
        raise DataError(f"{first.name} holds no row")


def _names(tables: Tables) -> list[str]:
    return [f"{path.stem}/{row:06d}" for path, table in tables.items() for row in range(len(table))]


def _image_bytes(path: PurePath, table: pa.Table) -> pa.ChunkedArray:
    column = table.column("image")
    if pa.types.is_struct(column.type) and column.type.get_field_index("bytes") >= 0:
        chunks = [chunk.field("bytes") for chunk in column.chunks]
        column = pa.chunked_array(chunks, column.type.field("bytes").type)
    if not (pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type)):
        raise DataError(f"{path.name}: the column 'image' must hold bytes, got {column.type}")
    if column.null_count:
        row = column.is_null().index(True).as_py()
        raise DataError(f"{path.name}: row {row} holds no image bytes")
    return column


def _texts(path: PurePath, table: pa.Table) -> list[str]:
    column = table.column("text")
    if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        raise DataError(f"{path.name}: the column 'text' must hold strings, got {column.type}")
    texts = column.to_pylist()
    for row, text in enumerate(texts):
        if not (text or "").strip():
            raise DataError(f"{path.name}: row {row} holds no text")
    return texts


def _class_names(schema: pa.Schema) -> list[str] | None:
    """The names of a ClassLabel column, which the hub's library keeps in the metadata."""
    metadata: dict[str, Any] = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))
    label = metadata.get("info", {}).get("features", {}).get("label", {})
    names = label.get("names") or None
    if names and len(names) > _MOST_CLASSES:
        raise DataError(f"at most {_MOST_CLASSES} names of classes are read, got {len(names)}")
    return names


def _labels(
    tables: Tables, label_names: list[str] | None, own_names: list[str] | None
) -> np.ndarray | None:
    if any("label" not in table.column_names for table in tables.values()):
        return None
    if label_names and own_names and not _same_classes(own_names, label_names):
        own_names = None
    index = cache(partial(_label, label_names=label_names, own_names=own_names))
    labels: list[int] = []
    for path, table in tables.items():
        for row, value in enumerate(table.column("label").to_pylist()):
            try:
                labels.append(index(value))
            except ValueError as error:
                raise DataError(f"{path.name}, row {row}: {error}") from error
    return np.array(labels, np.int64)


def _label(value: Any, *, label_names: list[str] | None, own_names: list[str] | None) -> int:
    if value is None:
        raise ValueError("the row holds no label")
    if own_names is None:
        return label_index(str(value), label_names)
    return label_index(own_names[label_index(str(value), own_names)], label_names)


def _same_classes(own_names: list[str], label_names: list[str]) -> bool:
    """Whether two lists name the same classes; else the file's indices are taken as they are."""
    own, known = set(map(normalize, own_names)), set(map(normalize, label_names))
    # A name that two classes share, as ImageNet's "crane", cannot tell them apart.
    return own == known and len(own) == len(own_names) == len(label_names)
