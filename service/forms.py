"""Reads multipart forms strictly and in memory.

BentoML's own reading of a form fetches a text value in a file field as an address, answers a
broken body with 500 and writes files to the disk; none of its routes reads a form here.
"""

import sys
from collections.abc import Collection
from dataclasses import dataclass

from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request

from service.errors import ApiError

_Items = list[tuple[str, str | UploadFile]]
_MAX_FIELDS = 64


@dataclass(frozen=True, slots=True)
class Upload:
    """A file of a form: the name its sender gave it, and its bytes."""

    name: str
    content: bytes


@dataclass(frozen=True, slots=True)
class Form:
    """A form's files in order, by field, and its text fields."""

    files: dict[str, list[Upload]]
    fields: dict[str, str]


class _Parser(MultiPartParser):
    spool_max_size = sys.maxsize  # in memory: the body's limit bounds it, and no disk is written
    complete = False

    def on_end(self) -> None:
        """Called at the last boundary."""
        self.complete = True

    def close(self) -> None:
        """Close every file."""
        for file in self._files_to_close_on_error:  # also a file whose end never came
            file.close()

    @property
    def num_files(self) -> int:
        """Files read to their end."""
        return sum(isinstance(value, UploadFile) for _, value in self.items)


async def read_form(
    request: Request, *, files: Collection[str], fields: Collection[str], max_files: int
) -> Form:
    """The form of a request, with only the named file fields and text fields.

    Args:
        request: its body is read here.
        files: fields whose every value must be a file.
        fields: fields of text, each at most once; a file is taken as its text.
        max_files: files in the whole form.

    Raises:
        ApiError: 400 malformed_multipart, malformed_form; 415 not_multipart, not_a_file; 422
            too_many_images, unknown_field, duplicate_field, invalid_text.
    """
    # Text fields may come as files, and must not count as such.
    items = await _parse(request, max_files, extra_files=len(fields))
    try:
        form = await _sort(items, files, fields)
    finally:
        for _, value in items:
            if isinstance(value, UploadFile):
                await value.close()
    if sum(map(len, form.files.values())) > max_files:
        raise _too_many(max_files)
    return form


async def _sort(items: _Items, files: Collection[str], fields: Collection[str]) -> Form:
    form = Form({name: [] for name in files}, {})
    for name, value in items:
        if name in files:
            upload = await _file(name, value)
            if upload is not None:
                form.files[name].append(upload)
        elif name not in fields:
            known = ", ".join([*files, *fields])
            message = f"There is no field {name[:64]!r} here; known: {known}."
            raise ApiError(422, "unknown_field", message)
        elif name in form.fields:
            raise ApiError(422, "duplicate_field", f"The field {name!r} may be given once.")
        else:
            form.fields[name] = await _text(name, value)
    return form


async def _parse(request: Request, max_files: int, *, extra_files: int) -> _Items:
    content_type = request.headers.get("content-type", "").split(";")[0].strip().lower()
    if content_type == "application/x-www-form-urlencoded":
        return await _parse_text(request)
    if content_type != "multipart/form-data":
        if not content_type and not await request.body():
            return []
        message = "The body must be multipart/form-data with the files in it."
        raise ApiError(415, "not_multipart", message)
    limit = max_files + extra_files + 1
    parser = _Parser(request.headers, request.stream(), max_files=limit, max_fields=_MAX_FIELDS)
    try:
        form = await parser.parse()
    except MultiPartException as error:
        if parser.num_files == limit:
            raise _too_many(max_files) from error
        raise ApiError(400, "malformed_multipart", error.message) from error
    if not parser.complete:
        parser.close()
        raise ApiError(400, "malformed_multipart", "The multipart body ends too early.")
    return form.multi_items()


async def _parse_text(request: Request) -> _Items:
    """A form without any file: what clients send when they are given none."""
    try:
        return (await request.form(max_fields=_MAX_FIELDS)).multi_items()
    except (MultiPartException, HTTPException) as error:
        raise ApiError(400, "malformed_form", "The form in the body cannot be read.") from error


def _too_many(max_files: int) -> ApiError:
    message = f"At most {max_files} files may be sent at once."
    return ApiError(422, "too_many_images", message, {"limit": max_files})


async def _file(name: str, value: str | UploadFile) -> Upload | None:
    if isinstance(value, str):
        message = f"The field {name!r} takes files only; text and addresses are never fetched."
        raise ApiError(415, "not_a_file", message)
    content = await value.read()
    if not content and not value.filename:
        return None  # what a browser sends for a file field left empty
    return Upload(value.filename or "", content)


async def _text(name: str, value: str | UploadFile) -> str:
    if isinstance(value, str):
        return value
    try:
        return (await value.read()).decode()
    except UnicodeDecodeError as error:
        raise ApiError(422, "invalid_text", f"The field {name!r} must be UTF-8 text.") from error
