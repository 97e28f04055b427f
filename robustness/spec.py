"""What an evaluation is asked to do: read strictly, refused with the field and the rule."""

import math
import operator
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast, get_args

from pydantic import (
    Field,
    ValidationError,
    ValidationInfo,
    WrapValidator,
    field_validator,
    model_validator,
)
from pydantic_core import InitErrorDetails, PydanticCustomError

from core.names import nearest
from robustness.attacks.apgd import APGDCE, APGDT
from robustness.attacks.autoattack import AutoAttack
from robustness.attacks.base import Attack, Budget, Strict
from robustness.attacks.charmer import Charmer
from robustness.attacks.corruptions.attack import Corruptions
from robustness.attacks.fab import FABT
from robustness.attacks.fmn import DDN, FMN
from robustness.attacks.hopskipjump import HopSkipJump
from robustness.attacks.hotflip import HotFlip
from robustness.attacks.patch_fool import PatchFool
from robustness.attacks.pdpgd import PDPGD
from robustness.attacks.pgd import FGSM, PGD, SegPGD
from robustness.attacks.rays import RayS
from robustness.attacks.screen import Screen
from robustness.attacks.sigma_zero import SigmaZero
from robustness.attacks.sparse_rs import PatchRS, SparseRS
from robustness.attacks.spsa import SPSA
from robustness.attacks.square import Square
from robustness.attacks.thesaurus import Thesaurus
from robustness.attacks.torchattacks import TorchAttack
from robustness.attacks.typos import Typos
from robustness.attacks.word_swap import WordSwap
from robustness.attacks.worst_pieces import WorstPieces
from robustness.attacks.worst_words import WorstWords
from robustness.certificates.graph_bounds import GraphBounds
from robustness.certificates.patchwise import PatchBounds, PixelBounds, SquareBounds
from robustness.certificates.smoothing import Smoothing
from robustness.certificates.substitutions import Substitutions
from robustness.certificates.words import Slips, Synonyms
from robustness.parsing import MOST, Count

GateMetric = Literal[
    "robust_accuracy",
    "clean_accuracy",
    "proved_accuracy",
    "robust_pixel_accuracy",
    "clean_pixel_accuracy",
    "perplexity_ratio",
]
CLEAN_METRICS: tuple[GateMetric, ...] = ("clean_accuracy", "clean_pixel_accuracy")
UPPER_METRICS: tuple[GateMetric, ...] = ("perplexity_ratio",)
"""Those that are good where they are small, and at least 0: all others lie in [0, 1]."""
GateOperator = Literal[">=", ">", "<=", "<"]

_OPERATORS: dict[GateOperator, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    ">": operator.gt,
    "<=": operator.le,
    "<": operator.lt,
}
_GATE = re.compile(r"\s*(\w+)\s*([<>]=?)\s*(\S+)\s*", re.ASCII)
CLEAN_EVALUATIONS = 2  # of one clean input: the PyTorch model with its gradient, the served model
SAMPLES = 32  # inputs that sanity checks ask about
ALONE = 4  # of them one by one
CLIMBERS = 16  # of them pushed by gradient steps
STEPS = 8
DIRECTIONS = 16  # random ones, along which gradients are compared with the model
GRADIENT_VARIANTS = 2  # of elliptical attention: stopped at m, and flowing through m

ATTACKS: dict[str, type[Attack]] = {
    "fgsm": FGSM,
    "pgd": PGD,
    "segpgd": SegPGD,
    "apgd-ce": APGDCE,
    "apgd-t": APGDT,
    "fab-t": FABT,
    "ddn": DDN,
    "fmn": FMN,
    "pdpgd": PDPGD,
    "sigma-zero": SigmaZero,
    "square": Square,
    "patch-fool": PatchFool,
    "autoattack": AutoAttack,
    "screen": Screen,
    "spsa": SPSA,
    "sparse-rs": SparseRS,
    "patch-rs": PatchRS,
    "hopskipjump": HopSkipJump,
    "rays": RayS,
    "corruptions": Corruptions,
    "smoothing": Smoothing,
    "graph-bounds": GraphBounds,
    "pixel-bounds": PixelBounds,
    "patch-bounds": PatchBounds,
    "square-bounds": SquareBounds,
    "word-swap": WordSwap,
    "hotflip": HotFlip,
    "worst-pieces": WorstPieces,
    "worst-words": WorstWords,
    "typos": Typos,
    "thesaurus": Thesaurus,
    "charmer": Charmer,
    "substitutions": Substitutions,
    "slips": Slips,
    "synonyms": Synonyms,
    "torchattacks": TorchAttack,
}
"""Every attack by its name."""


def _one_attack(value: Any, _handler: Any) -> Attack:
    """Read an attack by its class, so that errors name its fields."""
    if isinstance(value, Attack):
        return value
    name = value.get("name") if isinstance(value, dict) else None
    kind = ATTACKS.get(name) if isinstance(name, str) else None
    if kind is not None:
        return kind.model_validate(value)
    told = f"unknown attack {name[:40]!r}" if isinstance(name, str) else "an attack needs a name"
    said = {"message": f"{told}; {nearest(name, ATTACKS)}"}
    error = PydanticCustomError("attack_name", "{message}", said)
    place = ("name",) if isinstance(value, dict) else ()
    raise ValidationError.from_exception_data(
        "attack", [InitErrorDetails(type=error, loc=place, input=value)]
    )


if TYPE_CHECKING:
    AnyAttack = Attack
else:
    AnyAttack = Annotated[
        reduce(operator.or_, ATTACKS.values()),
        Field(discriminator="name"),
        WrapValidator(_one_attack),
    ]


EXAMPLES: list[dict[str, Any]] = [
    {
        "model": "fashion-elliptical",
        "compare_with": "fashion-dot",
        "attacks": [{"name": "pgd", "norm": "Linf", "eps": ["1/255", "4/255"], "steps": 20}],
        "gate": "robust_accuracy >= 0.40",
    },
    {"model": "imdb-transject", "attacks": [{"name": "typos", "edits": [1, 5]}]},
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One attack at one budget."""

    attack: Attack
    budget: Budget


class EvaluationSpec(Strict, frozen=True, json_schema_extra={"examples": EXAMPLES}):
    """One evaluation: which models, which attacks, what is reported and what must hold."""

    name: str | None = Field(
        default=None,
        min_length=1,
        max_length=100,
        description="what people call the evaluation; one line",
    )
    note: str | None = Field(
        default=None,
        min_length=1,
        max_length=2000,
        description="what they want to remember of it",
    )
    model: str | None = Field(
        default=None,
        min_length=1,
        max_length=200,
        description="model under evaluation, NAME or NAME:VERSION; by default the caller's choice",
    )
    compare_with: str | None = Field(
        default=None,
        min_length=1,
        max_length=200,
        description="second model, scored on the same inputs with the same random draws",
    )
    seed: Annotated[int, Field(strict=True, ge=0, lt=2**63)] = Field(
        default=0, description="every random draw derives from it"
    )
    top_k: list[Count] = Field(
        default=[1],
        min_length=1,
        max_length=16,
        description="ranks at which accuracy is reported, but for those not smaller than the "
        "number of classes, where it would always be 1; with a k above 1 every attack is run in "
        "full on every input, else an input leaves when it is fooled",
    )
    attacks: list[AnyAttack] = Field(
        min_length=1,
        max_length=MOST,
        description="all on images or all on texts, no attack twice at one point",
    )
    gate: str | None = Field(
        default=None,
        max_length=200,
        description="condition on the lower bound of an interval: robust_accuracy, "
        "clean_accuracy or proved_accuracy, of segmenters robust_pixel_accuracy or "
        "clean_pixel_accuracy, >= or >, and a number in [0, 1]; of language models the upper bound "
        "of perplexity_ratio, <= or <, and a positive number",
    )
    stop: Literal["end", "early"] = Field(
        default="end",
        description="early: inputs come in a random order that follows from the seed, and the "
        "evaluation ends as soon as the gate is decided; every interval is then a confidence "
        "sequence, which may be looked at after each input",
    )
    class_map: dict[str, str] | Literal["index"] | None = Field(
        default=None,
        description="for data that call their classes otherwise than the model: by class of the "
        "data the class of the model, or index where class i of the data is the model's class i",
    )
    proposals: Literal["auto", "float32", "bfloat16"] = Field(
        default="auto", description="accepted and ignored: attacks search in float32"
    )

    @property
    def cells(self) -> list[Cell]:
        """Every attack at every one of its points, in the order in which they run."""
        return [Cell(attack=a, budget=budget) for a in self.attacks for budget in a.budgets()]

    @property
    def on_texts(self) -> bool:
        """Whether its attacks change texts, and not images."""
        return self.attacks[0].info.input == "text"

    @property
    def uses_gradients(self) -> bool:
        """Whether any of its attacks on images follows gradients."""
        return not self.on_texts and any(a.info.access == "gradient" for a in self.attacks)

    def ranks(self, num_classes: int) -> list[int]:
        """The k of its top-k that say something about this many classes."""
        return [k for k in self.top_k if k < num_classes] or [1]

    def diagnostics_cost(self, samples: int) -> int:
        """Model evaluations that `robustness.sanity.measure` takes at most, of so many samples."""
        asked, pushed = min(samples, SAMPLES), min(samples, CLIMBERS)
        mixed = 2 * asked + 1 + ALONE
        if self.on_texts:
            return mixed
        return 2 * (mixed + asked) + asked + (8 + 2 * DIRECTIONS) * asked + pushed * (3 * STEPS + 6)

    def in_full(self, num_classes: int) -> bool:
        """Whether fooled inputs are attacked to the end, because ranks above 1 are asked for."""
        return max(self.ranks(num_classes)) > 1

    @field_validator("top_k")
    @classmethod
    def _distinct_ranks(cls, top_k: list[int]) -> list[int]:
        if len(set(top_k)) < len(top_k):
            raise ValueError(f"top_k must not name a rank twice, got {top_k}")
        return sorted(top_k)

    @field_validator("name", "note")
    @classmethod
    def _printable(cls, text: str | None, info: ValidationInfo) -> str | None:
        breaks = "\n\t" if info.field_name == "note" else ""
        if text is not None and not text.translate(dict.fromkeys(map(ord, breaks))).isprintable():
            raise ValueError(f"{info.field_name} must hold printable characters only")
        return text

    @field_validator("class_map", mode="before")
    @classmethod
    def _map_or_index(cls, class_map: Any) -> Any:
        pairs = class_map.items() if isinstance(class_map, dict) else ()
        named = all(isinstance(name, str) for pair in pairs for name in pair)
        if class_map is None or class_map == "index" or (pairs and named):
            return class_map
        raise ValueError(
            'class_map must be "index", or by class of the data the class of the model, as in '
            f'{{"automobile": "car"}}, got {str(class_map)[:60]!r}'
        )

    @field_validator("gate")
    @classmethod
    def _readable_gate(cls, gate: str | None) -> str | None:
        if gate is not None:
            parse_gate(gate)
        return gate

    @model_validator(mode="after")
    def _nothing_twice(self) -> "EvaluationSpec":
        seen: set[tuple[str, str, float | str]] = set()
        for cell in self.cells:
            attack, budget = cell.attack, cell.budget
            where = budget.value if attack.info.norms else budget.text
            key = (attack.label, budget.kind, where)
            if key in seen:
                raise ValueError(f"attacks must not name {attack.label!r} twice at {budget.where}")
            seen.add(key)
        once = [(a.label, a.norm_name) for a in self.attacks if a.info.minimal]
        for (name, _), count in Counter(once).items():
            if count > 1:
                raise ValueError(f"attacks must name {name!r} once for each norm, with all its eps")
        if self.model is not None and self.model == self.compare_with:
            raise ValueError(f"compare_with must name another model than {self.model!r}")
        return self

    @model_validator(mode="after")
    def _decided_by_a_gate(self) -> "EvaluationSpec":
        if self.stop == "early" and self.gate is None:
            raise ValueError("stop must be 'end' without a gate: there is nothing to decide")
        if self.stop == "early" and self.compare_with is not None:
            raise ValueError("stop must be 'end' with compare_with: a gate is about one model")
        return self

    @model_validator(mode="after")
    def _one_kind_of_input(self) -> "EvaluationSpec":
        if len({attack.info.input for attack in self.attacks}) > 1:
            raise ValueError("attacks must all be on images or all on texts")
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """A condition on the worse bound of a figure's interval, so that luck does not pass."""

    metric: GateMetric
    op: GateOperator
    threshold: float

    def holds(self, value: float) -> bool:
        """Whether a value satisfies the condition."""
        return _OPERATORS[self.op](value, self.threshold)

    def bound(self, ends: tuple[float, float]) -> float:
        """Which end of an interval is compared."""
        return ends[self.metric in UPPER_METRICS]

    def decided(self, low: float, high: float) -> bool:
        """Whether an interval lies on one side of the threshold."""
        return self.holds(low) or not self.holds(high)


def parse_gate(text: str) -> Gate:
    """Read a gate such as "robust_accuracy >= 0.40".

    Args:
        text: `metric op threshold`; the metric is one of `GateMetric`, the operator >= or >, the
            threshold lies in [0, 1]; of `UPPER_METRICS` <= or <, and a positive number.

    Raises:
        ValueError: the text is no such condition.
    """
    match = _GATE.fullmatch(text)
    if match is None or match[1] not in get_args(GateMetric):
        known = " or ".join(get_args(GateMetric))
        raise ValueError(
            f"gate must read 'METRIC >= NUMBER' with METRIC {known}, got {text[:60]!r}"
        )
    upper = match[1] in UPPER_METRICS
    if match[2] not in (("<=", "<") if upper else (">=", ">")):
        known = "<= or <" if upper else ">= or >"
        raise ValueError(f"gate must compare {match[1]} by {known}, got {match[2]!r}")
    try:
        threshold = float(match[3])
    except ValueError:
        threshold = math.nan
    if not (0 < threshold < math.inf if upper else 0 <= threshold <= 1):
        numbers = "a positive number" if upper else "a number in [0, 1]"
        raise ValueError(f"gate must compare with {numbers}, got {match[3][:40]!r}")
    return Gate(
        metric=cast(GateMetric, match[1]), op=cast(GateOperator, match[2]), threshold=threshold
    )


def cost(
    spec: EvaluationSpec, samples: int, elliptical: Sequence[bool], *, num_classes: int = 10
) -> int:
    """Model evaluations that an evaluation takes at most; the total that its progress reports.

    One evaluation is one sample through one model once, with or without its backward pass, so a
    gradient step counts as one. Fooled samples leave before the end, unless ranks above 1 are asked
    for, and what they would have cost counts as done then.

    Args:
        spec: the evaluation.
        samples: number of inputs.
        elliptical: for each model whether it has elliptical attention, whose gradients are taken
            in two ways.
        num_classes: number of classes, on which targeted attacks depend.
    """
    probes = len(elliptical) * spec.diagnostics_cost(samples)
    return probes + samples * sum(
        CLEAN_EVALUATIONS + sum(cell_cost(cell.attack, num_classes, twice) for cell in spec.cells)
        for twice in elliptical
    )


def queries(
    spec: EvaluationSpec, samples: int, num_classes: int, *, elliptical: bool | None = None
) -> int:
    """Inputs that an endpoint is asked about at most, each of them once, and 33 more.

    What an attack of its own would ask is counted in full; fooled inputs leave before, and what was
    asked before is not asked again. One blank input is asked first, and the first 32 twice.

    Args:
        spec: the evaluation.
        samples: number of inputs.
        num_classes: number of classes.
        elliptical: whether gradients are those of a local copy with elliptical attention; None
            without any copy.
    """
    each = 0
    for part in (part for cell in spec.cells for part in cell.attack.parts(num_classes)):
        follows = part.info.access == "gradient"
        local = follows and part.info.input == "image"  # gradients cost the endpoint nothing
        asked = (0 if local else part.cost(num_classes)) + max(part.scorings - 1, 0)
        each += asked * (GRADIENT_VARIANTS if follows and elliptical else 1)
    # A copy's gradients are compared with what the endpoint does.
    compared = 0 if elliptical is None else 3 * min(samples, SAMPLES) + 1
    return samples * (1 + each) + min(samples, SAMPLES) + compared + 1


def cell_cost(attack: Attack, num_classes: int, elliptical: bool) -> int:
    """Model evaluations of one sample under one attack at one budget at most, scoring included."""
    total = 0
    for part in attack.parts(num_classes):
        variants = GRADIENT_VARIANTS if elliptical and part.info.access == "gradient" else 1
        total += variants * (part.cost(num_classes) + part.scorings)
    return total
