"""How long from an artifact's folder to a runtime that answers, and how much memory does it take?

DeiT-tiny at 224 x 224, each start in a process of its own, which has imported what every start
needs (`export.select`) and nothing else: an engine that is imported when it is asked for pays for
that here. Memory is the peak of the process from there on, the opening and one prediction included,
beside the bytes of the weights and of what one image makes of them in torch.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import torch

from benchmarks.elliptical_overhead import image_caller, peak_bytes
from benchmarks.support.deit_artifact import SIZE, write_deit_tiny
from benchmarks.support.rows import Row, figure
from benchmarks.support.server import ROOT
from runtimes.artifact import Artifact
from runtimes.manifest import WEIGHTS
from runtimes.registry import RUNTIMES, installed
from runtimes.torch_model import load_torch_model

_SECONDS_TARGET = 1.0
_WEIGHTS_FACTOR = 2

_START = """
import json, re, sys, time
from pathlib import Path
import numpy as np
from runtimes.artifact import open_artifact
from export.select import open_selected

def kilobytes(key):
    return int(re.search(key + r":\\s+(\\d+)", Path("/proc/self/status").read_text())[1])

folder, name, mode, cache = sys.argv[1:]
images = np.zeros((1, 3, 224, 224), np.float32)
Path("/proc/self/clear_refs").write_text("5")
before = kilobytes("VmRSS")
start = time.perf_counter()
runtime = open_selected(open_artifact(Path(folder)), name=name, mode=mode, cache=Path(cache))
seconds = time.perf_counter() - start
runtime.predict(images)
grown = kilobytes("VmHWM") - before
print(json.dumps([seconds, grown / 1024, runtime.name, runtime.precision]))
"""


def run(starts: int = 5) -> Iterable[Row]:
    """Start every runtime several times.

    Args:
        starts: how often.
    """
    with tempfile.TemporaryDirectory() as folder:
        artifact = write_deit_tiny(Path(folder) / "artifact")
        budget = _budget(artifact)
        for name in installed():
            if RUNTIMES[name].precisions(artifact.manifest, "exact"):
                yield from _rows(artifact, name, "exact", starts, budget)
        for mode in ("exact", "fast"):
            yield from _rows(artifact, "auto", mode, starts, budget)


def _rows(artifact: Artifact, name: str, mode: str, count: int, budget: float) -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as cache:
        # A choice is measured once on a machine, before the first start.
        _start(artifact, name, mode, cache)
        starts = [_start(artifact, name, mode, cache) for _ in range(count)]
    seconds, grown, used, precision = zip(*starts, strict=True)
    label = f"{name} {mode} ({used[0]} {precision[0]})" if name == "auto" else f"{name} fp32"
    case = f"DeiT-tiny 224, {label}"
    yield figure(f"{case}, artifact to ready", seconds, "s", target=_SECONDS_TARGET)
    yield figure(f"{case}, peak memory", grown, "MiB", target=round(budget, 1))


def _budget(artifact: Artifact) -> float:
    """Twice the weights, and what one image makes of them, in MiB."""
    weights = artifact.file(WEIGHTS).stat().st_size
    model = load_torch_model(artifact)
    peak = peak_bytes(model, image_caller(model, "forward", torch.zeros(1, 3, SIZE, SIZE)))
    return ((_WEIGHTS_FACTOR - 1) * weights + peak) / 2**20


def _start(artifact: Artifact, name: str, mode: str, cache: str) -> tuple[float, float, str, str]:
    command = [sys.executable, "-c", _START, str(artifact.folder), name, mode, cache]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    seconds, grown, used, precision = json.loads(done.stdout.splitlines()[-1])
    return seconds, grown, used, precision
