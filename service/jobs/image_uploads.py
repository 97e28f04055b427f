"""Images of an evaluation: written as they came, and every one of them decoded once."""

import dataclasses
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path

from data.errors import DataError
from data.images import ImageError
from data.sources import ImageSet, open_images
from service.http.body import Upload
from service.http.errors import ApiError
from service.jobs.archives import check_archive, telling_of_faults
from service.jobs.durable import sync, write_durably
from service.settings import Settings

_STATUS = {"not_an_image": 415, "broken_image": 422, "too_many_pixels": 413}
# One upload may decode to this many of the largest images allowed, so that the processor time of a
# request is bounded as well as its size.
_TOTAL_OF_LARGEST = 40


def store_images(
    folder: Path,
    images: Sequence[Upload],
    archive: Upload | None,
    label_names: Sequence[str],
    settings: Settings,
) -> tuple[str, ImageSet]:
    """Write images into a folder and check them.

    Args:
        folder: of the evaluation.
        images: single files, or none when there is an archive.
        archive: a zip of an image folder, or a parquet file.
        label_names: classes of the model.
        settings: limits.

    Returns:
        The name of the file that holds them, and what is in it.

    Raises:
        ApiError: they are not acceptable.
        OSError: the disk is full, or cannot be written.
    """
    if archive is not None:
        container = f"images.{check_archive(archive.content, settings)}"
        write_durably(folder / container, archive.content)
        found = _open(folder / container, label_names, settings)
    else:
        container = "images.zip"
        _pack(folder / container, images)
        found = _open(folder / container, label_names, settings)
        found = dataclasses.replace(found, names=[image.name for image in images])
    _check(found, settings)
    return container, found


def _pack(path: Path, images: Sequence[Upload]) -> None:
    with path.open("wb") as file:
        with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as packed:
            for index, image in enumerate(images):
                # The suffix only marks an image; what it is is read from its bytes.
                packed.writestr(f"{index:06d}.png", image.content)
        sync(file)


def _open(path: Path, label_names: Sequence[str], settings: Settings) -> ImageSet:
    with telling_of_faults(path):
        return open_images(path, label_names=label_names, max_pixels=settings.max_pixels)


def _check(images: ImageSet, settings: Settings) -> None:
    limit = settings.evaluation_max_samples
    if len(images) > limit:
        message = f"{len(images)} images are more than the {limit} allowed."
        raise ApiError(422, "too_many_images", message)
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
        pixels += image.width * image.height
        if pixels > _TOTAL_OF_LARGEST * settings.max_pixels:
            message = f"Image {name[:100]!r}: too many pixels with those before it."
            raise ApiError(413, "too_many_pixels", message, {"index": index})
