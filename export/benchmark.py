"""Time every runtime that could serve an artifact, and take the fastest that passes the gate.

`python -m export.benchmark` is the child process of `export.select`.
"""

import argparse
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from statistics import geometric_mean, median
from typing import TYPE_CHECKING, get_args

import numpy as np

from core.files import write_whole
from export.child import FIRST_PREDICTION_S, REFUSED, end_with_parent, processor_limit
from export.preflight import BATCHES
from export.select import CacheKey, Selection, cache_key, store_selection
from runtimes.artifact import Artifact, ArtifactError, open_artifact
from runtimes.base import Inputs, Mode, Runtime, RuntimeUnavailable
from runtimes.gate import ParityFailure, is_unmeasured, require_parity, unmeasured_refusal
from runtimes.manifest import ONNX
from runtimes.probe import Probe, read_probe
from runtimes.quantized import has_graph, int8_path, is_derived
from runtimes.registry import RUNTIMES, candidates

if TYPE_CHECKING:
    from export.samples import Samples

_LEAST, _MOST = 4, 50
_SECONDS, _PATIENCE = 0.06, 1.0
_NEAR = 0.95
"""A runtime further down the list must be 5 % faster: a near tie is decided by noise."""

_Candidate = tuple[str, str]  # name and precision of a runtime


def benchmark(artifact: Artifact, key: CacheKey, cache: Path | None) -> Selection:
    """Select the runtime of an artifact by measuring, as a key asks.

    A runtime may store what it built in `cache`.

    Raises:
        RuntimeUnavailable: no runtime can be opened and passes the parity gate.
        ArtifactError: the artifact itself is at fault.
    """
    refused: list[str] = []
    times = dict(_timed(artifact, key, cache, refused))
    for name, precision in _ranked(times):
        # Only now, and only until one passes: the gate takes longer than the timing.
        try:
            runtime = RUNTIMES[name].open(artifact, precision, key.threads, cache)
            require_parity(runtime, artifact)
        except ParityFailure as error:
            refused.append(str(error))
            continue
        shown = {" ".join(each): [round(1000 * s, 3) for s in times[each]] for each in times}
        return Selection(
            key=key, runtime=name, precision=precision, milliseconds=shown, refused=refused
        )
    reasons = "; ".join(refused) or f"it does not run {artifact.manifest.precision} here"
    raise RuntimeUnavailable(f"runtime {key.name} cannot serve {artifact.name}: {reasons}")


def _timed(
    artifact: Artifact, key: CacheKey, cache: Path | None, refused: list[str]
) -> Iterator[tuple[_Candidate, list[float]]]:
    """Each candidate that opens, with its seconds at each batch size."""
    batches = _batches(artifact)
    for name, precision in _candidates(artifact, key, cache, refused):
        try:
            with _limited(name):
                runtime = RUNTIMES[name].open(artifact, precision, key.threads, cache)
            for batch in batches:
                with _limited(name):
                    runtime.predict(batch)
            yield (name, precision), [_seconds(runtime, batch) for batch in batches]
        except ArtifactError:
            raise
        except Exception as error:  # whatever it is, such a runtime is not a candidate
            refused.append(f"{name} {precision}: {error}")


def _limited(name: str) -> AbstractContextManager[None]:
    """End this process when a step takes much processor time; TensorRT builds for minutes."""
    slow = name == "onnx-tensorrt"
    return nullcontext() if slow else processor_limit(FIRST_PREDICTION_S)


def _candidates(
    artifact: Artifact, key: CacheKey, cache: Path | None, refused: list[str]
) -> list[_Candidate]:
    """Every runtime that was asked for, in every precision that the gate can compare."""
    found: list[_Candidate] = []
    for name in candidates(key.name):
        try:
            precisions = RUNTIMES[name].precisions(artifact.manifest, key.mode)
        except RuntimeUnavailable as error:
            refused.append(f"{name}: {error}")
            continue
        found += [(name, precision) for precision in precisions]
    if reason := unmeasured_refusal(artifact):
        comparable = [each for each in found if not is_unmeasured(artifact, each[1])]
    elif any(is_derived(artifact, precision) for _, precision in found):
        reason = _quantize(artifact, cache)
        comparable = [each for each in found if reason is None or not is_derived(artifact, each[1])]
    else:
        return found
    if len(comparable) < len(found):
        refused.append(str(reason))
    return comparable


def _quantize(artifact: Artifact, cache: Path | None) -> str | None:
    """Make the int8 form of an artifact; returns why there is none, or None."""
    if cache is None:
        return "int8: its graph needs a folder to be stored in"
    try:
        make_int8(artifact, cache)
    except ArtifactError:
        raise
    except Exception as error:  # graphs of others may have whatever int8 cannot express
        return f"int8: {error}"
    return None


def make_int8(artifact: Artifact, cache: Path) -> None:
    """Make the int8 form of an fp32 artifact, unless it is there.

    It is calibrated on half of the stored inputs, so that the parity gate also asks for inputs that
    the calibration has not seen.

    Raises:
        ValueError: the graph has nothing to quantize, or the stored inputs are not 8-bit images.
        OSError: the folder cannot be written.
    """
    if has_graph(artifact, "int8", cache):
        return
    from export.int8 import quantize_static  # brings torch, which serving does not load

    content = quantize_static(artifact.read(ONNX), _calibration(read_probe(artifact)))
    write_whole(int8_path(artifact, content, cache), content)


def _calibration(probe: Probe) -> "Samples":
    """Every other stored input."""
    from data.token_set import Ragged
    from export.samples import Samples

    half = {name: values[::2] for name, values in probe.inputs.items()}
    if "images" in half:
        if half["images"].dtype != np.uint8:
            raise ValueError("the stored images must be 8-bit to calibrate int8")
        return Samples(inputs=half["images"], labels=None, description="stored inputs")
    rows = [tokens[mask] for tokens, mask in zip(half["tokens"], half["mask"], strict=True)]
    return Samples(inputs=Ragged.of(rows, np.uint32), labels=None, description="stored inputs")


def _ranked(times: dict[_Candidate, list[float]]) -> list[_Candidate]:
    """Candidates, the fastest first, by the geometric mean over the batch sizes."""
    left = {candidate: geometric_mean(seconds) for candidate, seconds in times.items()}
    ranked = []
    while left:
        fastest = min(left.values())
        best = next(each for each, seconds in left.items() if _NEAR * seconds <= fastest)
        ranked.append(best)
        del left[best]
    return ranked


def _batches(artifact: Artifact) -> list[Inputs]:
    """A batch of each size, made of stored inputs."""
    feed, _ = next(read_probe(artifact).batches(max(BATCHES)))
    return [
        {name: np.resize(values, (size, *values.shape[1:])) for name, values in feed.items()}
        for size in BATCHES
    ]


def _seconds(runtime: Runtime, inputs: Inputs) -> float:
    """Median time of a prediction, after the first ones, in which a runtime warms up."""
    _times(runtime, inputs)
    return median(_times(runtime, inputs))


def _times(runtime: Runtime, inputs: Inputs) -> list[float]:
    """Seconds of a few predictions; of a single one where it takes longer than patience lasts."""
    times: list[float] = []
    while _continues(len(times), sum(times)):
        start = time.perf_counter()
        runtime.predict(inputs)
        times.append(time.perf_counter() - start)
    return times


def _continues(count: int, spent: float) -> bool:
    if count < _LEAST:
        return spent < _PATIENCE
    return spent < _SECONDS and count < _MOST


def main(argv: Sequence[str] | None = None) -> None:
    """Benchmark an artifact and store the selection; ends with status 2 and the reason."""
    parser = argparse.ArgumentParser(prog="python -m export.benchmark", description=__doc__)
    parser.add_argument("folder", type=Path, metavar="DIR", help="artifact")
    parser.add_argument("--name", required=True, help="of a runtime, or auto")
    parser.add_argument("--mode", required=True, choices=get_args(Mode))
    parser.add_argument("--threads", required=True, type=int)
    parser.add_argument("--answers", required=True, type=Path, help="folder for the selections")
    parser.add_argument("--cache", type=Path, help="folder for what runtimes build")
    options = parser.parse_args(argv)
    asked = {"name": options.name, "mode": options.mode, "threads": options.threads}
    try:
        artifact = open_artifact(options.folder)
        selection = benchmark(artifact, cache_key(artifact, **asked), options.cache)
        store_selection(selection, options.answers)
    except ValueError as error:
        parser.exit(REFUSED, f"error: {error}\n")


if __name__ == "__main__":
    end_with_parent()
    main()
