"""What a client uploads for an evaluation: checked, written, and read again by the child.

The folder of an evaluation holds what the models read and nothing else: the pixels of images at the
size of each model, with those of their masks, or all texts in one file; and `inputs.json` with
names and labels. The evaluation's own files lie in `report`.
"""

import csv
import io
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, BinaryIO

import numpy as np

from core.files import write_whole
from data.errors import ClassMismatch, DataError
from data.images import ImageError, ImageSpec
from data.labels import Classes, ClassMap
from data.sets import ImageSet, Origin, PixelSet, StoredMaskSet, TextSet
from runtimes.artifact import Artifact
from runtimes.tasks import LANGUAGE, TASKS
from service.decoding.pool import Decoders, Request, refusal
from service.decoding.process import Unpacked
from service.http.body import Upload
from service.http.documents import TEXTS_LIMIT, Limit, check_size, parse_json
from service.http.refusal import ApiError, What, check_length, check_samples, class_mismatch
from service.jobs.targets import RemoteTarget
from service.settings import Settings

INPUTS = "inputs.json"
REPORT = "report"
_TEXTS = "texts"  # all of them in UTF-8, one after another

# What the images of an upload may cost follows from its size. A photo has a byte for every 5 to 10
# pixels, an image made to be costly one for thousands.
_TOTAL_OF_LARGEST = 40  # images of the largest size, at most
_FREE_PIXELS, _PIXELS_PER_BYTE = 64_000_000, 25
# Processor time, of what the largest image may take; its pixels may take as long as those of that.
_FREE_SHARE, _SECONDS_PER_BYTE = 1 / 8, 1e-6
# Characters of a text in which a model must find something: many whole texts would take minutes.
_FIRST, _START = 50, 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Uploads:
    """The inputs of an evaluation as they came.

    Attributes:
        images: single files, or none.
        texts: single texts, or none.
        archive: a zip of an image folder or of images and masks, a parquet or a csv file; None when
            there are single ones.
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
    most = settings.decode_cpu_s
    return decoders.request(
        sharer,
        pixels=min(pixels, _TOTAL_OF_LARGEST * settings.max_pixels),
        seconds=min(most, _FREE_SHARE * most + _SECONDS_PER_BYTE * uploads.size),
        pixel_seconds=most / settings.max_pixels,
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
    models: Sequence[Artifact | RemoteTarget],
    settings: Settings,
    images: Request,
    class_map: ClassMap | None = None,
) -> int:
    """Check and write the inputs of an evaluation; on return they are on the disk to stay.

    Args:
        folder: made here.
        uploads: what came.
        models: those under evaluation; each must be able to read every text.
        settings: limits.
        images: decodes them; see `decoding`.
        class_map: for inputs that call their classes otherwise than the model.

    Returns:
        The number of inputs.

    Raises:
        ApiError: inputs or labels are not acceptable; nothing is left behind.
        CancelledError: the images were given up; nothing is left behind.
        OSError: the disk is full, or cannot be written; nothing is left behind.
    """
    task = TASKS[models[0].task]
    if task.per_pixel:
        _check_masks(uploads)
    folder.mkdir(parents=True)
    classes = Classes(label_names=models[0].labels, class_map=class_map)
    on_texts = task.reads == "texts"
    specs = _sizes(models) if task.per_pixel else []
    try:
        with (folder / _TEXTS).open("w+b") if on_texts else TemporaryFile(dir=folder) as file:
            what: What = "texts" if on_texts else "masks" if specs else "images"
            found = _receive(file, uploads, what, classes, images, settings, specs)
            content: dict[str, Any] = {"names": found.names, "labels": found.labels}
            if on_texts:
                own = [m if isinstance(m, Artifact) else m.surrogate for m in models]
                _check_texts(_starts(file, found.sizes), list(filter(None, own)), images)
                os.fsync(file.fileno())
                content["texts"] = found.sizes
            else:
                content["pixels"] = _store_images(
                    folder, file, found, _sizes(models), images, masks=bool(specs)
                )
                content["masks"] = bool(specs)
        name = uploads.archive and uploads.archive.name[:100]
        content["origin"] = {"name": name, "source": "uploaded", "classes": found.classes}
        write_whole(folder / INPUTS, json.dumps(content))
        _sync_folder(folder)
        _sync_folder(folder.parent)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return len(found.names)


def _sizes(models: Sequence[Artifact | RemoteTarget]) -> list[ImageSpec]:
    """The inputs of models of images, each once."""
    return list(dict.fromkeys(model.image_spec for model in models if model.image_spec))


def _check_masks(uploads: Uploads) -> None:
    """Refuse images without masks, and classes of whole images beside masks."""
    if uploads.archive is None:
        message = "A segmenter is evaluated on masks: send a zip of `images/` and `masks/`."
        raise ApiError(422, "no_masks", message)
    if uploads.labels is not None:
        raise _invalid_labels("Masks hold the classes of pixels: leave `labels` out.")


def open_inputs(folder: Path, label_names: Sequence[str]) -> ImageSet | TextSet:
    """The inputs that `save_inputs` stored in a folder, for a model with these labels.

    Raises:
        DataError: they are no longer readable.
    """
    content = json.loads((folder / INPUTS).read_text())
    names, labels = content["names"], content["labels"]
    labels = None if labels is None else np.array(labels, np.int64)
    known, origin = list(label_names), Origin(**content["origin"])
    try:
        if "texts" in content:
            texts = _read_texts(folder / _TEXTS, content["texts"])
            return TextSet(
                names=names,
                labels=labels,
                label_names=known,
                description=f"texts, {len(texts)} rows",
                reader=lambda index: texts[index],
                origin=origin,
            )
        arrays = _arrays(folder, content["pixels"], _pixels_file)
        masks = _arrays(folder, content["pixels"], _masks_file) if content.get("masks") else None
    except (OSError, ValueError, EOFError, KeyError) as error:
        raise DataError("the stored inputs cannot be read") from error
    kept: dict[str, Any] = {
        "names": names, "label_names": known, "reader": _no_file, "origin": origin,
    }  # fmt: skip
    pixels = PixelSet(labels=labels, arrays=arrays, **kept)
    if masks is None:
        return pixels
    return StoredMaskSet(labels=None, stored=pixels, masks=masks, mask_reader=_no_file, **kept)


def _arrays(
    folder: Path, specs: Sequence[dict[str, Any]], name: Callable[[int], str]
) -> dict[ImageSpec, np.ndarray]:
    """What is stored at each size."""
    return {
        ImageSpec(**spec): np.load(folder / name(index), mmap_mode="r")
        for index, spec in enumerate(specs)
    }


def _read_texts(path: Path, sizes: Sequence[int]) -> list[str]:
    content = path.read_bytes()
    if len(content) != sum(sizes):
        raise ValueError("some of it is missing")
    ends = list(accumulate(sizes))
    return [content[end - size : end].decode() for size, end in zip(sizes, ends, strict=True)]


def drop_inputs(folder: Path) -> None:
    """Delete the pixels that `save_inputs` stored, once a report holds what it shows of them."""
    for name in (_pixels_file, _masks_file):
        for path in folder.glob(name("*")):
            path.unlink(missing_ok=True)


def _pixels_file(index: int | str) -> str:
    return f"pixels-{index}.npy"


def _masks_file(index: int | str) -> str:
    return f"masks-{index}.npy"


def _no_file(index: int) -> Any:
    raise DataError(f"only the pixels of image {index} were kept")


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _receive(
    file: BinaryIO,
    uploads: Uploads,
    what: What,
    classes: Classes,
    images: Request,
    settings: Settings,
    specs: Sequence[ImageSpec],
) -> Unpacked:
    """What came, with the labels that count; the bytes of its samples are in `file`."""
    if uploads.archive is not None:
        found = images.unpack(uploads.archive.content, what, classes, file, specs).result()
    else:
        found = _write_single(file, uploads, settings)
    file.flush()
    if uploads.labels is None:
        return found
    labels, named = read_labels(uploads.labels, found.names, classes)
    return found.model_copy(update={"labels": labels, "classes": named})


def _write_single(file: BinaryIO, uploads: Uploads, settings: Settings) -> Unpacked:
    """Write the files or texts that came one by one."""
    names, contents = [sent.name for sent in uploads.images], [s.content for s in uploads.images]
    if uploads.texts:
        check_samples(len(uploads.texts), settings.evaluation_max_samples, "texts")
        check_length(uploads.texts, settings.max_text_chars)
        names = [f"texts/{index:06d}" for index in range(len(uploads.texts))]
        contents = [text.encode() for text in uploads.texts]
    file.writelines(contents)
    return Unpacked(names=names, labels=None, classes=None, sizes=list(map(len, contents)))


def _parts(file: BinaryIO, sizes: Sequence[int], most: int | None = None) -> Iterator[bytes]:
    """What was written one after another, or the first bytes of each."""
    for size, end in zip(sizes, accumulate(sizes), strict=True):
        file.seek(end - size)
        yield file.read(size if most is None else min(size, most))


def _store_images(
    folder: Path,
    file: BinaryIO,
    found: Unpacked,
    specs: Sequence[ImageSpec],
    images: Request,
    *,
    masks: bool,
) -> list[dict[str, Any]]:
    """Write the pixels of all images at each size; the sizes in the order of their files.

    Args:
        folder: where they are written.
        file: the image files, each behind its mask at each size if there are masks.
        found: names and sizes of the files.
        specs: the sizes.
        images: decodes.
        masks: whether there are any.
    """
    count, areas = len(found.names), [spec.height * spec.width for spec in specs if masks]
    with ExitStack() as stack:
        arrays = [
            _array(stack, folder / _pixels_file(i), (count, spec.channels, spec.height, spec.width))
            for i, spec in enumerate(specs)
        ]
        truths = [
            _array(stack, folder / _masks_file(i), (count, spec.height, spec.width))
            for i, spec in enumerate(specs if masks else ())
        ]
        for index, content in enumerate(_parts(file, found.sizes)):
            for end, area, array in zip(accumulate(areas), areas, truths, strict=True):
                array.write(content[end - area : end])
            try:
                decoded = images.decode(content[sum(areas) :], specs).result()
            except ImageError as error:
                name = found.names[index][:100]
                raise refusal(error, f"Image {name}", {"index": index}) from error
            for array, pixels in zip(arrays, decoded, strict=True):
                array.write(pixels.tobytes())
        for array in [*arrays, *truths]:
            array.flush()
            os.fsync(array.fileno())
    return [spec.to_dict() for spec in specs]


def _array(stack: ExitStack, path: Path, shape: tuple[int, ...]) -> BinaryIO:
    """A new file of an array of bytes, which follow."""
    file = stack.enter_context(path.open("wb"))
    header = {"descr": "|u1", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, header)
    return file


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


def _starts(file: BinaryIO, sizes: Sequence[int]) -> Iterator[str]:
    """The first characters of each text, and one more where there are more."""
    for part in _parts(file, sizes, 4 * (_START + 1)):
        yield part.decode(errors="ignore")[: _START + 1]


def _check_texts(starts: Iterable[str], artifacts: Sequence[Artifact], images: Request) -> None:
    """Refuse a text in which a model finds nothing, nearly always told by a few characters."""
    # A language model predicts no first token.
    readers = [(one.tokenizer(), 2 if one.task == LANGUAGE else 1) for one in artifacts]

    def reads(text: str) -> bool:
        """Whether each model does."""
        return all(len(tokenizer.ids([text], least)[0]) == least for tokenizer, least in readers)

    for index, start in enumerate(starts):
        images.check()
        try:
            read = reads(start[:_FIRST]) or reads(start[:_START])
        except ValueError as error:
            raise _invalid_text(index, "cannot be read by the model's tokenizer") from error
        if not read:
            where = f" in its first {_START} characters" if len(start) > _START else ""
            least = max(least for _, least in readers)
            what = "nothing that the model reads" if least == 1 else "fewer than two tokens"
            raise _invalid_text(index, f"holds {what}{where}")


def _invalid_text(index: int, reason: str) -> ApiError:
    return ApiError(422, "invalid_text", f"Text {index} {reason}.", {"text": index})


def read_labels(
    text: str, names: Sequence[str], classes: Classes
) -> tuple[list[int], list[str] | None]:
    """One class index per input, in the order of the inputs; and see `Classes.find`.

    Args:
        text: a JSON list of indices or label names, or csv lines of file name and label with or
            without the header `file,label`.
        names: names of the inputs, which the csv refers to.
        classes: of the model.

    Raises:
        ApiError: 400 invalid_json, 413 body_too_large, 422 labels_length, invalid_labels or
            class_mismatch.
    """
    limit = Limit(10_000 + 500 * len(names), 1_000 + len(names))
    check_size(text, "labels", limit)
    in_json = text.lstrip()[:1] in ("[", "{", '"')
    values = _json_labels(text, limit) if in_json else _csv_labels(text, names)
    if len(values) != len(names):
        message = f"There are {len(values)} labels for {len(names)} inputs."
        raise ApiError(422, "labels_length", message)
    try:
        labels, named = classes.find([value[:200] for value in values], "Label {}: ".format)
    except ClassMismatch as error:
        raise class_mismatch(error) from error
    except DataError as error:
        raise _invalid_labels(f"{error}.") from error
    return labels.tolist(), named


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
