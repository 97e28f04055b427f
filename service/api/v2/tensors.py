"""What an inference request says: JSON, and tensors behind it as bytes; everything is checked."""

import math
import struct
from collections import Counter
from collections.abc import Collection, Mapping
from itertools import chain
from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from runtimes.artifact import Artifact
from service.http.documents import Limit, parse_body
from service.http.refusal import ApiError

_BINARY_SIZE = "binary_data_size"
_MOST = 2**31  # no shape is larger, and products of shapes stay small
_MOST_TENSORS = 16
_ITEMS = 160_000  # of JSON: an image of 224 x 224, or a batch of small ones
_Name = Annotated[str, Field(max_length=200)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class Tensor(_Strict):
    """An input: `data` as JSON, or `raw` bytes of the body's second part."""

    name: _Name
    shape: list[Annotated[int, Field(ge=0, le=_MOST)]] = Field(max_length=16, fail_fast=True)
    datatype: _Name
    parameters: dict[str, Any] = {}
    data: Annotated[list[Any], Field(max_length=_ITEMS)] | None = None
    _raw: bytes | None = None

    @property
    def raw(self) -> bytes | None:
        """The tensor as bytes, if it was sent so."""
        return self._raw

    def take(self, body: bytes, position: int) -> int:
        """Take the tensor's bytes from the body; returns where they end.

        Raises:
            ApiError: 400 invalid_tensor, 422 unknown_parameter.
        """
        check_parameters(self.parameters, {_BINARY_SIZE}, f"input {self.name!r}")
        size = self.parameters.get(_BINARY_SIZE)
        if size is None:
            return position
        if not isinstance(size, int) or isinstance(size, bool) or size < 0:
            raise invalid_tensor(self.name, f"{_BINARY_SIZE} must be a whole number from 0 on")
        if self.data is not None:
            raise invalid_tensor(self.name, "must come as JSON or as bytes, not both")
        end = position + size
        if end > len(body):
            missing = f"needs {size} bytes, and {len(body) - position} are left in the body"
            raise invalid_tensor(self.name, missing)
        self._raw = body[position:end]
        return end


class Wanted(_Strict):
    """An output that is asked for."""

    name: _Name
    parameters: dict[str, Any] = {}


_TEXT = {"name": "texts", "shape": [1], "datatype": "BYTES", "data": ["a fine film"]}


class InferRequest(_Strict, json_schema_extra={"examples": [{"inputs": [_TEXT]}]}):
    """A whole request."""

    id: _Name | None = None
    parameters: dict[str, Any] = {}
    inputs: list[Tensor] = Field(max_length=_MOST_TENSORS, fail_fast=True)
    outputs: list[Wanted] = Field(default=[], max_length=_MOST_TENSORS, fail_fast=True)


def json_length(header: str | None, body: bytes) -> int:
    """How much of a body is JSON; the rest are tensors.

    Args:
        header: ``Inference-Header-Content-Length``, if it was sent.
        body: the whole body.

    Raises:
        ApiError: 400 invalid_header_length.
    """
    if header is None:
        return len(body)
    if not (
        header.isascii() and header.isdigit() and len(header) < 12 and int(header) <= len(body)
    ):
        message = (
            "Inference-Header-Content-Length must be the length of the JSON before the tensors, "
            f"at most {len(body)}, received {header[:40]!r}."
        )
        raise ApiError(400, "invalid_header_length", message)
    return int(header)


def parse(body: bytes, length: int, max_json: int) -> InferRequest:
    """Read a request from a whole body, of which `json_length` is JSON, at most `max_json` bytes.

    Raises:
        ApiError: 400 invalid_json, invalid_tensor; 413 body_too_large; 422 invalid_body,
            unknown_parameter.
    """
    request = parse_body(InferRequest, body[:length], Limit(max_json, _ITEMS))
    _refuse_twice([tensor.name for tensor in request.inputs], "input")
    _refuse_twice([wanted.name for wanted in request.outputs], "output")
    position = length
    for tensor in request.inputs:
        position = tensor.take(body, position)
    if position < len(body):
        message = f"{len(body) - position} bytes follow the last tensor."
        raise ApiError(400, "invalid_tensor", message)
    return request


def check_parameters(given: Mapping[str, Any], known: Collection[str], where: str) -> None:
    """Refuse parameters that would be ignored.

    Raises:
        ApiError: 422 unknown_parameter.
    """
    for name in given:
        if name not in known:
            message = f"The parameter {name[:64]!r} of the {where} is not known here."
            raise ApiError(422, "unknown_parameter", message, {"known": sorted(known)})


def invalid_tensor(name: str, rule: str, *, status: int = 400) -> ApiError:
    """The refusal of an input tensor: 400 where it cannot be read, 422 where it makes no sense."""
    return ApiError(status, "invalid_tensor", f"Input {name[:64]!r} {rule}.", {"input": name[:64]})


def _refuse_twice(names: list[str], what: str) -> None:
    for name, count in Counter(names).items():
        if count > 1:
            message = f"The {what} {name[:64]!r} may be given once."
            raise ApiError(422, "duplicate_tensor", message)


def input_of(artifact: Artifact) -> tuple[str, str, list[int]]:
    """Name, data type and shape of a model's input, -1 where any size goes."""
    if artifact.manifest.reads == "images":
        spec = artifact.image_spec
        return "images", "FP32", [-1, spec.channels, spec.height, spec.width]
    return "texts", "BYTES", [-1]


def read_images(tensor: Tensor) -> np.ndarray:
    """Pixels (N, C, H, W) float32 in [0, 1] of a tensor that `the_input` has checked.

    Raises:
        ApiError: 400 or 422 invalid_tensor.
    """
    values = _from_json(tensor) if tensor.raw is None else _from_bytes(tensor, tensor.raw)
    # NaN is not in the range either.
    if not (values.min() >= 0 and values.max() <= 1):
        raise invalid_tensor(tensor.name, "must hold numbers from 0 to 1", status=422)
    return np.require(values.reshape(tensor.shape), np.float32, ["A", "C"])


def read_texts(tensor: Tensor) -> list[str]:
    """The texts of a tensor that `the_input` has checked.

    Raises:
        ApiError: 400 or 422 invalid_tensor.
    """
    texts = _json_texts(tensor) if tensor.raw is None else _byte_texts(tensor, tensor.raw)
    if len(texts) != tensor.shape[0]:
        rule = f"has the shape {tensor.shape} and {len(texts)} elements"
        raise invalid_tensor(tensor.name, rule, status=400)
    return texts


def the_input(request: InferRequest, artifact: Artifact, limit: int) -> Tensor:
    """The one input of a model, its name, type, shape and number of rows checked.

    Raises:
        ApiError: 422 unknown_input, missing_input, invalid_tensor, too_many_inputs.
    """
    name, datatype, shape = input_of(artifact)
    for tensor in request.inputs:
        if tensor.name != name:
            message = f"The model has no input {tensor.name[:64]!r}; its input is {name!r}."
            raise ApiError(422, "unknown_input", message, {"known": [name]})
    if not request.inputs:
        raise ApiError(422, "missing_input", f"The input {name!r} is missing.")
    [tensor] = request.inputs
    if tensor.datatype != datatype:
        rule = f"must be {datatype}, received {tensor.datatype[:16]!r}"
        raise invalid_tensor(name, rule, status=422)
    given = tensor.shape
    if len(given) != len(shape) or given[1:] != shape[1:] or not given[0]:
        rule = f"must have the shape {shape} with at least one row, received {given[:8]}"
        raise invalid_tensor(name, rule, status=422)
    if given[0] > limit:
        message = f"At most {limit} rows may be sent at once, received {given[0]}."
        raise ApiError(422, "too_many_inputs", message, {"limit": limit})
    if tensor.data is None and tensor.raw is None:
        raise invalid_tensor(name, "has no data")
    return tensor


def _from_bytes(tensor: Tensor, raw: bytes) -> np.ndarray:
    size = 4 * int(np.prod(tensor.shape, dtype=np.int64))
    if len(raw) != size:
        rule = f"of the shape {tensor.shape} needs {size} bytes, received {len(raw)}"
        raise invalid_tensor(tensor.name, rule)
    return np.frombuffer(raw, "<f4")


def _from_json(tensor: Tensor) -> np.ndarray:
    """Numbers in one list, or in lists nested as the shape says."""
    values, shape = tensor.data or [], tensor.shape
    for size in shape[1:] if values and isinstance(values[0], list) else ():
        if not all(isinstance(row, list) and len(row) == size for row in values):
            raise invalid_tensor(tensor.name, f"must hold lists nested as its shape {shape} says")
        values = list(chain.from_iterable(values))
    if len(values) != math.prod(shape):
        raise invalid_tensor(tensor.name, f"has the shape {shape} and {len(values)} elements")
    if not set(map(type, values)) <= {int, float}:
        raise invalid_tensor(tensor.name, "must hold numbers", status=422)
    try:
        return np.array(values, np.float64)
    except OverflowError as error:
        raise invalid_tensor(tensor.name, "must hold numbers from 0 to 1", status=422) from error


def _json_texts(tensor: Tensor) -> list[str]:
    texts = tensor.data or []
    if not all(isinstance(text, str) for text in texts):
        raise invalid_tensor(tensor.name, "must hold strings", status=422)
    return texts


def _byte_texts(tensor: Tensor, raw: bytes) -> list[str]:
    """Each text behind its length, 4 bytes, the lowest first."""
    texts, position = [], 0
    while position < len(raw):
        if position + 4 > len(raw):
            raise invalid_tensor(tensor.name, "ends inside a length")
        (size,) = struct.unpack_from("<I", raw, position)
        end = position + 4 + size
        if end > len(raw):
            raise invalid_tensor(tensor.name, "ends inside a text")
        try:
            texts.append(raw[position + 4 : end].decode())
        except UnicodeDecodeError as error:
            rule = f"must hold UTF-8, and element {len(texts)} does not"
            raise invalid_tensor(tensor.name, rule, status=422) from error
        if len(texts) > tensor.shape[0]:
            break
        position = end
    return texts
