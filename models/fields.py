"""Types of config fields, which Python leaves unchecked: "false" would switch an option on."""

import dataclasses
import sys
from types import NoneType, UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

_RULES = {
    bool: "must be true or false",
    int: "must be an integer",
    float: "must be a finite number",
}


def check_types(config: Any) -> None:
    """Refuse values of another type than their field's; lists become tuples, integers floats.

    Args:
        config: a dataclass, which may be frozen, of numbers, booleans, literals, tuples of one
            type, and None beside them.

    Raises:
        ValueError: names the field, the rule and the value.
    """
    hints = get_type_hints(type(config))
    for field in dataclasses.fields(config):
        value = _checked(field.name, getattr(config, field.name), hints[field.name])
        object.__setattr__(config, field.name, value)


def check_positive(config: Any, *fields: str) -> None:
    """Refuse numbers that are not above 0.

    Args:
        config: a dataclass.
        *fields: names of fields that hold numbers.

    Raises:
        ValueError: names the field and the value.
    """
    for field in fields:
        if not getattr(config, field) > 0:
            raise ValueError(f"{field} must be positive, got {getattr(config, field)}")


def _checked(name: str, value: Any, hint: Any) -> Any:
    origin, options = get_origin(hint), get_args(hint)
    if origin is UnionType:
        (other,) = (option for option in options if option is not NoneType)
        return None if value is None else _checked(name, value, other)
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise ValueError(f"{name} must be a list, got {value!r}")
        return tuple(_checked(f"{name}[{i}]", each, options[0]) for i, each in enumerate(value))
    if origin is Literal:
        if value not in options:
            raise ValueError(f"{name} must be one of {options}, got {value!r}")
        return value
    if not _fits(value, hint):
        raise ValueError(f"{name} {_RULES[hint]}, got {value!r}")
    return float(value) if hint is float else value


def _fits(value: Any, hint: type) -> bool:
    if hint is bool or isinstance(value, bool):  # for Python, True is an integer
        return hint is bool and isinstance(value, bool)
    if hint is int:
        return isinstance(value, int)
    return isinstance(value, int | float) and abs(value) <= sys.float_info.max
