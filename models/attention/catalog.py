"""The mechanisms of attention by name: a plain dictionary from name to class."""

import dataclasses
from typing import Any

from core.names import nearest
from models.attention.base import ANYWHERE, Attention, AttentionOptions, Place
from models.attention.bigbird import BigBirdAttention
from models.attention.dot import DotAttention
from models.attention.elliptical import EllipticalAttention
from models.attention.fourier import FourierAttention
from models.attention.informer import InformerAttention
from models.attention.kde import KdeAttention
from models.attention.linformer import LinformerAttention
from models.attention.longformer import LongformerAttention
from models.attention.mgk import MgkAttention
from models.attention.mom import MomAttention
from models.attention.nystromformer import NystromformerAttention
from models.attention.performer import PerformerAttention
from models.attention.reformer import ReformerAttention
from models.attention.rkde import RkdeAttention
from models.attention.skyformer import SkyformerAttention
from models.attention.spkde import SpkdeAttention
from models.attention.synthesizer import SynthesizerAttention

ATTENTIONS: dict[str, type[Attention]] = {
    "dot": DotAttention,
    "elliptical": EllipticalAttention,
    "bigbird": BigBirdAttention,
    "informer": InformerAttention,
    "linformer": LinformerAttention,
    "longformer": LongformerAttention,
    "nystromformer": NystromformerAttention,
    "performer": PerformerAttention,
    "reformer": ReformerAttention,
    "skyformer": SkyformerAttention,
    "synthesizer": SynthesizerAttention,
    "kde": KdeAttention,
    "mom": MomAttention,
    "rkde": RkdeAttention,
    "mgk": MgkAttention,
    "fourier": FourierAttention,
    "spkde": SpkdeAttention,
}


def attentions() -> list[str]:
    """The mechanisms that transformers take as `attention`, in the order of the catalog."""
    return list(ATTENTIONS)


def mechanism(name: Any) -> type[Attention]:
    """The class of a mechanism.

    Raises:
        ValueError: unknown name.
    """
    if not isinstance(name, str) or name not in ATTENTIONS:
        hint = nearest(name, attentions())
        raise ValueError(f"attention must be a known mechanism, got {name!r}; {hint}")
    return ATTENTIONS[name]


def option_names(name: str) -> list[str]:
    """The options of a mechanism; ValueError as of `mechanism`."""
    return [field.name for field in dataclasses.fields(mechanism(name).Options)]


def make_options(name: str, values: dict[str, Any]) -> AttentionOptions:
    """The options of a mechanism from their values by name.

    Raises:
        ValueError: unknown mechanism or option, or a value against the rules of the option.
    """
    known = option_names(name)
    for key in values:
        if key not in known:
            raise ValueError(refusal(name, key))
    return mechanism(name).Options(**values)


def check_causal(name: str, options: AttentionOptions) -> None:
    """Refuse a mechanism or options by which tokens would see later ones.

    Raises:
        ValueError: says how they would.
    """
    if reason := mechanism(name).not_causal:
        raise ValueError(f"attention must be causal in a language model, got {name!r}: {reason}")
    options.check_causal()


def is_option(key: str) -> bool:
    """Whether any mechanism has an option of this name."""
    return any(key in option_names(name) for name in ATTENTIONS)


def refusal(name: str, key: str) -> str:
    """Why a mechanism has no such option."""
    others = " and ".join(other for other in ATTENTIONS if key in option_names(other))
    if others:
        return f"{key!r} is an option of {others}, not of the attention {name!r}"
    known = option_names(name)
    hint = nearest(key, known) if known else "it has none"
    return f"{key!r} is no option of the attention {name!r}; {hint}"


def make_attention(
    embed_dim: int,
    num_heads: int,
    *,
    attention: str = "dot",
    options: AttentionOptions | None = None,
    place: Place = ANYWHERE,
) -> Attention:
    """A layer of the mechanism named `attention`; the other arguments as of `Attention`."""
    return mechanism(attention)(embed_dim, num_heads, options=options, place=place)
