"""Parquet files in the convention of the Hugging Face hub: `image` or `text`, and `label`."""

import json
from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from data.errors import DataError
from data.labels import label_index, normalize
from data.sets import FileSet, TextSet

_MOST_CLASSES = 30_000  # each label is looked for among them


def open_parquet(paths: Sequence[Path], label_names: list[str] | None) -> FileSet:
    """Open parquet files of images as one data set; images are bytes or struct{bytes, path}.

    Where the file's own class names are `label_names` in another order, its indices are
    translated by name.

    Raises:
        DataError: not a parquet file, no image column, a row without image, or a label out
            of range.
    """
    tables = _read(paths, "image")
    own_names = _class_names(tables[paths[0]].schema)
    label_names = label_names or own_names
    parts = [_image_bytes(path, table) for path, table in tables.items()]
    column = pa.chunked_array([chunk for part in parts for chunk in part.chunks])
    return FileSet(
        names=_names(tables),
        labels=_labels(tables, label_names, own_names),
        label_names=label_names,
        reader=lambda index: column[index].as_py(),
    )


def open_text_parquet(paths: Sequence[Path], label_names: list[str] | None) -> TextSet:
    """Open parquet files of texts as one data set; labels as in `open_parquet`.

    Raises:
        DataError: not a parquet file, no text column, a row without text, or a label out of range.
    """
    tables = _read(paths, "text")
    own_names = _class_names(tables[paths[0]].schema)
    label_names = label_names or own_names
    for path, table in tables.items():
        _check_texts(path, table.column("text"))
    column = pa.concat_tables(tables.values()).column("text")
    return TextSet(
        names=_names(tables),
        labels=_labels(tables, label_names, own_names),
        label_names=label_names,
        description=f"{paths[0].stem}, {len(column)} rows",
        reader=lambda index: column[index].as_py(),
    )


def _read(paths: Sequence[Path], content: str) -> dict[Path, pa.Table]:
    tables: dict[Path, pa.Table] = {}
    for path in paths:
        try:
            schema = pq.read_schema(path)
            columns = [name for name in (content, "label") if name in schema.names]
            tables[path] = pq.read_table(path, columns=columns)
        except (pa.ArrowException, OSError) as error:
            raise DataError(f"{path.name} is not a readable parquet file: {error}") from error
        if content not in columns:
            raise DataError(f"{path.name} has no column {content!r}, only {schema.names}")
        if not tables[path].schema.equals(tables[paths[0]].schema):
            raise DataError(f"{path.name} has other columns than {paths[0].name}")
    if not any(map(len, tables.values())):
        raise DataError(f"{paths[0].name} holds no row")
    return tables


def _names(tables: dict[Path, pa.Table]) -> list[str]:
    return [f"{path.stem}/{row:06d}" for path, table in tables.items() for row in range(len(table))]


def _image_bytes(path: Path, table: pa.Table) -> pa.ChunkedArray:
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


def _check_texts(path: Path, column: pa.ChunkedArray) -> None:
    if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        raise DataError(f"{path.name}: the column 'text' must hold strings, got {column.type}")
    for row, text in enumerate(column.to_pylist()):
        if not (text or "").strip():
            raise DataError(f"{path.name}: row {row} holds no text")


def _class_names(schema: pa.Schema) -> list[str] | None:
    """The names of a ClassLabel column, which the hub's library keeps in the metadata."""
    metadata: dict[str, Any] = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))
    label = metadata.get("info", {}).get("features", {}).get("label", {})
    names = label.get("names") or None
    if names and len(names) > _MOST_CLASSES:
        raise DataError(f"at most {_MOST_CLASSES} names of classes are read, got {len(names)}")
    return names


def _labels(
    tables: dict[Path, pa.Table], label_names: list[str] | None, own_names: list[str] | None
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
