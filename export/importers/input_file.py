"""The input file: how pixels become what an imported graph reads, which no graph tells."""

import json
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from core.names import nearest
from core.yaml import read_yaml
from data.images import ImageSpec, Resample
from export.importers.preprocessor import preprocessor_fields

Channels = Literal["rgb", "bgr", "grey"]
Layout = Literal["nchw", "nhwc"]
Length = Annotated[int, Field(ge=1, le=16384)]
_MAX_BYTES = 100_000
_PROCESSOR = {"image_processor_type", "feature_extractor_type"}

PRESETS: dict[str, dict[str, Any]] = {
    "imagenet": {
        "size": [224, 224],
        "resize": 256,
        "resample": "bilinear",
        "channels": "rgb",
        "range": [0, 1],
        "mean": [0.485, 0.456, 0.406],
        "std": [0.229, 0.224, 0.225],
    },
    "cifar": {
        "size": [32, 32],
        "channels": "rgb",
        "range": [0, 1],
        "mean": [0.4914, 0.4822, 0.4465],
        "std": [0.247, 0.2435, 0.2616],
    },
}
"""Usual inputs by name; `cifar` is that of CIFAR-10."""


def _positive(std: list[float]) -> list[float]:
    if min(std) <= 0:
        raise ValueError(f"std must be above 0, got {std}")
    return std


class InputFile(BaseModel):
    """What an image becomes before the graph reads it, in this order.

    Attributes:
        size: height and width that the graph reads; None takes those that it tells.
        resize: length of the shorter side, of which the middle is cut out; None stretches images.
        resample: how they are resized.
        channels: kind and order of the channels.
        range: the values of black and white.
        mean: subtracted from each channel, in the graph's order.
        std: what each channel is divided by after that.
        layout: order of the graph's axes; None takes the one that it tells.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, strict=True)

    size: Annotated[list[Length], Field(min_length=2, max_length=2)] | None = None
    resize: Length | None = None
    resample: Resample = "bicubic"
    channels: Channels | None = None
    range: Annotated[list[float], Field(min_length=2, max_length=2)] | None = None
    mean: Annotated[list[float], Field(min_length=1, max_length=3)] | None = None
    std: (
        Annotated[list[float], Field(min_length=1, max_length=3), AfterValidator(_positive)] | None
    ) = None
    layout: Layout | None = None

    def spec(self) -> ImageSpec:
        """How images are brought to the graph's size, once the file is complete.

        Raises:
            ValueError: size and resize do not fit together.
        """
        if self.size is None or self.channels is None:
            raise ValueError("size and channels must be known")
        return ImageSpec(
            channels=1 if self.channels == "grey" else 3,
            height=self.size[0],
            width=self.size[1],
            resample=self.resample,
            resize=self.resize,
        )

    def prepare(self, images: np.ndarray, dtype: str) -> np.ndarray:
        """What a model reads, computed in numpy: the independent check of `graph_before`.

        Args:
            images: (B, C, H, W) float32 in [0, 1].
            dtype: what it reads, as numpy calls it.
        """
        low, high = self.range or (0, 1)
        found = images[:, ::-1] if self.channels == "bgr" else images
        found = found * np.float32(high - low) + np.float32(low)
        mean, std = (np.array(each, np.float32) for each in (self.mean or [0], self.std or [1]))
        found = (found - mean.reshape(1, -1, 1, 1)) / std.reshape(1, -1, 1, 1)
        if dtype == "uint8":
            found = np.rint(found)
        if self.layout == "nhwc":
            found = found.transpose(0, 2, 3, 1)
        return np.ascontiguousarray(found, dtype)


def read_input(given: str | None) -> InputFile:
    """Read an input file, or a preset by its name.

    Args:
        given: path of a YAML file, whose `preset` may name one to start from, or of a
            preprocessor_config.json; or the name of a preset; None says nothing.

    Raises:
        ValueError: no such file, or it breaks a rule; the message names the key.
    """
    if given is None:
        return InputFile()
    path = Path(given)
    if not path.is_file():
        if given in PRESETS:
            return InputFile(**PRESETS[given])
        raise ValueError(f"--input must be a file, or {' or '.join(PRESETS)}, got {given[:60]!r}")
    if path.stat().st_size > _MAX_BYTES:
        raise ValueError(f"{path.name} must be at most {_MAX_BYTES} bytes")
    fields = _read(path)
    if _PROCESSOR & set(fields):
        try:
            fields = preprocessor_fields(fields)
        except ValueError as error:
            raise ValueError(f"{path.name}: {error}; write an input file instead") from error
    return _checked(path.name, fields)


def _read(path: Path) -> dict[Any, Any]:
    json_ = path.suffix == ".json"
    try:
        text = path.read_text(encoding="utf-8")
        fields = json.loads(text) if json_ else read_yaml(text) or {}
    except (yaml.YAMLError, ValueError, RecursionError):
        raise ValueError(f"{path.name} must be {'JSON' if json_ else 'YAML'} in UTF-8") from None
    if not isinstance(fields, dict):
        raise ValueError(f"{path.name} must hold keys with values, such as preset: imagenet")
    return fields


def _checked(name: str, fields: dict[Any, Any]) -> InputFile:
    fields = dict(fields)
    preset = fields.pop("preset", None)
    if preset is not None and (not isinstance(preset, str) or preset not in PRESETS):
        raise ValueError(f"{name}: preset must be {' or '.join(PRESETS)}, got {str(preset)[:60]!r}")
    for key in fields:
        if key not in InputFile.model_fields:
            known = ("preset", *InputFile.model_fields)
            raise ValueError(f"{name}: unknown key {str(key)[:60]!r}; {nearest(key, known)}")
    if isinstance(size := fields.get("size"), int):
        fields["size"] = [size, size]
    try:
        return InputFile(**((PRESETS[preset] if preset else {}) | fields))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise ValueError(f"{name}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from None
