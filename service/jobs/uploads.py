"""What a client uploads for an evaluation: written, checked, and read again by the child.

The folder of an evaluation holds one container of inputs, as uploaded (an archive) or packed here,
and `inputs.json` with names and labels; the evaluation's own files lie in `report`.
"""

import csv
import dataclasses
import io
import json
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from data.labels import label_index
from data.sources import ImageSet, TextSet, open_images, open_texts
from runtimes.artifact import Artifact
from service.http.body import Upload
from service.http.documents import parse_json
from service.http.errors import ApiError
from service.jobs.durable import sync_folder, write_durably
from service.jobs.image_uploads import store_images
from service.jobs.text_uploads import store_texts
from service.settings import Settings

INPUTS = "inputs.json"
REPORT = "report"


@dataclass(frozen=True, slots=True, kw_only=True)
class Uploads:
    """The inputs of an evaluation as they came.

    Attributes:
        on_texts: whether they are texts.
        images: single files, or none.
        texts: single texts, or none.
        archive: a zip of an image folder, a parquet or a csv file; None when there are single ones.
        labels: text as in `read_labels`, or None.
    """

    on_texts: bool
    images: Sequence[Upload] = ()
    texts: Sequence[str] = ()
    archive: Upload | None = None
    labels: str | None = None


def evaluations_folder(state: Path) -> Path:
    """Where the folders of evaluations lie, one each, named by the identifier."""
    return state / "evaluations"


def save_inputs(
    folder: Path, uploads: Uploads, *, artifacts: Sequence[Artifact], settings: Settings
) -> int:
    """Write and check the inputs of an evaluation; on return they are on the disk to stay.

    Args:
        folder: made here.
        uploads: what came.
        artifacts: the models under evaluation.
        settings: limits.

    Returns:
        The number of inputs.

    Raises:
        ApiError: inputs or labels are not acceptable; nothing is left behind.
        OSError: the disk is full, or cannot be written; nothing is left behind.
    """
    folder.mkdir(parents=True)
    archive, label_names = uploads.archive, artifacts[0].labels
    try:
        container, found = (
            store_texts(folder, uploads.texts, archive, artifacts, settings)
            if uploads.on_texts
            else store_images(folder, uploads.images, archive, label_names, settings)
        )
        indices = _label_indices(found, uploads.labels, label_names)
        content = {"container": container, "names": found.names, "labels": indices}
        write_durably(folder / INPUTS, json.dumps(content).encode())
        sync_folder(folder)
        sync_folder(folder.parent)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return len(found)


def open_inputs(folder: Path, label_names: Sequence[str]) -> ImageSet | TextSet:
    """The inputs that `save_inputs` stored.

    Args:
        folder: the evaluation's folder.
        label_names: classes of the model.

    Raises:
        DataError: they are no longer readable.
    """
    content = json.loads((folder / INPUTS).read_text())
    container = folder / content["container"]
    if container.stem == "texts":
        found: ImageSet | TextSet = open_texts(container, label_names=label_names)
    else:  # their size was checked when they came
        found = open_images(container, label_names=label_names, max_pixels=sys.maxsize)
    labels = content["labels"]
    return dataclasses.replace(
        found,
        names=content["names"],
        labels=None if labels is None else np.array(labels, np.int64),
    )


def _label_indices(
    inputs: ImageSet | TextSet, labels: str | None, label_names: Sequence[str]
) -> list[int] | None:
    if labels is not None:
        return read_labels(labels, inputs.names, label_names)
    return None if inputs.labels is None else [int(label) for label in inputs.labels]


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
