"""How long does a report over 1,000 images take to write, and how large is its page?

Two shipped models are scored on drawn images first, by an attack so short that it is no benchmark
itself; a second report shows colour images of 224 x 224, whose pictures are the largest.
"""

import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from torch import nn

from benchmarks.support.rows import Row, figure
from data.sources import ImageSet, open_images
from robustness import store as shards
from robustness.evaluation import evaluate
from robustness.report.exhibits import choose
from robustness.report.schema import Report, write_report
from robustness.report.write import write_companions
from robustness.spec import EvaluationSpec
from robustness.text_target import open_model
from runtimes.artifact import open_artifact
from service.settings import ROOT

_MODELS = ("fashion-elliptical", "fashion-dot")
_EPS = ["1/255", "2/255", "4/255", "8/255"]
_SECONDS, _MEGABYTES = 10.0, 15.0
_LARGE = (3, 224, 224)


def run(samples: int = 1000) -> Iterable[Row]:
    """Score once, then write the report's files three times.

    Args:
        samples: number of images.
    """
    artifacts = [open_artifact(ROOT / "artifacts" / name) for name in _MODELS]
    torch_model = open_model(artifacts[0], threads=1).torch_model
    spec = EvaluationSpec.model_validate(
        {"attacks": [{"name": "fgsm", "eps": _EPS}, {"name": "pgd", "eps": _EPS[-1:], "steps": 1}]}
    )
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        report = evaluate(spec, artifacts, _images(samples, artifacts[0].labels), folder)
        for case in ("28 x 28 grey", "224 x 224 colour"):
            if case.startswith("224"):
                _enlarge(folder, report)
                torch_model = None  # it reads small images
            seconds = [_write(folder, report, torch_model) for _ in range(3)]
            size = (folder / "report.html").stat().st_size / 1e6
            about = f"{samples} images, {case}, {len(_MODELS)} models, {len(spec.cells)} cells"
            yield figure(f"{about}: all files of a report", seconds, "s", target=_SECONDS)
            yield figure(f"{about}: report.html", size, "MB", target=_MEGABYTES)


def _write(folder: Path, report: Report, torch_model: nn.Module | None) -> float:
    begin = time.perf_counter()
    write_report(folder, report)
    write_companions(folder, report, torch_model)
    return time.perf_counter() - begin


def _images(samples: int, labels: list[str]) -> ImageSet:
    """The shipped samples, each as often as it takes."""
    shipped = open_images(ROOT / "artifacts" / "samples" / "fashion-mnist", label_names=labels)
    return shipped.take([i % len(shipped) for i in range(samples)])


def _enlarge(folder: Path, report: Report) -> None:
    """Put noise of 224 x 224 in place of the inputs that the page shows: the worst to compress."""
    draw = np.random.default_rng(0)
    shown = choose(report.samples, pixel_bytes=int(np.prod(_LARGE)))
    starts = {0, *(_start(example.sample.index) for example in shown)}
    noise = draw.random((shards.SHARD_SIZE, *_LARGE), dtype=np.float32)
    digest = report.summary.models[0].digest
    for path in shards.model_folder(folder, digest).iterdir():
        tensors = shards.read(path) or {}
        for name in {"clean", "adversarial"}.intersection(tensors):
            if int(path.stem.rpartition("-")[2]) in starts:
                shards.write(path, {name: noise}, {})


def _start(index: int) -> int:
    return index - index % shards.SHARD_SIZE
