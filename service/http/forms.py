"""Reads multipart forms strictly and in memory.

BentoML's own reading of a form fetches a text value in a file field as an address, answers a
broken body with 500 and writes files to the disk; none of its routes reads a form here.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from urllib.parse import parse_qsl

from starlette.requests import Request

from service.http.errors import ApiError
from service.http.multipart import Part, boundary_of, parts

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


async def read_form(
    request: Request, *, files: Collection[str], fields: Collection[str], max_files: int
) -> Form:
    """The form of a request, whose body is read here; see `form_of`."""
    content_type = request.headers.get("content-type", "")
    body = await request.body()
    return form_of(content_type, body, files=files, fields=fields, max_files=max_files)


def form_of(
    content_type: str,
    body: bytes,
    *,
    files: Collection[str],
    fields: Collection[str],
    max_files: int,
) -> Form:
    """A form with only the named file fields and text fields.

    Args:
        content_type: the request's.
        body: the whole of it.
        files: fields whose every value must be a file.
        fields: fields of text, each at most once; a file is taken as its text.
        max_files: files in the whole form.

    Raises:
        ApiError: 400 malformed_multipart, malformed_form; 415 not_multipart, not_a_file; 422
            too_many_images, unknown_field, duplicate_field, invalid_text.
    """
    form = Form({name: [] for name in files}, {})
    count = 0
    for part in _parts(content_type, body):
        if part.name in files:
            upload = _file(part)
            if upload is not None:
                form.files[part.name].append(upload)
                count += 1
            if count > max_files:
                message = f"At most {max_files} files may be sent at once."
                raise ApiError(422, "too_many_images", message, {"limit": max_files})
        elif part.name not in fields:
            known = ", ".join([*files, *fields])
            message = f"There is no field {part.name[:64]!r} here; known: {known}."
            raise ApiError(422, "unknown_field", message)
        elif part.name in form.fields:
            message = f"The field {part.name!r} may be given once."
            raise ApiError(422, "duplicate_field", message)
        else:
            form.fields[part.name] = _text(part)
    return form


def _parts(content_type: str, body: bytes) -> Iterable[Part]:
    kind = content_type.partition(";")[0].strip().lower()
    if kind == "application/x-www-form-urlencoded":
        return _text_parts(body)
    if kind != "multipart/form-data":
        if not kind and not body:
            return []
        message = "The body must be multipart/form-data with the files in it."
        raise ApiError(415, "not_multipart", message)
    return parts(body, boundary_of(content_type))


def _text_parts(body: bytes) -> list[Part]:
    """A form without any file: what clients send when they are given none."""
    try:
        pairs = parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=_MAX_FIELDS)
    except ValueError as error:
        raise ApiError(400, "malformed_form", "The form in the body cannot be read.") from error
    return [Part(name, None, value.encode()) for name, value in pairs]


def _file(part: Part) -> Upload | None:
    if part.filename is None:
        message = f"The field {part.name!r} takes files only; text and addresses are never fetched."
        raise ApiError(415, "not_a_file", message)
    if not part.content and not part.filename:
        return None  # what a browser sends for a file field left empty
    return Upload(part.filename, part.content)


def _text(part: Part) -> str:
    try:
        return part.content.decode()
    except UnicodeDecodeError as error:
        message = f"The field {part.name!r} must be UTF-8 text."
        raise ApiError(422, "invalid_text", message) from error
