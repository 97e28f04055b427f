"""`./assay bench NAME ...`, or `python -m benchmarks [NAME ...]`: a JSON object for each figure."""

import argparse
import dataclasses
import importlib
import inspect
import itertools
import json
import pkgutil
import re
import signal
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from benchmarks.support.rows import Row
from core.command import Parser, run_command
from core.names import nearest
from data.errors import DataError


def names() -> list[str]:
    """The benchmarks: the modules of this package."""
    modules = pkgutil.iter_modules([str(Path(__file__).parent)])
    return sorted(m.name for m in modules if not m.ispkg and m.name != "__main__")


def main(argv: list[str] | None = None) -> int:
    """Run the command line.

    Returns:
        0; 1 when a benchmark had no data; 2 for an unknown benchmark or option. A missed target is
        a finding, told in the row's `met`.
    """
    parser = Parser(
        prog="./assay bench",
        description="Measure. Options of one benchmark follow its name: NAME --help.",
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of: {', '.join(names())}")
    given = sys.argv[1:] if argv is None else argv
    before = list(itertools.takewhile(lambda word: not word.startswith("-"), given))
    options = given[len(before) :]
    chosen = parser.parse_args(before if len(before) == 1 else given).names or names()
    for name in chosen:
        if name not in names():
            print(f"error: no benchmark {name!r}; {nearest(name, names())}", file=sys.stderr)
            return 2
    own = options if len(before) == 1 else []
    return run_command(lambda: max([_show(name, own) for name in chosen]))


def _show(name: str, options: list[str]) -> int:
    """Print the rows of one benchmark; 1 when its data are missing."""
    run: Callable[..., Iterable[Row]] = importlib.import_module(f"benchmarks.{name}").run
    try:
        for row in run(**vars(_parser(name, run).parse_args(options))):
            print(json.dumps(dataclasses.asdict(dataclasses.replace(row, name=name))), flush=True)
    except DataError as error:
        print(f"error: {name}: {error}", file=sys.stderr)
        return 1
    return 0


def _parser(name: str, run: Callable[..., Iterable[Row]]) -> argparse.ArgumentParser:
    """One option for each keyword of `run`, as its docstring describes it."""
    parser = Parser(
        prog=f"./assay bench {name}",
        description=inspect.getdoc(inspect.getmodule(run)),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    for parameter in inspect.signature(run).parameters.values():
        about = re.search(rf"^ +{parameter.name}: (.*)$", run.__doc__ or "", re.MULTILINE)
        several = isinstance(parameter.default, tuple)
        parser.add_argument(
            f"--{parameter.name}",
            type=type(parameter.default[0] if several else parameter.default),
            nargs="+" if several else None,
            default=parameter.default,
            help=f"{about[1] if about else ''} (%(default)s)",
        )
    return parser


if __name__ == "__main__":
    # Servers are ended on the way out; the default would leave them running.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    sys.exit(main())
