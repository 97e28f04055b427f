"""Rules for the fields of dataclasses, which Python leaves unchecked: "false" would be true."""

import dataclasses
import functools
import inspect
import re
import sys
from collections.abc import Callable
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

_KINDS: dict[Any, tuple[tuple[type, ...], str]] = {
    bool: ((bool,), "true or false"),
    int: ((int,), "an integer"),
    float: ((int, float), "a finite number"),
    str: ((str,), "text"),
    dict: ((dict,), "a mapping"),
}
"""What the values of a field may be instances of; the rule in words."""

_hints = functools.cache(get_type_hints)  # a served model's spec is made for every request


def check_types(config: Any) -> None:
    """Refuse values of another type than their field's; lists become tuples, integers floats.

    Args:
        config: a dataclass, which may be frozen, of numbers, booleans, texts, literals, mappings,
            lists and tuples of one type, dataclasses (which check themselves), and None beside
            one of these.

    Raises:
        ValueError: names the field, the rule and the value.
    """
    hints = _hints(type(config))
    for field in dataclasses.fields(config):
        value = _checked(field.name, getattr(config, field.name), hints[field.name])
        object.__setattr__(config, field.name, value)


def explained(config: type[Any]) -> dict[str, str]:
    """What the comments at the fields of a dataclass say: above a field, or behind it."""
    found: dict[str, str] = {}
    above: list[str] = []
    for line in inspect.getsource(config).partition("\n    def ")[0].splitlines():
        if match := re.fullmatch(r"    # (.*)", line):
            above.append(match[1])
        elif match := re.fullmatch(r"    (\w+): .*?(?:  # (.*))?", line):
            found[match[1]] = " ".join([*above, match[2] or ""]).strip(" .")
            above = []
    return found


def check_positive(config: Any, *fields: str) -> None:
    """Refuse numbers that are not above 0; None passes.

    Raises:
        ValueError: names the field and the value.
    """
    _check(config, fields, lambda value: value > 0, "be positive")


def check_at_least(config: Any, least: int, *fields: str) -> None:
    """Refuse numbers below `least`; None passes.

    Raises:
        ValueError: names the field and the value.
    """
    _check(config, fields, lambda value: value >= least, f"be at least {least}")


def check_between(config: Any, least: int, most: int, *fields: str) -> None:
    """Refuse numbers outside [least, most]; None passes.

    Raises:
        ValueError: names the field and the value.
    """
    _check(config, fields, lambda value: least <= value <= most, f"lie in {least}..{most}")


def check_fraction(config: Any, *fields: str) -> None:
    """Refuse numbers outside [0, 1); None passes.

    Raises:
        ValueError: names the field and the value.
    """
    _check(config, fields, lambda value: 0 <= value < 1, "lie in [0, 1)")


def _check(config: Any, fields: tuple[str, ...], holds: Callable[[Any], bool], rule: str) -> None:
    for field in fields:
        value = getattr(config, field)
        if value is not None and not holds(value):
            raise ValueError(f"{field} must {rule}, got {value}")


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
        raise ValueError(f"{name} must be one of {', '.join(map(str, options))}, got {value!r}")
    if kind in _KINDS and not _fits(value, kind):
        raise ValueError(f"{name} must be {_KINDS[kind][1]}, got {value!r}")
    return float(value) if kind is float else value


def _fits(value: Any, kind: Any) -> bool:
    if isinstance(value, bool) and kind is not bool:  # for Python, True is an integer
        return False
    if not isinstance(value, _KINDS[kind][0]):
        return False
    return kind is not float or abs(value) <= sys.float_info.max  # an int may lie beyond it
