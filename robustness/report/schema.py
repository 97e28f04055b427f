"""What a report holds. The schema is versioned; a reader refuses a version it does not know."""

import re
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from core.files import write_whole
from core.json import JsonError, read_json
from robustness.attacks.base import Norm
from robustness.kinds import Variant
from robustness.spec import EvaluationSpec, GateMetric, GateOperator

SCHEMA_VERSION = 4
FILE = "report.json"
# Not allowed in XML 1.0, and of no use in a page.
_FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")

DEFINITIONS = {
    "clean": "correct on the unchanged input, scored on the served model",
    "robust": "correct on the unchanged input (served model) and on the adversarial input, scored "
    "on the model's PyTorch model in float32; models with elliptical attention are attacked "
    "with gradients stopped at m and flowing through m, and the worse of both counts, input by "
    "input",
    "confirmed": "correct on the unchanged input and on the same stored adversarial inputs, scored "
    "again on the served model",
    "confirmed_8bit": "the same after the adversarial input was written as a PNG and read "
    "through the public preprocessing; rounding moves a pixel by up to 0.5/255, so where eps is "
    "not a multiple of 1/255 the rounded input may lie that much outside the radius",
    "transfer_gap": "confirmed minus robust: attacks that succeed on the PyTorch model but "
    "not on the served model",
    "worst": "correct under every attack with that budget, on the PyTorch model and on the "
    "served model, input by input",
    "top_k": "the label is among the k best classes; equal scores are ordered by index; "
    "attacks aim at top-1, and the worst case at each k is taken image by image over all attacks "
    "run in full",
    "ci": "Wilson 95 % interval: what the number of inputs alone leaves open",
    "corrupted": "accuracy averaged over corruptions and severities; its 95 % interval "
    "takes each image's average in the place of a hit or miss, which is never too short",
    "eps": "largest change of any pixel (Linf), root of the sum of squares of all changes (L2), "
    "sum of their sizes (L1), or number of pixels changed, all channels together (L0), in the "
    "model's input space where pixels lie in [0, 1]",
    "minimal": "the nearest adversarial input that a minimum-norm attack found; it bounds the true "
    "distance from above, and one run gives accuracy at every radius",
    "mean_corruption_error": "error averaged over severities and corruptions; the relative one "
    "(mCE) divides each corruption's error by that of the model compared with (Hendrycks and "
    "Dietterich 2019)",
    "certificate": "what holds for every change within the l2 radius, whatever the attack, of the "
    "smoothed model: the majority vote over noisy copies (Cohen et al. 2019); at most alpha of the "
    "certificates are wrong",
    "bracket": "of one set of changes, that of a proof: an input is broken where something in it "
    "misleads the PyTorch model or the served one (or it is wrong unchanged), proved where nothing "
    "in it can, rounding included, and open where neither is known; an attack stands in a bracket "
    "only if all that it may make lies in the set",
    "stability": "no labels were given: the model's own prediction on the unchanged input stands "
    "in, so the figures say how stable its predictions are, not whether they are correct",
}
PIXEL_DEFINITIONS = {
    "clean": "share of the pixels of an image whose class is right, the mean over images, scored "
    "on the served model; pixels without a class count nowhere",
    "robust": "the same on the adversarial image, scored on the model's PyTorch model in float32, "
    "or on the unchanged one (served model) where that is lower; models with elliptical attention "
    "are attacked with gradients stopped at m and flowing through m, and the worse of both counts, "
    "image by image",
    "confirmed": "the same stored adversarial images, scored again on the served model",
    "worst": "the lowest pixel accuracy of an image under every attack with that budget, on the "
    "PyTorch model and on the served model, image by image",
    "mean_iou": "of all pixels together: intersection over union of true and predicted pixels, the "
    "mean over the classes that occur in either; under attack of the answers that the pixel "
    "accuracy is of",
    "ci": "95 % percentile interval of the bootstrap over images",
}
"""Definitions in the report on a segmenter that other models have otherwise, or not at all."""
TOKEN_DEFINITIONS = {
    "clean": "share of the tokens of a text that the model thinks the likeliest after those before "
    "them, the mean over texts, scored on the served model in windows of its context; the first "
    "token is not predicted",
    "robust": "the same of the changed text, whatever it was of the unchanged one",
    "worst": "the lowest share of a text under every attack with that budget",
    "perplexity": "of all tokens together: e to the mean of the negative logarithms of their "
    "probabilities; changed words count as all others do",
    "ratio": "perplexity of the changed texts over that of the unchanged ones",
    "ci": "95 % percentile interval of the bootstrap over texts; of a ratio both perplexities are "
    "of the same drawn texts",
}
"""The same in the report on a language model."""
SEQUENCE = (
    "95 % confidence sequence: what the number of inputs alone leaves open, whenever one stops"
)
"""The definition of `ci` in the report of an evaluation that stops early."""


def plain(text: str) -> str:
    """A text without characters that XML or UTF-8 forbid; each becomes U+FFFD."""
    return _FORBIDDEN.sub("\ufffd", text)


class Part(BaseModel):
    """A frozen piece of a report, without unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Figure(Part):
    """An accuracy in [0, 1] with its 95 % interval, and the same at other ranks.

    Of a segmentation it is the mean over images of their pixel accuracy; `mean_iou` with its
    interval is of all pixels together. Of a language model it is the mean over texts of the share
    of tokens predicted right; `perplexity` is of all tokens together, and `ratio` how many times
    as high it is as that of the unchanged texts.
    """

    top1: float
    ci: tuple[float, float]
    top_k: dict[str, float]
    mean_iou: float | None = None
    mean_iou_ci: tuple[float, float] | None = None
    perplexity: float | None = None
    perplexity_ci: tuple[float, float] | None = None
    ratio: float | None = None
    ratio_ci: tuple[float, float] | None = None


class PartFigures(Part):
    """One of the attacks that make up another: how many correct inputs it misled.

    What an earlier one misled is not attacked again, unless ranks above the first are asked for.
    """

    name: str
    title: str
    misled: int


class AttackFigures(Part):
    """One attack with one budget.

    `eps` is the budget as the spec spells it: a radius in `norm`, or for texts, which have no norm,
    a rate or a number of edits; `kind` is what it counts, `description` how a sentence names it,
    and `budget` its key in `worst`. `eps_value`, `steps` and `alpha` are the numbers actually used.
    `gradients` has the accuracy by each way of taking gradients where there are two, `parts` what
    each part of an attack like AutoAttack misled.

    `confirmed_mean_iou` and `confirmed_8bit_mean_iou` are those of a segmentation.

    `successes` counts correct inputs (of a segmentation all) that the attack changed the prediction
    of, `served_successes` those among them that also mislead the served model, `png_successes`
    those that still do as an 8-bit PNG (None for texts), and `served_only` the inputs that mislead
    the served model alone.
    """

    name: str
    title: str
    norm: Norm | None
    eps: str
    eps_value: float
    kind: str
    description: str
    budget: str
    steps: int | None
    alpha: float | None
    robust: Figure
    confirmed: float
    confirmed_8bit: float | None
    confirmed_top_k: dict[str, float]
    confirmed_8bit_top_k: dict[str, float] | None
    transfer_gap: float
    confirmed_mean_iou: float | None = None
    confirmed_8bit_mean_iou: float | None = None
    successes: int
    served_successes: int
    png_successes: int | None
    served_only: int
    gradients: dict[Variant, float] | None
    parts: list[PartFigures] = []
    finding: str


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


class Contradiction(Part):
    """An input that is proved to hold in a set of changes, and does not: one side is wrong.

    The attack's witness is the stored input of `attack` with the budget `eps` ("none" where the
    unchanged one is misclassified), to which the served model answers `adversarial_index`. The
    proof's is its worst case: `margin` is left, of which rounding takes `rounding` at most, when
    the tokens at `places` are replaced by `pieces`, or the patches at `places` by anything.
    """

    sample: int
    attack: str
    eps: str | None
    adversarial_index: int
    margin: float
    rounding: float
    places: list[int]
    pieces: list[int]
    finding: str = ""


class BracketFigures(Part):
    """What is known of one set of changes, that of a proof with one budget.

    `broken`, `proved` and `open` count inputs; `attacks` are those inside of the set. Proved
    accuracy is a lower bound, robust accuracy, the share that nothing was found to break, an upper
    one. `rounding` is the largest that was allowed for, `methods` counts what was proved by each.
    """

    name: str
    title: str
    eps: str
    eps_value: float
    kind: str
    description: str
    attacks: list[str]
    broken: int
    proved: int
    open: int
    proved_accuracy: Figure
    robust_accuracy: Figure
    rounding: float
    methods: dict[str, int] = {}
    contradictions: list[Contradiction]
    finding: str


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


class EndpointFigures(Part):
    """Where a model lay behind an address: what it was, as it told itself, and what was asked.

    `shows` is what the attacks saw of its answers, "scores", "top-5" or "label"; `told` what the
    server says of itself and the model; `surrogate` is the local copy whose gradients attacks
    followed, if any; `asked` how many inputs were answered, `asked_again` how
    many of them a second time, on purpose.
    """

    url: str
    protocol: str
    model: str
    shows: str
    told: dict[str, str]
    surrogate: dict[str, str] | None = None
    asked: int
    asked_again: int


class ModelFigures(Part):
    """All figures of one model; `worst` has one entry per budget of attacks, in ascending order.

    `largest` is the worst case over the attacks at the largest budget; a gate asks for it.
    `corrupted` is accuracy averaged over corruptions and severities, `mean_corruption_error` its
    complement; `mce` is mCE against the compared model: the mean ratio of errors. `brackets` has an
    entry for each budget of a proof, `proved` is what holds at the largest of each. `outcome` shows
    accuracy before and under what was tried, "90 % → 43 %". `endpoint` is there where it lay behind
    an address.
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
    corrupted: Figure | None = None
    mean_corruption_error: float | None
    mce: float | None
    certificates: list[CertificateFigures]
    brackets: list[BracketFigures] = []
    proved: Figure | None = None
    classes: list[ClassFigures]
    outcome: str
    endpoint: EndpointFigures | None = None


class Pair(Part):
    """Two models on the same samples: accuracies, difference with its 95 % interval, counts.

    `p_value` is that of the exact test of McNemar. Of segmentations the counts are of images on
    which one model is right on more pixels, and the test is that of signs; `both` are alike. Of
    language models it is of texts and tokens, and `perplexity` is the first one's over the
    second's.
    """

    first: float
    second: float
    difference: float
    ci: tuple[float, float]
    both: int
    only_first: int
    only_second: int
    neither: int
    p_value: float
    perplexity: float | None = None
    perplexity_ci: tuple[float, float] | None = None


class Comparison(Part):
    """The evaluated model (`first`) beside the one it is compared with; `largest` as in figures."""

    first: str
    second: str
    clean: Pair
    worst: dict[str, Pair]
    largest: Pair | None
    finding: str


class GateResult(Part):
    """Whether the gate held; `value` is the bound it was compared with.

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
    finding: str


class ReportWarning(Part):
    """A reason not to believe a figure, in plain words."""

    code: str
    model: str
    message: str


class Summary(Part):
    """The result of an evaluation: figures, and the sentences that every form of it shows."""

    headline: str
    findings: list[str]
    metric: Literal["accuracy", "pixel accuracy", "token accuracy", "stability"]
    top_k: list[int]
    models: list[ModelFigures]
    comparison: Comparison | None
    gate: GateResult | None
    warnings: list[ReportWarning]
    reliable: bool


class CleanFlags(Part):
    """One model on one unchanged sample; `probability` is None where logits are not finite.

    Of a segmentation `index` is the class of most pixels, and `correct` says that all are right. Of
    a text of a language model `probability` is one over its perplexity.
    """

    index: int
    probability: float | None
    correct: bool
    pixel_accuracy: float | None = None


class AttackFlags(Part):
    """One model on one sample under one attack at one point.

    `robust`, `confirmed` and `confirmed_8bit` are True where the model held, so that their means
    are the accuracies; texts know no 8 bit. `part` is the attack that made the input shown (itself
    or one of AutoAttack's four) and `variant` its gradients; `adversarial_index` is what the served
    model says to it and `adversarial_probability` what it gives that class, `margin` the logit of
    the label minus the largest other one (both None where not finite), `distance` how far it was
    moved in the attack's norm (for texts: edits). `gradients` says for each way of taking gradients
    whether the model held, where there are two.
    """

    name: str
    norm: Norm | None
    eps: str
    eps_value: float
    adversarial_index: int
    adversarial_probability: float | None = None
    part: str
    variant: Variant
    margin: float | None
    distance: float
    robust: bool
    confirmed: bool
    confirmed_8bit: bool | None
    robust_pixel_accuracy: float | None = None
    confirmed_pixel_accuracy: float | None = None
    confirmed_8bit_pixel_accuracy: float | None = None
    gradients: dict[Variant, bool] | None


class CorruptionFlags(Part):
    """One model on one image under one common corruption."""

    name: str
    severity: int
    index: int
    correct: bool


class CertificateFlags(Part):
    """What is certain about one image with one sigma; `index` None where smoothing abstained."""

    sigma: str
    index: int | None
    radius: float
    correct: bool


class ProofFlags(Part):
    """What is known of one input in one set of changes.

    `margin` is what is left in the worst case of the logit of the label minus the largest other
    one, of which rounding takes `rounding` at most, None where nothing bounds it; `method` found
    it.
    """

    name: str
    eps: str
    kind: str = "edits"
    state: Literal["broken", "proved", "open"]
    margin: float | None
    rounding: float
    method: str = "exact"


class ModelFlags(Part):
    """One model on one sample.

    `minimal` is, by norm, the distance to the nearest adversarial input that was found at any
    radius; None where none was.
    """

    name: str
    clean: CleanFlags
    attacks: list[AttackFlags]
    corruptions: list[CorruptionFlags]
    certificates: list[CertificateFlags]
    minimal: dict[Norm, float | None]
    proofs: list[ProofFlags] = []


class Sample(Part):
    """One sample; `label` is None where none was given."""

    index: int
    name: str
    label: int | None
    models: list[ModelFlags]


class Data(Part):
    """What was evaluated: sha256 over the first model's inputs and the labels.

    `given` is the number of inputs there were, if the evaluation stopped as soon as its gate was
    decided: then `samples` of them, in random order, were used. `labels` are the model's classes;
    `name`, `split`, `source` and `classes` say where the inputs come from, as in
    `data.sets.Origin`.
    """

    kind: Literal["image", "text"]
    digest: str
    samples: int
    given: int | None = None
    labels: list[str]
    name: str | None
    split: str | None
    source: str | None
    classes: list[str] | None


class Report(Part):
    """Scores, intervals, warnings, and everything needed to repeat them.

    `not_tried` says of each model that shows no gradients what was left out for that. `code` is the
    sha256 over the source that scores.
    """

    schema_version: Literal[4] = SCHEMA_VERSION
    spec: EvaluationSpec
    seed: int
    summary: Summary
    samples: list[Sample]
    data: Data
    code: str
    shard_size: int
    environment: dict[str, str]
    notes: list[str]
    not_tried: list[str] = []
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
    return parse_report((folder / FILE).read_bytes())


def parse_report(content: bytes) -> Report:
    """A report from the bytes of its file.

    Raises:
        ValueError: it is not JSON, has another schema version, or breaks the schema.
    """
    try:
        found = read_json(content)
    except JsonError as error:
        raise ValueError(f"the report is not JSON: {error}") from None
    version = found.get("schema_version") if isinstance(found, dict) else None
    if version != SCHEMA_VERSION:
        raise ValueError(
            f"the report has schema_version {version!r:.20}, and this version of Assay reads "
            f"{SCHEMA_VERSION}; read it with the version that made it, or evaluate again"
        )
    return Report.model_validate_json(content)
