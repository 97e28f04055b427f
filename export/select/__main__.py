"""Choose runtimes in a process of its own: `python -m export.select`, see `settle`.

An engine that crashes, or that brings hundreds of megabytes, does so here and not in the process
that serves.
"""

import argparse
import os
import stat
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from export.select.choice import question, remember
from export.select.contest import hold_contest
from runtimes.artifact import open_artifact


def main(argv: Sequence[str] | None = None) -> int:
    """Measure every artifact and keep the answers; 0, or 2 with the reason on the error stream."""
    parser = argparse.ArgumentParser(prog="python -m export.select", description=__doc__)
    parser.add_argument("folders", nargs="+", type=Path, metavar="DIR", help="artifacts")
    parser.add_argument("--name", required=True, help="of a runtime, or auto")
    parser.add_argument("--mode", required=True, choices=("exact", "fast"))
    parser.add_argument("--threads", required=True, type=int)
    parser.add_argument("--answers", required=True, type=Path, help="folder for the choices")
    parser.add_argument("--cache", type=Path, help="folder for what engines build")
    options = parser.parse_args(argv)
    try:
        for folder in options.folders:
            artifact = open_artifact(folder)
            asked = question(
                artifact, name=options.name, mode=options.mode, threads=options.threads
            )
            remember(hold_contest(artifact, asked, options.cache), options.answers)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def _end_with_parent() -> None:
    """End when the pipe that `settle` holds is closed: it may be killed without a last word."""
    if stat.S_ISFIFO(os.fstat(0).st_mode):
        threading.Thread(target=lambda: os.read(0, 1) or os._exit(1), daemon=True).start()


if __name__ == "__main__":
    _end_with_parent()
    sys.exit(main())
