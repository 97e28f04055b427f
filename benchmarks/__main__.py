"""`python -m benchmarks [NAME ...]`: one JSON object a line for each figure."""

import argparse
import dataclasses
import difflib
import importlib
import json
import pkgutil
import sys
from collections.abc import Iterable
from pathlib import Path

from benchmarks.rows import Row

_NOT_BENCHMARKS = {
    "__main__",
    "agreement",
    "ceiling",
    "deit_artifact",
    "long_models",
    "pairs",
    "rows",
    "server",
    "standard_library",
}


def names() -> list[str]:
    """The benchmarks: the modules of this package that have a `run`."""
    modules = pkgutil.iter_modules([str(Path(__file__).parent)])
    return sorted(m.name for m in modules if not m.ispkg and m.name not in _NOT_BENCHMARKS)


def main(argv: list[str] | None = None) -> int:
    """Run the command line.

    Returns:
        0, or 2 for an unknown benchmark. A missed target is a finding, told in the row's `met`.
    """
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measure.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of: {', '.join(names())}")
    chosen = parser.parse_args(argv).names or names()
    for name in chosen:
        if name not in names():
            near = difflib.get_close_matches(name, names(), n=1)
            hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(names())}"
            print(f"error: no benchmark {name!r}; {hint}", file=sys.stderr)
            return 2
    for name in chosen:
        for row in _run(name):
            print(json.dumps(dataclasses.asdict(row)), flush=True)
    return 0


def _run(name: str) -> Iterable[Row]:
    return importlib.import_module(f"benchmarks.{name}").run()


if __name__ == "__main__":
    sys.exit(main())
