"""YAML as recipes are written."""

import re
from typing import Any

import yaml

# YAML 1.2 reads 1e-3 as a number; PyYAML, which reads 1.1, takes it for text.
_TAG = "tag:yaml.org,2002:float"
_NUMBER = re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$")


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
