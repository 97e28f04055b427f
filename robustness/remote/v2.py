"""The Open Inference Protocol V2, as KServe, Triton, MLServer and our own server speak it."""

import json
import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import numpy as np
from pydantic import BaseModel, ValidationError

from data.images import ImageSpec
from robustness.remote.connection import Answer, Connection, EndpointError
from robustness.remote.model import RemoteModel

_NUMBERS = {"FP16": "<f2", "FP32": "<f4", "FP64": "<f8", "UINT8": "|u1"}
_CLASSES = {"INT32": "<i4", "INT64": "<i8", "UINT8": "|u1", "INT16": "<i2", "UINT32": "<u4"}
_DTYPES = _NUMBERS | _CLASSES
_LENGTH = "inference-header-content-length"
_METADATA = 20_000  # characters of it that are kept
_MOST_CLASSES = 100_000


class Tensor(BaseModel):
    """An input or an output in a model's metadata."""

    name: str
    datatype: str
    shape: list[int]


class _Server(BaseModel):
    name: str = "unnamed"
    version: str = "unknown"
    extensions: list[str] = []


class _Model(BaseModel):
    name: str
    versions: list[str] | None = None
    platform: str = ""
    inputs: list[Tensor] = []
    outputs: list[Tensor] = []
    parameters: dict[str, Any] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class V2Model(RemoteModel):
    """A model of such a server; see `RemoteModel`.

    Attributes:
        given: its input.
        taken: the output that holds scores or the class.
        binary: whether tensors travel as bytes.
        classifies: whether the server names classes on request.
    """

    given: Tensor
    taken: Tensor
    binary: bool
    classifies: bool

    def ask(self, inputs: np.ndarray | Sequence[str]) -> tuple[np.ndarray, int]:
        """See `RemoteModel.ask`."""
        answer, found = self._infer(inputs, {})
        values = np.asarray(found)
        if values.ndim == 1:
            values = values[:, None]
        if values.ndim != 2 or len(values) != len(inputs):
            raise EndpointError(
                f"{self._what} answers {len(inputs)} inputs with the shape {values.shape}"
            )
        return values, answer.tries

    def class_names(self, num_classes: int) -> list[str] | None:
        """Names of the classes by the extension for classification; None where it tells none."""
        if not self.classifies:
            return None
        _, found = self._infer(self.blank(), {"classification": num_classes})
        names: dict[int, str] = {}
        for text in np.asarray(found, object).ravel().tolist():
            parts = str(text).split(":", 2)
            if len(parts) < 3 or not parts[1].isdecimal():
                return None
            names[int(parts[1])] = parts[2]
        known = [names.get(index, "") for index in range(num_classes)]
        return known if all(known) and len(set(known)) == num_classes else None

    @property
    def _what(self) -> str:
        return f"{self.connection.url}{_path(self.name, self.version)}"

    def _infer(
        self, inputs: np.ndarray | Sequence[str], asked: dict[str, Any]
    ) -> tuple[Answer, Any]:
        """The answer, and what its output holds, in the output's shape."""
        tensor, raw = self._tensor(inputs)
        output = {"name": self.taken.name, "parameters": asked | {"binary_data": self.binary}}
        if not self.binary:
            output = {"name": self.taken.name, **({"parameters": asked} if asked else {})}
        head = json.dumps({"inputs": [tensor], "outputs": [output]}).encode()
        headers = {"content-type": "application/json"}
        if self.binary:
            headers = {"content-type": "application/octet-stream", _LENGTH: str(len(head))}
        answer = self.connection.send(
            "POST",
            f"{_path(self.name, self.version)}/infer",
            content=head + raw,
            headers=headers,
            inputs=len(inputs),
        )
        return answer, self._output(answer)

    def _tensor(self, inputs: np.ndarray | Sequence[str]) -> tuple[dict[str, Any], bytes]:
        """The input as JSON, and the bytes behind it if there are any."""
        given = self.given
        if isinstance(inputs, np.ndarray):
            values = _as_sent(inputs, given)
            shape, raw = list(values.shape), values.tobytes() if self.binary else b""
            data = [] if self.binary else values.ravel().tolist()
        else:
            shape = [len(inputs)] + [1] * (len(given.shape) - 1)
            words = [text.encode() for text in inputs]
            raw = b"".join(struct.pack("<I", len(word)) + word for word in words)
            raw, data = (raw, []) if self.binary else (b"", list(inputs))
        tensor: dict[str, Any] = {"name": given.name, "shape": shape, "datatype": given.datatype}
        if self.binary:
            return tensor | {"parameters": {"binary_data_size": len(raw)}}, raw
        return tensor | {"data": data}, b""

    def _output(self, answer: Answer) -> np.ndarray | list[str]:
        """What the output holds, numbers (N, …) or texts."""
        length = answer.headers.get(_LENGTH, "")
        end = int(length) if length.isascii() and length.isdigit() else len(answer.content)
        head = Answer(status=200, headers=answer.headers, content=answer.content[:end])
        try:
            return _read(head.json(self._what), answer.content, end, self.taken.name)
        except (KeyError, TypeError, ValueError, struct.error, AttributeError) as error:
            why = f"no output {error}" if isinstance(error, KeyError) else error
            raise EndpointError(
                f"{self._what} answers what is not the protocol's: {why}"
            ) from error


def describe(
    connection: Connection, name: str, version: str | None, *, output: str | None
) -> V2Model:
    """Ask a server what it is, and what its model reads and answers.

    Args:
        connection: to the server.
        name: of the model.
        version: of the model; None for the server's choice.
        output: which output to read; None for logits, probabilities, or the only one.

    Raises:
        EndpointError: the server is not there, or speaks another protocol.
        ValueError: the model has no input of images or texts, or no such output.
    """
    try:
        server = _Server.model_validate(connection.get("/v2"))
        about = _Model.model_validate(connection.get(_path(name, version)))
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        told = f"{connection.url} does not describe itself as the protocol says"
        raise EndpointError(f"{told}: {place}: {first['msg']}") from error
    _check_input(about)
    given, taken = about.inputs[0], _chosen(about, output)
    who = f"{server.name} {server.version}"[:200]
    told = {"server": who, "platform": about.platform, "versions": ", ".join(about.versions or [])}
    told |= {key: str(value)[:200] for key, value in about.parameters.items()}
    return V2Model(
        connection=connection,
        protocol="Open Inference Protocol V2",
        name=name,
        version=version,
        image_spec=_image_spec(given),
        names_class=taken.datatype in _CLASSES,
        told={key: value for key, value in told.items() if value},
        identity={"model": name, "version": version, "output": taken.name}
        | {"metadata": about.model_dump_json()[:_METADATA], "server": who},
        given=given,
        taken=taken,
        binary=any(each.startswith("binary_tensor_data") for each in server.extensions),
        classifies="classification" in server.extensions,
    )


def _image_spec(given: Tensor) -> ImageSpec | None:
    if given.datatype == "BYTES":
        return None
    channels, height, width = _chw(given.shape)
    return ImageSpec(channels=channels, height=height, width=width)


def _path(name: str, version: str | None) -> str:
    path = f"/v2/models/{quote(name, safe='')}"
    return path + (f"/versions/{quote(version, safe='')}" if version else "")


def _check_input(about: _Model) -> None:
    told = ", ".join(f"{one.name} {one.datatype} {one.shape}" for one in about.inputs) or "none"
    if len(about.inputs) == 1:
        given = about.inputs[0]
        if given.datatype == "BYTES" and len(given.shape) in (1, 2):
            return
        if given.datatype in _NUMBERS and _chw(given.shape) != (0, 0, 0):
            return
    raise ValueError(
        "the model must have one input, images [-1, C, H, W] or [-1, H, W, C] of a fixed size or "
        f"texts (BYTES), and it has: {told[:300]}"
    )


def _chw(shape: Sequence[int]) -> tuple[int, int, int]:
    """Channels, height and width of images in either layout; zeros where there are none."""
    if len(shape) != 4 or min(shape[1:]) < 1:
        return 0, 0, 0
    if shape[1] in (1, 3):
        return shape[1], shape[2], shape[3]
    return (shape[3], shape[1], shape[2]) if shape[3] in (1, 3) else (0, 0, 0)


def _as_sent(images: np.ndarray, given: Tensor) -> np.ndarray:
    """Images (N, C, H, W) in the layout and type of an input; bytes range from 0 to 255."""
    if given.shape[1] not in (1, 3):
        images = images.transpose(0, 2, 3, 1)  # (N, H, W, C)
    if given.datatype == "UINT8":
        images = np.rint(images * 255)
    return np.ascontiguousarray(images, _DTYPES[given.datatype])


def _chosen(about: _Model, wanted: str | None) -> Tensor:
    """The output to read."""
    by_name = {one.name: one for one in about.outputs}
    told = ", ".join(f"{one.name} {one.datatype} {one.shape}" for one in about.outputs) or "none"
    usual = [by_name[name] for name in ("logits", "probabilities") if name in by_name]
    if wanted is not None and wanted not in by_name:
        raise ValueError(f"the model has no output {wanted[:64]!r}; it has: {told[:300]}")
    if wanted is None and not usual and len(by_name) != 1:
        raise ValueError(f"--output-tensor must name one of the model's outputs: {told[:300]}")
    found = by_name[wanted] if wanted else [*usual, *about.outputs][0]
    if found.datatype not in _DTYPES:
        raise ValueError(f"the output {found.name!r} must hold numbers, and is {found.datatype}")
    return found


def _read(head: Any, body: bytes, start: int, name: str) -> np.ndarray | list[str]:
    """One output of an answer, whose bytes begin at `start`.

    Raises:
        KeyError, TypeError, ValueError, struct.error: it is not what the protocol says.
    """
    for output in head["outputs"]:
        size = output.get("parameters", {}).get("binary_data_size")
        raw, start = (None, start) if size is None else (body[start : start + size], start + size)
        if output["name"] != name:
            continue
        shape, kind = [int(side) for side in output["shape"]], output["datatype"]
        if math.prod(shape) > _MOST_CLASSES * 4096:
            raise ValueError(f"the shape {shape}")
        if kind == "BYTES":
            return output["data"] if raw is None else _words(raw)
        if kind not in _DTYPES:
            raise ValueError(f"numbers of the type {kind}")
        if raw is None:
            return np.array(output["data"], np.float64).reshape(shape)
        return np.frombuffer(raw, _DTYPES[kind]).reshape(shape)
    raise KeyError(name)


def _words(raw: bytes) -> list[str]:
    found, position = [], 0
    while position < len(raw):
        (size,) = struct.unpack_from("<I", raw, position)
        found.append(raw[position + 4 : position + 4 + size].decode())
        position += 4 + size
    return found
