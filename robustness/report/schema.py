"""What a report holds. The schema is versioned; a reader refuses a version it does not know."""

from pathlib import Path
from typing import Any, Literal

from core.files import write_whole
from robustness.report.figures import Part, Summary
from robustness.report.flags import Sample
from robustness.spec import EvaluationSpec

SCHEMA_VERSION = 2
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
    "worst": "right under every attack with that budget, by twin and served model, input by input",
    "top_k": "the label is among the k best classes; equal scores are ordered by index; "
    "attacks aim at top-1, and the worst case at each k is taken image by image over all attacks "
    "run in full",
    "ci": "Wilson 95 % interval: what the number of images alone leaves open",
    "eps": "largest change of any pixel (Linf), or the root of the sum of squares of all changes "
    "(L2), in the model's input space where pixels lie in [0, 1]",
    "minimal": "the nearest adversarial input that a minimum-norm attack found; it bounds the true "
    "distance from above, and one run gives accuracy at every radius",
    "mean_corruption_error": "error averaged over severities and corruptions; the relative one "
    "(mCE) divides each corruption's error by that of the model compared with (Hendrycks and "
    "Dietterich 2019)",
    "certificate": "what holds for every change within the l2 radius, whatever the attack, of the "
    "smoothed model: the majority vote over noisy copies (Cohen et al. 2019); at most alpha of the "
    "certificates are wrong",
    "stability": "no labels were given: the model's own prediction on the unchanged input stands "
    "in, so the figures say how hard it is to change its mind, not whether it was right",
}


class Data(Part):
    """What was judged: sha256 over the first model's inputs and the labels."""

    kind: Literal["image", "text"]
    digest: str
    samples: int
    labels: list[str]


class Report(Part):
    """Verdicts, intervals, doubts, and everything needed to repeat them.

    `code` is the sha256 over the source that judges.
    """

    schema_version: Literal[2] = SCHEMA_VERSION
    spec: EvaluationSpec
    seed: int
    summary: Summary
    samples: list[Sample]
    data: Data
    code: str
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
