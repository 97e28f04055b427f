"""Reads multipart forms strictly and in memory.

BentoML's own reading of a form fetches a text value in a file field as an address, answers a
broken body with 500 and writes files to the disk; none of its routes reads a form here.
"""

import sys
from collections.abc import Collection
from dataclasses import dataclass

from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request

from service.errors import ApiError


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
        self.complete = True

    @property
    def num_files(self) -> int:
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
        ApiError: 400 malformed_multipart; 415 not_multipart, not_a_file; 422 too_many_images,
            unknown_field, duplicate_field, invalid_text.
    """
    form = Form({name: [] for name in files}, {})
    for name, value in await _parse(request, max_files=max_files + len(fields)):
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
    if sum(map(len, form.files.values())) > max_files:
        raise _too_many(max_files)
    return form


async def _parse(request: Request, *, max_files: int) -> list[tuple[str, str | UploadFile]]:
    content_type = request.headers.get("content-type", "")
    if content_type.split(";")[0].strip().lower() != "multipart/form-data":
        message = "The body must be multipart/form-data with the files in it."
        raise ApiError(415, "not_multipart", message)
    parser = _Parser(request.headers, request.stream(), max_files=max_files + 1, max_fields=64)
    try:
        form = await parser.parse()
    except MultiPartException as error:
        if parser.num_files > max_files:
            raise _too_many(max_files) from error
        raise ApiError(400, "malformed_multipart", error.message) from error
    if not parser.complete and form:
        raise ApiError(400, "malformed_multipart", "The multipart body ends too early.")
    return form.multi_items()


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
