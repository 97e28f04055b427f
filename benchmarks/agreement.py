"""Do other engines and precisions answer as the trained models do, on images never seen?"""

import os
from collections.abc import Iterator

import numpy as np

from benchmarks.rows import Row
from benchmarks.server import ROOT
from data.sources import load_inputs, open_images
from export.artifact import Artifact, find_artifacts
from export.runtime import Runtime, RuntimeUnavailable, open_runtime
from export.runtimes.engines import ENGINES, installed
from export.threads import available_cores
from robustness.intervals import wilson

_TARGET = 0.999
_BATCH = 64


def agreement_rows(name: str) -> Iterator[Row]:
    """One row a shipped model and runtime: the share of test images that keep their class.

    The test sets come from `ASSAY_DATA`; without it there is nothing to say.

    Args:
        name: the benchmark.
    """
    if not os.environ.get("ASSAY_DATA"):
        return
    for artifact in find_artifacts([ROOT / "artifacts"]):
        if artifact.manifest.task == "image-classification":
            yield from _rows(name, artifact)


def _rows(name: str, artifact: Artifact) -> Iterator[Row]:
    source = artifact.manifest.training["recipe"]["data"]["source"]
    images = open_images(source, split="test", label_names=artifact.labels)
    inputs = load_inputs(images, artifact.image_spec)
    expected = _classes(open_runtime(artifact), inputs)
    for runtime in _others(artifact):
        same = int((_classes(runtime, inputs) == expected).sum())
        yield Row(
            name=name,
            case=f"{artifact.name}, {source} test, top-1 as onnx-cpu {artifact.manifest.precision},"
            f" {runtime.name} {runtime.precision}",
            measured=round(same / len(inputs), 5),
            unit="share",
            better="higher",
            target=_TARGET,
            samples=len(inputs),
            spread=wilson(same, len(inputs)),
        )


def _others(artifact: Artifact) -> Iterator[Runtime]:
    for engine in installed():
        for precision in ENGINES[engine].precisions(artifact.manifest, "fast"):
            if (engine, precision) == ("onnx-cpu", artifact.manifest.precision):
                continue
            try:
                yield ENGINES[engine].open(artifact, precision, available_cores(), None)
            except RuntimeUnavailable:
                continue


def _classes(runtime: Runtime, inputs: np.ndarray) -> np.ndarray:
    parts = np.array_split(inputs, -(-len(inputs) // _BATCH))
    return np.concatenate([runtime.predict(part).argmax(1) for part in parts])
