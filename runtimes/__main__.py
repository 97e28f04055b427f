"""`./assay runtimes [NAME ...]`: what can run models here, and what is missing for the rest."""

import sys
from collections.abc import Iterator, Sequence

from core.command import Parser, run_command
from runtimes.base import RuntimeUnavailable
from runtimes.cuda import CHECKS
from runtimes.registry import RUNTIMES, candidates, require_runtime


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Returns:
        0; 2 where a runtime is missing that was asked for by its name, or there is none such.
    """
    parser = Parser(prog="./assay runtimes", description="Say which runtimes can be used here.")
    about = f"one that must be here, of: {', '.join(RUNTIMES)}"
    parser.add_argument("names", nargs="*", metavar="NAME", help=about)
    return run_command(lambda: _show(parser.parse_args(argv).names))


def _show(names: list[str]) -> int:
    for name, said in (*_parts(), *_runtimes()):
        print(f"{name:<15} {said}")
    print(f"{'auto':<15} the fastest of {', '.join(candidates('auto'))}")
    for name in names:
        require_runtime(name)
    return 0


def _parts() -> Iterator[tuple[str, str]]:
    """What CUDA needs."""
    for name, check in CHECKS.items():
        try:
            yield name, check()
        except RuntimeUnavailable as error:
            yield name, f"missing: {error}"


def _runtimes() -> Iterator[tuple[str, str]]:
    for name, kind in RUNTIMES.items():
        reason = kind.missing()
        yield name, "can be used" if reason is None else f"missing: {reason}"


if __name__ == "__main__":
    sys.exit(main())
