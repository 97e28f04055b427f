"""Parquet files in the convention of the Hugging Face hub: `image` or `text`, and `label`."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from data.errors import DataError
from data.labels import Classes, normalize
from data.sets import FileSet, Origin, TextSet

_MOST_CLASSES = 30_000  # each label is looked for among them
_SENTENCE = "sentence"  # what GLUE calls its texts

Content = Literal["image", "text"]
Tables = Mapping[PurePath, pa.Table]
"""By the file that each was read from."""


def open_parquet(
    paths: Sequence[Path], content: Content, classes: Classes, known: list[str] | None = None
) -> FileSet | TextSet:
    """Open parquet files of images or texts as one data set; raises as `samples_of`.

    Raises:
        DataError: not a parquet file, or the column is missing.
    """
    return samples_of(_read(paths, content), content, classes, known)


def samples_of(
    tables: Tables, content: Content, classes: Classes, known: list[str] | None = None
) -> FileSet | TextSet:
    """Samples in tables; images are bytes or struct{bytes, path}.

    Where the file names its classes, or they are `known`, its indices are translated by name.

    Raises:
        ClassMismatch: they are not these classes.
        DataError: no row, a row without image or text, or a label out of range.
    """
    _check(tables)
    first = next(iter(tables))
    own_names = _own_names(tables[first].schema, known)
    labels, named = _labels(tables, classes, own_names)
    found: dict[str, Any] = {
        "names": _names(tables),
        "labels": labels,
        "label_names": classes.names or own_names,
        "origin": _origin(tables, named),
    }
    if content == "image":
        parts = [_image_bytes(path, table) for path, table in tables.items()]
        column = pa.chunked_array([chunk for part in parts for chunk in part.chunks])
        return FileSet(**found, reader=lambda index: column[index].as_py())
    texts = [text for path, table in tables.items() for text in _texts(path, table)]
    description = f"{first.stem}, {len(texts)} rows"
    return TextSet(**found, description=description, reader=lambda index: texts[index])


def _origin(tables: Tables, classes: list[str] | None) -> Origin:
    more = f" and {len(tables) - 1} more" if len(tables) > 1 else ""
    return Origin(source=f"{next(iter(tables)).name}{more}", classes=classes)


def columns_of(schema: pa.Schema, source: str, content: Content) -> list[str]:
    """The columns to read of a file of that name.

    Raises:
        DataError: the one with the content is not there.
    """
    if content not in schema.names:
        raise DataError(f"{source} has no column {content!r}, only {schema.names}")
    return [name for name in (content, "label") if name in schema.names]


def _read(paths: Sequence[Path], content: Content) -> Tables:
    tables: dict[PurePath, pa.Table] = {}
    for path in paths:
        try:
            schema = pq.read_schema(path)
            if content == "text" not in schema.names and _SENTENCE in schema.names:
                table = pq.read_table(path)
                names = ["text" if name == _SENTENCE else name for name in schema.names]
                tables[path] = table.rename_columns(names)
                continue
            columns = columns_of(schema, path.name, content)
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


def read_texts(path: Path) -> list[str]:
    """The texts of one file, which may be of blanks only, as lines of a document are.

    Raises:
        DataError: not a parquet file, no such column, or a row without text.
    """
    return _strings(path, _read([path], "text")[path])


def _texts(path: PurePath, table: pa.Table) -> list[str]:
    texts = _strings(path, table)
    for row, text in enumerate(texts):
        if not text.strip():
            raise DataError(f"{path.name}: row {row} holds no text")
    return texts


def _strings(path: PurePath, table: pa.Table) -> list[str]:
    column = table.column("text")
    if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        raise DataError(f"{path.name}: the column 'text' must hold strings, got {column.type}")
    if column.null_count:
        row = column.is_null().index(True).as_py()
        raise DataError(f"{path.name}: row {row} holds no text")
    return column.to_pylist()


def _class_names(schema: pa.Schema) -> list[str] | None:
    """The names of a ClassLabel column, which the hub's library keeps in the metadata."""
    metadata: dict[str, Any] = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))
    label = metadata.get("info", {}).get("features", {}).get("label", {})
    names = label.get("names") or None
    if names and len(names) > _MOST_CLASSES:
        raise DataError(f"at most {_MOST_CLASSES} names of classes are read, got {len(names)}")
    return names and [str(name) for name in names]


def _own_names(schema: pa.Schema, known: list[str] | None) -> list[str] | None:
    """The classes in the file's order; those of a known set go by the names that are known."""
    found = _class_names(schema)
    same = found and known and {*map(normalize, found)} == {*map(normalize, known)}
    return found if same or not known else known


def _labels(
    tables: Tables, classes: Classes, own_names: list[str] | None
) -> tuple[np.ndarray | None, list[str] | None]:
    """The model's classes of all rows, and what the file calls them."""
    if any("label" not in table.column_names for table in tables.values()):
        return None, None
    values: list[str] = []
    for path, table in tables.items():
        column = table.column("label")
        if column.null_count:
            row = column.is_null().index(True).as_py()
            raise DataError(f"{path.name}, row {row}: the row holds no label")
        values += map(str, column.to_pylist())

    def where(place: int) -> str:
        """The file and the row."""
        for path, table in tables.items():
            if place < len(table):
                return f"{path.name}, row {place}: "
            place -= len(table)
        raise IndexError(place)

    if own_names is None:
        return classes.find(values, where)
    own, _ = Classes(label_names=own_names).find(values, where)
    return classes.translate(own, own_names, next(iter(tables)).name)
