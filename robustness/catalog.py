"""The attacks: what each is called, works on, can be told and costs."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

AttackName = Literal[
    "fgsm",
    "pgd",
    "apgd-ce",
    "apgd-t",
    "fab-t",
    "square",
    "autoattack",
    "spsa",
    "corruptions",
    "smoothing",
    "word-swap",
    "hotflip",
    "typos",
]
Norm = Literal["Linf", "L2"]
Family = Literal["gradient", "query", "sequence", "corruptions", "smoothing", "text"]
Variant = Literal["plain", "stopped", "full"]  # how gradients treat m of elliptical attention

MAX_TARGETS = 9
"""Targeted attacks aim at the nine likeliest wrong classes; all 999 would cost 111 times more."""
CORRUPTIONS = (
    "gaussian_noise",
    "shot_noise",
    "impulse_noise",
    "defocus_blur",
    "glass_blur",
    "motion_blur",
    "zoom_blur",
    "snow",
    "frost",
    "fog",
    "brightness",
    "contrast",
    "elastic_transform",
    "pixelate",
    "jpeg_compression",
)
EXTRA_CORRUPTIONS = ("speckle_noise", "gaussian_blur", "spatter", "saturate")
AUTOATTACK: tuple[AttackName, ...] = ("apgd-ce", "apgd-t", "fab-t", "square")


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """What one attack is.

    Attributes:
        title: its name in reports.
        source: the paper.
        family: how it works; "gradient" needs the differentiable twin, "sequence" too.
        norms: the balls it knows; without any, eps has no meaning.
        fields: what else it can be told, with the defaults; None where they depend on eps.
        min_classes: fewer classes than that it cannot attack.
    """

    title: str
    source: str
    family: Family
    norms: tuple[Norm, ...] = ()
    fields: Mapping[str, Any] = field(default_factory=dict[str, Any])
    min_classes: int = 2

    @property
    def on_texts(self) -> bool:
        """Whether it changes texts, and not images."""
        return self.family == "text"

    @property
    def needs_gradients(self) -> bool:
        """Whether it works on images through the differentiable twin."""
        return self.family in ("gradient", "sequence")


_BOTH: tuple[Norm, ...] = ("Linf", "L2")
_AUTOATTACK = "Croce and Hein 2020 (AutoAttack)"

KINDS: dict[AttackName, Kind] = {
    "fgsm": Kind(title="FGSM", source="Goodfellow et al. 2015", family="gradient", norms=("Linf",)),
    "pgd": Kind(
        title="PGD",
        source="Madry et al. 2018",
        family="gradient",
        norms=("Linf",),
        fields={"steps": 20, "alpha": None},
    ),
    "apgd-ce": Kind(
        title="APGD-CE", source=_AUTOATTACK, family="gradient", norms=_BOTH, fields={"steps": 100}
    ),
    "apgd-t": Kind(
        title="APGD-T",
        source=_AUTOATTACK,
        family="gradient",
        norms=_BOTH,
        fields={"steps": 100},
        min_classes=4,
    ),
    "fab-t": Kind(
        title="FAB-T",
        source="Croce and Hein 2020 (FAB)",
        family="gradient",
        norms=_BOTH,
        fields={"steps": 100},
    ),
    "square": Kind(
        title="Square",
        source="Andriushchenko et al. 2020",
        family="query",
        norms=_BOTH,
        fields={"queries": 5000},
    ),
    "autoattack": Kind(title="AutoAttack", source=_AUTOATTACK, family="sequence", norms=_BOTH),
    "spsa": Kind(
        title="SPSA",
        source="Uesato et al. 2018",
        family="query",
        norms=("Linf",),
        fields={"steps": 40, "samples": 128},
    ),
    "corruptions": Kind(
        title="Common corruptions",
        source="Hendrycks and Dietterich 2019",
        family="corruptions",
        fields={"names": None, "severities": [1, 2, 3, 4, 5]},
    ),
    "smoothing": Kind(
        title="Randomized smoothing",
        source="Cohen et al. 2019",
        family="smoothing",
        fields={"sigma": ["0.25"], "samples": 1000, "alpha": "0.001"},
    ),
    "word-swap": Kind(
        title="Word Swap",
        source="Elliptical Attention, section 4",
        family="text",
        fields={"rate": ["0.025"]},
    ),
    "hotflip": Kind(
        title="HotFlip",
        source="Ebrahimi et al. 2018",
        family="text",
        fields={"edits": [5], "queries": 1000},
    ),
    "typos": Kind(
        title="Typos",
        source="Gao et al. 2018 (DeepWordBug)",
        family="text",
        fields={"edits": [5], "queries": 1000},
    ),
}
