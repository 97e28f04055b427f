"""An ONNX file from elsewhere: what its graph tells of itself, and what is not taken."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, helper

from core.files import sha256
from core.names import listed
from export.graphs import Graph, open_graph
from export.importers.base import Source, Spec, axes_of
from export.importers.input_file import InputFile
from export.importers.labels import labels_in
from export.importers.lookups import find_lookups
from export.importers.text_input import INTEGERS, TextFacts, TextInputFile
from export.parity import TOLERANCE
from export.samples import Feed, Samples, in_parts, spread
from runtimes.artifact import ArtifactError, tensors
from runtimes.base import in_batches
from runtimes.manifest import TOKENIZER, Precision, Quantization

_MAX_BYTES = 2**31 - 1
_READS = {TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.UINT8}
_GIVES = _READS - {TensorProto.UINT8}
_STANDARD = {"", "ai.onnx"}
_DOMAINS = _STANDARD | {"ai.onnx.ml", "com.microsoft"}
_ROUNDING: dict[str, Quantization] = {
    "QuantizeLinear": "static",
    "DynamicQuantizeLinear": "dynamic",
    "MatMulInteger": "dynamic",
}
_SHOWN = 4
_COMPARED = 8  # inputs, together and alone
_AT_ONCE = 64  # images, where the graph takes any number
_OLDEST = 7  # opset, the first in which tensors broadcast


@dataclass(frozen=True, kw_only=True)
class SourceGraph(Source):
    """An ONNX file: a graph of images, one input of four axes, or of tokens, and their classes.

    Attributes:
        content: of its file.
        model: the same, parsed.
        reads: its input, the first of them.
        gives: its output.
        alone: whether it was found to answer otherwise in a batch.
    """

    format = "onnx"
    wanted = "an ONNX file"

    content: bytes
    model: ModelProto
    reads: ValueInfoProto
    gives: ValueInfoProto
    alone: bool = False

    @classmethod
    def takes(cls, given: str) -> bool:
        """Whether it is a file, of whatever name, or called as one."""
        return given.endswith(".onnx") or Path(given).is_file()

    @classmethod
    def open(cls, given: str) -> "SourceGraph":
        """Read an ONNX file.

        Raises:
            ValueError: it cannot be read, or is no classifier; one sentence says why.
        """
        path = Path(given)
        if not path.is_file():
            raise ValueError(f"{path.name} must be an ONNX file: there is no such file")
        if path.stat().st_size > _MAX_BYTES:
            raise ValueError(f"{path.name} must be smaller than 2 GB, all that ONNX can hold")
        return cls.of(path.name, path.read_bytes(), path.parent)

    @classmethod
    def of(cls, name: str, content: bytes, folder: Path | None = None) -> "SourceGraph":
        """The graph in the bytes of an ONNX file; see `open`."""
        model = ModelProto()
        try:
            model.ParseFromString(content)
        except Exception:  # protobuf's C and Python parsers raise different, private types
            raise ValueError(f"{name} is no ONNX file, or was cut short") from None
        if not model.graph.node or not model.opset_import:
            raise ValueError(f"{name} is no ONNX file: it holds no graph")
        _refuse_outside(name, model)
        _refuse_operators(name, model)
        inputs, gives = _inputs(model.graph), _single_output(name, model.graph)
        texts = _told_of_texts(model, inputs, folder)
        if texts is None:
            _refuse_inputs(name, inputs)
        scores = _shape(gives)
        classes = scores[1] if len(scores) == 2 else None
        metadata = {each.key: each.value for each in model.metadata_props}
        return cls(
            name=name,
            sha256=sha256(content),
            dtype=dtype_of(inputs[0]),
            shape=_shape(inputs[0]),
            classes=classes,
            labels=labels_in(metadata, classes),
            told=InputFile() if texts is None else TextInputFile(),
            texts=texts,
            content=content,
            model=model,
            reads=inputs[0],
            gives=gives,
        )

    def answered(self, samples: Samples, spec: Spec) -> "tuple[SourceGraph, np.ndarray]":
        """Itself, and what it gives for each sample, prepared in numpy; see `Source.answered`."""
        graph, kinds = self.open_graph(), {value.name: dtype_of(value) for value in self.inputs}

        def run(feed: Feed) -> np.ndarray:
            """The scores (B, K) of some samples."""
            return graph.outputs(spec.prepare(feed, kinds))[self.gives.name]

        parts = []
        try:
            if self.batch is None and _depends(run, samples.feed(spread(len(samples), _COMPARED))):
                return replace(self, alone=True).answered(samples, spec)
            for rows in np.array_split(np.arange(len(samples)), math.ceil(len(samples) / _AT_ONCE)):
                parts.append(in_parts(run, samples.feed(rows), self.batch))
        except ArtifactError as error:
            raise ValueError(f"{self.name} does not run on its input: {error}") from error
        return self, np.concatenate(parts)

    def facts(self) -> list[tuple[str, str]]:
        """What it tells; see `Source.facts`."""
        producer = f"{self.model.producer_name} {self.model.producer_version}".strip()
        rounding = f" ({self.quantization})" if self.quantization else ""
        return [
            ("file", self.name),
            ("sha256", self.sha256),
            ("producer", producer or "not told"),
            ("opset", str(self.opset)),
            *self._told_inputs(),
            ("batch", "any" if self.batch is None else f"{self.batch} at a time"),
            ("output", described(self.gives)),
            ("classes", str(self.classes or "not told")),
            ("last operator", self.model.graph.node[-1].op_type),
            ("precision", f"{self.precision}{rounding}"),
        ]

    def _told_inputs(self) -> list[tuple[str, str]]:
        if self.texts is None:
            return [("input", described(self.reads)), ("layout", self.layout or "not told")]
        roles = self.texts.roles(self.name, TextInputFile())
        values = {value.name: described(value) for value in self.inputs}
        rows = self.texts.rows.get(roles["tokens"])
        told = [(role, values[own]) for role, own in roles.items()]
        known = ("embeddings", str(rows or "not told"))
        return [*told, known, (TOKENIZER, self.texts.told_tokenizer(self.name))]

    @property
    def inputs(self) -> list[ValueInfoProto]:
        """What it reads, beside its weights."""
        return _inputs(self.model.graph)

    @property
    def opset(self) -> int:
        """The version of ONNX's own operators."""
        return _opset(self.model)

    @property
    def batch(self) -> int | None:
        """How many inputs it is given at once; None where it takes any number.

        Dynamic scales follow all that is in a batch, so that answers would depend on its others.
        """
        told = self.shape[0] if self.shape else None
        return 1 if told is None and (self.alone or self.quantization == "dynamic") else told

    def nodes(self) -> Iterator[NodeProto]:
        """All its nodes, those of functions and inner graphs too."""
        return _nodes(self.model)

    @property
    def precision(self) -> Precision:
        """Arithmetic of its products."""
        if self.quantization is not None:
            return "int8"
        kinds = {
            tensor.data_type for tensor in self.model.graph.initializer if len(tensor.dims) > 1
        }
        return "fp16" if TensorProto.FLOAT16 in kinds else "fp32"

    @property
    def quantization(self) -> Quantization | None:
        """How it rounds to 8 bit; None where it does not."""
        found = {node.op_type for node in self.nodes()}
        return next((kind for name, kind in _ROUNDING.items() if name in found), None)

    def open_graph(self) -> Graph:
        """Open the graph on ONNX Runtime.

        Raises:
            ValueError: it cannot be opened.
        """
        try:
            return open_graph(self.content, "fp32")
        except ArtifactError as error:
            reason = str(error.__cause__ or error).splitlines()[0][:300]
            raise ValueError(f"{self.name} cannot be opened by ONNX Runtime: {reason}") from error


def _depends(run: Callable[[Feed], np.ndarray], feed: Feed) -> bool:
    """Whether inputs are answered otherwise in a batch than alone."""
    together, apart = run(feed), in_batches(run, feed, 1)
    allowed = TOLERANCE * max(1.0, float(np.abs(apart).max()))
    return bool(np.abs(together - apart).max() > allowed)


def _refuse_outside(name: str, model: ModelProto) -> None:
    outside = {
        entry.value
        for tensor in tensors(model)
        for entry in tensor.external_data
        if entry.key == "location"
    }
    if outside:
        files = listed(sorted(Path(each).name for each in outside), _SHOWN)
        raise ValueError(
            f"{name} keeps its weights in other files ({files}): save it as one file first, with "
            f"onnx.save(onnx.load({name!r}), 'whole.onnx')"
        )


def _refuse_operators(name: str, model: ModelProto) -> None:
    own = {(each.domain, each.name) for each in model.functions}
    unknown = {
        f"{node.domain}::{node.op_type}"
        for node in _nodes(model)
        if node.domain not in _DOMAINS and (node.domain, node.op_type) not in own
    }
    if unknown:
        raise ValueError(f"{name} has operators of its own: {listed(sorted(unknown), _SHOWN)}")
    if _opset(model) < _OLDEST:
        raise ValueError(f"{name} must have opset {_OLDEST} or later, got {_opset(model)}")


def _opset(model: ModelProto) -> int:
    versions = (each.version for each in model.opset_import if each.domain in _STANDARD)
    return max(versions, default=0)


def _inputs(graph: GraphProto) -> list[ValueInfoProto]:
    weights = {tensor.name for tensor in graph.initializer}
    return [value for value in graph.input if value.name not in weights]


def _reads_tokens(values: Sequence[ValueInfoProto]) -> bool:
    """Whether one of a graph's inputs are integers, and none has axes that images have."""
    integers = any(value.type.tensor_type.elem_type in INTEGERS for value in values)
    return integers and all(len(_shape(value)) in (0, 2) for value in values)


def _told_of_texts(
    model: ModelProto, inputs: Sequence[ValueInfoProto], folder: Path | None
) -> TextFacts | None:
    """What a graph tells of tokens; None of one that reads none."""
    if not _reads_tokens(inputs):
        return None
    kinds = {value.name: value.type.tensor_type.elem_type for value in inputs}
    tables = {name: [each.rows for each in find_lookups(model, name)] for name in kinds}
    lengths = [length for value in inputs for length in _shape(value)[1:] if length]
    return TextFacts(
        kinds=kinds,
        rows={name: min(rows) for name, rows in tables.items() if rows},
        length=max(lengths, default=None),
        folder=folder,
    )


def _refuse_inputs(name: str, values: Sequence[ValueInfoProto]) -> None:
    if len(values) != 1:
        got = listed([value.name for value in values], _SHOWN) or "none"
        raise ValueError(f"{name} must read one input, images, got {len(values)}: {got}")
    [value] = values
    if value.type.tensor_type.elem_type not in _READS or len(_shape(value)) not in (0, 4):
        raise ValueError(
            f"{name} must read images of four axes, or tokens as integers of two, got "
            f"{described(value)}"
        )


def _single_output(name: str, graph: GraphProto) -> ValueInfoProto:
    if len(graph.output) != 1:
        got = listed([value.name for value in graph.output], _SHOWN)
        raise ValueError(
            f"{name} must be a classifier, which gives one output, got {len(graph.output)}: {got}"
        )
    [value] = graph.output
    shape = _shape(value)
    if len(shape) not in (0, 2) or value.type.tensor_type.elem_type not in _GIVES:
        raise ValueError(
            f"{name} must be a classifier, which gives a score for each class, got "
            f"{described(value)}"
        )
    if len(shape) == 2 and shape[1] == 1:
        raise ValueError(f"{name} must give scores of at least 2 classes, got one score")
    return value


def _nodes(model: ModelProto) -> Iterator[NodeProto]:
    """All nodes, those of functions and inner graphs too."""
    for part in (model.graph, *model.functions):
        yield from _inner_nodes(part.node)


def _inner_nodes(nodes: Iterable[NodeProto]) -> Iterator[NodeProto]:
    for node in nodes:
        yield node
        for attribute in node.attribute:
            for graph in (attribute.g, *attribute.graphs):
                yield from _inner_nodes(graph.node)


def _shape(value: ValueInfoProto) -> list[int | None]:
    dims = value.type.tensor_type.shape.dim
    return [dim.dim_value if dim.dim_value > 0 else None for dim in dims]


def dtype_of(value: ValueInfoProto) -> str:
    """The type of a value, as numpy calls it."""
    return str(helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type))


def described(value: ValueInfoProto) -> str:
    """The name of a value, its axes and its type."""
    kind = TensorProto.DataType.Name(value.type.tensor_type.elem_type).lower()
    return f"{value.name} {axes_of(_shape(value))} {kind}"
