"""What an inference request of the protocol says: JSON, and tensors behind it as bytes."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from service.http.documents import parse_body
from service.http.errors import ApiError

_BINARY_SIZE = "binary_data_size"
_MOST = 2**31  # no shape is larger, and products of shapes stay small


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class Tensor(_Strict):
    """An input: `data` as JSON, or `raw` bytes of the body's second part."""

    name: str
    shape: list[Annotated[int, Field(ge=0, le=_MOST)]]
    datatype: str
    parameters: dict[str, Any] = {}
    data: list[Any] | None = None
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

    name: str
    parameters: dict[str, Any] = {}


class InferRequest(_Strict):
    """A whole request."""

    id: str | None = None
    parameters: dict[str, Any] = {}
    inputs: list[Tensor]
    outputs: list[Wanted] = []


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


def parse(body: bytes, length: int) -> InferRequest:
    """Read a request.

    Args:
        body: the whole body.
        length: see `json_length`.

    Raises:
        ApiError: 400 invalid_json, invalid_tensor; 422 invalid_body, unknown_parameter.
    """
    request = parse_body(InferRequest, body[:length])
    _refuse_twice([tensor.name for tensor in request.inputs], "input")
    _refuse_twice([wanted.name for wanted in request.outputs], "output")
    position = length
    for tensor in request.inputs:
        position = tensor.take(body, position)
    if position < len(body):
        message = f"{len(body) - position} bytes follow the last tensor."
        raise ApiError(400, "invalid_tensor", message)
    return request


def check_parameters(given: dict[str, Any], known: set[str], where: str) -> None:
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
    for name in names:
        if names.count(name) > 1:
            message = f"The {what} {name[:64]!r} may be given once."
            raise ApiError(422, "duplicate_tensor", message)
