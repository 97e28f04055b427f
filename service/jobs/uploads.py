"""What a client uploads for an evaluation: checked, written, and read again by the child.

The folder of an evaluation holds what the models read and nothing else: the pixels of images at the
size of each model, or one container of texts; and `inputs.json` with names and labels. The
evaluation's own files lie in `report`.
"""

import csv
import dataclasses
import io
import json
import os
import shutil
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from core.files import replacing, write_whole
from data.errors import DataError
from data.images import ImageError, ImageSpec
from data.labels import label_index
from data.sets import PixelSet
from data.sources import FileSet, ImageSet, TextSet, open_image_files, open_texts
from runtimes.artifact import Artifact
from runtimes.manifest import TEXTS
from service.decoding.pool import Decoders, Request, refusal
from service.http.body import Upload
from service.http.documents import TEXTS_LIMIT, Limit, check_length, check_size, parse_json
from service.http.errors import ApiError
from service.jobs.archives import check_archive, check_samples, reading
from service.settings import Settings

_Found = TypeVar("_Found", FileSet, TextSet)
INPUTS = "inputs.json"
REPORT = "report"

# What the images of an upload may cost follows from its size. A photo has a byte for every 5 to 10
# pixels, an image made to be costly one for thousands.
_TOTAL_OF_LARGEST = 40  # images of the largest size, at most
_FREE_PIXELS, _PIXELS_PER_BYTE = 64_000_000, 25
_SECONDS_PER_BYTE = 1e-6  # of processor time
# Characters of a text in which a model must find something: many whole texts would take minutes.
_START = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Uploads:
    """The inputs of an evaluation as they came.

    Attributes:
        images: single files, or none.
        texts: single texts, or none.
        archive: a zip of an image folder, a parquet or a csv file; None when there are single ones.
        labels: text as in `read_labels`, or None.
    """

    images: Sequence[Upload] = ()
    texts: Sequence[str] = ()
    archive: Upload | None = None
    labels: str | None = None

    @property
    def size(self) -> int:
        """Bytes of the files, and characters of the texts."""
        files = [*self.images, *([self.archive] if self.archive else [])]
        return sum(len(file.content) for file in files) + sum(map(len, self.texts))


def decoding(uploads: Uploads, decoders: Decoders, sharer: str, settings: Settings) -> Request:
    """The images of an upload at the decoders, as a context."""
    pixels = max(_FREE_PIXELS, settings.max_pixels) + _PIXELS_PER_BYTE * uploads.size
    return decoders.request(
        sharer,
        pixels=min(pixels, _TOTAL_OF_LARGEST * settings.max_pixels),
        seconds=settings.decode_cpu_s + _SECONDS_PER_BYTE * uploads.size,
    )


def evaluations_folder(state: Path) -> Path:
    """Where the folders of evaluations lie, one each, named by the identifier."""
    return state / "evaluations"


def stored_bytes(folder: Path) -> int:
    """What the files of an evaluation take; it may be running."""
    total = 0
    for where, _, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError):  # it had a temporary name
                total += os.stat(os.path.join(where, name)).st_size
    return total


def save_inputs(
    folder: Path,
    uploads: Uploads,
    *,
    artifacts: Sequence[Artifact],
    settings: Settings,
    images: Request,
) -> int:
    """Check and write the inputs of an evaluation; on return they are on the disk to stay.

    Args:
        folder: made here.
        uploads: what came.
        artifacts: the models under evaluation; each must be able to read every text.
        settings: limits.
        images: decodes them; see `decoding`.

    Returns:
        The number of inputs.

    Raises:
        ApiError: inputs or labels are not acceptable; nothing is left behind.
        CancelledError: the images were given up; nothing is left behind.
        OSError: the disk is full, or cannot be written; nothing is left behind.
    """
    folder.mkdir(parents=True)
    label_names = artifacts[0].labels
    try:
        content: dict[str, Any] = {}
        on_texts = artifacts[0].manifest.task == TEXTS
        if on_texts:
            container = _write_texts(folder, uploads, settings)
            content["container"] = container.name
            found = _open_sent(open_texts, container, label_names)
        else:
            found = _open_files(folder, uploads, label_names, settings)
        labels = None if found.labels is None else found.labels.tolist()
        if uploads.labels is not None:
            labels = read_labels(uploads.labels, found.names, label_names)
        if isinstance(found, TextSet):
            _check_texts(found, artifacts, settings)
        else:
            specs = list(dict.fromkeys(artifact.image_spec for artifact in artifacts))
            content["pixels"] = _store_images(folder, found, specs, images)
        content |= {"names": found.names, "labels": labels}
        write_whole(folder / INPUTS, json.dumps(content))
        _sync_folder(folder)
        _sync_folder(folder.parent)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return len(found)


def open_inputs(folder: Path, label_names: Sequence[str]) -> ImageSet | TextSet:
    """The inputs that `save_inputs` stored in a folder, for a model with these labels.

    Raises:
        DataError: they are no longer readable.
    """
    content = json.loads((folder / INPUTS).read_text())
    names, labels = content["names"], content["labels"]
    labels = None if labels is None else np.array(labels, np.int64)
    if "pixels" not in content:
        found = open_texts(folder / content["container"], label_names=label_names)
        return dataclasses.replace(found, names=names, labels=labels)
    try:
        arrays = {
            ImageSpec(**spec): np.load(folder / _pixels_file(index), mmap_mode="r")
            for index, spec in enumerate(content["pixels"])
        }
    except (OSError, ValueError, EOFError) as error:
        raise DataError("the stored pixels cannot be read") from error
    return PixelSet(
        names=names, labels=labels, label_names=list(label_names), reader=_no_file, arrays=arrays
    )


def drop_inputs(folder: Path) -> None:
    """Delete the pixels that `save_inputs` stored, once a report holds what it shows of them."""
    for path in folder.glob(_pixels_file("*")):
        path.unlink(missing_ok=True)


def _pixels_file(index: int | str) -> str:
    return f"pixels-{index}.npy"


def _no_file(index: int) -> Any:
    raise DataError(f"only the pixels of image {index} were kept")


def _open_sent(
    reader: Callable[..., _Found], container: Path, label_names: Sequence[str]
) -> _Found:
    """What was sent, or an answer for its sender."""
    try:
        with reading("The archive"):
            return reader(container, label_names=label_names)
    except DataError as error:
        # The cause of an unreadable parquet file may quote where it lies.
        reason = str(error).replace(str(container.parent) + os.sep, "")
        raise ApiError(422, "invalid_archive", f"The archive cannot be used: {reason}.") from error


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write_texts(folder: Path, uploads: Uploads, settings: Settings) -> Path:
    """The container, as it came or packed."""
    if uploads.archive is not None:
        content = uploads.archive.content
        container = folder / f"texts.{check_archive(content, settings, 'texts')}"
        write_whole(container, content)
        return container
    container = folder / "texts.csv"
    with replacing(container) as partial:
        check_samples(len(uploads.texts), settings, "texts")
        _pack_texts(partial, uploads.texts)
    return container


def _pack_texts(path: Path, texts: Sequence[str]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, quoting=csv.QUOTE_ALL)
        writer.writerows([["text"], *([text] for text in texts)])


def _open_files(
    folder: Path, uploads: Uploads, label_names: Sequence[str], settings: Settings
) -> FileSet:
    """The image files that came; an archive does not stay."""
    if uploads.archive is None:
        files = uploads.images
        return FileSet(
            names=[file.name for file in files],
            labels=None,
            label_names=None,
            reader=lambda index: files[index].content,
        )
    content = uploads.archive.content
    container = folder / f"images.{check_archive(content, settings, 'images')}"
    container.write_bytes(content)
    try:
        return _open_sent(open_image_files, container, label_names)
    finally:
        container.unlink()


def _store_images(
    folder: Path, files: FileSet, specs: Sequence[ImageSpec], images: Request
) -> list[dict[str, Any]]:
    """Write the pixels of all images at each size; the sizes in the order of their files."""
    with ExitStack() as stack:
        arrays = []
        for index, spec in enumerate(specs):
            array = stack.enter_context((folder / _pixels_file(index)).open("wb"))
            shape = (len(files), spec.channels, spec.height, spec.width)
            header = {"descr": "|u1", "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(array, header)
            arrays.append(array)
        for index in range(len(files)):
            for array, pixels in zip(arrays, _decode(files, index, specs, images), strict=True):
                array.write(pixels.tobytes())
        for array in arrays:
            array.flush()
            os.fsync(array.fileno())
    return [spec.to_dict() for spec in specs]


def _decode(
    files: FileSet, index: int, specs: Sequence[ImageSpec], images: Request
) -> list[np.ndarray]:
    name = files.names[index][:100]
    with reading(f"The archive is damaged at {name!r} and"):
        content = files.read(index)
    try:
        return images.decode(content, specs).result()
    except ImageError as error:
        raise refusal(error, f"Image {name}", {"index": index}) from error


def read_texts(field: str) -> list[str]:
    """The texts of a form's field `texts`, a JSON list.

    Raises:
        ApiError: 400 invalid_json; 422 no_texts or invalid_text, naming the place.
    """
    texts = parse_json(field, "texts", TEXTS_LIMIT)
    if not isinstance(texts, list):
        raise ApiError(422, "invalid_texts", "The field `texts` must be a JSON list of strings.")
    if not texts:
        raise ApiError(422, "no_texts", "The field `texts` must hold at least one text.")
    for index, text in enumerate(texts):
        if not isinstance(text, str) or not text.strip():
            raise _invalid_text(index, "must be a string that holds more than blanks")
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise _invalid_text(index, "is not Unicode text") from error
    return texts


def _check_texts(texts: TextSet, artifacts: Sequence[Artifact], settings: Settings) -> None:
    check_length(texts, settings.max_text_chars)
    readers = [(artifact.tokenizer(), artifact.text_spec.max_len) for artifact in artifacts]
    for index, text in enumerate(texts):
        start = text[:_START]
        try:
            read = all(len(tokenizer.ids([start], max_len)[0]) for tokenizer, max_len in readers)
        except ValueError as error:
            raise _invalid_text(index, "cannot be read by the model's tokenizer") from error
        if not read:
            where = f" in its first {_START} characters" if len(text) > _START else ""
            raise _invalid_text(index, f"holds nothing that the model reads{where}")


def _invalid_text(index: int, reason: str) -> ApiError:
    return ApiError(422, "invalid_text", f"Text {index} {reason}.", {"text": index})


def read_labels(text: str, names: Sequence[str], label_names: Sequence[str]) -> list[int]:
    """One class index per input, in the order of the inputs.

    Args:
        text: a JSON list of indices or label names, or csv lines of file name and label with or
            without the header `file,label`.
        names: names of the inputs, which the csv refers to.
        label_names: classes of the model.

    Raises:
        ApiError: 400 invalid_json, 413 body_too_large, 422 labels_length or invalid_labels.
    """
    limit = Limit(10_000 + 500 * len(names), 1_000 + len(names))
    check_size(text, "labels", limit)
    in_json = text.lstrip()[:1] in ("[", "{", '"')
    values = _json_labels(text, limit) if in_json else _csv_labels(text, names)
    if len(values) != len(names):
        message = f"There are {len(values)} labels for {len(names)} inputs."
        raise ApiError(422, "labels_length", message)
    indices = []
    for position, value in enumerate(values):
        try:
            indices.append(label_index(value[:200], label_names))
        except ValueError as error:
            raise _invalid_labels(f"Label {position}: {error}.") from error
    return indices


def _json_labels(text: str, limit: Limit) -> list[str]:
    values = parse_json(text, "labels", limit)
    if not isinstance(values, list):
        raise _invalid_labels("The labels must be a JSON list or csv lines.")
    for position, value in enumerate(values):
        if isinstance(value, bool) or not isinstance(value, int | str):
            raise _invalid_labels(f"Label {position} must be a class index or a label name.")
    return [str(value) for value in values]


def _csv_labels(text: str, names: Sequence[str]) -> list[str]:
    try:
        rows = [row for row in csv.reader(io.StringIO(text), strict=True) if row]
    except csv.Error as error:
        raise ApiError(400, "invalid_csv", f"The labels cannot be read as csv: {error}.") from error
    if rows and [cell.strip().lower() for cell in rows[0]] == ["file", "label"]:
        rows = rows[1:]
    if any(len(row) != 2 for row in rows):
        raise _invalid_labels("Every csv line of the labels must be `file,label`.")
    labels = {file.strip(): label.strip() for file, label in rows}
    if len(labels) < len(rows) or len(set(names)) < len(names):
        raise _invalid_labels("Labels by file name need distinct file names.")
    if len(labels) == len(names):
        for name in names:
            if name not in labels:
                raise _invalid_labels(f"The labels name no file {name[:100]!r}.")
        return [labels[name] for name in names]
    return list(labels.values())


def _invalid_labels(message: str) -> ApiError:
    return ApiError(422, "invalid_labels", message)
