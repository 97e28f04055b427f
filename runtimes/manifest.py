"""The manifest: what an artifact says about itself, checked field by field."""

import json
import re
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    model_validator,
)

from core.files import sha256
from data.images import ImageSpec
from runtimes.tasks import IMAGES, TASKS, Reads, Task

SCHEMA_VERSION = 1
MANIFEST = "manifest.json"
ONNX, TORCHSCRIPT, PROGRAM = "model.onnx", "model.torchscript.pt", "model.pt2"
WEIGHTS, PROBE, TOKENIZER = "weights.safetensors", "probe.safetensors", "tokenizer.json"
BEFORE, AFTER, GRADIENT = "before.onnx", "after.onnx", "gradient.onnx"
REQUIRED = (ONNX, TORCHSCRIPT, WEIGHTS, PROBE)
IMPORTED = (BEFORE, ONNX, AFTER, PROBE)
RANDOM, RANDOM_TOKENS = "random pixels", "random tokens"
"""What an import compares on where it is given no data."""
Precision = Literal["fp32", "fp16", "bf16", "int8"]
Quantization = Literal["static", "dynamic"]
SourceFormat = Literal["onnx", "program", "callable", "huggingface"]

# One plain path component: no separator, no drive, no leading dot.
_FILE_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}"
Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([a-z0-9._-]{0,62}[a-z0-9])?$")]
Label = Annotated[str, StringConstraints(min_length=1, max_length=256)]
_Spec = TypeVar("_Spec")


def _plain_names(files: dict[str, str]) -> dict[str, str]:
    for name in files:
        if not re.fullmatch(_FILE_NAME, name):
            raise ValueError(f"files must have plain names, got {name!r}")
    return files


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class TextSpec:
    """The input of a text model: tokens after the first `max_len` of a text are cut off."""

    max_len: int

    def __post_init__(self) -> None:
        """Check the rule."""
        if not isinstance(self.max_len, int) or self.max_len < 1:
            raise ValueError(f"max_len must be an integer >= 1, got {self.max_len!r}")


class InputSpec(_Strict):
    """The input of an image graph: shape (-1, C, H, W), values in `range`."""

    name: Literal["images"] = "images"
    dtype: Literal["float32"] = "float32"
    shape: Annotated[list[int], Field(min_length=4, max_length=4)]
    range: tuple[Literal[0], Literal[1]] = (0, 1)


class TokensSpec(_Strict):
    """The inputs of a text graph: token ids in `range` and their mask, both of shape (-1, -1).

    `mask` names the second one: bool, True for real tokens.
    """

    name: Literal["tokens"] = "tokens"
    dtype: Literal["int64"] = "int64"
    shape: tuple[Literal[-1], Literal[-1]] = (-1, -1)
    range: tuple[Literal[0], Annotated[int, Field(ge=0)]]
    mask: Literal["mask"] = "mask"


class OutputSpec(_Strict):
    """The graph's output, before softmax; its shape is that of `TASKS`, -1 where it is free."""

    name: Literal["logits"] = "logits"
    dtype: Literal["float32"] = "float32"
    shape: Annotated[list[int], Field(min_length=2, max_length=4)]


class FormatParity(_Strict):
    """How far one exported format is from the eager model.

    Attributes:
        max_abs_diff: largest absolute difference of any logit.
        top1_mismatches: samples whose predicted class differs; of a segmentation, those of which
            more than 0.5 % of the pixels have another class.
        precision: arithmetic of the format.
        runtime: the one that it was measured on; the first artifacts do not say.
        accuracy: share of correct answers, where the samples have labels; of a segmentation the
            mean over images of the share of their pixels.
    """

    max_abs_diff: Annotated[float, Field(ge=0)]
    top1_mismatches: Annotated[int, Field(ge=0)]
    precision: Precision = "fp32"
    runtime: str | None = None
    accuracy: Annotated[float, Field(ge=0, le=1)] | None = None


class Parity(_Strict):
    """Figures of parity, measured at export on `samples` inputs of `data`.

    Attributes:
        samples: number of inputs.
        data: what they are.
        tolerance: largest difference of a logit that fp32 formats may have.
        accuracy: of the eager model, where the samples have labels.
        formats: figures by file.
    """

    samples: Annotated[int, Field(ge=1)]
    data: str
    tolerance: Annotated[float, Field(gt=0)]
    accuracy: Annotated[float, Field(ge=0, le=1)] | None = None
    formats: dict[str, FormatParity]


class Gradients(_Strict):
    """How well the differentiable copy of an imported graph does for it.

    Attributes:
        samples: inputs that both have answered.
        data: what they are.
        agreement: share of them with one class.
        max_abs_diff: largest absolute difference of any logit.
        promise_error: how far the gradient is off what the served graph does along random
            directions: the norm of the differences, relative to that of what was promised. Where
            that rounds to 8 bit, off what the copy does.
    """

    samples: Annotated[int, Field(ge=1)]
    data: str
    agreement: Annotated[float, Field(ge=0, le=1)]
    max_abs_diff: Annotated[float, Field(ge=0)]
    promise_error: Annotated[float, Field(ge=0)]


class Source(_Strict):
    """Where an imported model comes from, and how its graph is asked.

    Attributes:
        file: its name when it was imported.
        format: an ONNX file, a program of torch.export, a Python function or a folder of
            Hugging Face's; the last three are exported to ONNX.
        sha256: of its bytes, those of an ONNX file are the graph of the artifact, unchanged; of a
            function those of its module; of a folder those of its files' digests, one a line.
        batch: inputs that the graph takes at once; None where it takes any number.
        input: the input file, complete: how pixels or tokens become what the graph reads.
        scores: what the graph gives.
        gradients: how well its differentiable copy does; None without one.
        blind: why there is none.
    """

    file: Annotated[str, Field(min_length=1, max_length=256)]
    format: SourceFormat = "onnx"
    sha256: Sha256
    batch: Annotated[int, Field(ge=1)] | None = None
    input: dict[str, Any]
    scores: Literal["logits", "probabilities"]
    gradients: Gradients | None = None
    blind: str | None = None


class Manifest(_Strict):
    """Everything an artifact says about itself; the sha256 of its bytes is the artifact's digest.

    Attributes:
        architecture: the model's name in the catalog; None of an imported one.
        config: its full config; empty of an imported one.
        source: of an imported model; None of one that was trained here.
        labels: names of the classes, in order of index; none of a language model.
        preprocessing: fields of `data.images.ImageSpec`, or of `TextSpec`.
        precision: arithmetic of the ONNX graph; every other format is fp32.
        quantization: how an int8 graph rounds what flows through it, with scales of calibration or
            of each input; None in any other precision.
        files: sha256 of every file, by name.
        metrics: what training measured.
        training: the resolved recipe, the seed and where the weights came from; empty of an
            imported model.
    """

    schema_version: Literal[1] = SCHEMA_VERSION
    name: Name
    version: Name
    architecture: str | None = None
    config: dict[str, Any] = {}
    source: Source | None = None
    task: Task = IMAGES
    input: Annotated[InputSpec | TokensSpec, Field(discriminator="name")]
    output: OutputSpec
    labels: list[Label]
    preprocessing: dict[str, Any]
    precision: Precision = "fp32"
    quantization: Quantization | None = None
    files: Annotated[dict[str, Sha256], AfterValidator(_plain_names)]
    parity: Parity
    metrics: dict[str, Any]
    training: dict[str, Any] = {}

    @model_validator(mode="after")
    def _agree(self) -> Self:
        task, text = TASKS[self.task], self.reads == "texts"
        required = REQUIRED if self.source is None else IMPORTED
        required = (*required, TOKENIZER) if text else required
        missing = sorted(set(required) - set(self.files))
        if missing:
            raise ValueError(f"files must list {', '.join(required)}; missing {', '.join(missing)}")
        self._check_origin()
        if len(set(self.labels)) != len(self.labels):
            raise ValueError("labels must be distinct")
        if (len(self.labels) < 2) if task.labeled else self.labels:
            rule = "name at least 2 classes" if task.labeled else f"be empty for a {task.title}"
            raise ValueError(f"labels must {rule}, got {self.labels[:2]}")
        shape, tokens = self.output.shape, self.input.range[1] + 1
        expected = task.output_shape(len(self.labels), self.input.shape, int(tokens))
        if shape != expected:
            raise ValueError(f"output.shape must be {expected} for these labels, got {shape}")
        if (self.quantization is not None) != (self.precision == "int8"):
            got = f"{self.quantization} for {self.precision}"
            raise ValueError(f"quantization must be given for int8 alone, got {got}")
        (self._check_text if text else self._check_images)()
        return self

    def _check_origin(self) -> None:
        if self.source is None and self.architecture is None:
            raise ValueError("architecture must be given without a source")
        if self.source is None:
            return
        if self.architecture is not None or self.config or self.training:
            raise ValueError("source must be given without architecture, config and training")
        if (GRADIENT in self.files) != self.gradients:
            raise ValueError(f"source.gradients must be given with {GRADIENT} alone")
        if self.source.format == "onnx" and self.files[ONNX] != self.source.sha256:
            raise ValueError(f"source.sha256 must be that of {ONNX}")

    def _check_images(self) -> None:
        spec = self.image_spec
        expected = [-1, spec.channels, spec.height, spec.width]
        got = self.input.shape
        if self.input.name != "images" or got != expected:
            raise ValueError(f"input.shape must be {expected} for this preprocessing, got {got}")

    def _check_text(self) -> None:
        longest = self.text_spec.max_len
        if self.input.name != "tokens":
            raise ValueError(f"input.name must be 'tokens' for {self.task}, got {self.input.name}")
        if self.source is not None:
            return
        seq_len = self.config.get("seq_len")
        if not isinstance(seq_len, int) or longest > seq_len:
            raise ValueError(f"max_len must be at most seq_len {seq_len}, got {longest}")
        if self.input.range[1] + 1 != self.config.get("vocab_size"):
            raise ValueError(f"input.range must be that of the vocabulary, got {self.input.range}")

    @property
    def reads(self) -> Reads:
        """What goes into the model."""
        return TASKS[self.task].reads

    @property
    def kind(self) -> str:
        """The architecture, or what was imported, in words."""
        return self.architecture or f"imported {self.source.file if self.source else 'model'}"

    @property
    def gradients(self) -> bool:
        """Whether there is a differentiable model, so that attacks can follow gradients."""
        return self.source is None or self.source.gradients is not None

    @property
    def provable(self) -> bool:
        """Whether some proof knows the model: a TransJect with mean pooling, in fp32.

        Of images patches must not see each other. `models.analysis` says why others are not known.
        """
        given = {"pooling": None, "towers": 1} | self.config
        known = given["pooling"] == "mean" and given["towers"] == 1 and self.precision == "fp32"
        return "random_eigenvalues" in given and known and ("img_size" not in given or self._apart)

    @property
    def readable_graph(self) -> bool:
        """Whether proofs can read the served graph: its rounding is bounded in fp32 alone."""
        return self.precision == "fp32"

    @property
    def token_wise(self) -> bool:
        """Whether some proof knows the model, and no token sees another one."""
        return self.provable and self._apart

    @property
    def _apart(self) -> bool:
        return bool(self.config["random_eigenvalues"]) and self.config["num_experts"] == 1

    @property
    def batch(self) -> int | None:
        """Inputs that the graph takes at once; None where it takes any number."""
        return self.source.batch if self.source else None

    @property
    def seq_len(self) -> int:
        """Tokens that the graph of a text model takes at most."""
        return int(self.config.get("seq_len", self.text_spec.max_len))

    @cached_property
    def image_spec(self) -> ImageSpec:  # asked for by every request
        """The preprocessing of images; a ValueError for fields against its rules."""
        return self._spec(ImageSpec, "an image input")

    @cached_property
    def text_spec(self) -> TextSpec:
        """The preprocessing of texts; a ValueError for fields against its rules."""
        return self._spec(TextSpec, "a text input")

    def _spec(self, kind: type[_Spec], what: str) -> _Spec:
        try:
            return kind(**self.preprocessing)
        except TypeError:
            got = sorted(self.preprocessing)
            raise ValueError(f"preprocessing must have the fields of {what}, got {got}") from None

    def to_json(self) -> str:
        """The text of manifest.json: the same manifest gives the same bytes."""
        return json.dumps(self.model_dump(mode="json"), indent=2, ensure_ascii=False) + "\n"


def config_digest(config: dict[str, Any]) -> str:
    """The sha256 of a config, independent of the order of its keys."""
    text = json.dumps(config, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return sha256(text.encode())
