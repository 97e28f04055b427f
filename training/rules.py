"""Rules that several sections of a recipe share."""

from typing import Any, get_args


def at_least(recipe: Any, least: int, *names: str) -> None:
    """Refuse fields below `least`; None is no number and passes.

    Raises:
        ValueError: naming the field and its value.
    """
    for name in names:
        value = _number(recipe, name)
        if value is not None and not value >= least:
            raise ValueError(f"{name} must be at least {least}, got {value}")


def positive(recipe: Any, *names: str) -> None:
    """Refuse fields that are not above 0; None is no number and passes.

    Raises:
        ValueError: naming the field and its value.
    """
    for name in names:
        value = _number(recipe, name)
        if value is not None and not value > 0:
            raise ValueError(f"{name} must be positive, got {value}")


def fraction(recipe: Any, *names: str) -> None:
    """Refuse fields outside [0, 1).

    Raises:
        ValueError: naming the field and its value.
    """
    for name in names:
        value = _number(recipe, name)
        if value is None or not 0 <= value < 1:
            raise ValueError(f"{name} must lie in [0, 1), got {value}")


def one_of(recipe: Any, **kinds: Any) -> None:
    """Refuse fields that are not among the words of their `Literal`.

    Raises:
        ValueError: naming the field, its words and its value.
    """
    for name, kind in kinds.items():
        if getattr(recipe, name) not in get_args(kind):
            known = ", ".join(get_args(kind))
            raise ValueError(f"{name} must be one of {known}, got {getattr(recipe, name)!r}")


def _number(recipe: Any, name: str) -> int | float | None:
    value = getattr(recipe, name)
    # YAML reads 1e-3 as text: its numbers need a point, 1.0e-3.
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
        raise ValueError(f"{name} must be a number, got {value!r}")
    return value
