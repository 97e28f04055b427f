"""The models by name: a plain dictionary from name to config."""

import dataclasses
from collections.abc import Callable
from typing import Any

from torch import nn

from core.names import nearest
from models.attention.catalog import option_names
from models.attention.config import AttentionConfig, with_options
from models.bag import BagConfig, BagOfTokens
from models.baselines import BaselineConfig, baseline_model
from models.deit import DeiT, DeiTConfig
from models.fan import FAN, FANConfig
from models.language import LanguageConfig, LanguageModel
from models.language_classifier import LanguageClassifier, LanguageClassifierConfig
from models.rvt import RVT, RVTConfig
from models.segmenter import Segmenter, SegmenterConfig
from models.sequence import SequenceConfig, sequence_model
from models.transject import TransJectConfig, transject_model
from models.transject_image import TransJectImage, TransJectImageConfig

Config = (
    BagConfig
    | BaselineConfig
    | DeiTConfig
    | FANConfig
    | LanguageClassifierConfig
    | LanguageConfig
    | RVTConfig
    | SegmenterConfig
    | SequenceConfig
    | TransJectConfig
    | TransJectImageConfig
)
_SHOWN = 4  # models that a message names
_DOT_PRODUCT: dict[str, Config] = {
    "deit_tiny": DeiTConfig(embed_dim=192, num_heads=3),
    "deit_small": DeiTConfig(embed_dim=384, num_heads=6),
    "deit_base": DeiTConfig(embed_dim=768, num_heads=12),
    "fan_tiny": FANConfig(embed_dim=192, num_heads=4),
    "fan_small": FANConfig(embed_dim=384, num_heads=8),
    "rvt_tiny": RVTConfig(embed_dim=192, num_heads=6, pooled_layers=2, scaled_layers=10),
    "rvt_small": RVTConfig(embed_dim=384, num_heads=6, scaled_layers=5),
    "segmenter_tiny": SegmenterConfig(embed_dim=192, num_heads=3),
    "lra_transformer": SequenceConfig(),
    "lm_small": LanguageConfig(),
    "lm_medium": LanguageConfig(embed_dim=256, mlp_ratio=8.0, seq_len=384),
    "lm_classifier": LanguageClassifierConfig(),
}
CATALOG: dict[str, Config] = _DOT_PRODUCT | {
    f"{name}_elliptical": dataclasses.replace(config, attention="elliptical")
    for name, config in _DOT_PRODUCT.items()
}
CATALOG |= {
    "transject": TransJectConfig(),
    "transject_random": TransJectConfig(random_eigenvalues=True),
    "transject_image": TransJectImageConfig(),
    "transformer": BaselineConfig(),
    "transformer_rezero": BaselineConfig(variant="rezero"),
    "transformer_orthogonal": BaselineConfig(variant="orthogonal"),
    "bag_of_tokens": BagConfig(),
}
_ARCHITECTURES: dict[type, Callable[[Any], nn.Module]] = {
    BagConfig: BagOfTokens,
    BaselineConfig: baseline_model,
    DeiTConfig: DeiT,
    FANConfig: FAN,
    LanguageClassifierConfig: LanguageClassifier,
    LanguageConfig: LanguageModel,
    RVTConfig: RVT,
    SegmenterConfig: Segmenter,
    SequenceConfig: sequence_model,
    TransJectConfig: transject_model,
    TransJectImageConfig: TransJectImage,
}


def names() -> list[str]:
    """The names that `build` knows, in the order of the catalog."""
    return list(CATALOG)


def config(name: str, **overrides: Any) -> Config:
    """The config of a named model, with some fields changed.

    Args:
        name: one of `names()`.
        **overrides: config fields, e.g. `img_size=32, patch_size=4, num_classes=10`, and options
            of its attention, e.g. `attention="elliptical", scaling="mean"`. Where `in_chans` is
            given without `mean` and `std`, both become 0.5 per channel.

    Raises:
        ValueError: unknown name or field, or a value against the rules of the config.
    """
    if not isinstance(name, str) or name not in CATALOG:
        raise ValueError(f"name must be a known model, got {name!r}; {nearest(name, names())}")
    base = CATALOG[name]
    known = _fields(base)
    if isinstance(base, AttentionConfig):
        overrides = with_options(base, overrides)
        known += option_names(overrides.get("attention", base.attention))
    for key in overrides:
        if key not in known:
            raise ValueError(_unknown(key, name, known))
    channels = overrides.get("in_chans")
    if isinstance(channels, int) and channels != getattr(base, "in_chans", None):
        overrides = {"mean": (0.5,) * channels, "std": (0.5,) * channels} | overrides
    return dataclasses.replace(base, **overrides)


def _fields(config: Config) -> list[str]:
    return [field.name for field in dataclasses.fields(config)]


def _unknown(key: str, name: str, known: list[str]) -> str:
    """Why a model has no such field: which others have it, or which of its own is meant."""
    others = [each for each, config in CATALOG.items() if key in _fields(config)]
    more = ", ..." if len(others) > _SHOWN else ""
    hint = f"it is a field of {', '.join(others[:_SHOWN])}{more}" if others else nearest(key, known)
    return f"{key!r} is no config field of {name}; {hint}"


def build(name: str, **overrides: Any) -> nn.Module:
    """Build a named model with freshly initialized weights from torch's global generator.

    Args:
        name: one of `names()`.
        **overrides: see `config`.

    Raises:
        ValueError: unknown name or field, or a value against the rules of the config.
    """
    chosen = config(name, **overrides)
    return _ARCHITECTURES[type(chosen)](chosen)
