"""Texts of an evaluation: written as they came, and every one of them read as the models do."""

import csv
import io
from collections.abc import Sequence
from pathlib import Path

from data.sources import TextSet, open_texts
from data.tokenizer import TextTokenizer
from runtimes.artifact import Artifact
from service.http.body import Upload
from service.http.documents import parse_json
from service.http.errors import ApiError
from service.jobs.archives import check_archive, telling_of_faults
from service.jobs.durable import write_durably
from service.settings import Settings


def read_texts(field: str) -> list[str]:
    """The texts of a form's field `texts`, a JSON list.

    Raises:
        ApiError: 400 invalid_json; 422 no_texts or invalid_text, naming the place.
    """
    texts = parse_json(field, "texts")
    if not isinstance(texts, list):
        raise ApiError(422, "invalid_texts", "The field `texts` must be a JSON list of strings.")
    if not texts:
        raise ApiError(422, "no_texts", "The field `texts` must hold at least one text.")
    for index, text in enumerate(texts):
        if not isinstance(text, str) or not text.strip():
            raise _invalid(index, "must be a string that holds more than blanks")
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise _invalid(index, "is not Unicode text") from error
    return texts


def store_texts(
    folder: Path,
    texts: Sequence[str],
    archive: Upload | None,
    artifacts: Sequence[Artifact],
    settings: Settings,
) -> tuple[str, TextSet]:
    """Write texts into a folder and check them.

    Args:
        folder: of the evaluation.
        texts: as `read_texts` gives them, or none when there is an archive.
        archive: a csv or parquet file with the column `text` and, if labelled, `label`.
        artifacts: the models under evaluation; each must find something to read in every text.
        settings: limits.

    Returns:
        The name of the file that holds them, and what is in it.

    Raises:
        ApiError: they are not acceptable.
        OSError: the disk is full, or cannot be written.
    """
    if len(texts) > settings.evaluation_max_samples:
        raise _too_many(str(len(texts)), settings.evaluation_max_samples)
    content = _as_parquet(texts) if archive is None else archive.content
    container = f"texts.{_kind(content, settings)}"
    write_durably(folder / container, content)
    found = _open(folder / container, artifacts[0].labels)
    _check(found, artifacts, settings)
    return container, found


def _as_parquet(texts: Sequence[str]) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    stream = io.BytesIO()
    pq.write_table(pa.table({"text": pa.array(texts, pa.string())}), stream)
    return stream.getvalue()


def _kind(content: bytes, settings: Settings) -> str:
    if content[:2] == b"PK":
        message = "An archive of texts must be a csv or parquet file, and this is a zip."
        raise ApiError(415, "not_an_archive", message)
    if content[:4] == b"PAR1":
        return check_archive(content, settings, what="texts")
    _count_rows(content, settings.evaluation_max_samples)
    return "csv"


def _count_rows(content: bytes, limit: int) -> None:
    """Refuse a csv file of too many rows before they are kept in memory."""
    lines = io.TextIOWrapper(io.BytesIO(content), encoding="utf-8-sig", newline="")
    try:
        for count, _ in enumerate(filter(None, csv.reader(lines, strict=True))):
            if count > limit:  # the first row is the header
                raise _too_many(f"more than {limit}", limit)
    except (csv.Error, UnicodeDecodeError):
        return  # whoever reads the rows says what is wrong with which


def _open(path: Path, label_names: Sequence[str]) -> TextSet:
    with telling_of_faults(path):
        return open_texts(path, label_names=label_names)


def _check(texts: TextSet, artifacts: Sequence[Artifact], settings: Settings) -> None:
    longest = settings.evaluation_max_characters
    readers: list[tuple[TextTokenizer, int]] = [
        (artifact.tokenizer(), artifact.text_spec.max_len) for artifact in artifacts
    ]
    for index, text in enumerate(texts):
        if len(text) > longest:
            raise _invalid(index, f"has {len(text)} characters, more than the {longest} allowed")
        for tokenizer, max_len in readers:
            if not len(tokenizer.ids([text], max_len)[0]):
                raise _invalid(index, "holds nothing that the model reads")


def _too_many(count: str, limit: int) -> ApiError:
    message = f"{count[0].upper() + count[1:]} texts are more than the {limit} allowed."
    return ApiError(422, "too_many_texts", message, {"limit": limit})


def _invalid(index: int, reason: str) -> ApiError:
    return ApiError(422, "invalid_text", f"Text {index} {reason}.", {"text": index})
