"""One attack of an evaluation: its parameters, its points and what it costs at most."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator, model_validator

from core.names import nearest
from robustness.catalog import (
    AUTOATTACK,
    CORRUPTIONS,
    EXTRA_CORRUPTIONS,
    KINDS,
    MAX_TARGETS,
    AttackName,
    Kind,
    Norm,
)
from robustness.parsing import L2_LIMIT, MOST, Count, Counts, Radii, Radius, parse_eps

PGD_ALPHA = 0.15  # of eps, per step: Nielsen et al. 2024; 20 steps can cross the whole ball
_FIELDS = (
    "steps", "alpha", "queries", "samples", "names", "severities", "sigma", "rate", "edits"
)  # fmt: skip


class Strict(BaseModel):
    """Frozen, without unknown keys; an unknown key is answered with the nearest known one."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _known_keys(cls, values: Any) -> Any:
        for key in values if isinstance(values, dict) else ():
            if key not in cls.model_fields:
                hint = nearest(key, cls.model_fields)
                raise ValueError(f"unknown key {str(key)[:40]!r}; {hint}")
        return values


def _distinct_numbers(
    name: str, texts: list[str] | None, *, limit: float = 1.0
) -> list[str] | None:
    values = [parse_eps(text, name=name, limit=limit) for text in texts or ()]
    if len(set(values)) < len(values):
        what = "a radius" if name == "eps" else "a value"
        raise ValueError(f"{name} must not name {what} twice, got {str(texts)[:200]}")
    return texts


class AttackSpec(Strict):
    """One attack at one or more points; what each can be told stands in `robustness.catalog`.

    Attributes:
        name: which attack.
        norm: the ball of allowed perturbations, "Linf" when not given; None without radii.
        eps: radii such as "8/255" or "0.03", in the model's input space.
        steps: gradient steps (pgd 20, apgd and fab 100 a target), or SPSA's iterations (40).
        alpha: of pgd the step size, in the same unit as eps, 0.15 eps when not given; of smoothing
            the probability that a certificate is wrong, 0.001.
        queries: model evaluations of an image or text at most: square 5000, hotflip, typos 1000.
        samples: of spsa random directions in an iteration (128), of smoothing noisy copies
            (1000).
        names: of corruptions, the 15 of ImageNet-C when not given.
        severities: of corruptions, 1 to 5.
        sigma: of smoothing, standard deviations of the noise in the input space.
        rate: of word-swap, shares of the words.
        edits: of hotflip replaced tokens, of typos changed words; at most.
    """

    name: AttackName
    norm: Norm | None = None
    eps: Radii | None = None
    steps: Count | None = None
    alpha: Radius | None = None
    queries: Count | None = None
    samples: Count | None = None
    names: Annotated[list[str], Field(max_length=MOST)] | None = None
    severities: Counts | None = None
    sigma: Radii | None = None
    rate: Radii | None = None
    edits: Counts | None = None

    @model_validator(mode="before")
    @classmethod
    def _absent_is_absent(cls, values: Any) -> Any:
        """Read null as a key that was left out."""
        if not isinstance(values, dict):
            return values
        return {key: value for key, value in values.items() if value is not None}

    @model_validator(mode="after")
    def _only_what_it_knows(self) -> "AttackSpec":
        kind = self.kind
        for name in _FIELDS:
            if getattr(self, name) is not None and name not in kind.fields:
                raise ValueError(f"{name} has no meaning for {self.name!r}; leave it out")
        if not kind.norms:
            for name in ("eps", "norm"):
                if getattr(self, name) is not None:
                    raise ValueError(f"{name} has no meaning for {self.name!r}; leave it out")
        elif self.eps is None:
            raise ValueError(f"eps is missing: {self.name!r} needs at least one radius")
        elif self.norm is not None and self.norm not in kind.norms:
            known = " or ".join(repr(norm) for norm in kind.norms)
            raise ValueError(f"norm of {self.name!r} must be {known}, got {self.norm!r}")
        return self

    @field_validator("eps")
    @classmethod
    def _known_radii(cls, eps: list[str] | None, info: ValidationInfo) -> list[str] | None:
        # A norm that was refused is absent here, and its own error is enough.
        linf = info.data.get("norm", "L2") != "L2"
        return _distinct_numbers("eps", eps, limit=1.0 if linf else L2_LIMIT)

    @field_validator("sigma")
    @classmethod
    def _known_sigma(cls, sigma: list[str] | None) -> list[str] | None:
        return _distinct_numbers("sigma", sigma, limit=10.0)

    @field_validator("rate")
    @classmethod
    def _known_rate(cls, rate: list[str] | None) -> list[str] | None:
        return _distinct_numbers("rate", rate)

    @field_validator("alpha")
    @classmethod
    def _known_alpha(cls, alpha: str | None, info: ValidationInfo) -> str | None:
        if alpha is not None:
            value = parse_eps(alpha, name="alpha")
            if info.data.get("name") == "smoothing" and value == 1:
                raise ValueError(f"alpha must lie in (0, 1) for 'smoothing', got {alpha!r}")
        return alpha

    @field_validator("names", "severities", "edits")
    @classmethod
    def _distinct_values(cls, values: list[Any] | None, info: ValidationInfo) -> list[Any] | None:
        if values is not None and len(set(values)) < len(values):
            got = str(values)[:200]
            raise ValueError(f"{info.field_name} must not name a value twice, got {got}")
        return values

    @field_validator("severities")
    @classmethod
    def _known_severities(cls, severities: list[int] | None) -> list[int] | None:
        for severity in severities or ():
            if severity > 5:
                raise ValueError(f"severities must lie in 1 to 5, got {severity}")
        return severities

    @field_validator("names")
    @classmethod
    def _known_names(cls, names: list[str] | None) -> list[str] | None:
        known = (*CORRUPTIONS, *EXTRA_CORRUPTIONS)
        if names == []:
            raise ValueError("names must hold at least one corruption")
        for name in names or ():
            if name not in known:
                hint = nearest(name, known)
                raise ValueError(f"names: unknown corruption {name[:40]!r}; {hint}")
        return names

    @property
    def kind(self) -> Kind:
        """What this attack is."""
        return KINDS[self.name]

    @property
    def ball(self) -> Norm:
        """The norm of its radii, with the default filled in."""
        return self.norm or "Linf"

    def setting(self, name: str) -> Any:
        """One of its parameters, with the default filled in."""
        value = getattr(self, name)
        return self.kind.fields[name] if value is None else value

    @property
    def num_steps(self) -> int:
        """Gradient steps of one run, each one forward and one backward pass."""
        if self.name == "autoattack":
            return 100
        return 1 if "steps" not in self.kind.fields else self.setting("steps")

    def step_size(self, eps: float) -> float:
        """Step size at a radius: eps itself for fgsm, alpha or its default for pgd."""
        if self.name == "fgsm":
            return eps
        return parse_eps(self.alpha) if self.alpha else PGD_ALPHA * eps

    def radius(self, eps: str) -> float:
        """One of its radii as a number."""
        return parse_eps(eps, limit=L2_LIMIT if self.norm == "L2" else 1.0)

    @property
    def points(self) -> list[str]:
        """Where it is run, as the spec spells it: a radius, "fog:3", a sigma, a rate, edits."""
        if self.kind.norms:
            return list(self.eps or ())
        if self.name == "corruptions":
            return [
                f"{name}:{k}"
                for name in self.names or CORRUPTIONS
                for k in self.setting("severities")
            ]
        place = {"smoothing": "sigma", "word-swap": "rate"}.get(self.name, "edits")
        return [str(value) for value in self.setting(place)]

    def components(self, num_classes: int) -> list["AttackSpec"]:
        """The attacks it consists of, in their order: AutoAttack's four, else itself.

        APGD-T needs four classes: its loss compares four logits. With fewer it is left out.
        """
        if self.name != "autoattack":
            return [self]
        names: list[AttackName] = [
            name for name in AUTOATTACK if num_classes >= KINDS[name].min_classes
        ]
        return [AttackSpec(name=name, norm=self.norm, eps=self.eps) for name in names]

    def evaluations(self, num_classes: int) -> int:
        """Model evaluations of one sample at one point, at most; fooled samples leave earlier."""
        if self.name == "autoattack":
            return sum(part.evaluations(num_classes) for part in self.components(num_classes))
        steps, targets = self.num_steps, min(MAX_TARGETS, num_classes - 1)
        own = {
            "fgsm": steps,
            "pgd": steps,
            "apgd-ce": steps + 2,
            "apgd-t": targets * (steps + 2) + 1,
            "fab-t": 2 * targets * (steps + 1) + 1,
        }
        if self.name in own:
            return own[self.name]
        if "queries" in self.kind.fields:
            return self.setting("queries") + 2
        if "samples" in self.kind.fields:
            rounds = steps if self.name == "spsa" else 1
            return rounds * (self.setting("samples") + 2) + 100
        return 1
