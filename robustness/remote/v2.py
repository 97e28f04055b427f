"""The Open Inference Protocol V2, as KServe, Triton, MLServer and our own server speak it."""

import json
import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote

import numpy as np
from pydantic import BaseModel, ValidationError

from data.images import ImageSpec
from robustness.remote.connection import Answer, Connection, EndpointError, printable
from robustness.remote.model import RemoteModel
from robustness.remote.tokens import Tokens, role

_NUMBERS = {"FP16": "<f2", "FP32": "<f4", "FP64": "<f8", "UINT8": "|u1"}
_CLASSES = {"INT32": "<i4", "INT64": "<i8", "UINT8": "|u1", "INT16": "<i2", "UINT32": "<u4"}
_DTYPES = _NUMBERS | _CLASSES
_TOKENS = ("INT32", "INT64", "UINT32", "BOOL")
LENGTH = "inference-header-content-length"
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


class Metadata(BaseModel):
    """What a server says of a model."""

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
        about: its metadata.
        given: its input; of tokens, several.
        tokens: how texts become tokens; None where the server reads texts, or images.
        taken: the output that holds scores or the class.
        binary: whether tensors travel as bytes.
        classifies: whether the server names classes on request.
    """

    about: Metadata
    given: Sequence[Tensor]
    tokens: Tokens | None
    taken: Tensor
    binary: bool
    classifies: bool

    @property
    def asked_at(self) -> str:
        """See `RemoteModel.asked_at`."""
        return f"{_path(self.name, self.version)}/infer"

    def question(self, inputs: np.ndarray | Sequence[str]) -> tuple[bytes, dict[str, str]]:
        """See `RemoteModel.question`."""
        return self.request(inputs, binary=self.binary)

    def scores(self, answer: Answer, count: int) -> np.ndarray:
        """See `RemoteModel.scores`."""
        values = np.asarray(self.read(answer))
        if values.ndim == 1:
            values = values[:, None]
        if values.ndim != 2 or len(values) != count:
            what = f"{self.connection.url}{self.asked_at}"
            raise EndpointError(f"{what} answers {count} inputs with the shape {values.shape}")
        return values

    def class_names(self, num_classes: int) -> list[str] | None:
        """Names of the classes by the extension for classification; None where it tells none."""
        if not self.classifies:
            return None
        asked = {"classification": num_classes}
        content, headers = self.request(self.blank(), binary=self.binary, parameters=asked)
        answer = self.connection.send("POST", self.asked_at, content=content, headers=headers)
        found = self.read(answer)
        names: dict[int, str] = {}
        for text in np.asarray(found, object).ravel().tolist():
            parts = str(text).split(":", 2)
            if len(parts) < 3 or not parts[1].isdecimal():
                return None
            names[int(parts[1])] = parts[2]
        known = [names.get(index, "") for index in range(num_classes)]
        return known if all(known) and len(set(known)) == num_classes else None

    @property
    def outputs(self) -> list[str]:
        """Names of its outputs."""
        return [one.name for one in self.about.outputs]

    def request(
        self,
        inputs: np.ndarray | Sequence[str],
        *,
        binary: bool,
        parameters: Mapping[str, Any] | None = None,
        beside: Mapping[str, Any] | None = None,
    ) -> tuple[bytes, dict[str, str]]:
        """The body of a question, and its headers.

        Args:
            inputs: see `RemoteModel.ask`.
            binary: whether tensors travel as bytes, both ways.
            parameters: of the output.
            beside: keys of the JSON, in the place of those that it would have.
        """
        tensors, raw = self._tensors(inputs, binary=binary)
        asked = {**(parameters or {}), **({"binary_data": True} if binary else {})}
        output = {"name": self.taken.name, **({"parameters": asked} if asked else {})}
        head = json.dumps({"inputs": tensors, "outputs": [output], **(beside or {})}).encode()
        if not binary:
            return head, {"content-type": "application/json"}
        return head + raw, {"content-type": "application/octet-stream", LENGTH: str(len(head))}

    def read(self, answer: Answer) -> np.ndarray | list[str]:
        """What the output of an answer holds, numbers (N, …) or texts.

        Raises:
            EndpointError: it is not what the protocol says.
        """
        what, length = f"{self.connection.url}{self.asked_at}", answer.headers.get(LENGTH, "")
        end = int(length) if length.isascii() and length.isdigit() else len(answer.content)
        head = replace(answer, content=answer.content[:end]).json(what)
        try:
            return _read(head, answer.content, end, self.taken.name)
        except (KeyError, TypeError, ValueError, struct.error, AttributeError) as error:
            why = f"no output {error}" if isinstance(error, KeyError) else error
            raise EndpointError(f"{what} answers what is not the protocol's: {why}") from error

    def _tensors(
        self, inputs: np.ndarray | Sequence[str], *, binary: bool
    ) -> tuple[list[dict[str, Any]], bytes]:
        """The inputs as JSON, and the bytes behind it if there are any."""
        first = self.given[0]
        if isinstance(inputs, np.ndarray):
            return _numbers([(first, _as_sent(inputs, first))], binary=binary)
        if self.tokens is not None:
            names = [one.name for one in self.given]
            made = self.tokens.tensors(inputs, names, _length(self.given))
            types = [_CLASSES.get(one.datatype, "|b1") for one in self.given]
            sent = [array.astype(kind) for array, kind in zip(made, types, strict=True)]
            return _numbers(list(zip(self.given, sent, strict=True)), binary=binary)
        shape = [len(inputs)] + [1] * (len(first.shape) - 1)
        words = [text.encode() for text in inputs]
        raw = b"".join(struct.pack("<I", len(word)) + word for word in words)
        tensor: dict[str, Any] = {"name": first.name, "shape": shape, "datatype": first.datatype}
        if binary:
            return [tensor | {"parameters": {"binary_data_size": len(raw)}}], raw
        return [tensor | {"data": list(inputs)}], b""


def describe(
    connection: Connection,
    name: str,
    version: str | None,
    *,
    output: str | None,
    tokens: Tokens | None = None,
) -> V2Model:
    """Ask a server what it is, and what its model reads and answers.

    Args:
        connection: to the server.
        name: of the model.
        version: of the model; None for the server's choice.
        output: which output to read; None for logits, probabilities, or the only one.
        tokens: how texts become tokens, for a model that reads these.

    Raises:
        EndpointError: the server is not there, or speaks another protocol.
        ValueError: the model has no input of images, texts or tokens, or no such output.
    """
    try:
        server = _Server.model_validate(connection.get("/v2"))
        about = Metadata.model_validate(connection.get(_path(name, version)))
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        told = f"{connection.url} does not describe itself as the protocol says"
        raise EndpointError(f"{told}: {place}: {first['msg']}") from error
    _check_input(about, tokens)
    taken = _chosen(about, output)
    read = {} if tokens is None else {"tokenizer": tokens.digest, "max_len": str(tokens.max_len)}
    who = f"{server.name} {server.version}"[:200]
    told = {"server": who, "platform": about.platform, "versions": ", ".join(about.versions or [])}
    told |= {key: str(value)[:200] for key, value in about.parameters.items()} | read
    return V2Model(
        connection=connection,
        protocol="Open Inference Protocol V2",
        name=name,
        version=version,
        image_spec=None if tokens is not None else _image_spec(about.inputs[0]),
        names_class=taken.datatype in _CLASSES,
        told={key: printable(value) for key, value in told.items() if value},
        identity={"model": name, "version": version, "output": taken.name}
        | {"metadata": about.model_dump_json()[:_METADATA], "server": who}
        | read,
        about=about,
        given=about.inputs,
        tokens=tokens,
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


def _check_input(about: Metadata, tokens: Tokens | None) -> None:
    told = ", ".join(f"{one.name} {one.datatype} {one.shape}" for one in about.inputs) or "none"
    if tokens is not None:
        roles = [role(one.name) for one in about.inputs]
        fit = all(one.datatype in _TOKENS and len(one.shape) == 2 for one in about.inputs)
        if not fit or roles.count("ids") != 1 or len(set(roles)) < len(roles):
            raise ValueError(
                "a model of tokens must have one input of ids, and at most a mask and segments, "
                f"whole numbers [-1, N], and it has: {told[:300]}"
            )
        if (longest := _length(about.inputs) or tokens.max_len) < tokens.max_len:
            raise ValueError(f"max_len must be at most the model's {longest}")
        return
    if len(about.inputs) == 1:
        given = about.inputs[0]
        if given.datatype == "BYTES" and len(given.shape) in (1, 2):
            return
        if given.datatype in _NUMBERS and _chw(given.shape) != (0, 0, 0):
            return
    raise ValueError(
        "the model must have one input, images [-1, C, H, W] or [-1, H, W, C] of a fixed size or "
        "texts (BYTES), or be one of tokens, whose --mapping names the tokenizer, and it has: "
        f"{told[:300]}"
    )


def _length(given: Sequence[Tensor]) -> int | None:
    """How many tokens every text must have; None where the model takes any number."""
    return next((one.shape[1] for one in given if one.shape[1] > 0), None)


def _numbers(
    given: Sequence[tuple[Tensor, np.ndarray]], *, binary: bool
) -> tuple[list[dict[str, Any]], bytes]:
    """Tensors of numbers as JSON, and the bytes behind it if there are any."""
    found, raw = list[dict[str, Any]](), b""
    for one, values in given:
        tensor = {"name": one.name, "shape": list(values.shape), "datatype": one.datatype}
        content = values.tobytes() if binary else b""
        size = {"parameters": {"binary_data_size": len(content)}}
        found.append(tensor | (size if binary else {"data": values.ravel().tolist()}))
        raw += content
    return found, raw


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


def _chosen(about: Metadata, wanted: str | None) -> Tensor:
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
