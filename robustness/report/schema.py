"""What a report holds. The schema is versioned; a reader refuses a version it does not know."""

from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from robustness.shards import write_whole
from robustness.spec import EvaluationSpec, GateMetric, GateOperator, Norm, Variant

SCHEMA_VERSION = 1
FILE = "report.json"

DEFINITIONS = {
    "clean": "right on the unchanged input, judged on the served model",
    "robust": "right on the unchanged input (served model) and on the adversarial input, judged on "
    "the differentiable twin in float32; models with elliptical attention are attacked with "
    "gradients stopped at m and flowing through m, and the worse of both counts, image by image",
    "confirmed": "right on the unchanged input and on the same stored adversarial inputs, judged "
    "again on the served model",
    "confirmed_8bit": "the same after the adversarial input was written as a PNG and read "
    "through the public preprocessing; rounding moves a pixel by up to 0.5/255, so where eps is no "
    "multiple of 1/255 the rounded input may lie that much outside the radius",
    "transfer_gap": "confirmed minus robust: attacks that fooled the twin but not the served model",
    "worst": "right under every attack at that radius, image by image",
    "top_k": "the label is among the k best classes; equal scores are ordered by index; "
    "attacks aim at top-1, and the worst case at each k is taken image by image over all attacks "
    "run in full",
    "ci": "Wilson 95 % interval: what the number of images alone leaves open",
    "eps": "largest change of any pixel, in the model's input space where pixels lie in [0, 1]",
    "stability": "no labels were given: the model's own prediction on the unchanged input stands "
    "in, so the figures say how hard it is to change its mind, not whether it was right",
}


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Figure(_Part):
    """An accuracy in [0, 1] with its 95 % interval, and the same at other ranks."""

    top1: float
    ci: tuple[float, float]
    top_k: dict[str, float]


class AttackFigures(_Part):
    """One attack at one radius; `eps_value` and `alpha` are the numbers actually used."""

    name: str
    norm: Norm
    eps: str
    eps_value: float
    steps: int
    alpha: float
    robust: Figure
    confirmed: float
    confirmed_8bit: float
    confirmed_top_k: dict[str, float]
    confirmed_8bit_top_k: dict[str, float]
    transfer_gap: float
    gradients: dict[Variant, float] | None


class ModelFigures(_Part):
    """All figures of one model; `worst` has one entry per radius, in ascending order."""

    name: str
    version: str
    digest: str
    runtime: str
    precision: str
    samples: int
    clean: Figure
    attacks: list[AttackFigures]
    worst: dict[str, Figure]


class Pair(_Part):
    """Two models on the same images: accuracies, their difference, counts, exact McNemar p."""

    first: float
    second: float
    difference: float
    both: int
    only_first: int
    only_second: int
    neither: int
    p_value: float


class Comparison(_Part):
    """The model on trial (`first`) beside the one it is compared with."""

    first: str
    second: str
    clean: Pair
    worst: dict[str, Pair]


class GateResult(_Part):
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


class ReportWarning(_Part):
    """A reason not to believe a figure, in plain words."""

    code: str
    model: str
    message: str


class Summary(_Part):
    """The result of an evaluation."""

    metric: Literal["accuracy", "stability"]
    top_k: list[int]
    models: list[ModelFigures]
    comparison: Comparison | None
    gate: GateResult | None
    warnings: list[ReportWarning]
    reliable: bool


class CleanFlags(_Part):
    """One model on one unchanged image; `probability` is None where logits are not finite."""

    index: int
    probability: float | None
    correct: bool


class AttackFlags(_Part):
    """One model on one image under one attack at one radius.

    `robust`, `confirmed` and `confirmed_8bit` are True where the model held, so that their means
    are the accuracies. `adversarial_index` is what the served model says, `variant` the gradients
    that made the image shown, `margin` the twin's logit of the label minus the largest other one
    (None where not finite), `linf` the largest change of a pixel.
    """

    name: str
    eps: str
    eps_value: float
    adversarial_index: int
    variant: Variant
    margin: float | None
    linf: float
    robust: bool
    confirmed: bool
    confirmed_8bit: bool


class ModelFlags(_Part):
    """One model on one image."""

    name: str
    clean: CleanFlags
    attacks: list[AttackFlags]


class Sample(_Part):
    """One image; `label` is None where none was given."""

    index: int
    name: str
    label: int | None
    models: list[ModelFlags]


class Data(_Part):
    """What was judged: sha256 over the first model's inputs and the labels."""

    digest: str
    samples: int
    labels: list[str]


class Report(_Part):
    """Verdicts, intervals, doubts, and everything needed to repeat them."""

    schema_version: Literal[1] = SCHEMA_VERSION
    spec: EvaluationSpec
    seed: int
    summary: Summary
    samples: list[Sample]
    data: Data
    shard_size: int
    environment: dict[str, str]
    notes: list[str]
    definitions: dict[str, str]
    created: str

    def to_json(self) -> dict[str, Any]:
        """The report as JSON values."""
        return self.model_dump(mode="json")


def write_report(folder: Path, report: Report) -> Path:
    """Write `report.json` whole or not at all."""
    path = folder / FILE
    write_whole(path, report.model_dump_json().encode())
    return path


def read_report(folder: Path) -> Report:
    """Read `report.json`.

    Raises:
        OSError: there is none.
        ValueError: it has another schema version, or breaks the schema.
    """
    return Report.model_validate_json((folder / FILE).read_bytes())
