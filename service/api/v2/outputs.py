"""From logits to the tensors of an answer: JSON, bytes, or the names of the best classes."""

import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from starlette.responses import JSONResponse, Response

from service.api.v2.request import InferRequest, Wanted, check_parameters
from service.http.errors import ApiError
from service.predictions.images import probabilities

OUTPUTS = ("logits", "probabilities")
_BINARY, _BINARY_ALL, _CLASSES = "binary_data", "binary_data_output", "classification"


@dataclass(frozen=True, slots=True)
class Form:
    """How one output is wanted: which, as bytes or JSON, whole (0) or its best classes."""

    name: str
    binary: bool
    classes: int


def forms(request: InferRequest) -> list[Form]:
    """The outputs that a request wants; all of them when it names none.

    Raises:
        ApiError: 422 unknown_output, unknown_parameter, invalid_parameter.
    """
    check_parameters(request.parameters, {_BINARY_ALL}, "request")
    binary = _flag(request.parameters, _BINARY_ALL, default=False)
    wanted = request.outputs or [Wanted(name=name) for name in OUTPUTS]
    found = []
    for output in wanted:
        if output.name not in OUTPUTS:
            message = f"The model has no output {output.name[:64]!r}."
            raise ApiError(422, "unknown_output", message, {"known": list(OUTPUTS)})
        given = output.parameters
        check_parameters(given, {_BINARY, _CLASSES}, f"output {output.name!r}")
        classes = given.get(_CLASSES, 0)
        if not isinstance(classes, int) or isinstance(classes, bool) or classes < 0:
            raise _invalid(_CLASSES, "a whole number from 0 on")
        found.append(Form(output.name, _flag(given, _BINARY, default=binary), classes))
    return found


def answer(
    logits: np.ndarray, labels: Sequence[str], wanted: Sequence[Form], head: dict[str, Any]
) -> Response:
    """The answer.

    Args:
        logits: (N, K).
        labels: names of the K classes.
        wanted: from `forms`.
        head: what the answer says beside its outputs.
    """
    outputs, tensors = [], []
    for form in wanted:
        values = logits if form.name == "logits" else probabilities(logits).astype(np.float32)
        output, raw = _classes(values, labels, form) if form.classes else _numbers(values, form)
        outputs.append(output)
        tensors.append(raw)
    content = head | {"outputs": outputs}
    if not any(form.binary for form in wanted):
        return JSONResponse(content)
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode()
    headers = {"inference-header-content-length": str(len(text))}
    body = b"".join([text, *tensors])
    return Response(body, media_type="application/octet-stream", headers=headers)


def _numbers(values: np.ndarray, form: Form) -> tuple[dict[str, Any], bytes]:
    output: dict[str, Any] = {"name": form.name, "datatype": "FP32", "shape": list(values.shape)}
    if form.binary:
        raw = values.astype("<f4").tobytes()
        return output | {"parameters": {"binary_data_size": len(raw)}}, raw
    return output | {"data": values.ravel().tolist()}, b""


def _classes(values: np.ndarray, labels: Sequence[str], form: Form) -> tuple[dict[str, Any], bytes]:
    """The best classes of each row as `value:index:label`, the best one first."""
    best = np.argsort(-values, axis=1, kind="stable")[:, : form.classes]
    texts = [
        f"{row[i]:f}:{i}:{labels[i]}"
        for row, order in zip(values, best, strict=True)
        for i in order
    ]
    output: dict[str, Any] = {"name": form.name, "datatype": "BYTES", "shape": list(best.shape)}
    if form.binary:
        words = [text.encode() for text in texts]
        raw = b"".join(struct.pack("<I", len(word)) + word for word in words)
        return output | {"parameters": {"binary_data_size": len(raw)}}, raw
    return output | {"data": texts}, b""


def _flag(parameters: dict[str, Any], name: str, *, default: bool) -> bool:
    value = parameters.get(name, default)
    if not isinstance(value, bool):
        raise _invalid(name, "true or false")
    return value


def _invalid(name: str, rule: str) -> ApiError:
    return ApiError(422, "invalid_parameter", f"The parameter {name!r} must be {rule}.")
