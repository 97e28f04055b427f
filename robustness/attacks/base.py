"""What an attack is: its facts, its options, its budgets, what it costs, and how it runs.

Everything about an attack stands in its class; nothing else asks for its name. Importing an attack
imports neither torch nor torchattacks: they are imported when it runs.
"""

import hashlib
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple

import numpy as np
from pydantic import (
    BaseModel,
    Field,
    SerializerFunctionWrapHandler,
    ValidationInfo,
    field_validator,
    model_serializer,
    model_validator,
)
from pydantic.fields import FieldInfo

from core.names import nearest
from robustness.kinds import ASKING, OF_ANSWERS, InputKind, Shows, Variant
from robustness.parsing import L2_LIMIT, Radii, parse_eps
from runtimes.tasks import Answer

if TYPE_CHECKING:
    import torch

    from robustness.progress import Meter
    from robustness.target import Target

Norm = Literal["Linf", "L2", "L1", "L0"]
_OF_RADII = Field(description="norm of the radii")
Linf = Annotated[Literal["Linf"], _OF_RADII]
LinfOrL2 = Annotated[Literal["Linf", "L2"], _OF_RADII]
LinfL2OrL1 = Annotated[Literal["Linf", "L2", "L1"], _OF_RADII]
LinfOrL1 = Annotated[Literal["Linf", "L1"], _OF_RADII]
L2 = Annotated[Literal["L2"], _OF_RADII]
L0 = Annotated[Literal["L0"], _OF_RADII]
Space = Literal["pixels", "normalised"]
Access = Literal["gradient", "weights", "token-wise", "graph", "scores", "label", "none"]
Role = Literal["attack", "corruption", "certificate", "proof"]


def shown(
    *, gradients: bool, weights: bool, token_wise: bool, graph: bool, shows: Shows = "scores"
) -> list[Access]:
    """What a model shows of what attacks may need; see `Info.access`."""
    has: dict[Access, bool] = {
        "gradient": gradients, "weights": weights, "token-wise": token_wise, "graph": graph,
        "scores": shows != "label", "label": True, "none": True,
    }  # fmt: skip
    return [access for access, there in has.items() if there]


MAX_TARGETS = 9
"""Targeted attacks aim at the nine likeliest wrong classes; all 999 would cost 111 times more."""
TOLERANCE = 1e-6  # float32 rounding of images + delta
LIMITS: dict[Norm, float] = {"Linf": 1.0, "L2": L2_LIMIT, "L1": 1e6, "L0": 1e6}
"""Largest radius that is read, by norm."""
NORM_NAMES: dict[str, str] = {"Linf": "l∞", "L2": "l2", "L1": "l1", "L0": "l0"}


class BoundsError(ValueError):
    """Adversarial inputs that the attack was not allowed to make."""


class Strict(BaseModel, extra="forbid", frozen=True):
    """Frozen, without unknown keys; an unknown key is answered with the nearest known one."""

    @model_validator(mode="before")
    @classmethod
    def _known_keys(cls, values: Any) -> Any:
        for key in values if isinstance(values, dict) else ():
            if key not in cls.model_fields:
                raise ValueError(cls._unknown(str(key), values))
        return values

    @classmethod
    def _unknown(cls, key: str, _values: dict[str, Any]) -> str:
        return f"unknown key {key[:40]!r}; {nearest(key, cls.model_fields)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Info:
    """The facts of an attack.

    Attributes:
        title: its name in reports.
        paper: where it comes from.
        what: what it does, in half a sentence.
        input: what it changes.
        answers: the answers of models that it attacks: one class for an input, or for each pixel.
        access: what of the model it needs: gradients of the differentiable model, the scores of
            the served one, the class that it answers with, weights of an architecture whose proofs
            are known, such weights where no token sees another one, the graph served in fp32, or
            nothing.
        budget: the option that holds its budgets.
        norms: the balls it knows; without any, eps has no meaning.
        min_classes: fewer classes than that it cannot attack.
        role: an attack on the model; a corruption, which is not aimed at it; a certificate,
            which proves a radius of a smoothed model; or a proof about the model itself.
        follows: the loss whose gradient is all that it follows, if it is one.
        single_step: whether that is one step, which is weak.
        minimal: whether it looks for the nearest adversarial input, so that one run serves every
            budget.
        by_chance: whether a larger budget may spare more inputs, because nothing is aimed.
        counts: what the budget counts, where its name does not say all of what may be changed; see
            `Attack.changes`.
        references: identifiers of the papers, such as arXiv:1706.06083.
    """

    title: str
    paper: str
    what: str
    input: InputKind = "image"
    answers: tuple[Answer, ...] = ("class",)
    access: Access = "gradient"
    budget: str = "eps"
    norms: tuple[Norm, ...] = ()
    min_classes: int = 2
    role: Role = "attack"
    follows: Literal["cross-entropy"] | None = None
    single_step: bool = False
    minimal: bool = False
    by_chance: bool = False
    counts: Literal["pieces", "slips"] | None = None
    references: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What an attack may spend.

    Attributes:
        kind: what is counted: a norm, "patch", "rate", "edits", "corruption" or "sigma"; budgets of
            two kinds have no order.
        value: as a number.
        text: as the spec spells it.
    """

    kind: str
    value: float
    text: str

    @property
    def where(self) -> str:
        """The budget in a message, "eps 8/255" or "5"."""
        return f"eps {self.text}" if self.kind in LIMITS else self.text


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Inputs of one kind with their labels; every array has one entry per input.

    Attributes:
        inputs: (B, C, H, W) float32 in [0, 1], or B texts.
        labels: (B,) int64 true classes, of a segmenter (B, H, W); a change may alter them where
            they can be computed.
        found: more that an attack tells of each input: of texts "edits" and "queries", of the
            nearest adversarial inputs "nearest", their distance.
    """

    inputs: np.ndarray | list[str]
    labels: np.ndarray
    found: dict[str, np.ndarray] = field(default_factory=dict[str, np.ndarray])

    @property
    def images(self) -> np.ndarray:
        """The inputs of an image model."""
        if not isinstance(self.inputs, np.ndarray):
            raise TypeError("texts are not images")
        return self.inputs

    @property
    def texts(self) -> list[str]:
        """The inputs of a text model."""
        if isinstance(self.inputs, np.ndarray):
            raise TypeError("images are not texts")
        return self.inputs

    def take(self, rows: np.ndarray) -> "Batch":
        """Some of the inputs."""
        inputs = self.inputs
        return Batch(
            inputs=inputs[rows] if isinstance(inputs, np.ndarray) else [inputs[i] for i in rows],
            labels=self.labels[rows],
            found={name: values[rows] for name, values in self.found.items()},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """How an attack is run.

    Attributes:
        seeds: one for each input: all that is random about it.
        variant: how gradients treat m of elliptical attention.
        leave: stop for an input once it is fooled; else attack all of them to the end.
        meter: told of every model evaluation; its `Cancelled` ends the attack within one step.
        space: what images and eps are in; where it is not pixels, images may lie outside [0, 1].
    """

    seeds: Sequence[int]
    variant: Variant = "plain"
    leave: bool = True
    meter: "Meter | None" = None
    space: Space = "pixels"

    def generators(self) -> "list[torch.Generator]":
        """One for each input, fresh."""
        import torch

        return [torch.Generator().manual_seed(seed) for seed in self.seeds]


class Settings(NamedTuple):
    """How far an attack goes: its gradient steps, and the length of one where it is fixed."""

    steps: int | None = None
    alpha: float | None = None


def _ask_for_name(schema: dict[str, Any]) -> None:
    """A spec tells attacks apart by their names."""
    schema["required"] = ["name", *schema.get("required", [])]


class Attack(Strict, frozen=True, json_schema_extra=_ask_for_name):
    """One attack with its options, at one or more budgets."""

    info: ClassVar[Info]
    name: str

    @model_validator(mode="before")
    @classmethod
    def _absent_is_absent(cls, values: Any) -> Any:
        """Read null as a key that was left out."""
        if not isinstance(values, dict):
            return values
        return {key: value for key, value in values.items() if value is not None}

    @classmethod
    def _unknown(cls, key: str, values: dict[str, Any]) -> str:
        return f"{cls.info.title} takes no {key[:40]!r}; {nearest(key, cls.model_fields)}"

    @model_serializer(mode="wrap")
    def _as_given(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """What was given, without defaults."""
        given = {"name", *self.model_fields_set}
        return {key: value for key, value in handler(self).items() if key in given}

    @classmethod
    def spelled(cls, words: Sequence[str]) -> dict[str, Any]:
        """The keys of a spec from words such as "steps=40"; lists are separated by commas.

        Raises:
            ValueError: a word is no option with a value.
        """
        several, found = {option.name: option.several for option in options(cls)}, {}
        for word in words:
            key, sign, text = word.partition("=")
            if not sign:
                raise ValueError(f"--attack must read NAME:OPTION=VALUE, got {word[:40]!r}")
            values = [_number(one) for one in text.split(",")] if key in several else [text]
            found[key] = values if several.get(key) else values[0]
        return found

    @property
    def label(self) -> str:
        """What it is called in results, reports and addresses."""
        return self.name

    @property
    def title(self) -> str:
        """Its name in sentences."""
        return self.info.title

    @property
    def norm_name(self) -> Norm | None:
        """The norm of its budgets; None where they are not radii."""
        return getattr(self, "norm", None)

    @property
    def replication(self) -> bool:
        """Whether it repeats a protocol that says nothing of pixels: no worst case, no gate."""
        return False

    @property
    def in_8bit(self) -> bool:
        """Whether its results are scored after rounding to 8 bit as well."""
        return self.info.input == "image" and not self.replication

    @property
    def changes(self) -> str:
        """What its budgets bound: a norm, pieces, patches as the model cuts them, a patch's side.

        What an attack makes lies in the set of a proof that bounds the same by as much or more.
        """
        return self.info.counts or self.norm_name or self.info.budget

    def budgets(self) -> list[Budget]:
        """Where it is run, in the order of the spec."""
        kind, texts = self.norm_name or self.info.budget, getattr(self, self.info.budget)
        values = {str(text): parse_eps(str(text), limit=math.inf) for text in texts}
        return [Budget(kind=kind, value=value, text=text) for text, value in values.items()]

    def parts(self, num_classes: int) -> list["Attack"]:
        """The attacks it consists of, in their order."""
        return [self]

    def refusal(
        self, name: str, num_classes: int, access: Sequence[Access], answer: Answer = "class"
    ) -> str | None:
        """Why it cannot be tried on a model, in words; None where it can.

        Args:
            name: of the model.
            num_classes: that it tells apart.
            access: what it shows; see `shown`.
            answer: what it answers with.
        """
        if answer not in self.info.answers:
            return f"{self.label!r} {OF_ANSWERS[answer].format(name=repr(name))}"
        least = self.info.min_classes
        if answer != "tokens" and num_classes < least:
            return f"{self.label!r} needs at least {least} classes, and the model has {num_classes}"
        missing = {part.info.access for part in self.parts(num_classes)} - set(access)
        if "gradient" in missing:
            use = ASKING[self.info.input]
            return f"{self.label!r} follows gradients, and {name!r} has none: {use}"
        if "weights" in missing:
            return f"{self.label!r} needs weights that it can read, and {name!r} shows none"
        if "token-wise" in missing:
            return f"{self.label!r} needs tokens that do not see each other, unlike in {name!r}"
        if "graph" in missing:
            return (
                f"{self.label!r} needs the graph that is served, in fp32, and {name!r} shows none"
            )
        if "scores" in missing:
            return f"{self.label!r} needs scores, and {name!r} shows the class alone"
        return None

    def searched(self, budget: Budget) -> Budget:
        """The budget of the run that serves one budget: of a minimal attack any radius at all."""
        return budget

    def cost(self, num_classes: int) -> int:
        """Model evaluations of one input at one budget, at most; fooled inputs leave earlier."""
        raise NotImplementedError

    @property
    def scorings(self) -> int:
        """Model evaluations that score one result.

        Of images by the differentiable model, the served one, and that in 8 bit.
        """
        return 3 if self.in_8bit else 2

    def settings(self, budget: Budget) -> Settings:
        """Steps, and size of a step, where it has any."""
        return Settings(getattr(self, "steps", None))

    def sizes(self) -> dict[str, tuple[str, int]]:
        """By option how many "steps", "queries" or "directions" it takes, for limits on them."""
        known = type(self).model_fields
        return {name: (name, getattr(self, name)) for name in ("steps", "queries") if name in known}

    def crosses(self, budget: Budget) -> bool:
        """Whether its steps are long enough to cross the ball."""
        return True

    def notes(self, num_classes: int) -> Iterator[str]:
        """What a reader of its figures must know."""
        yield from ()

    def seeds(self, seed: int, budget: Budget, inputs: np.ndarray | Sequence[str]) -> list[int]:
        """One seed for each input, of all its draws.

        Those of an attack do not depend on the budget, so that a larger one continues a smaller.
        """
        return [input_seed(seed, self.label, content) for content in map(content_of, inputs)]

    def run(self, target: "Target", batch: Batch, budget: Budget, search: Search) -> Batch:
        """Attack a batch; an input that is not fooled may come back unchanged.

        Args:
            target: the model.
            batch: clean inputs with their labels.
            budget: what may be spent.
            search: how to go about it.

        Raises:
            Cancelled: the caller wants to stop.
            NotPossible: the model lacks what the attack needs.
        """
        raise NotImplementedError

    def redrawn(self, images: np.ndarray, budget: Budget, seeds: Sequence[int]) -> np.ndarray:
        """Images (B, C, H, W) as a run that stores none gave them to the model, from its seeds."""
        raise NotImplementedError

    def allowed(
        self, clean: Batch, made: Batch, budget: Budget, target: "Target", seeds: Sequence[int]
    ) -> np.ndarray:
        """Which inputs the attack was allowed to make, (B,) bool.

        Args:
            clean: what was attacked.
            made: what came of it.
            budget: what could be spent.
            target: the model, whose tokens some attacks on texts count.
            seeds: of the attack's draws, which some attacks on texts repeat.
        """
        raise NotImplementedError

    def size(self, clean: Batch, adversarial: Batch, budget: Budget) -> np.ndarray:
        """How large each change is, (B,) float64.

        Raises:
            BoundsError: an attack on images was not allowed to make one.
        """
        return adversarial.found["edits"].astype(np.float64)

    def describe(self, budget: Budget) -> str:
        """A budget as part of a sentence, "within 8/255" or "with 5 edits"."""
        text = budget.text
        match budget.kind:
            case "Linf":
                return f"within {text}"
            case "L2" | "L1" as norm:
                return f"within {text} ({NORM_NAMES[norm]})"
            case "L0":
                return f"with {text} pixel{'s' * (text != '1')}"
            case "patches":
                return f"with {int(text):,} patch{'es' * (text != '1')} replaced"
            case "rate":
                return f"at a rate of {text}"
            case "sigma":
                return f"under noise of {text}"
        return f"with {int(text):,} edit{'s' * (text != '1')}"


def content_of(one: np.ndarray | str) -> bytes:
    """The bytes that an input's random draws derive from."""
    return one.tobytes() if isinstance(one, np.ndarray) else one.encode("utf-8", "surrogatepass")


def input_seed(seed: int, attack: str, content: bytes) -> int:
    """Seed of all random draws of one input under one attack.

    It depends on the evaluation's seed, the attack and the input alone: not on the other inputs,
    their order, the radius, the model or the gradient variant. So two models meet the same draws.

    Args:
        seed: the evaluation's.
        attack: name of the attack that draws.
        content: bytes of the input.
    """
    digest = hashlib.sha256(json.dumps([seed, attack]).encode() + content).digest()
    return int.from_bytes(digest[:8]) >> 1


class BallAttack(Attack, frozen=True):
    """An attack on images within balls around them."""

    norm: Annotated[Norm, _OF_RADII] = "Linf"
    eps: Radii = Field(
        description="radii such as 8/255 or 0.03, in the model's input space, where pixels lie in "
        "[0, 1]",
        json_schema_extra={"of": {"type": "number", "minimum": 0}},
    )

    @field_validator("eps")
    @classmethod
    def _known_radii(cls, eps: list[str], info: ValidationInfo) -> list[str]:
        # A norm that was refused is absent here, and its own error is enough.
        norm = info.data.get("norm", "L1")
        found = distinct_numbers("eps", eps, limit=LIMITS[norm])
        if norm == "L0" and not all(
            parse_eps(text, limit=LIMITS[norm]).is_integer() for text in eps
        ):
            raise ValueError(f"eps must be whole numbers of pixels for L0, got {str(eps)[:200]}")
        return found

    def allowed(
        self, clean: Batch, made: Batch, budget: Budget, target: "Target", seeds: Sequence[int]
    ) -> np.ndarray:
        """Finite, inside [0, 1], and within the radius but for rounding."""
        size = change_size(clean.images, made.images, self.norm)
        return in_range(made.images) & (size <= budget.value + TOLERANCE)

    def size(self, clean: Batch, adversarial: Batch, budget: Budget) -> np.ndarray:
        """See `Attack.size`; the norm of the change."""
        before, made = clean.images, adversarial.images
        if made.shape != before.shape:
            raise BoundsError(f"adversarial must have shape {before.shape}, got {made.shape}")
        if not np.isfinite(made).all():
            raise BoundsError("adversarial inputs must be finite")
        if not in_range(made).all():
            raise BoundsError("adversarial inputs must lie in [0, 1]")
        distance = change_size(before, made, self.norm)
        if distance.max() > budget.value + TOLERANCE:
            raise BoundsError(
                f"adversarial inputs must stay within {budget.value:.6g}, got {distance.max():.6g}"
            )
        return distance


def distinct_numbers(name: str, texts: list[str], *, limit: float = 1.0) -> list[str]:
    """Refuse what is not a number in (0, limit], and a number named twice."""
    values = [parse_eps(text, name=name, limit=limit) for text in texts]
    if len(set(values)) < len(values):
        what = "a radius" if name == "eps" else "a value"
        raise ValueError(f"{name} must not name {what} twice, got {str(texts)[:200]}")
    return texts


def distinct(name: str, values: list[Any]) -> list[Any]:
    """Refuse a value named twice."""
    if len(set(values)) < len(values):
        raise ValueError(f"{name} must not name a value twice, got {str(values)[:200]}")
    return values


def in_range(images: np.ndarray) -> np.ndarray:
    """Which images are finite and inside [0, 1], (N,) bool."""
    flat = images.reshape(len(images), math.prod(images.shape[1:]))
    return np.all(np.isfinite(flat) & (flat >= 0) & (flat <= 1), axis=1)


def check_images(batch: Batch, seeds: Sequence[int], space: Space = "pixels") -> None:
    """Refuse what an attack would misunderstand: pixels outside [0, 1] would move by more than eps.

    Raises:
        ValueError: images are not (N, C, H, W) float32, or pixels not in [0, 1]; labels are not
            (N,) or (N, H, W) int64, or there is not one seed an image.
    """
    images, labels = batch.images, batch.labels
    if images.dtype != np.float32 or images.ndim != 4:
        raise ValueError(f"images must be (N, C, H, W) float32, got {images.shape} {images.dtype}")
    if space == "pixels" and not ((images >= 0) & (images <= 1)).all():
        raise ValueError("images must lie in [0, 1]")
    masks = (len(images), *images.shape[2:])
    if labels.dtype != np.int64 or labels.shape not in (images.shape[:1], masks):
        raise ValueError(
            f"labels must be ({len(images)},) int64, got {labels.shape} {labels.dtype}"
        )
    if len(seeds) != len(images):
        raise ValueError(f"seeds must be one an image, {len(images)}, got {len(seeds)}")


def change_size(clean: np.ndarray, adversarial: np.ndarray, norm: Norm) -> np.ndarray:
    """Norm of the change of every image (N, C, H, W), (N,) float64.

    L0 counts pixels, all channels together.
    """
    change = adversarial.astype(np.float64) - clean.astype(np.float64)
    flat = np.abs(change).reshape(len(clean), math.prod(clean.shape[1:]))
    match norm:
        case "Linf":
            return flat.max(axis=1)
        case "L2":
            return np.sqrt((flat**2).sum(axis=1))
        case "L1":
            return flat.sum(axis=1)
        case "L0":
            moved = (change != 0).any(axis=1).reshape(len(clean), -1)
            return moved.sum(axis=1).astype(np.float64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One thing an attack can be told.

    Attributes:
        type: "number" is spelled as a number or a fraction.
        several: whether a list is taken.
        default: what holds where it is not given; None where it must be, or depends on others.
        choices: the values there are, if they are few.
        text: what it means.
    """

    name: str
    type: Literal["integer", "number", "string", "object"]
    several: bool
    default: Any
    required: bool
    minimum: float | None
    maximum: float | None
    choices: list[str] | None
    text: str


def options(kind: type[Attack]) -> list[Option]:
    """What an attack can be told, from its fields."""
    shapes, found = kind.model_json_schema()["properties"], []
    for name, known in kind.model_fields.items():
        several = shapes[name].get("type") == "array"
        item = (shapes[name]["items"] if several else shapes[name]) | shapes[name].get("of", {})
        option = Option(
            name=name,
            type=item.get("type", "string"),
            several=several,
            default=_default(known, shapes[name].get("of", {})),
            required=known.is_required(),
            minimum=item.get("minimum"),
            maximum=item.get("maximum"),
            choices=item.get("enum") or ([item["const"]] if "const" in item else None),
            text=known.description or "",
        )
        if name != "name":
            found.append(option)
    return found


def _default(known: FieldInfo, stated: dict[str, Any]) -> Any:
    """What holds without a value, unless its field states that this depends on others."""
    if known.is_required() or "default" in stated:
        return stated.get("default")
    return known.get_default(call_default_factory=True)


def _number(text: str) -> int | str:
    """A whole number where the text is one."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else text
