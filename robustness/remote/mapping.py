"""Any endpoint of JSON or forms, as a file of the user's says how it is asked and answers.

Without more than the input, such a file describes KServe's protocol V1.
"""

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import quote

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

from core.yaml import read_strict
from data.images import ImageSpec, to_png
from robustness.remote.connection import Answer, Connection, EndpointError, encode_form
from robustness.remote.model import RemoteModel

ALL, ONE = "$inputs", "$input"
_MODEL = "{model}"
_Name = Annotated[str, Field(min_length=1, max_length=1000)]


def _holds(template: Any, mark: str) -> bool:
    if isinstance(template, dict):
        return any(_holds(each, mark) for each in template.values())
    if isinstance(template, list):
        return any(_holds(each, mark) for each in template)
    return template == mark


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Input(_Strict):
    """What the model reads: images of one size, texts, or the tokens of texts.

    Tokens are tensors of the protocol V2, made here with the file `tokenizer`, at most `max_len` of
    a text. `range` is what white is: 1 or 255; `mean` and `std`, of images from 0 to 1 and by
    channel, are taken off before. As `png`, pixels are written as files of 8 bit: in JSON in
    base64.
    """

    kind: Literal["image", "text", "tokens"]
    tokenizer: _Name | None = None
    max_len: Annotated[int, Field(ge=1, le=100_000)] | None = None
    channels: Literal[1, 3] = 3
    height: Annotated[int, Field(ge=1, le=4096)] | None = None
    width: Annotated[int, Field(ge=1, le=4096)] | None = None
    layout: Literal["CHW", "HWC", "HW"] = "CHW"
    range: Literal[1, 255] = 1
    mean: list[float] | None = None
    std: list[float] | None = None
    encoding: Literal["numbers", "png"] = "numbers"

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if (self.kind == "image") != (self.height is not None and self.width is not None):
            raise ValueError("images have height and width, texts have none")
        if (
            not (self.kind == "tokens")
            == (self.tokenizer is not None)
            == (self.max_len is not None)
        ):
            raise ValueError("tokens have tokenizer and max_len, images and texts have none")
        for name in ("mean", "std"):
            values = getattr(self, name)
            if values is not None and (len(values) != self.channels or not all(values) > 0):
                raise ValueError(f"{name} must hold a number for each of {self.channels} channels")
        if self.layout == "HW" and self.channels != 1:
            raise ValueError("the layout HW has one channel")
        return self


class Request(_Strict):
    """How inputs are sent: in `body`, where "$inputs" stands for a list of them and "$input" for
    one, or as the field or the files `field` of a form, with other `fields` beside it.
    """

    path: _Name = "/v1/models/{model}:predict"
    body: Any = None
    field: _Name | None = None
    fields: dict[str, str] = {}

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        found = [mark for mark in (ALL, ONE) if _holds(self.body, mark)]
        if self.field is not None and self.body is not None:
            raise ValueError("a request has a body or a field, not both")
        if self.body is not None and len(found) != 1:
            raise ValueError(f"the body must hold {ALL}, or {ONE}")
        return self

    @property
    def content(self) -> Any:
        """The body, that of KServe where none is given."""
        return {"instances": ALL} if self.body is None else self.body


class Top(_Strict):
    """Named classes with their scores: the best `count`, or without it all of them.

    `list`, `label` and `score` say where: a list in a row, and the two values in each of its items.
    """

    list: str = ""
    label: _Name = "label"
    score: _Name = "score"
    count: Annotated[int, Field(ge=1)] | None = None


class AnswerPlaces(_Strict):
    """Where an answer holds what: dotted paths, a number being a place in a list.

    `rows` is the list with an item for each input; in each of them lie either `scores`, a list, or
    an object by class; or the `label`, a name or an index; or the `top`. An empty path is all.
    `kind` says what scores are; without it an answer whose scores add up to 1 has probabilities.
    """

    rows: str = "predictions"
    scores: str | None = None
    label: str | None = None
    top: Top | None = None
    kind: Literal["logits", "probabilities"] | None = None

    @model_validator(mode="after")
    def _one_place(self) -> Self:
        if sum(each is not None for each in (self.scores, self.label, self.top)) > 1:
            raise ValueError("an answer has scores, a label or a top, and one of them alone")
        if self.top is not None and self.top.count is not None and self.kind is None:
            raise ValueError("kind must say what the scores of the best classes are")
        return self


class Key(_Strict):
    """The header that carries the key, and what stands before it."""

    header: Annotated[str, Field(pattern=r"^[A-Za-z0-9-]{1,100}$")] = "authorization"
    prefix: Annotated[str, Field(max_length=100)] = "Bearer "


class MappingFile(_Strict):
    """How an endpoint is asked and answers."""

    input: Input
    request: Request = Request()
    answer: AnswerPlaces = AnswerPlaces()
    labels: list[_Name] | None = None
    key: Key = Key()

    @model_validator(mode="after")
    def _named(self) -> Self:
        named = self.answer.label is not None or self.answer.top is not None
        if named and self.labels is None:
            raise ValueError("labels must name all classes, in the order of their indices")
        if self.input.kind == "tokens" and not {"request", "answer"}.isdisjoint(
            self.model_fields_set
        ):
            raise ValueError("tokens are sent as tensors of the protocol V2: no request, no answer")
        if self.labels is not None and len(set(self.labels)) < len(self.labels):
            raise ValueError("labels must not name a class twice")
        return self


def read_mapping(path: Path, what: str = "--mapping") -> MappingFile:
    """A mapping from its YAML file; see `core.yaml.read_strict`."""
    return read_strict(path, MappingFile, what)


@dataclass(frozen=True, slots=True, kw_only=True)
class MappedModel(RemoteModel):
    """A model that a file describes; see `RemoteModel`."""

    mapping: MappingFile

    @property
    def asked_at(self) -> str:
        """See `RemoteModel.asked_at`."""
        return self.mapping.request.path.replace(_MODEL, quote(self.name, safe=""))

    def question(self, inputs: np.ndarray | Sequence[str]) -> tuple[bytes, Mapping[str, str]]:
        """See `RemoteModel.question`."""
        request, given = self.mapping.request, self.mapping.input
        if request.field is not None:
            files = [one if isinstance(one, str) else to_png(one) for one in inputs]
            return encode_form(request.field, files, request.fields)
        encoded = [_encoded(one, given) for one in inputs]
        body = _filled(request.content, encoded)
        return json.dumps(body).encode(), {"content-type": "application/json"}

    def scores(self, answer: Answer, count: int) -> np.ndarray:
        """See `RemoteModel.scores`; classes that an answer does not name come last."""
        try:
            return np.array([self._row(row) for row in self._rows(answer, count)], np.float64)
        except (LookupError, TypeError, ValueError) as error:
            why = f"nothing at {error}" if isinstance(error, LookupError) else error
            raise EndpointError(
                f"{self.connection.url}{self.asked_at} answers otherwise than the mapping says: "
                f"{why}"
            ) from error

    def _rows(self, answer: Answer, count: int) -> list[Any]:
        whole, places = answer.json(f"{self.connection.url}{self.asked_at}"), self.mapping.answer
        if self.together == 1:
            return [_at(whole, places.rows)]
        rows = _at(whole, places.rows)
        if not isinstance(rows, list) or len(rows) != count:
            got = len(rows) if isinstance(rows, list) else type(rows).__name__
            raise ValueError(f"{count} inputs have {got} rows")
        return rows

    def _row(self, row: Any) -> list[float]:
        """The scores of one input, or its class."""
        places, labels = self.mapping.answer, self.mapping.labels or []
        if places.label is not None:
            return [_class(_at(row, places.label), labels)]
        if places.top is not None:
            return self._best(row, places.top, labels)
        found = _at(row, places.scores or "")
        if isinstance(found, dict):
            return [float(found[label]) for label in labels]
        if self.names_class:
            return [_class(found, labels)]
        if not isinstance(found, list):
            raise ValueError(f"a row holds {type(found).__name__} in the place of scores")
        return [float(value) for value in found]

    def _best(self, row: Any, top: Top, labels: list[str]) -> list[float]:
        items, known = _at(row, top.list), dict[int, float]()
        for item in items:
            index = int(_class(_at(item, top.label), labels))
            known[index] = float(_at(item, top.score))
        wanted = top.count or len(labels)
        if len(known) < min(wanted, len(labels)):
            raise ValueError(f"a row names {len(known)} classes, and not {wanted}")
        least, left = min(known.values()), len(labels) - len(known)
        rest = least - 1
        if self.mapping.answer.kind == "probabilities" and left:
            rest = min(least, max(0.0, 1 - sum(known.values())) / left) * (1 - 1e-6)
        return [known.get(index, rest) for index in range(len(labels))]


def mapped(connection: Connection, name: str, mapping: MappingFile) -> MappedModel:
    """The model that a file describes; the endpoint is not asked."""
    given, places, request = mapping.input, mapping.answer, mapping.request
    one_by_one = request.field is None and _holds(request.content, ONE)
    spec = None
    if given.height is not None and given.width is not None:
        spec = ImageSpec(channels=given.channels, height=given.height, width=given.width)
    return MappedModel(
        connection=connection,
        protocol="a mapping",
        name=name,
        version=None,
        image_spec=spec,
        names_class=places.label is not None,
        told={},
        identity={"model": name, "mapping": mapping.model_dump_json()},
        best=None if places.top is None else places.top.count,
        kind=places.kind,
        together=1 if one_by_one else None,
        as_files=spec is not None and (request.field is not None or given.encoding == "png"),
        mapping=mapping,
    )


def _encoded(one: Any, given: Input) -> Any:
    """One input as JSON holds it."""
    if isinstance(one, str):
        return one
    if given.encoding == "png":
        return base64.b64encode(to_png(one)).decode()
    pixels = one.astype(np.float64)
    if given.mean is not None:
        pixels = pixels - np.array(given.mean)[:, None, None]
    if given.std is not None:
        pixels = pixels / np.array(given.std)[:, None, None]
    if given.range == 255:
        pixels = pixels * 255
    if given.layout != "CHW":
        pixels = pixels.transpose(1, 2, 0)
    # float32 in the shortest digits that mean it
    values = pixels[:, :, 0] if given.layout == "HW" else pixels
    return values.astype(np.float32).tolist()


def _filled(template: Any, inputs: list[Any]) -> Any:
    """A body with inputs in the place of the marks."""
    if isinstance(template, dict):
        return {key: _filled(each, inputs) for key, each in template.items()}
    if isinstance(template, list):
        return [_filled(each, inputs) for each in template]
    return inputs if template == ALL else inputs[0] if template == ONE else template


def _at(value: Any, path: str) -> Any:
    """What lies at a dotted path.

    Raises:
        LookupError: nothing does; the error names the path.
    """
    for step in filter(None, path.split(".")):
        try:
            value = value[int(step)] if isinstance(value, list) else value[step]
        except (LookupError, TypeError, ValueError):
            raise LookupError(path) from None
    return value


def _class(value: Any, labels: list[str]) -> float:
    """The index of a class that an answer names, or gives the index of."""
    if isinstance(value, str):
        if value not in labels:
            raise ValueError(f"the class {value[:80]!r} is not among the labels")
        return float(labels.index(value))
    if isinstance(value, list) and len(value) == 1:
        return _class(value[0], labels)
    if not isinstance(value, int | float) or isinstance(value, bool) or value != int(value):
        raise ValueError(f"{str(value)[:80]} is no class")
    return float(value)
