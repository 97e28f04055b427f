"""Parquet files in the convention of the Hugging Face hub: `image` or `text`, and `label`."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from data.image_set import DataError, ImageSet
from data.images import MAX_PIXELS, decode_image
from data.labels import label_index, normalise
from data.text_set import TextSet


def open_parquet(
    paths: Sequence[Path], label_names: list[str] | None, *, max_pixels: int = MAX_PIXELS
) -> ImageSet:
    """Open parquet files of images as one data set; images are bytes or struct{bytes, path}.

    No image may have more than `max_pixels`.

    Where the file's own class names are `label_names` in another order, its indices are
    translated by name.

    Raises:
        DataError: not a parquet file, no image column, or a label out of range.
    """
    table = _read(paths, "image")
    own_names = _class_names(table.schema)
    label_names = label_names or own_names
    column = table.column("image")
    if pa.types.is_struct(column.type):
        column = pa.chunked_array([chunk.field("bytes") for chunk in column.chunks])
    if not (pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type)):
        raise DataError(f"the column 'image' must hold bytes, got {column.type}")
    if column.null_count:
        raise DataError(f"{paths[0].name}: {column.null_count} rows hold no image bytes")
    stem = paths[0].stem
    return ImageSet(
        names=[f"{stem}/{index:06d}" for index in range(len(table))],
        labels=_labels(table, label_names, own_names),
        label_names=label_names,
        reader=lambda index: decode_image(column[index].as_py(), max_pixels=max_pixels),
    )


def open_text_parquet(paths: Sequence[Path], label_names: list[str] | None) -> TextSet:
    """Open parquet files of texts as one data set; labels as in `open_parquet`.

    Raises:
        DataError: not a parquet file, no text column, a row without text, or a label out of range.
    """
    table = _read(paths, "text")
    own_names = _class_names(table.schema)
    label_names = label_names or own_names
    column = table.column("text")
    if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        raise DataError(f"{paths[0].name}: the column 'text' must hold strings, got {column.type}")
    for row, text in enumerate(column.to_pylist()):
        if not (text or "").strip():
            raise DataError(f"{paths[0].name}: row {row} holds no text")
    stem = paths[0].stem
    return TextSet(
        names=[f"{stem}/{index:06d}" for index in range(len(table))],
        labels=_labels(table, label_names, own_names),
        label_names=label_names,
        description=f"{stem}, {len(table)} rows",
        reader=lambda index: column[index].as_py(),
    )


def _read(paths: Sequence[Path], content: str) -> pa.Table:
    tables = []
    for path in paths:
        try:
            schema = pq.read_schema(path)
            columns = [name for name in (content, "label") if name in schema.names]
            tables.append(pq.read_table(path, columns=columns))
        except (pa.ArrowException, OSError) as error:
            raise DataError(f"{path.name} is not a readable parquet file: {error}") from error
        if content not in columns:
            raise DataError(f"{path.name} has no column {content!r}, only {schema.names}")
    try:
        return pa.concat_tables(tables)
    except pa.ArrowInvalid as error:
        raise DataError(f"{paths[-1].name} has other columns than {paths[0].name}") from error


def _class_names(schema: pa.Schema) -> list[str] | None:
    """The names of a ClassLabel column, which the hub's library keeps in the metadata."""
    metadata: dict[str, Any] = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))
    label = metadata.get("info", {}).get("features", {}).get("label", {})
    return label.get("names") or None


def _labels(
    table: pa.Table, label_names: list[str] | None, own_names: list[str] | None
) -> np.ndarray | None:
    if "label" not in table.column_names:
        return None
    values = table.column("label").to_pylist()
    try:
        index = {value: label_index(str(value), label_names) for value in set(values)}
        if own_names and label_names and _same_classes(own_names, label_names):
            own = {value: own_names[label_index(str(value), own_names)] for value in index}
            index = {value: label_index(name, label_names) for value, name in own.items()}
        return np.array([index[value] for value in values], np.int64)
    except ValueError as error:
        raise DataError(f"the column 'label': {error}") from error


def _same_classes(own_names: list[str], label_names: list[str]) -> bool:
    """Whether two lists name the same classes; else the file's indices are taken as they are."""
    own, known = set(map(normalise, own_names)), set(map(normalise, label_names))
    # A name that two classes share, as ImageNet's "crane", cannot tell them apart.
    return own == known and len(own) == len(own_names) == len(label_names)
