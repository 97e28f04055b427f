"""Find the runtime of artifacts: recalled from an earlier start, or measured in a child."""

import logging
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from export.select.choice import Choice, Question, question, recall, remember
from runtimes.artifact import Artifact
from runtimes.base import Mode, RuntimeUnavailable
from runtimes.quantized import is_there
from runtimes.registry import ENGINES, installed

logger = logging.getLogger(__name__)

_ROOT = Path(__file__).resolve().parents[2]
_TIMEOUT_S, _TENSORRT_TIMEOUT_S = 300, 1800  # of an artifact; TensorRT builds for minutes
_REFUSED = 2


def settle(
    artifacts: Sequence[Artifact], *, name: str, mode: Mode, threads: int, cache: Path | None
) -> list[Choice]:
    """The runtime of each artifact.

    Args:
        artifacts: verified artifacts.
        name: of a runtime, or "auto".
        mode: how precise it must be.
        threads: threads of one prediction.
        cache: folder of earlier answers, and of what engines build; None measures every time.

    Raises:
        RuntimeUnavailable: no runtime can serve one of them.
    """
    asked = [question(artifact, name=name, mode=mode, threads=threads) for artifact in artifacts]
    pairs = list(zip(artifacts, asked, strict=True))
    choices = {q.artifact: _recalled(artifact, q, cache) for artifact, q in pairs}
    unknown = [(artifact, q) for artifact, q in pairs if choices[q.artifact] is None]
    for choice in _measured(unknown, cache) if unknown else ():
        choices[choice.question.artifact] = choice
    return [choice for q in asked if (choice := choices.get(q.artifact)) is not None]


def recalled(
    artifact: Artifact, *, name: str, mode: Mode, threads: int, cache: Path
) -> Choice | None:
    """What an earlier `settle` with the same arguments has kept; None before it."""
    return _recalled(artifact, question(artifact, name=name, mode=mode, threads=threads), cache)


def _recalled(artifact: Artifact, asked: Question, cache: Path | None) -> Choice | None:
    """The kept answer, unless the graph that it needs was deleted or damaged."""
    choice = recall(asked, cache) if cache else None
    return choice if choice and is_there(artifact, choice.precision, cache) else None


def _measured(unknown: Sequence[tuple[Artifact, Question]], cache: Path | None) -> list[Choice]:
    """Let a child measure some artifacts; what it chose is kept in `cache`."""
    with tempfile.TemporaryDirectory() as folder:
        trouble = _run_child(unknown, Path(folder), cache)
        answers = [recall(asked, Path(folder)) for _, asked in unknown]
    choices = []
    for (artifact, asked), answer in zip(unknown, answers, strict=True):
        if answer is None:
            choices.append(_fallback(artifact, asked, trouble))
            continue
        _tell(artifact, answer)
        if cache is not None:
            remember(answer, cache)
        choices.append(answer)
    return choices


def _run_child(
    unknown: Sequence[tuple[Artifact, Question]], answers: Path, cache: Path | None
) -> str:
    """Measure in a child process; returns why it ended early, if it did."""
    first = unknown[0][1]
    command = [sys.executable, "-m", "export.select", "--name", first.name]
    command += ["--mode", first.mode, "--threads", str(first.threads), "--answers", str(answers)]
    command += ["--cache", str(cache)] if cache else []
    command += [str(artifact.folder.absolute()) for artifact, _ in unknown]
    slow = "onnx-tensorrt" in (installed() if first.name == "auto" else [first.name])
    timeout = len(unknown) * (_TENSORRT_TIMEOUT_S if slow else _TIMEOUT_S)
    # Nothing is ever written: the child ends when the end of this process closes the pipe.
    ours, theirs = os.pipe()[::-1]
    try:
        child = subprocess.run(
            command,
            cwd=_ROOT,
            stdin=theirs,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"measuring took longer than {timeout} s"
    finally:
        os.close(ours)
        os.close(theirs)
    said = child.stderr.decode(errors="replace").strip().splitlines()
    if child.returncode == _REFUSED:
        raise RuntimeUnavailable(said[-1].removeprefix("error: ") if said else "refused")
    if child.returncode:
        logger.warning("Measuring the runtimes failed:\n%s", "\n".join(said[-20:]))
    return f"measuring ended with status {child.returncode}"


def _fallback(artifact: Artifact, asked: Question, trouble: str) -> Choice:
    """What serves when measuring failed, for this start only."""
    precisions = ENGINES["onnx-cpu"].precisions(artifact.manifest, "exact")
    if asked.name != "auto" or not precisions:
        raise RuntimeUnavailable(f"runtime {asked.name} cannot serve {artifact.name}: {trouble}")
    logger.warning("%s is served by onnx-cpu: %s", artifact.name, trouble)
    return Choice(
        question=asked,
        runtime="onnx-cpu",
        precision=precisions[0],
        milliseconds={},
        refused=[trouble],
    )


def _tell(artifact: Artifact, choice: Choice) -> None:
    times = ", ".join(
        f"{name} {' / '.join(map(str, ms))} ms" for name, ms in choice.milliseconds.items()
    )
    logger.info(
        "%s is served by %s %s (%s)", artifact.name, choice.runtime, choice.precision, times
    )
    for reason in choice.refused:
        logger.info("%s: %s", artifact.name, reason)
