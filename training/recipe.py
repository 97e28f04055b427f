"""Recipes: what to train, in YAML, strict about every key."""

import dataclasses
import difflib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

import models
from data.images import ImageSpec
from robustness.spec import parse_eps


@dataclass(frozen=True, slots=True, kw_only=True)
class DataRecipe:
    """What to read.

    Attributes:
        source: see `data.sources.open_images`.
        valid: images held out of the training split for validation.
        image: size and channels of the input.
        flip: mirror half of the training images.
        shift: move training images by up to this many pixels each way.
    """

    source: str
    valid: int
    image: ImageSpec
    flip: bool = False
    shift: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainRecipe:
    """How to train: AdamW, linear warm-up, cosine decay to zero.

    Attributes:
        epochs: passes over the training split.
        batch_size: images per step.
        lr: peak learning rate.
        warmup_epochs: epochs of linear warm-up.
        weight_decay: AdamW's decay, on matrices only.
        clip_norm: largest norm of the gradient.
        patience: stop after this many epochs without a better validation score.
        restarts: epochs at which the cosine starts again without warm-up (SGDR: Loshchilov and
            Hutter 2017), in ascending order.
        restart_decay: factor of the peak learning rate at each restart.
    """

    epochs: int
    batch_size: int = 128
    lr: float = 1e-3
    warmup_epochs: float = 1.0
    weight_decay: float = 0.05
    clip_norm: float = 1.0
    patience: int = 5
    restarts: tuple[int, ...] = ()
    restart_decay: float = 0.5

    def __post_init__(self) -> None:
        """Check every rule, naming the field and the value received."""
        object.__setattr__(self, "restarts", tuple(self.restarts))
        bounds = (0, *self.restarts, self.epochs)
        if self.restarts and sorted(set(bounds)) != list(bounds):
            raise ValueError(f"restarts must ascend between 0 and epochs, got {self.restarts}")
        for name in ("epochs", "batch_size", "patience"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in ("lr", "clip_norm", "restart_decay"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be positive, got {getattr(self, name)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class AdversarialRecipe:
    """Train on the worst images of an l-infinity ball; radius and step size in [0, 1] pixels."""

    eps: float
    alpha: float
    steps: int

    def __post_init__(self) -> None:
        """Read `8/255` as a number and check the rules."""
        for name in ("eps", "alpha"):
            radius = parse_eps(str(getattr(self, name)), name=name)
            object.__setattr__(self, name, radius)
        if self.steps < 1:
            raise ValueError(f"steps must be at least 1, got {self.steps}")


@dataclass(frozen=True, slots=True, kw_only=True)
class DistillationRecipe:
    """Learn from a convolutional teacher, trained first, beside the labels.

    Attributes:
        teacher_epochs: how long the teacher is trained.
        start: epoch from which the student hears it.
        weight: share of the teacher's opinion in the loss, in (0, 1].
        temperature: softens both opinions.
    """

    teacher_epochs: int
    start: int = 0
    weight: float = 0.5
    temperature: float = 1.0

    def __post_init__(self) -> None:
        """Check every rule, naming the field and the value received."""
        if self.teacher_epochs < 1:
            raise ValueError(f"teacher_epochs must be at least 1, got {self.teacher_epochs}")
        if not 0 < self.weight <= 1:
            raise ValueError(f"weight must lie in (0, 1], got {self.weight}")
        if self.temperature <= 0:
            raise ValueError(f"temperature must be positive, got {self.temperature}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """A classifier to train.

    Attributes:
        name: name of the run and of its artifact.
        version: version of the artifact.
        seed: seed of weights, order, augmentation and the validation split.
        labels: names of the classes in order of index.
        model: `name` and config fields; resolved to the full config when read.
        data: what to read.
        train: how to train.
        distillation: a teacher to learn from; None learns from labels alone.
        adversarial: how to attack each training batch; None trains on clean images.
        init: weights to start from (safetensors); None starts from random ones.
    """

    name: str
    version: str = "1"
    seed: int = 0
    labels: list[str]
    model: dict[str, Any]
    data: DataRecipe
    train: TrainRecipe
    distillation: DistillationRecipe | None = None
    adversarial: AdversarialRecipe | None = None
    init: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """The resolved recipe as YAML values."""
        return _plain(dataclasses.asdict(self))


def read_recipe(path: Path, overrides: list[str] | None = None) -> Recipe:
    """Read a recipe file and apply `key=value` overrides such as `train.epochs=1`.

    Raises:
        ValueError: the file is no YAML mapping, a key is unknown or missing, or a value breaks a
            rule; the message names the nearest known key.
    """
    try:
        content = yaml.safe_load(path.read_text())
    except (yaml.YAMLError, OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not a readable YAML file: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} must hold a mapping, got {type(content).__name__}")
    for override in overrides or []:
        _override(content, override)
    return parse_recipe(content)


def parse_recipe(content: dict[str, Any]) -> Recipe:
    """Check the values of a recipe and resolve its model to the full config.

    Raises:
        ValueError: see `read_recipe`.
    """
    content = dict(content)
    data = dict(_section(content, "data"))
    data["image"] = _make(ImageSpec, _section(data, "image"), "data.image.")
    content["data"] = _make(DataRecipe, data, "data.")
    content["train"] = _make(TrainRecipe, _section(content, "train"), "train.")
    optional = {"distillation": DistillationRecipe, "adversarial": AdversarialRecipe}
    for key, kind in optional.items():
        if content.get(key) is not None:
            content[key] = _make(kind, _section(content, key), f"{key}.")
    model = dict(_section(content, "model"))
    name = model.pop("name", "")
    try:
        content["model"] = {"name": name, **dataclasses.asdict(models.config(name, **model))}
    except TypeError as error:
        raise ValueError(f"model holds a value of a wrong type: {error}") from None
    recipe = _make(Recipe, content, "")
    if len(recipe.labels) != recipe.model["num_classes"]:
        raise ValueError(
            f"labels must name every class of the model: {len(recipe.labels)} labels, "
            f"num_classes={recipe.model['num_classes']}"
        )
    return recipe


def _section(content: dict[str, Any], key: str) -> dict[str, Any]:
    value = content.get(key)
    if not isinstance(value, dict):
        raise ValueError(f"{key} must be a mapping, got {value!r}")
    return value


def _make(kind: type[Any], values: dict[str, Any], prefix: str) -> Any:
    fields = {item.name: item for item in dataclasses.fields(kind)}
    for key in values:
        if key not in fields:
            close = difflib.get_close_matches(key, fields, n=1)
            hint = f"did you mean {prefix}{close[0]}?" if close else f"known: {', '.join(fields)}"
            raise ValueError(f"unknown key {prefix}{key}; {hint}")
    try:
        return kind(**values)
    except TypeError as error:
        raise ValueError(f"{prefix or 'recipe '}{error}") from None
    except ValueError as error:
        raise ValueError(f"{prefix}{error}") from None


def _override(content: dict[str, Any], text: str) -> None:
    path, equals, value = text.partition("=")
    if not equals:
        raise ValueError(f"an override must look like key=value, got {text!r}")
    *parents, key = path.split(".")
    for parent in parents:
        content = content.setdefault(parent, {})
        if not isinstance(content, dict):
            raise ValueError(f"{parent} in {path} is no section")
    try:
        content[key] = yaml.safe_load(value)
    except yaml.YAMLError:
        raise ValueError(f"the value of {path} must be YAML, got {value!r}") from None


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value
