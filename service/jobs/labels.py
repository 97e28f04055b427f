"""The labels that a client sends with inputs: a JSON list, or csv lines `file,label`."""

import csv
import io
from collections.abc import Sequence

from data.labels import label_index
from service.http.documents import parse_json
from service.http.errors import ApiError


def read_labels(text: str, names: Sequence[str], label_names: Sequence[str]) -> list[int]:
    """One class index per input, in the order of the inputs.

    Args:
        text: a JSON list of indices or label names, or csv lines of file name and label with or
            without the header `file,label`.
        names: names of the inputs, which the csv refers to.
        label_names: classes of the model.

    Raises:
        ApiError: 400 invalid_json, 422 labels_length or invalid_labels.
    """
    if text.lstrip()[:1] in ("[", "{", '"'):
        values = _from_json(text)
    else:
        values = _from_csv(text, names)
    if len(values) != len(names):
        message = f"There are {len(values)} labels for {len(names)} inputs."
        raise ApiError(422, "labels_length", message)
    return [_index(position, value, label_names) for position, value in enumerate(values)]


def _from_json(text: str) -> list[str]:
    values = parse_json(text, "labels")
    if not isinstance(values, list):
        raise ApiError(422, "invalid_labels", "The labels must be a JSON list or csv lines.")
    for position, value in enumerate(values):
        if isinstance(value, bool) or not isinstance(value, int | str):
            message = f"Label {position} must be a class index or a label name."
            raise ApiError(422, "invalid_labels", message)
    return [str(value) for value in values]


def _from_csv(text: str, names: Sequence[str]) -> list[str]:
    try:
        rows = [row for row in csv.reader(io.StringIO(text), strict=True) if row]
    except csv.Error as error:
        raise ApiError(400, "invalid_csv", f"The labels cannot be read as csv: {error}.") from error
    if rows and [cell.strip().lower() for cell in rows[0]] == ["file", "label"]:
        rows = rows[1:]
    if any(len(row) != 2 for row in rows):
        raise ApiError(422, "invalid_labels", "Every csv line of the labels must be `file,label`.")
    labels = {file.strip(): label.strip() for file, label in rows}
    if len(labels) < len(rows) or len(set(names)) < len(names):
        message = "Labels by file name need distinct file names."
        raise ApiError(422, "invalid_labels", message)
    if len(labels) == len(names):
        for name in names:
            if name not in labels:
                message = f"The labels name no file {name[:100]!r}."
                raise ApiError(422, "invalid_labels", message)
        return [labels[name] for name in names]
    return list(labels.values())


def _index(position: int, value: str, label_names: Sequence[str]) -> int:
    try:
        return label_index(value[:200], label_names)
    except ValueError as error:
        raise ApiError(422, "invalid_labels", f"Label {position}: {error}.") from error
