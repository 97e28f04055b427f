"""Do other engines and precisions answer as the trained models do, on images never seen?"""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks.support.rows import Row, figure
from benchmarks.support.server import ROOT
from core.stats import wilson
from data.sources import load_inputs, open_images
from export.select import open_selected
from runtimes.artifact import Artifact, find_artifacts
from runtimes.base import Runtime
from runtimes.quantized import has_graph
from runtimes.registry import RUNTIMES, installed, open_runtime
from runtimes.threads import available_cores

_TARGET = 0.999
_BATCH = 64


def agreement_rows() -> Iterator[Row]:
    """One row a shipped model and runtime: the share of test images that keep their class.

    The test sets come from `ASSAY_DATA`; without it there is nothing to say.
    """
    if not os.environ.get("ASSAY_DATA"):
        return
    for artifact in find_artifacts([ROOT / "artifacts"]):
        if artifact.manifest.task == "image-classification":
            yield from _rows(artifact)


def _rows(artifact: Artifact) -> Iterator[Row]:
    source = artifact.manifest.training["recipe"]["data"]["source"]
    images = open_images(source, split="test", label_names=artifact.labels)
    inputs = load_inputs(images, artifact.image_spec)
    expected = _classes(open_runtime(artifact), inputs)
    with tempfile.TemporaryDirectory() as cache:
        fast = open_selected(artifact, mode="fast", cache=Path(cache))
        for runtime in (fast, *_others(artifact, Path(cache))):
            same = int((_classes(runtime, inputs) == expected).sum())
            label = f"{runtime.name} {runtime.precision}"
            precision = artifact.manifest.precision
            case = f"{artifact.name}, {source} test, top-1 as onnx-cpu {precision}"
            yield figure(
                f"{case}, {f'auto fast ({label})' if runtime is fast else label}",
                same / len(inputs),
                "share",
                better="higher",
                target=_TARGET if runtime is fast else None,
                samples=len(inputs),
                spread=wilson(same, len(inputs)),
            )


def _others(artifact: Artifact, cache: Path) -> Iterator[Runtime]:
    """Every engine and precision but the reference, those that the gate refuses included."""
    for engine in installed():
        for precision in RUNTIMES[engine].precisions(artifact.manifest, "fast"):
            reference = (engine, precision) == ("onnx-cpu", artifact.manifest.precision)
            if not reference and has_graph(artifact, precision, cache):
                yield RUNTIMES[engine].open(artifact, precision, available_cores(), cache)


def _classes(runtime: Runtime, inputs: np.ndarray) -> np.ndarray:
    parts = np.array_split(inputs, -(-len(inputs) // _BATCH))
    return np.concatenate([runtime.predict(part).argmax(1) for part in parts])
