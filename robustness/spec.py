"""What an evaluation is asked to do: read strictly, refused with the field and the rule."""

import difflib
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, cast, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

AttackName = Literal["fgsm", "pgd"]
Norm = Literal["Linf"]
Variant = Literal["plain", "stopped", "full"]  # how gradients treat m of elliptical attention
GateMetric = Literal["robust_accuracy", "clean_accuracy"]
GateOperator = Literal[">=", ">"]

PGD_STEPS = 20
PGD_ALPHA = 0.15  # of eps, per step: Nielsen et al. 2024; 20 steps can cross the whole ball
JUDGEMENTS = 3  # of one adversarial input: the twin, the served model, the served model in 8 bit
CLEAN_EVALUATIONS = 2  # of one clean input: the twin with its gradient, the served model
ELLIPTICAL_VARIANTS = 2  # gradients stopped at m, and flowing through m

_NUMBER = r"(?:[0-9]{1,12}(?:\.[0-9]{0,20})?|\.[0-9]{1,20})(?:[eE][+-]?[0-9]{1,2})?"
_RADIUS = re.compile(rf"({_NUMBER})(?:/({_NUMBER}))?", re.ASCII)
_GATE = re.compile(r"\s*(\w+)\s*(>=|>)\s*(\S+)\s*", re.ASCII)


def parse_eps(text: str, *, name: str = "eps") -> float:
    """Read a radius such as "8/255" or "0.03".

    Args:
        text: a decimal number or a fraction of two; its value must lie in (0, 1].
        name: what the number is called in messages.

    Returns:
        The radius in the model's input space, where pixels lie in [0, 1].

    Raises:
        ValueError: the text is no such number, or its value lies outside (0, 1].
    """
    match = _RADIUS.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{name} must be a number like '8/255' or '0.03', got {text[:40]!r}")
    denominator = float(match[2]) if match[2] else 1.0
    value = float(match[1]) / denominator if denominator else math.inf
    if not 0 < value <= 1:
        raise ValueError(f"{name} must lie in (0, 1], got {text[:40]!r}")
    return value


def _number_as_text(value: Any) -> Any:
    """Let 0.03 stand for "0.03": JSON and YAML writers will; refuse booleans."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return repr(value)
    return value


Radius = Annotated[str, BeforeValidator(_number_as_text), Field(max_length=40)]
Count = Annotated[int, Field(strict=True, ge=1)]


class _Strict(BaseModel):
    """Frozen, without unknown keys; an unknown key is answered with the nearest known one."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _known_keys(cls, values: Any) -> Any:
        for key in values if isinstance(values, dict) else ():
            if key not in cls.model_fields:
                near = difflib.get_close_matches(str(key), cls.model_fields, n=1)
                hint = f"; did you mean {near[0]!r}?" if near else ""
                raise ValueError(f"unknown key {str(key)[:40]!r}{hint}")
        return values


class AttackSpec(_Strict):
    """One attack at one or more radii.

    Attributes:
        name: "fgsm" (Goodfellow et al. 2015) or "pgd" (Madry et al. 2018).
        norm: the ball of allowed perturbations; l-infinity.
        eps: radii such as "8/255" or "0.03", in the model's input space.
        steps: gradient steps of pgd; 20 when not given.
        alpha: step size of pgd, in the same unit as eps; 0.15 eps when not given.
    """

    name: AttackName
    norm: Norm = "Linf"
    eps: list[Radius] = Field(min_length=1)
    steps: Count | None = None
    alpha: Radius | None = None

    @field_validator("eps")
    @classmethod
    def _distinct_radii(cls, radii: list[str]) -> list[str]:
        values = [parse_eps(text) for text in radii]
        if len(set(values)) < len(values):
            raise ValueError(f"eps must not name a radius twice, got {str(radii)[:200]}")
        return [text.strip() for text in radii]

    @field_validator("alpha")
    @classmethod
    def _readable_alpha(cls, alpha: str | None) -> str | None:
        if alpha is not None:
            parse_eps(alpha, name="alpha")
        return alpha

    @model_validator(mode="after")
    def _only_pgd_steps(self) -> "AttackSpec":
        if self.name != "pgd":
            for field in ("steps", "alpha"):
                if getattr(self, field) is not None:
                    raise ValueError(f"{field} has no meaning for {self.name!r}; leave it out")
        return self

    @property
    def num_steps(self) -> int:
        """Gradient steps, each one forward and one backward pass."""
        return 1 if self.name == "fgsm" else self.steps or PGD_STEPS

    def step_size(self, eps: float) -> float:
        """Step size at a radius: eps itself for fgsm, alpha or its default for pgd."""
        if self.name == "fgsm":
            return eps
        return parse_eps(self.alpha) if self.alpha else PGD_ALPHA * eps


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """A condition on the lower bound of an accuracy's interval, so that luck does not pass."""

    metric: GateMetric
    op: GateOperator
    threshold: float

    def holds(self, value: float) -> bool:
        """Whether a value satisfies the condition."""
        return value >= self.threshold if self.op == ">=" else value > self.threshold


def parse_gate(text: str) -> Gate:
    """Read a gate such as "robust_accuracy >= 0.40".

    Args:
        text: `metric op threshold`; the metric is robust_accuracy or clean_accuracy, the operator
            >= or >, the threshold lies in [0, 1].

    Raises:
        ValueError: the text is no such condition.
    """
    match = _GATE.fullmatch(text)
    if match is None or match[1] not in get_args(GateMetric):
        known = " or ".join(get_args(GateMetric))
        raise ValueError(
            f"gate must read 'METRIC >= NUMBER' with METRIC {known}, got {text[:60]!r}"
        )
    try:
        threshold = float(match[3])
    except ValueError:
        threshold = math.nan
    if not 0 <= threshold <= 1:
        raise ValueError(f"gate must compare with a number in [0, 1], got {match[3][:40]!r}")
    return Gate(
        metric=cast(GateMetric, match[1]), op=cast(GateOperator, match[2]), threshold=threshold
    )


class EvaluationSpec(_Strict):
    """One evaluation: which models, which attacks, what is reported and what must hold.

    Attributes:
        model: the model on trial; None leaves the choice to the caller.
        compare_with: a second model, judged on the same images with the same random starts.
        seed: every random start derives from it; at least 0.
        top_k: ranks at which accuracy is reported; a k that is not smaller than the number of
            classes is left out of the report, where it would always be 1.
        attacks: at least one; no attack twice at one radius.
        gate: see `parse_gate`.
    """

    model: str | None = Field(default=None, min_length=1, max_length=200)
    compare_with: str | None = Field(default=None, min_length=1, max_length=200)
    seed: Annotated[int, Field(strict=True, ge=0, lt=2**63)] = 0
    top_k: list[Count] = Field(default=[1, 5], min_length=1, max_length=16)
    attacks: list[AttackSpec] = Field(min_length=1)
    gate: str | None = Field(default=None, max_length=200)

    @property
    def cells(self) -> list[tuple[AttackSpec, str]]:
        """Every attack at every one of its radii, in the order in which they run."""
        return [(attack, eps) for attack in self.attacks for eps in attack.eps]

    @field_validator("top_k")
    @classmethod
    def _distinct_ranks(cls, top_k: list[int]) -> list[int]:
        if len(set(top_k)) < len(top_k):
            raise ValueError(f"top_k must not name a rank twice, got {top_k}")
        return sorted(top_k)

    @field_validator("gate")
    @classmethod
    def _readable_gate(cls, gate: str | None) -> str | None:
        if gate is not None:
            parse_gate(gate)
        return gate

    @model_validator(mode="after")
    def _nothing_twice(self) -> "EvaluationSpec":
        seen: set[tuple[str, float]] = set()
        for attack, eps in self.cells:
            if (attack.name, parse_eps(eps)) in seen:
                raise ValueError(f"attacks must not name {attack.name!r} twice at eps {eps}")
            seen.add((attack.name, parse_eps(eps)))
        if self.model is not None and self.model == self.compare_with:
            raise ValueError(f"compare_with must name another model than {self.model!r}")
        return self


def cost(spec: EvaluationSpec, samples: int, elliptical: Sequence[bool]) -> int:
    """Model evaluations that an evaluation takes; it equals the total that its progress reports.

    One evaluation is one sample through one model once, with or without its backward pass, so a
    gradient step counts as one.

    Args:
        spec: the evaluation.
        samples: number of images.
        elliptical: for each model whether it has elliptical attention, which is attacked twice.
    """
    total = 0
    for is_elliptical in elliptical:
        variants = ELLIPTICAL_VARIANTS if is_elliptical else 1
        attacks = sum(attack.num_steps + JUDGEMENTS for attack, _ in spec.cells)
        total += CLEAN_EVALUATIONS + variants * attacks
    return samples * total
