"""`python -m results`: collect records of runs and evaluations, and write their pages."""

import argparse
import sys
from pathlib import Path

from results.analysis import analyze, evaluate_swapped
from results.records import collect, keep, write_page
from robustness.attacks.word_swap import RATE
from training.__main__ import RECIPES, run_command

RESULTS = Path(__file__).parent.parent / "docs" / "results.md"


def main(argv: list[str] | None = None) -> int:
    """Run the command line.

    Returns:
        0, or 2 for a folder that is not a finished run or evaluation.
    """
    return run_command(_parser(), argv)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m results", description="Records of runs and evaluations, and their pages."
    )
    commands = parser.add_subparsers(required=True)
    collects = commands.add_parser(
        "collect",
        help="write docs/results.md from the records of runs and evaluations",
        description="Collect finished runs and evaluations as records in the folder results beside "
        "the page, and write the page from all records there.",
    )
    collects.add_argument("folders", type=Path, nargs="*", help="folders of runs and evaluations")
    inside = "record and draw what trained models do inside, layer by layer, on test samples"
    analyzes = commands.add_parser("analyze", help=inside, description=inside)
    swaps = commands.add_parser("word-swap", help="evaluate runs on texts with words swapped")
    swaps.add_argument("--rate", type=float, default=RATE, help=f"share of words (default {RATE})")
    swaps.add_argument("--seed", type=int, default=0, metavar="N", help="of the swaps (default 0)")
    for command, kind, limit, find, own in (
        (analyzes, "analysis", 128, analyze, ()),
        (swaps, "word-swap", None, evaluate_swapped, ("rate", "seed")),
    ):
        about = f"samples (default {limit or 'all'})"
        command.add_argument("folders", type=Path, nargs="+", help="folders of runs")
        command.add_argument("--limit", type=int, default=limit, metavar="N", help=about)
        command.set_defaults(command=_record, kind=kind, find=find, own=own)
    collects.set_defaults(command=_collect)
    for command in (collects, analyzes, swaps):
        page = {"default": RESULTS, "help": "default: docs/results.md"}
        command.add_argument("--output", type=Path, **page)
    return parser


def _collect(arguments: argparse.Namespace) -> int:
    unfinished = 0
    for folder in arguments.folders:
        try:
            print(f"{folder} -> {collect(folder, arguments.output.parent / 'results', RECIPES)}")
        except ValueError as error:
            print(f"left out: {error}", file=sys.stderr)
            unfinished = 2
    return _page(arguments) or unfinished


def _record(arguments: argparse.Namespace) -> int:
    count = arguments.limit
    if count is not None and count < 1:
        raise ValueError(f"--limit must be at least 1, got {count}")
    own = {name: getattr(arguments, name) for name in arguments.own}
    for folder in arguments.folders:
        figures = arguments.find(folder, count=count, progress=True, **own)
        print(keep(arguments.kind, folder, figures, arguments.output.parent / "results"))
    return _page(arguments)


def _page(arguments: argparse.Namespace) -> int:
    write_page(arguments.output)
    print(arguments.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
