"""Rules that several sections of a recipe share."""

import dataclasses
import sys
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

_KINDS: dict[Any, tuple[tuple[type, ...], str]] = {
    bool: ((bool,), "true or false"),
    int: ((int,), "a whole number"),
    float: ((int, float), "a number"),
    str: ((str,), "text"),
    dict: ((dict,), "a mapping"),
}
"""The types of a field's values, compared exactly, for Python takes True for an int; the rule."""


def check_types(recipe: Any) -> None:
    """Refuse values of another type than their field's; lists become tuples where those are meant.

    Args:
        recipe: a dataclass, which may be frozen, of numbers, booleans, texts, literals, mappings,
            lists of one type, dataclasses (which check themselves), and None beside one of these.

    Raises:
        ValueError: naming the field, the rule and the value.
    """
    hints = get_type_hints(type(recipe))
    for field in dataclasses.fields(recipe):
        value = getattr(recipe, field.name)
        value = _checked(field.name, value, hints[field.name])
        object.__setattr__(recipe, field.name, value)


def at_least(recipe: Any, least: int, *names: str) -> None:
    """Refuse fields below `least`; None is no number and passes.

    Raises:
        ValueError: naming the field and its value.
    """
    for name in names:
        value = getattr(recipe, name)
        if value is not None and not value >= least:
            raise ValueError(f"{name} must be at least {least}, got {value}")


def positive(recipe: Any, *names: str) -> None:
    """Refuse fields that are not above 0; None is no number and passes.

    Raises:
        ValueError: naming the field and its value.
    """
    for name in names:
        value = getattr(recipe, name)
        if value is not None and not value > 0:
            raise ValueError(f"{name} must be positive, got {value}")


def fraction(recipe: Any, *names: str) -> None:
    """Refuse fields outside [0, 1).

    Raises:
        ValueError: naming the field and its value.
    """
    for name in names:
        value = getattr(recipe, name)
        if not 0 <= value < 1:
            raise ValueError(f"{name} must lie in [0, 1), got {value}")


def _checked(name: str, value: Any, hint: Any) -> Any:
    kind, options = get_origin(hint) or hint, get_args(hint)
    if NoneType in options:
        (other,) = (option for option in options if option is not NoneType)
        return None if value is None else _checked(name, value, other)
    if kind in (list, tuple):
        if not isinstance(value, list | tuple):
            raise ValueError(f"{name} must be a list, got {value!r}")
        return kind(_checked(f"{name}[{i}]", each, options[0]) for i, each in enumerate(value))
    if kind is Literal and value not in options:
        raise ValueError(f"{name} must be one of {', '.join(options)}, got {value!r}")
    if kind in _KINDS and not _fits(value, kind):
        raise ValueError(f"{name} must be {_KINDS[kind][1]}, got {value!r}")
    return value


def _fits(value: Any, kind: Any) -> bool:
    if type(value) not in _KINDS[kind][0]:
        return False
    return kind is not float or abs(value) <= sys.float_info.max  # an int may lie beyond it
