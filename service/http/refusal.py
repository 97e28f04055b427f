"""Refusals of what was sent, for the server and for the process that reads it; imports little."""

from collections.abc import Iterable, Mapping
from typing import Literal

from data.errors import MAP_CLASSES, ClassMismatch

What = Literal["images", "masks", "texts"]
"""What is uploaded: images, images with masks, or texts."""
_MOST_CLASSES = 16  # that an answer lists of each


class ApiError(Exception):
    """An answer other than success, shown to the client as it is.

    Args:
        status: HTTP status.
        code: stable word for programs, such as ``unknown_model``.
        message: sentence for people; free of paths and of what the server knows of itself.
        details: JSON value with more about it.
        headers: further response headers, such as ``Retry-After``.
    """

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        details: object = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.details = details
        self.headers = dict(headers or {})


def check_length(texts: Iterable[str], longest: int) -> None:
    """Refuse texts that would take long to read.

    None is cut: a word of any length may be one token, and normalizers drop characters in any
    number.

    Raises:
        ApiError: 413 text_too_long.
    """
    for index, text in enumerate(texts):
        if len(text) > longest:
            rule = f"{len(text):,} characters, more than the {longest:,} allowed"
            details = {"text": index, "limit": longest}
            raise ApiError(413, "text_too_long", f"Text {index} has {rule}.", details)


def check_samples(count: int, limit: int, what: What) -> None:
    """Refuse more inputs than allowed.

    Raises:
        ApiError: 422 too_many_images or too_many_texts.
    """
    if count > limit:
        what = "images" if what == "masks" else what
        message = f"{count} {what} are more than the {limit} allowed."
        raise ApiError(422, f"too_many_{what}", message, {"limit": limit})


def class_mismatch(error: ClassMismatch) -> ApiError:
    """The refusal of data with other classes than the model: 422 class_mismatch, with both."""
    message = f"{error}. {MAP_CLASSES.format(option='`class_map` in the spec')}"
    lists = {"data": error.classes[:_MOST_CLASSES], "model": error.label_names[:_MOST_CLASSES]}
    return ApiError(422, "class_mismatch", message, lists)
