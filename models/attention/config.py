"""The attention of a transformer's config: which mechanism, in which layers, with which options."""

import dataclasses
from dataclasses import dataclass, field
from typing import Any, TypedDict

from core.fields import check_at_least
from models.attention.base import AttentionOptions, Place
from models.attention.catalog import (
    check_causal,
    is_option,
    make_options,
    mechanism,
    option_names,
    refusal,
)

_SWITCH, _SWITCHED = "elliptical", ("elliptical_layers", *option_names("elliptical"))
"""Fields of configs stored before there were other mechanisms; with the switch off none matters."""


class AttentionArguments(TypedDict, total=False):
    """What a block is told about its attention."""

    attention: str
    options: AttentionOptions | None
    place: Place


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionConfig:
    """The attention of a transformer.

    The config of a model extends it and gives `max_tokens`; since both have slots, its
    `__post_init__` checks types and its own rules and then calls `AttentionConfig.__post_init__(
    self)` by name.

    Attributes:
        embed_dim: width d; a multiple of num_heads.
        num_heads: number of heads.
        depth: number of layers.
        attention: a mechanism of `models.attentions()`.
        attention_layers: the layers that have it, counted from 1, the others being dot-product
            attention; None for `default_layers`. What reads the values of the layer before, as
            elliptical attention does, cannot be the first.
        attention_options: the mechanism's own options by name; those left out get their defaults.
    """

    embed_dim: int
    num_heads: int
    depth: int = 12
    attention: str = "dot"
    attention_layers: tuple[int, ...] | None = None
    attention_options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check every rule, naming the field and the value received."""
        check_at_least(self, 1, "embed_dim", "num_heads", "depth")
        if self.embed_dim % self.num_heads:
            sizes = f"{self.embed_dim} and {self.num_heads}"
            raise ValueError(f"embed_dim must be a multiple of num_heads, got {sizes}")
        first = self.first_layer
        for layer in self.attention_layers or ():
            if not first <= layer <= self.depth:
                raise ValueError(f"attention_layers must lie in {first}..{self.depth}, got {layer}")
        options = self.options
        options.check_fit(
            embed_dim=self.embed_dim, num_heads=self.num_heads, length=self.max_tokens
        )
        if self.causal:
            check_causal(self.attention, options)
        object.__setattr__(self, "attention_options", dataclasses.asdict(options))

    @property
    def options(self) -> AttentionOptions:
        """The options of the mechanism."""
        return make_options(self.attention, self.attention_options)

    @property
    def max_tokens(self) -> int:
        """The largest number of tokens that attention sees, class tokens included."""
        raise NotImplementedError

    @property
    def causal(self) -> bool:
        """Whether no token may depend on later ones."""
        return False

    @property
    def first_layer(self) -> int:
        """The first layer that can have the mechanism."""
        return 2 if mechanism(self.attention).reads_values else 1

    @property
    def default_layers(self) -> tuple[int, ...]:
        """The layers that have the mechanism where none are named: all that can."""
        return tuple(range(self.first_layer, self.depth + 1))

    def attention_at(self, layer: int) -> AttentionArguments:
        """What a block is told about its attention in one layer, counted from 1."""
        layers = self.default_layers if self.attention_layers is None else self.attention_layers
        place = Place(layer=layer, depth=self.depth, length=self.max_tokens, causal=self.causal)
        if layer not in layers:
            return {"place": place}
        return {"attention": self.attention, "options": self.options, "place": place}


def with_options(base: AttentionConfig, overrides: dict[str, Any]) -> dict[str, Any]:
    """Overrides of a config whose options of attention lie where the config has them.

    The options of the mechanism may stand beside the other fields, as `features=128`, and configs
    stored before there were other mechanisms are read: `elliptical` and `elliptical_layers`.

    Raises:
        ValueError: unknown mechanism, an option of another one, or a contradiction.
    """
    given = _without_switch(overrides)
    name = given.get("attention", base.attention)
    options = dict(base.attention_options) if name == base.attention else {}
    nested = given.get("attention_options", {})
    if not isinstance(nested, dict):
        raise ValueError(f"attention_options must be a mapping, got {nested!r}")
    options |= nested
    fields = [each.name for each in dataclasses.fields(base)]
    for key in [key for key in given if key not in fields]:
        if key in option_names(name):
            options[key] = given.pop(key)
        elif is_option(key):
            raise ValueError(refusal(name, key))
    return given | {"attention_options": options}


def _without_switch(overrides: dict[str, Any]) -> dict[str, Any]:
    given = dict(overrides)
    if _SWITCH in given:
        switch = given.pop(_SWITCH)
        if not isinstance(switch, bool):
            raise ValueError(f"elliptical must be true or false, got {switch!r}")
        name = given.setdefault("attention", "elliptical" if switch else "dot")
        if (name == "elliptical") is not switch:
            raise ValueError(f"attention must agree with elliptical={switch}, got {name!r}")
        if not switch:
            given = {key: value for key, value in given.items() if key not in _SWITCHED}
    if "elliptical_layers" in given:
        given["attention_layers"] = given.pop("elliptical_layers")
    return given
