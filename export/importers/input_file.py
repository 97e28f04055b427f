"""The input file: how pixels become what an imported graph reads, which no graph tells."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

import numpy as np
import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
)

from core.names import broken_rules, nearest
from core.yaml import read_yaml
from data.images import ImageSpec, Resample
from data.sources import load_pixels, open_images
from export.importers.preprocessor import preprocessor_fields
from export.parity import MIN_SAMPLES
from export.samples import Feed, Samples, spread
from runtimes.manifest import RANDOM, InputSpec
from runtimes.probe import PROBE_SAMPLES

Channels = Literal["rgb", "bgr", "grey"]
Layout = Literal["nchw", "nhwc"]
Length = Annotated[int, Field(ge=1, le=16384)]
Keys = TypeVar("Keys", bound="InputKeys")
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


def _square(size: Any) -> Any:
    return [size, size] if isinstance(size, int) else size


class InputKeys(BaseModel):
    """What every input file is made of."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, strict=True)

    def keys(self) -> dict[str, Any]:
        """Its keys with their values."""
        return self.model_dump(mode="json")

    def beside(self, folder: Path) -> Self:
        """The same for a file in this folder."""
        del folder
        return self


class InputFile(InputKeys):
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

    size: (
        Annotated[list[Length], BeforeValidator(_square), Field(min_length=2, max_length=2)] | None
    ) = None
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

    def prepare(self, feed: Feed, kinds: Mapping[str, str]) -> Feed:
        """What a model reads, computed in numpy: the independent check of `graph_before`.

        Args:
            feed: `images` (B, C, H, W) float32 in [0, 1].
            kinds: the type of the model's input by its name, as numpy calls it.
        """
        [(name, dtype)], images = kinds.items(), feed["images"]
        low, high = self.range or (0, 1)
        found = images[:, ::-1] if self.channels == "bgr" else images
        found = found * np.float32(high - low) + np.float32(low)
        mean, std = (np.array(each, np.float32) for each in (self.mean or [0], self.std or [1]))
        found = (found - mean.reshape(1, -1, 1, 1)) / std.reshape(1, -1, 1, 1)
        if dtype == "uint8":
            found = np.rint(found)
        if self.layout == "nhwc":
            found = found.transpose(0, 2, 3, 1)
        return {name: np.ascontiguousarray(found, dtype)}

    def recorded(self) -> dict[str, Any]:
        """What a manifest says of what is read."""
        image = self.spec()
        shape = [-1, image.channels, image.height, image.width]
        return {"input": InputSpec(shape=shape), "preprocessing": image.to_dict()}

    def files(self) -> dict[str, bytes]:
        """What an artifact needs to read inputs, by name."""
        return {}

    def samples(self, labels: Sequence[str], data: str | None) -> Samples:
        """Images of the data, evenly spread, or random ones: of every brightness and contrast.

        Raises:
            ValueError: the data cannot be read, or hold other classes.
        """
        spec = self.spec()
        if data is not None:
            images = open_images(data, label_names=labels)
            images = images.take(spread(len(images), MIN_SAMPLES))
            name = data if data.startswith("hf:") else Path(data).name
            return Samples(inputs=load_pixels(images, spec), labels=images.labels, description=name)
        random = np.random.default_rng(0)
        mean, contrast = (random.random((PROBE_SAMPLES, spec.channels, 1, 1)) for _ in range(2))
        noise = random.random((PROBE_SAMPLES, spec.channels, spec.height, spec.width)) - 0.5
        pixels = np.rint((mean + contrast * noise).clip(0, 1) * 255).astype(np.uint8)
        return Samples(inputs=pixels, labels=None, description=RANDOM)


def read_input(given: str | None, kind: type[Keys] = InputFile) -> Keys:
    """Read an input file, or a preset by its name.

    Args:
        given: path of a YAML file, whose `preset` may name one to start from, or of a
            preprocessor_config.json; or the name of a preset; None says nothing.
        kind: for images, or for texts, which have no presets.

    Raises:
        ValueError: no such file, or it breaks a rule; the message names the key.
    """
    if given is None:
        return kind()
    path, presets = Path(given), PRESETS if kind is InputFile else {}
    if not path.is_file():
        if given in presets:
            return kind(**presets[given])
        wanted = ", or ".join(["a file", " or ".join(presets)] if presets else ["a file"])
        raise ValueError(f"--input must be {wanted}, got {given[:60]!r}")
    if path.stat().st_size > _MAX_BYTES:
        raise ValueError(f"{path.name} must be at most {_MAX_BYTES} bytes")
    fields = _read(path)
    if _PROCESSOR & set(fields):
        try:
            fields = preprocessor_fields(fields)
        except ValueError as error:
            raise ValueError(f"{path.name}: {error}; write an input file instead") from error
    fields = _from_preset(path.name, fields, presets)
    return _checked(path.name, fields, kind).beside(path.parent)


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


def _from_preset(
    name: str, fields: dict[Any, Any], presets: Mapping[str, dict[str, Any]]
) -> dict[Any, Any]:
    """The fields, with those of the preset that they name."""
    if not presets or (preset := fields.get("preset")) is None:
        return fields
    if not isinstance(preset, str) or preset not in presets:
        wanted = " or ".join(presets)
        raise ValueError(f"{name}: preset must be {wanted}, got {str(preset)[:60]!r}")
    return presets[preset] | {key: value for key, value in fields.items() if key != "preset"}


def _checked(name: str, fields: Mapping[Any, Any], kind: type[Keys]) -> Keys:
    known = kind.model_fields
    for key in fields:
        if key not in known:
            every = ("preset", *known) if kind is InputFile else tuple(known)
            raise ValueError(f"{name}: unknown key {str(key)[:60]!r}; {nearest(key, every)}")
    try:
        return kind(**fields)
    except ValidationError as error:
        [(field, rule), *_] = broken_rules(error)
        raise ValueError(f"{name}: {field}: {rule}") from None
