"""Open artifacts in a child process before a process that serves does so.

A graph that never ends, or that crashes its runtime, does so in `python -m export.preflight`.
"""

import argparse
import logging
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from export import child
from runtimes.artifact import Artifact, open_artifact
from runtimes.base import blank_inputs
from runtimes.gate import require_parity
from runtimes.registry import RUNTIMES

logger = logging.getLogger(__name__)

BATCHES = (1, 8)
"""Sizes of batches that a graph must answer; more inputs at a time are as sound."""

_TIMEOUT_S = 300  # of an artifact; its first predictions have shorter limits
_STORED = 100  # times what the larger batch takes, in which the stored inputs must be answered
_PASSED = "passed"


def first_problem(
    artifacts: Sequence[Artifact], *, name: str, threads: int
) -> tuple[Artifact, str] | None:
    """Which of some artifacts cannot be opened, or not in time, and why; None when all can.

    Args:
        artifacts: verified artifacts.
        name: of a runtime; artifacts that it does not run in their own precision are passed over.
        threads: threads of one prediction.
    """
    with tempfile.TemporaryDirectory() as folder:
        arguments = ["--name", name, "--threads", str(threads), "--own", folder]
        arguments += ["--seconds", str(child.FIRST_PREDICTION_S)]
        arguments += [str(artifact.folder.absolute()) for artifact in artifacts]
        timeout = _TIMEOUT_S * len(artifacts)
        ended = child.run_child("export.preflight", arguments, own=Path(folder), timeout=timeout)
        passed = Path(folder, _PASSED)
        count = passed.stat().st_size if passed.exists() else 0
    if count >= len(artifacts):
        return None
    if ended.status != child.REFUSED and ended.errors:
        logger.warning("Opening an artifact failed:\n%s", "\n".join(ended.errors))
    return artifacts[count], ended.reason


def _open(folder: Path, name: str, threads: int, seconds: int) -> None:
    """Open an artifact and compare its answers; each step may take so much processor time.

    Raises:
        ValueError: it cannot be opened, or answers otherwise than the model that was exported.
    """
    artifact = open_artifact(folder)
    if artifact.manifest.reads == "texts":
        artifact.tokenizer()
    own = artifact.manifest.precision
    if own not in RUNTIMES[name].precisions(artifact.manifest, "exact"):
        return
    with child.processor_limit(seconds):
        runtime = RUNTIMES[name].open(artifact, own, threads, None)
    took = 0.0
    for size in BATCHES:
        began = time.process_time()
        with child.processor_limit(seconds), suppress(Exception):  # the gate names the same error
            runtime.predict(blank_inputs(artifact, size))
        took = time.process_time() - began
    with child.processor_limit(seconds + int(_STORED * took)):
        require_parity(runtime, artifact, quick=True)


def main(argv: Sequence[str] | None = None) -> None:
    """Open some artifacts, one after the other; ends with status 2 and the reason."""
    parser = argparse.ArgumentParser(prog="python -m export.preflight", description=__doc__)
    parser.add_argument("folders", nargs="+", type=Path, metavar="DIR", help="artifacts")
    parser.add_argument("--name", required=True, help="of a runtime")
    parser.add_argument("--threads", required=True, type=int)
    parser.add_argument("--seconds", required=True, type=int, help="for a prediction")
    parser.add_argument("--own", required=True, type=Path, help="folder for how many passed")
    options = parser.parse_args(argv)
    for folder in options.folders:
        try:
            _open(folder, options.name, options.threads, options.seconds)
        except ValueError as error:
            parser.exit(child.REFUSED, f"error: {error}\n")
        with (options.own / _PASSED).open("ab") as passed:
            passed.write(b".")


if __name__ == "__main__":
    child.end_with_parent()
    main()
