"""An ONNX file from elsewhere: what its graph tells of itself, and what is not taken."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from onnx import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, helper

from core.files import sha256
from core.names import listed
from export.graphs import Graph, open_graph
from export.importers.input_file import InputFile, Layout
from runtimes.artifact import ArtifactError, tensors
from runtimes.manifest import Precision, Quantization

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
_CHANNELS = (1, 3)
_SHOWN = 4
_OLDEST = 7  # opset, the first in which tensors broadcast


@dataclass(frozen=True, kw_only=True)
class SourceGraph:
    """A graph with one input of four axes and one output of classes.

    Attributes:
        name: of its file.
        content: of its file.
        model: the same, parsed.
        reads: its input.
        gives: its output.
    """

    name: str
    content: bytes
    model: ModelProto
    reads: ValueInfoProto
    gives: ValueInfoProto

    @property
    def sha256(self) -> str:
        """The digest of its file."""
        return sha256(self.content)

    @property
    def opset(self) -> int:
        """The version of ONNX's own operators."""
        return _opset(self.model)

    @property
    def dtype(self) -> str:
        """What it reads, as numpy calls it."""
        kind = self.reads.type.tensor_type.elem_type
        return str(helper.tensor_dtype_to_np_dtype(kind))

    @property
    def shape(self) -> list[int | None]:
        """The length of its input's axes, None where it takes any; none where it does not say."""
        return _shape(self.reads)

    @property
    def batch(self) -> int | None:
        """How many inputs it is given at once; None where it takes any number.

        Dynamic scales follow all that is in a batch, so that answers would depend on its others.
        """
        told = self.shape[0] if self.shape else None
        return 1 if told is None and self.quantization == "dynamic" else told

    @property
    def layout(self) -> Layout | None:
        """The order of its axes; None where both are possible."""
        first, last = (self.shape[axis] in _CHANNELS for axis in (1, -1)) if self.shape else (0, 0)
        if bool(first) == bool(last):
            return None
        return "nchw" if first else "nhwc"

    @property
    def classes(self) -> int | None:
        """How many scores it gives, where it says so."""
        shape = _shape(self.gives)
        return shape[1] if len(shape) == 2 else None

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

    def open(self) -> Graph:
        """Open the graph on ONNX Runtime.

        Raises:
            ValueError: it cannot be opened.
        """
        try:
            return open_graph(self.content, "fp32")
        except ArtifactError as error:
            reason = str(error.__cause__ or error).splitlines()[0][:300]
            raise ValueError(f"{self.name} cannot be opened by ONNX Runtime: {reason}") from error

    def complete(self, given: InputFile) -> InputFile:
        """An input file with what the graph tells.

        Raises:
            ValueError: the two contradict each other, or neither tells what is needed; the message
                names the keys.
        """
        layout = given.layout or self.layout
        missing = self.missing(given)
        if missing:
            raise ValueError(
                f"{self.name} does not tell {', '.join(missing)}: say so with --input "
                "(imagenet, cifar, or a YAML file with these keys)"
            )
        if self.dtype == "uint8" and (
            given.mean or given.std or given.range not in (None, [0, 255])
        ):
            raise ValueError(f"{self.name} reads uint8: range is [0, 255], without mean and std")
        axes = (1, 2, 3) if layout == "nchw" else (3, 1, 2)
        channels, height, width = (self.shape[axis] if self.shape else None for axis in axes)
        kind = given.channels or ("grey" if channels == 1 else "rgb")
        size = given.size or [int(height or 0), int(width or 0)]
        complete = given.model_copy(
            update={
                "layout": layout,
                "channels": kind,
                "size": size,
                "range": given.range or [0.0, 255.0],
            }
        )
        wanted = [1 if kind == "grey" else 3, *size]
        known = [channels, height, width]
        if any(axis not in (None, own) for axis, own in zip(known, wanted, strict=True)):
            got = f"channels {kind}, size {size}"
            raise ValueError(f"{self.name} reads {_axes(self.shape)}; the input file says {got}")
        for key in ("mean", "std"):
            values = getattr(complete, key)
            if values is not None and len(values) != wanted[0]:
                raise ValueError(f"{key} must have {wanted[0]} values, got {len(values)}")
        complete.spec()
        return complete

    def missing(self, given: InputFile) -> list[str]:
        """The keys of an input file that neither it nor the graph tells."""
        layout = given.layout or self.layout
        found = [] if layout else ["layout"]
        axes = (1, 2, 3) if layout == "nchw" else (3, 1, 2)
        known = [self.shape[axis] if self.shape else None for axis in axes]
        if given.channels is None and (layout is None or known[0] is None):
            found.append("channels")
        if given.size is None and (layout is None or None in known[1:]):
            found.append("size")
        if given.range is None and self.dtype != "uint8":
            found.append("range (with mean and std, if it has any)")
        return found


def open_source(path: Path) -> SourceGraph:
    """Read an ONNX file.

    Raises:
        ValueError: it cannot be read, or is no classifier of images; one sentence says why.
    """
    if not path.is_file():
        raise ValueError(f"{path.name} must be an ONNX file: there is no such file")
    if path.stat().st_size > _MAX_BYTES:
        raise ValueError(f"{path.name} must be smaller than 2 GB, which is all that ONNX can hold")
    content, model = path.read_bytes(), ModelProto()
    try:
        model.ParseFromString(content)
    except Exception:  # protobuf's C and Python parsers raise different, private types
        raise ValueError(f"{path.name} is no ONNX file, or was cut short") from None
    if not model.graph.node or not model.opset_import:
        raise ValueError(f"{path.name} is no ONNX file: it holds no graph")
    _refuse_outside(path.name, model)
    _refuse_operators(path.name, model)
    reads, gives = _single_input(path.name, model.graph), _single_output(path.name, model.graph)
    return SourceGraph(name=path.name, content=content, model=model, reads=reads, gives=gives)


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


def _single_input(name: str, graph: GraphProto) -> ValueInfoProto:
    weights = {tensor.name for tensor in graph.initializer}
    values = [value for value in graph.input if value.name not in weights]
    if len(values) != 1:
        got = listed([value.name for value in values], _SHOWN) or "none"
        raise ValueError(f"{name} must read one input, images, got {len(values)}: {got}")
    [value] = values
    if value.type.tensor_type.elem_type not in _READS or len(_shape(value)) not in (0, 4):
        raise ValueError(f"{name} must read images of four axes, got {described(value)}")
    return value


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


def _axes(shape: list[int | None]) -> str:
    return "(" + ", ".join("any" if length is None else str(length) for length in shape) + ")"


def described(value: ValueInfoProto) -> str:
    """The name of a value, its axes and its type."""
    kind = TensorProto.DataType.Name(value.type.tensor_type.elem_type).lower()
    return f"{value.name} {_axes(_shape(value))} {kind}"
