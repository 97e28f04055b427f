"""Read the folder that a training run leaves behind."""

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from safetensors import SafetensorError
from safetensors.torch import load
from torch import nn

import models
from core.yaml import read_yaml
from data.images import ImageSpec
from runtimes.manifest import TOKENIZER, TextSpec
from runtimes.tasks import IMAGES, LANGUAGE, MASKS, TEXTS, Task

RECIPE, METRICS, BEST = "recipe.yaml", "metrics.json", "best.safetensors"


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A finished run: its resolved recipe, and what training measured.

    Attributes:
        architecture: the model's name in the catalog.
        config: the model's full config, as JSON values.
        labels: names of the classes, in order of index.
        spec: the input that the model was trained on.
    """

    folder: Path
    recipe: dict[str, Any]
    metrics: dict[str, Any]
    architecture: str
    config: dict[str, Any]
    labels: list[str]
    spec: ImageSpec | TextSpec

    @property
    def name(self) -> str:
        """Name of the model."""
        return str(self.recipe["name"])

    @property
    def version(self) -> str:
        """Version of the model."""
        return str(self.recipe["version"])

    @property
    def seed(self) -> int:
        """Seed of the run, and of its validation split."""
        return int(self.recipe["seed"])

    @property
    def task(self) -> Task:
        """What the model does; of a segmentation the recipe names the background, if any."""
        if isinstance(self.spec, TextSpec):
            return LANGUAGE if "context" in self.recipe["data"] else TEXTS
        return MASKS if "background" in self.recipe["data"] else IMAGES

    @property
    def weights(self) -> Path:
        """The weights of the best epoch."""
        return self.folder / BEST

    @property
    def source(self) -> str:
        """What it was trained on: the name of a data set, without folders of this machine."""
        text = str(self.recipe["data"]["source"])
        return text if text.startswith("hf:") else Path(text).name


def open_run(folder: Path) -> Run:
    """Read a run's recipe and metrics.

    Raises:
        ValueError: no finished run, one that was not tested yet, or a recipe without one of the
            keys that an artifact needs.
    """
    for name in (RECIPE, METRICS, BEST):
        if not (folder / name).is_file():
            raise ValueError(f"{folder} holds no finished run: {name} is missing")
    try:
        recipe = read_yaml((folder / RECIPE).read_text(encoding="utf-8"))
        metrics = json.loads((folder / METRICS).read_text(encoding="utf-8"))
    except (yaml.YAMLError, ValueError) as error:
        raise ValueError(f"{folder} holds a broken {RECIPE} or {METRICS}: {error}") from None
    if not isinstance(metrics, dict) or "test_accuracy" not in metrics:
        raise ValueError(f"{folder} holds no finished run: {METRICS} has no test_accuracy yet")
    try:
        _require_keys(recipe)
        overrides = dict(recipe["model"])
        architecture = overrides.pop("name")
        config = models.config(architecture, **overrides)
        return Run(
            folder=folder,
            recipe=recipe,
            metrics=metrics,
            architecture=architecture,
            # Through JSON, so that tuples compare equal to what a manifest holds.
            config=json.loads(json.dumps(dataclasses.asdict(config))),
            labels=[str(label) for label in recipe["labels"]],
            spec=_spec(folder, recipe["data"]),
        )
    except (KeyError, TypeError) as error:
        raise ValueError(f"{RECIPE} lacks what an artifact needs: {error}") from None


def _spec(folder: Path, data: dict[str, Any]) -> ImageSpec | TextSpec:
    if "image" in data:
        return ImageSpec(**data["image"])
    if "tokenizer" not in data:
        raise ValueError(f"{folder} must be a run on images or on texts to become an artifact")
    if not (folder / TOKENIZER).is_file():
        raise ValueError(f"{folder} holds no finished run: {TOKENIZER} is missing")
    return TextSpec(max_len=data["context" if "context" in data else "max_len"])


def _require_keys(recipe: dict[str, Any]) -> None:
    """Raise KeyError now for what `Run` and `open_samples` read from the recipe later."""
    for key in ("name", "version", "seed"):
        recipe[key]
    for key in ("source", "valid"):
        recipe["data"][key]


def load_model(run: Run, weights: bytes) -> nn.Module:
    """Build the run's model with the bytes of a safetensors file, in eval mode.

    Raises:
        ValueError: the weights do not fit.
    """
    model = models.build(run.architecture, **run.config)
    try:
        model.load_state_dict(load(weights), strict=True)
    except (SafetensorError, RuntimeError) as error:
        raise ValueError(f"{BEST} does not fit {run.architecture}: {error}") from error
    return model.eval().requires_grad_(False)
