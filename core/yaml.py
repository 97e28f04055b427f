"""YAML as recipes are written, and strict files of users."""

import re
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from core.names import broken_rules

# YAML 1.2 reads 1e-3 as a number; PyYAML, which reads 1.1, takes it for text.
_TAG = "tag:yaml.org,2002:float"
_NUMBER = re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$")
_MOST = 2**20  # bytes of a strict file
_Model = TypeVar("_Model", bound=BaseModel)


class _Loader(yaml.SafeLoader):
    pass


class _Dumper(yaml.SafeDumper):
    pass


for _kind in (_Loader, _Dumper):
    _kind.add_implicit_resolver(_TAG, _NUMBER, list("-+0123456789"))


def read_yaml(text: str) -> Any:
    """What a YAML document holds.

    Raises:
        yaml.YAMLError: it is not YAML, or holds a tag beyond the plain ones.
    """
    return yaml.load(text, _Loader)


def write_yaml(values: Any) -> str:
    """A YAML document that `read_yaml` reads as the same values, in the same order."""
    return yaml.dump(values, Dumper=_Dumper, sort_keys=False)


def read_strict(path: Path, kind: type[_Model], what: str) -> _Model:
    """What a YAML file of a user's holds, by the rules of a model.

    Args:
        path: of the file.
        kind: the model.
        what: the option or setting that names the file, for messages.

    Raises:
        OSError: it cannot be read.
        ValueError: it is no YAML, has a key twice, or breaks the rules.
    """
    where = f"{what}: {path.name}"
    if path.stat().st_size > _MOST:
        raise ValueError(f"{where} is larger than 1 MiB")
    try:
        text = path.read_text(encoding="utf-8")
        _refuse_twice(yaml.compose(text, yaml.SafeLoader), what)
        return kind.model_validate(read_yaml(text))
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{where} is no readable YAML: {error}") from error
    except ValidationError as error:
        found = broken_rules(error)
        told = "; ".join(f"{place}: {rule}" if place else rule for place, rule in found)
        raise ValueError(f"{where}: {told}") from None


def _refuse_twice(node: yaml.Node | None, what: str) -> None:
    """Refuse a key that an object has twice, which YAML's reader would not."""
    if isinstance(node, yaml.MappingNode):
        keys = [key.value for key, _ in node.value]
        for key in keys:
            if keys.count(key) > 1:
                raise ValueError(f"{what}: the key {key!r} is there twice")
        for _, value in node.value:
            _refuse_twice(value, what)
    elif isinstance(node, yaml.SequenceNode):
        for value in node.value:
            _refuse_twice(value, what)
