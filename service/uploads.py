"""Images that a client uploads for an evaluation: written, checked, and read again by the child.

The folder of an evaluation holds one container of images, as uploaded (an archive) or packed here
(single files), and `inputs.json` with names and labels; the evaluation's own files lie in `report`.
"""

import dataclasses
import json
import os
import shutil
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np

from data.images import ImageError
from data.sources import DataError, ImageSet, open_images
from service.archives import check_archive
from service.errors import ApiError
from service.forms import Upload
from service.labels import read_labels
from service.settings import Settings

INPUTS = "inputs.json"
REPORT = "report"
_STATUS = {"not_an_image": 415, "broken_image": 422, "too_many_pixels": 413}
# One upload may decode to this many of the largest images allowed, so that the processor time of a
# request is bounded as well as its size.
_TOTAL_OF_LARGEST = 40


def evaluations_folder(state: Path) -> Path:
    """Where the folders of evaluations lie, one each, named by the identifier."""
    return state / "evaluations"


def save_inputs(
    folder: Path,
    *,
    images: Sequence[Upload],
    archive: Upload | None,
    labels: str | None,
    label_names: Sequence[str],
    settings: Settings,
) -> int:
    """Write and check the images of an evaluation; on return they are on the disk to stay.

    Args:
        folder: made here.
        images: single files, or none when there is an archive.
        archive: a zip of an image folder, or a parquet file.
        labels: text as in `read_labels`, or None.
        label_names: classes of the model.
        settings: limits.

    Returns:
        The number of images.

    Raises:
        ApiError: the images or the labels are not acceptable; nothing is left behind.
        OSError: the disk is full, or cannot be written; nothing is left behind.
    """
    folder.mkdir(parents=True)
    try:
        container, names = _write(folder, images, archive, settings)
        found = _open(folder / container, label_names, names)
        _check(found, settings)
        indices = _label_indices(found, labels, label_names)
        content = {"container": container, "names": found.names, "labels": indices}
        _write_durably(folder / INPUTS, json.dumps(content).encode())
        _sync_folder(folder)
        _sync_folder(folder.parent)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return len(found)


def open_inputs(folder: Path, label_names: Sequence[str]) -> ImageSet:
    """The images that `save_inputs` stored.

    Args:
        folder: the evaluation's folder.
        label_names: classes of the model.

    Raises:
        DataError: they are no longer readable.
    """
    content = json.loads((folder / INPUTS).read_text())
    found = open_images(folder / content["container"], label_names=label_names)
    labels = content["labels"]
    return dataclasses.replace(
        found,
        names=content["names"],
        labels=None if labels is None else np.array(labels, np.int64),
    )


def _write(
    folder: Path, images: Sequence[Upload], archive: Upload | None, settings: Settings
) -> tuple[str, list[str] | None]:
    if archive is not None:
        container = f"images.{check_archive(archive.content, settings)}"
        _write_durably(folder / container, archive.content)
        return container, None
    with (folder / "images.zip").open("wb") as file:
        with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as packed:
            for index, image in enumerate(images):
                # The suffix only marks an image; what it is is read from its bytes.
                packed.writestr(f"{index:06d}.png", image.content)
        _sync(file)
    return "images.zip", [image.name for image in images]


def _open(path: Path, label_names: Sequence[str], names: list[str] | None) -> ImageSet:
    try:
        found = open_images(path, label_names=label_names)
    except DataError as error:
        # The cause of an unreadable parquet file may quote where it lies.
        reason = str(error).replace(str(path.parent) + os.sep, "")
        raise ApiError(422, "invalid_archive", f"The archive cannot be used: {reason}.") from error
    except (ValueError, TypeError, LookupError, AttributeError, NotImplementedError) as error:
        # A parquet file may hold columns and metadata of any type.
        raise ApiError(422, "broken_archive", "The archive cannot be read.") from error
    return found if names is None else dataclasses.replace(found, names=names)


def _check(images: ImageSet, settings: Settings) -> None:
    if len(images) > settings.evaluation_max_samples:
        raise too_many_images(len(images), settings)
    pixels = 0
    for index, name in enumerate(images.names):
        try:
            image = images.read(index)
        except DataError as error:
            code = error.__cause__.code if isinstance(error.__cause__, ImageError) else None
            code = code or "broken_image"
            raise ApiError(_STATUS[code], code, f"Image {error}.", {"index": index}) from error
        except (zipfile.BadZipFile, zlib.error, EOFError) as error:
            message = f"The archive is damaged at {name[:100]!r}."
            raise ApiError(422, "broken_archive", message) from error
        size = image.width * image.height
        pixels += size
        if size > settings.max_pixels or pixels > _TOTAL_OF_LARGEST * settings.max_pixels:
            message = f"Image {name[:100]!r}: too many pixels, alone or with those before it."
            raise ApiError(413, "too_many_pixels", message, {"index": index})


def _label_indices(
    images: ImageSet, labels: str | None, label_names: Sequence[str]
) -> list[int] | None:
    if labels is not None:
        return read_labels(labels, images.names, label_names)
    return None if images.labels is None else [int(label) for label in images.labels]


def too_many_images(count: int, settings: Settings) -> ApiError:
    """The error for an evaluation of more images than the settings allow."""
    limit = settings.evaluation_max_samples
    return ApiError(422, "too_many_images", f"{count} images are more than the {limit} allowed.")


def _write_durably(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        _sync(file)


def _sync(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
