"""The figures of a report: what `summary` holds, the result of an evaluation."""

from typing import Literal

from pydantic import BaseModel, ConfigDict

from robustness.catalog import Norm, Variant
from robustness.gate import GateMetric, GateOperator


class Part(BaseModel):
    """A frozen piece of a report, without unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Figure(Part):
    """An accuracy in [0, 1] with its 95 % interval, and the same at other ranks."""

    top1: float
    ci: tuple[float, float]
    top_k: dict[str, float]


class AttackFigures(Part):
    """One attack at one point.

    `eps` is the point as the spec spells it: a radius in `norm`, or for texts, which have no norm,
    a rate or a number of edits; `budget` is the name of its place in `worst`. `eps_value`, `steps`
    and `alpha` are the numbers actually used. `gradients` has the accuracy by each way of taking
    gradients where there are two. Texts know no 8 bit.
    """

    name: str
    title: str
    norm: Norm | None
    eps: str
    eps_value: float
    budget: str
    steps: int | None
    alpha: float | None
    robust: Figure
    confirmed: float
    confirmed_8bit: float | None
    confirmed_top_k: dict[str, float]
    confirmed_8bit_top_k: dict[str, float] | None
    transfer_gap: float
    gradients: dict[Variant, float] | None


class CorruptionFigures(Part):
    """Accuracy under one common corruption at one severity, 1 to 5."""

    name: str
    severity: int
    accuracy: Figure


class Certified(Part):
    """The share of images that are right, and provably stay so within a radius (l2)."""

    radius: float
    share: float
    ci: tuple[float, float]


class CertificateFigures(Part):
    """Randomized smoothing with one sigma: certified accuracy over the radius, from 0 upwards."""

    sigma: str
    samples: int
    alpha: str
    abstained: float
    curve: list[Certified]


class MinimalFigures(Part):
    """Accuracy over all radii from one run: `eps` ascending, `accuracy` beside it.

    `median` is the distance to the nearest adversarial input that half of the images have; None
    where fewer than half of them were ever misled.
    """

    norm: Norm
    eps: list[float]
    accuracy: list[float]
    median: float | None


class ClassFigures(Part):
    """One class that has samples: its accuracy on clean inputs and under the worst attack."""

    index: int
    samples: int
    clean: float
    worst: dict[str, float]


class ModelFigures(Part):
    """All figures of one model; `worst` has one entry per budget of attacks, in ascending order.

    `largest` is the worst case over the attacks at the largest budget; a gate asks for it.
    `mean_corruption_error` is the mean error over corruptions, in [0, 1];
    `mce` is mCE against the compared model: the mean ratio of errors.
    """

    name: str
    version: str
    digest: str
    runtime: str
    precision: str
    samples: int
    clean: Figure
    attacks: list[AttackFigures]
    worst: dict[str, Figure]
    largest: Figure | None
    minimal: list[MinimalFigures]
    corruptions: list[CorruptionFigures]
    mean_corruption_error: float | None
    mce: float | None
    certificates: list[CertificateFigures]
    classes: list[ClassFigures]


class Pair(Part):
    """Two models on the same samples: accuracies, difference, counts, exact McNemar p.

    `difference` comes with its 95 % interval; `odds_ratio` is that of the discordant samples, None
    where only the first is ever right alone. `power` is the chance that the test finds a true
    difference as large as the one observed, `detectable` the smallest difference that it would find
    in four of five cases with as many discordant samples; None where there is none.
    """

    first: float
    second: float
    difference: float
    ci: tuple[float, float]
    both: int
    only_first: int
    only_second: int
    neither: int
    odds_ratio: float | None
    odds_ci: tuple[float, float | None]
    p_value: float
    power: float
    detectable: float | None


class Comparison(Part):
    """The model on trial (`first`) beside the one it is compared with; `largest` as in figures."""

    first: str
    second: str
    clean: Pair
    worst: dict[str, Pair]
    largest: Pair | None


class GateResult(Part):
    """Whether the gate held; `value` is the lower bound it was compared with.

    A figure with warnings passes no gate, and without labels clean accuracy, then 1 by definition,
    passes none.
    """

    text: str
    metric: GateMetric
    op: GateOperator
    threshold: float
    value: float
    passed: bool
    reason: str


class ReportWarning(Part):
    """A reason not to believe a figure, in plain words."""

    code: str
    model: str
    message: str


class Summary(Part):
    """The result of an evaluation."""

    metric: Literal["accuracy", "stability"]
    top_k: list[int]
    models: list[ModelFigures]
    comparison: Comparison | None
    gate: GateResult | None
    warnings: list[ReportWarning]
    reliable: bool
