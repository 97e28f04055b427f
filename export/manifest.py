"""The manifest: what an artifact says about itself, checked field by field."""

import hashlib
import json
import re
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

from data.images import ImageSpec

SCHEMA_VERSION = 1
MANIFEST = "manifest.json"
ONNX, TORCHSCRIPT = "model.onnx", "model.torchscript.pt"
WEIGHTS, PROBE = "weights.safetensors", "probe.safetensors"
REQUIRED = (ONNX, TORCHSCRIPT, WEIGHTS, PROBE)

# One plain path component: no separator, no drive, no leading dot.
_FILE_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}"
FileName = Annotated[str, StringConstraints(pattern=f"^{_FILE_NAME}$")]
Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([a-z0-9._-]{0,62}[a-z0-9])?$")]
Label = Annotated[str, StringConstraints(min_length=1, max_length=256)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class InputSpec(_Strict):
    """The graph's input: shape (-1, C, H, W), values in `range`."""

    name: Literal["images"] = "images"
    dtype: Literal["float32"] = "float32"
    shape: Annotated[list[int], Field(min_length=4, max_length=4)]
    range: tuple[Literal[0], Literal[1]] = (0, 1)


class OutputSpec(_Strict):
    """The graph's output: shape (-1, K), before softmax."""

    name: Literal["logits"] = "logits"
    dtype: Literal["float32"] = "float32"
    shape: Annotated[list[int], Field(min_length=2, max_length=2)]


class FormatParity(_Strict):
    """How far one exported format is from the eager model.

    Attributes:
        max_abs_diff: largest absolute difference of any logit.
        top1_mismatches: samples whose predicted class differs.
    """

    max_abs_diff: Annotated[float, Field(ge=0)]
    top1_mismatches: Annotated[int, Field(ge=0)]


class Parity(_Strict):
    """Figures of parity, measured at export on `samples` images of `data`."""

    samples: Annotated[int, Field(ge=1)]
    data: str
    tolerance: Annotated[float, Field(gt=0)]
    formats: dict[str, FormatParity]


class Manifest(_Strict):
    """Everything an artifact says about itself; the sha256 of its bytes is the artifact's digest.

    Attributes:
        architecture: the model's name in the catalogue.
        config: its full config.
        labels: names of the classes, in order of index.
        preprocessing: fields of `data.images.ImageSpec`.
        files: sha256 of every file, by name.
        metrics: what training measured.
        training: the resolved recipe, the seed and where the weights came from.
    """

    schema_version: Literal[1] = SCHEMA_VERSION
    name: Name
    version: Name
    architecture: str
    config: dict[str, Any]
    task: Literal["image-classification"] = "image-classification"
    input: InputSpec
    output: OutputSpec
    labels: Annotated[list[Label], Field(min_length=2)]
    preprocessing: dict[str, Any]
    precision: Literal["fp32"] = "fp32"
    files: dict[FileName, Sha256]
    parity: Parity
    metrics: dict[str, Any]
    training: dict[str, Any]

    @model_validator(mode="after")
    def _agree(self) -> Self:
        missing = sorted(set(REQUIRED) - set(self.files))
        if missing:
            raise ValueError(f"files must list {', '.join(REQUIRED)}; missing {', '.join(missing)}")
        if len(set(self.labels)) != len(self.labels):
            raise ValueError("labels must be distinct")
        if self.output.shape != [-1, len(self.labels)]:
            raise ValueError(
                f"output.shape must be [-1, {len(self.labels)}] for these labels, "
                f"got {self.output.shape}"
            )
        spec = self.image_spec()
        expected = [-1, spec.channels, spec.height, spec.width]
        if self.input.shape != expected:
            raise ValueError(
                f"input.shape must be {expected} for this preprocessing, got {self.input.shape}"
            )
        return self

    def image_spec(self) -> ImageSpec:
        """The preprocessing of images.

        Raises:
            ValueError: its fields are unknown, missing or out of range.
        """
        try:
            return ImageSpec(**self.preprocessing)
        except TypeError:
            raise ValueError(
                f"preprocessing must have the fields of an image input, got "
                f"{sorted(self.preprocessing)}"
            ) from None

    def to_json(self) -> str:
        """The text of manifest.json: the same manifest gives the same bytes."""
        return json.dumps(self.model_dump(mode="json"), indent=2, ensure_ascii=False) + "\n"


def config_digest(config: dict[str, Any]) -> str:
    """The sha256 of a config, independent of the order of its keys."""
    text = json.dumps(config, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def is_file_name(name: str) -> bool:
    """Whether a name is one plain path component, as every file of an artifact must have."""
    return re.fullmatch(_FILE_NAME, name) is not None
