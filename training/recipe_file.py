"""Read recipes from YAML: strict keys, variants, sizes and `key=value` overrides.

A file describes one task. `variants` holds what sets its models apart, `sizes` what scales them, in
mappings that are laid over the rest of the file; a variant may bring sizes of its own:

    name: imdb
    train: {epochs: 30}
    variants:
      transject: {model: {name: transject}}
      transformer: {model: {name: transformer}}
    sizes:
      small: {train: {epochs: 2}}

`variant=transject size=small` chooses among them. The name of a run is then `imdb-transject`.
"""

import dataclasses
from pathlib import Path
from typing import Any

import yaml

import models
from core.names import nearest
from core.yaml import read_yaml
from data.images import ImageSpec
from data.masks import KNOWN_MASKS
from data.sources import KNOWN, KNOWN_TEXTS
from training.recipe import (
    AdversarialRecipe,
    DataRecipe,
    DistillationRecipe,
    ImageData,
    LanguageData,
    MaskData,
    Recipe,
    TextData,
    TokenData,
    TrainRecipe,
)


def read_recipe(path: Path, overrides: list[str] | None = None) -> Recipe:
    """Read a recipe file and apply overrides.

    Args:
        path: a YAML file.
        overrides: `variant=NAME`, `size=NAME`, and values such as `train.epochs=1`, which come
            last.

    Raises:
        ValueError: the file is not a YAML mapping, a key is unknown or missing, or a value breaks a
            rule; the message names the nearest known key.
    """
    content = read_file(path)
    values = dict(_split_override(override) for override in overrides or [])
    # A resolved recipe records its variant and size; only a file that offers them chooses.
    for key, offered in (("variant", "variants"), ("size", "sizes")):
        if offered in content:
            choice = values.pop(key, None)
            content = _choose(content, key, choice, required=key == "variant")
        elif key in values:
            raise ValueError(f"{path.name} offers no {offered}, got {key}={values[key]}")
    for key, value in values.items():
        _override(content, key, value)
    return _resolved(content)


def read_file(path: Path) -> dict[str, Any]:
    """The values of a recipe file as they are written.

    Raises:
        ValueError: the file is not a YAML mapping.
    """
    if not path.exists():
        beside = sorted(one.name for one in path.parent.glob("*.yaml"))
        hint = nearest(path.name, beside, prefix=f"{path.parent}/")
        raise ValueError(f"there is no recipe {path}; {hint}")
    try:
        content = read_yaml(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not a readable YAML file: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} must hold a mapping, got {type(content).__name__}")
    return content


def describe_file(path: Path) -> str:
    """The name of a recipe file, its variants or its model, and its sizes, in one line.

    Raises:
        ValueError: see `read_file`.
    """
    content = read_file(path)
    variants = content.get("variants")
    what = f"variant={'|'.join(variants)}" if variants else content.get("model", {}).get("name", "")
    sizes = [f"size={'|'.join(content['sizes'])}"] if content.get("sizes") else []
    return "  ".join([str(content.get("name")), what, *sizes])


def _resolved(content: dict[str, Any]) -> Recipe:
    """The values of a recipe, checked, its labels and its model's full config filled in."""
    content["data"] = _data(_section(content, "data"))
    content["train"] = _make(TrainRecipe, _section(content, "train"), "train.")
    optional = {"distillation": DistillationRecipe, "adversarial": AdversarialRecipe}
    for key, kind in optional.items():
        if content.get(key) is not None:
            content[key] = _make(kind, _section(content, key), f"{key}.")
    model: dict[str, Any] = {**_lengths(content["data"]), **_section(content, "model")}
    name = model.pop("name", "")
    try:
        content["model"] = {"name": name, **dataclasses.asdict(models.config(name, **model))}
    except TypeError as error:
        raise ValueError(f"model holds a value of a wrong type: {error}") from None
    if "labels" not in content:
        data = content["data"]
        content["labels"] = _known_labels(data.source) if data.labeled else []
    return _make(Recipe, content, "")


def _data(values: dict[str, Any]) -> DataRecipe:
    """What kind of data it is, by the entries that it alone must have.

    Of images with masks the recipe says which class is the background, if any.
    """
    if "image" in values:
        values = values | {"image": _make(ImageSpec, _section(values, "image"), "data.image.")}
        return _make(MaskData if "background" in values else ImageData, values, "data.")
    if "context" in values:
        return _make(LanguageData, values, "data.")
    is_text = "tokenizer" in values or "vocab_size" in values
    return _make(TextData if is_text else TokenData, values, "data.")


def _lengths(data: DataRecipe) -> dict[str, int]:
    """What the data says of the model's input, where the model does not say it itself."""
    names = {"max_len": "seq_len", "context": "seq_len", "vocab_size": "vocab_size"}
    given = ((name, getattr(data, key, None)) for key, name in names.items())
    return {name: length for name, length in given if length is not None}


def _known_labels(source: str) -> list[str]:
    known = KNOWN | KNOWN_MASKS
    if source in known:
        return known[source]
    if source in KNOWN_TEXTS:
        return KNOWN_TEXTS[source].label_names
    raise ValueError(f"labels must be given: those of {source} are not known")


def _choose(content: dict[str, Any], key: str, choice: Any, *, required: bool) -> dict[str, Any]:
    """Lay the chosen variant or size over the rest of the file."""
    rest = dict(content)
    offered = _section(rest, f"{key}s")
    del rest[f"{key}s"]
    if choice is None and not required:
        return rest
    if choice not in offered:
        got = "nothing" if choice is None else repr(choice)
        hint = nearest(choice or "", map(str, offered))
        raise ValueError(f"{key} must be one of the recipe's {key}s, got {got}; {hint}")
    chosen = _merge(rest, _section(offered, choice)) | {key: choice}
    if key == "variant":
        chosen["name"] = f"{rest.get('name')}-{choice}"
    return chosen


def _merge(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """`base` with the values of `over`, mapping by mapping."""
    merged = dict(base)
    for key, value in over.items():
        old = merged.get(key)
        if isinstance(old, dict) and isinstance(value, dict):
            value = _merge(old, value)
        merged[key] = value
    return merged


def _section(content: dict[str, Any], key: str) -> dict[str, Any]:
    value = content.get(key)
    if not isinstance(value, dict):
        raise ValueError(f"{key} must be a mapping, got {value!r}")
    return value


def _make(kind: type[Any], values: dict[str, Any], prefix: str) -> Any:
    fields = {item.name: item for item in dataclasses.fields(kind)}
    for key in values:
        if key not in fields:
            raise ValueError(f"unknown key {prefix}{key}; {nearest(key, fields, prefix=prefix)}")
    try:
        return kind(**values)
    except TypeError as error:
        raise ValueError(f"{prefix or 'recipe '}{error}") from None
    except ValueError as error:
        raise ValueError(f"{prefix}{error}") from None


def _split_override(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not equals:
        raise ValueError(f"an override must look like key=value, got {text!r}")
    try:
        return key, read_yaml(value)
    except yaml.YAMLError:
        raise ValueError(f"the value of {key} must be YAML, got {value!r}") from None


def _override(content: dict[str, Any], path: str, value: Any) -> None:
    *parents, key = path.split(".")
    for parent in parents:
        content = content.setdefault(parent, {})
        if not isinstance(content, dict):
            raise ValueError(f"{parent} in {path} is not a section")
    content[key] = value
