"""What the protocol answers: outputs of a model, and what it says of the server and each model."""

import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from starlette.responses import JSONResponse, Response

from data.tokenizer import Reading
from runtimes.artifact import Artifact
from service.api.v2.tensors import InferRequest, Wanted, check_parameters, input_of
from service.http.openapi import API_VERSION
from service.http.refusal import ApiError
from service.predictions.images import probabilities
from service.predictions.registry import Registry
from service.predictions.reload import Reloader
from service.predictions.served import Served
from service.predictions.texts import warnings

OUTPUTS = ("logits", "probabilities")
_BINARY, _BINARY_ALL, _CLASSES = "binary_data", "binary_data_output", "classification"


@dataclass(frozen=True, slots=True)
class Form:
    """How one output is wanted: which, as bytes or JSON, whole (0) or its best classes."""

    name: str
    binary: bool
    classes: int


def forms(request: InferRequest, *, several: bool) -> list[Form]:
    """The outputs that a request wants; all of them when it names none.

    Args:
        request: what is asked.
        several: whether each input gets several classes, which cannot be listed by name.

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
        if classes and several:
            raise _invalid(_CLASSES, "0 for a model that gives each input several classes")
        found.append(Form(output.name, _flag(given, _BINARY, default=binary), classes))
    return found


def head(served: Served, asked: InferRequest, readings: Sequence[Reading]) -> dict[str, Any]:
    """What an answer says beside its outputs.

    The protocol's parameters are single values: what was read of each text is a JSON list in one.
    """
    found = {"model_name": served.artifact.name, "model_version": served.artifact.version}
    if asked.id is not None:
        found["id"] = asked.id
    if not readings:
        return found
    lists = {
        "tokens": [reading.tokens for reading in readings],
        "tokens_read": [len(reading.ids) for reading in readings],
        "words_read": [reading.words for reading in readings],
        "words_unknown": [reading.unknown for reading in readings],
        "warnings": [warnings(reading) for reading in readings],
    }
    return found | {"parameters": {name: json.dumps(each) for name, each in lists.items()}}


def answer(
    logits: np.ndarray,
    labels: Sequence[str],
    wanted: Sequence[Form],
    head: dict[str, Any],
    *,
    class_axis: int = 1,
) -> Response:
    """The answer.

    Args:
        logits: (N, K), of other tasks of their shape.
        labels: names of the K classes.
        wanted: from `forms`.
        head: see `head`.
        class_axis: of the logits.
    """
    outputs, tensors = [], []
    for form in wanted:
        values = logits if form.name == "logits" else _shares(logits, class_axis)
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


def _shares(logits: np.ndarray, class_axis: int) -> np.ndarray:
    """Probabilities of logits, float32."""
    found = probabilities(np.moveaxis(logits, class_axis, -1))
    return np.moveaxis(found, -1, class_axis).astype(np.float32)


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


_EXTENSIONS = (
    "binary_tensor_data",
    "classification",
    "model_configuration",
    "model_repository",
    "statistics",
)


def server() -> dict[str, Any]:
    """The server's name, version and extensions."""
    return {"name": "assay", "version": API_VERSION, "extensions": list(_EXTENSIONS)}


def model(served: Served, registry: Registry) -> dict[str, Any]:
    """A model's versions, inputs and outputs."""
    artifact = served.artifact
    name, datatype, shape = input_of(artifact)
    return {
        "name": artifact.name,
        "versions": registry.versions(artifact.name),
        "platform": served.runtime.name,
        "inputs": [{"name": name, "datatype": datatype, "shape": shape}],
        "outputs": [
            {"name": output, "datatype": "FP32", "shape": artifact.manifest.output.shape}
            for output in OUTPUTS
        ],
        "parameters": _about(served),
    }


def config(served: Served) -> dict[str, Any]:
    """A model in the words of a Triton configuration; the batch is part of its shapes."""
    artifact = served.artifact
    name, datatype, shape = input_of(artifact)
    kind = {"FP32": "TYPE_FP32", "BYTES": "TYPE_STRING"}[datatype]
    outputs = [
        {"name": output, "data_type": "TYPE_FP32", "dims": artifact.manifest.output.shape}
        for output in OUTPUTS
    ]
    return {
        "name": artifact.name,
        "platform": served.runtime.name,
        "backend": served.runtime.name,
        "version_policy": {"all": {}},
        "max_batch_size": 0,
        "input": [{"name": name, "data_type": kind, "dims": shape}],
        "output": outputs,
        "parameters": {key: {"string_value": value} for key, value in _about(served).items()},
    }


def statistics(served: Served) -> dict[str, Any]:
    """What a model has done since it was opened; queue and computation are counted by batch."""
    totals = served.batcher.totals
    done = {"count": totals.batches, "ns": _ns(totals.queue_s + totals.compute_s)}
    return {
        "name": served.artifact.name,
        "version": served.artifact.version,
        "inference_count": totals.inputs,
        "execution_count": totals.batches,
        "inference_stats": {
            "success": done,
            "fail": {"count": totals.failures, "ns": 0},
            "queue": {"count": totals.batches, "ns": _ns(totals.queue_s)},
            "compute_infer": {"count": totals.batches, "ns": _ns(totals.compute_s)},
        },
    }


def index(registry: Registry, reloader: Reloader, *, only_ready: bool) -> list[dict[str, str]]:
    """Every version of every model in the folders, served or not, and why not."""
    rows = [_row(served.artifact, "READY") for served in registry.all()]
    if only_ready:
        return rows
    rows += [_row(artifact, "UNAVAILABLE", "unloaded") for artifact in reloader.unloaded()]
    for name, problem in reloader.problems():
        rows.append({"name": name, "version": "", "state": "UNAVAILABLE", "reason": problem})
    return rows


def _row(artifact: Artifact, state: str, reason: str = "") -> dict[str, str]:
    names = {"name": artifact.name, "version": artifact.version}
    return names | {"state": state, "reason": reason}


def _about(served: Served) -> dict[str, str]:
    return {
        "digest": served.artifact.digest,
        "task": served.artifact.manifest.task,
        "precision": served.runtime.precision,
    }


def _ns(seconds: float) -> int:
    return int(seconds * 1e9)
