"""Time every runtime that could serve an artifact, and take the fastest that answers as it must."""

import time
from collections.abc import Iterator
from pathlib import Path
from statistics import geometric_mean, median

import numpy as np

from export.select.choice import Choice, Question
from runtimes.artifact import Artifact, ArtifactError
from runtimes.base import Inputs, Runtime, RuntimeUnavailable
from runtimes.gate import ParityFailure, foreign_refusal, is_foreign, require_parity
from runtimes.probe import read_probe
from runtimes.quantized import is_derived, make_int8
from runtimes.registry import ENGINES, installed

_BATCHES = (1, 8)
_LEAST, _MOST = 4, 50
_SECONDS, _PATIENCE = 0.06, 1.0
_NEAR = 0.95
"""An engine further down the list must be 5 % faster: a near tie is decided by noise."""

_Key = tuple[str, str]


def hold_contest(artifact: Artifact, asked: Question, cache: Path | None) -> Choice:
    """Answer a question by measuring.

    Args:
        artifact: what is to be served.
        asked: which engines, how precise, how many threads.
        cache: where an engine may keep what it built; None for nowhere.

    Raises:
        RuntimeUnavailable: no engine can be opened and passes the parity gate.
        ArtifactError: the artifact itself is at fault.
    """
    refused: list[str] = []
    times = dict(_timed(artifact, asked, cache, refused))
    for name, precision in _ranked(times):
        # Only now, and only until one passes: the gate takes longer than the timing.
        try:
            runtime = ENGINES[name].open(artifact, precision, asked.threads, cache)
            require_parity(runtime, artifact)
        except ParityFailure as error:
            refused.append(str(error))
            continue
        shown = {" ".join(key): [round(1000 * s, 3) for s in times[key]] for key in times}
        return Choice(
            question=asked,
            runtime=name,
            precision=precision,
            milliseconds=shown,
            refused=refused,
        )
    reasons = "; ".join(refused) or f"it does not run {artifact.manifest.precision} here"
    raise RuntimeUnavailable(f"runtime {asked.name} cannot serve {artifact.name}: {reasons}")


def _timed(
    artifact: Artifact, asked: Question, cache: Path | None, refused: list[str]
) -> Iterator[tuple[_Key, list[float]]]:
    """Each candidate that opens, with its seconds at each batch size."""
    batches = _batches(artifact)
    for name, precision in _candidates(artifact, asked, cache, refused):
        try:
            runtime = ENGINES[name].open(artifact, precision, asked.threads, cache)
            yield (name, precision), [_seconds(runtime, batch) for batch in batches]
        except ArtifactError:
            raise
        except Exception as error:  # whatever it is, such an engine is no candidate
            refused.append(f"{name} {precision}: {error}")


def _candidates(
    artifact: Artifact, asked: Question, cache: Path | None, refused: list[str]
) -> list[_Key]:
    """Every engine that was asked for, in every precision that can be judged."""
    found: list[_Key] = []
    for name in installed() if asked.name == "auto" else [asked.name]:
        try:
            precisions = ENGINES[name].precisions(artifact.manifest, asked.mode)
        except RuntimeUnavailable as error:
            refused.append(f"{name}: {error}")
            continue
        found += [(name, precision) for precision in precisions]
    if reason := foreign_refusal(artifact):
        judged = [key for key in found if not is_foreign(artifact, key[1])]
    elif any(is_derived(artifact, precision) for _, precision in found):
        reason = _quantise(artifact, cache)
        judged = [key for key in found if reason is None or not is_derived(artifact, key[1])]
    else:
        return found
    if len(judged) < len(found):
        refused.append(str(reason))
    return judged


def _quantise(artifact: Artifact, cache: Path | None) -> str | None:
    """Make the int8 form of an artifact; returns why there is none, or None."""
    if cache is None:
        return "int8: its graph needs a folder to be kept in"
    try:
        make_int8(artifact, cache)
    except ArtifactError:
        raise
    except Exception as error:  # graphs of others may have whatever int8 cannot express
        return f"int8: {error}"
    return None


def _ranked(times: dict[_Key, list[float]]) -> list[_Key]:
    """Candidates, the fastest first, by the geometric mean over the batch sizes."""
    left = {key: geometric_mean(seconds) for key, seconds in times.items()}
    ranked = []
    while left:
        fastest = min(left.values())
        best = next(key for key, seconds in left.items() if _NEAR * seconds <= fastest)
        ranked.append(best)
        del left[best]
    return ranked


def _batches(artifact: Artifact) -> list[Inputs]:
    """A batch of each size, made of stored inputs."""
    feed, _ = next(read_probe(artifact).batches(max(_BATCHES)))
    return [
        {name: np.resize(values, (size, *values.shape[1:])) for name, values in feed.items()}
        for size in _BATCHES
    ]


def _seconds(runtime: Runtime, inputs: Inputs) -> float:
    """Median time of a prediction, after the first ones, in which an engine settles."""
    _times(runtime, inputs)
    return median(_times(runtime, inputs))


def _times(runtime: Runtime, inputs: Inputs) -> list[float]:
    """Seconds of a few predictions; of a single one where it takes longer than patience lasts."""
    times: list[float] = []
    while _goes_on(len(times), sum(times)):
        start = time.perf_counter()
        runtime.predict(inputs)
        times.append(time.perf_counter() - start)
    return times


def _goes_on(count: int, spent: float) -> bool:
    if count < _LEAST:
        return spent < _PATIENCE
    return spent < _SECONDS and count < _MOST
