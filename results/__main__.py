"""`./assay results`, or `python -m results`: records of runs and evaluations, and their pages."""

import argparse
import os
import sys
from pathlib import Path

from core.command import Parser, run_command
from robustness.attacks.word_swap import RATE
from training.__main__ import RECIPES

# torch takes seconds to import: help and mistakes are answered before.

PAGE = "results.md"
LEFT_OUT = 1


def main(argv: list[str] | None = None) -> int:
    """Run the command line.

    Returns:
        0; 1 when `collect` left folders out, and recorded the others; or 2 for a bad request.
    """
    arguments = _parser().parse_args(argv)
    return run_command(lambda: arguments.command(arguments))


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="./assay results",
        description="Records of runs and evaluations, and their pages. Nothing is written into "
        "docs, unless --output names its page.",
        epilog="exit codes: 0; 1 collect left folders out, which it names, and recorded the "
        "others; 2 a bad request; 130 interrupted",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    about = "record finished runs and evaluations, and write the page from all records beside it"
    collects = commands.add_parser("collect", help=about, description=about, epilog=parser.epilog)
    collects.add_argument("folders", type=Path, nargs="*", help="folders of runs and evaluations")
    inside = "record and draw what trained models do inside, layer by layer, on test samples"
    analyzes = commands.add_parser("analyze", help=inside, description=inside)
    swapping = "evaluate runs on texts with words swapped"
    swaps = commands.add_parser("word-swap", help=swapping, description=swapping)
    swaps.add_argument("--rate", type=float, default=RATE, help=f"share of words (default {RATE})")
    swaps.add_argument("--seed", type=int, default=0, metavar="N", help="of the swaps (default 0)")
    for command, kind, limit, own in (
        (analyzes, "analysis", 128, ()),
        (swaps, "word-swap", None, ("rate", "seed")),
    ):
        about = f"samples (default {limit or 'all'})"
        command.add_argument("folders", type=Path, nargs="+", help="folders of runs")
        command.add_argument("--limit", type=int, default=limit, metavar="N", help=about)
        command.set_defaults(command=_record, kind=kind, own=own)
    collects.set_defaults(command=_collect)
    for command in (collects, analyzes, swaps):
        told = (
            f"the page; records lie in the folder results beside it (default: {PAGE} beside the "
            "first folder)"
        )
        command.add_argument("--output", type=Path, metavar="PAGE", help=told)
    return parser


def _collect(arguments: argparse.Namespace) -> int:
    from results.records import collect

    page, code = _page(arguments), 0
    for folder in arguments.folders:
        try:
            print(f"{folder} -> {collect(folder, page.parent / 'results', RECIPES)}")
        except ValueError as error:
            print(f"left out: {error}", file=sys.stderr)
            code = LEFT_OUT
    _write(page)
    return code


def _record(arguments: argparse.Namespace) -> int:
    from results.analysis import analyze, evaluate_swapped
    from results.records import keep

    page, count = _page(arguments), arguments.limit
    if count is not None and count < 1:
        raise ValueError(f"--limit must be at least 1, got {count}")
    find = analyze if arguments.kind == "analysis" else evaluate_swapped
    own = {name: getattr(arguments, name) for name in arguments.own}
    for folder in arguments.folders:
        figures = find(folder, count=count, progress=True, **own)
        print(keep(arguments.kind, folder, figures, page.parent / "results"))
    _write(page)
    return 0


def _page(arguments: argparse.Namespace) -> Path:
    """The page to write: the product's own is written only when it is named."""
    if arguments.output is None and not arguments.folders:
        raise ValueError("name folders of runs and evaluations, or the page with --output")
    if arguments.output is not None:
        return arguments.output
    return Path(os.path.relpath(arguments.folders[0].resolve().parent)) / PAGE


def _write(page: Path) -> None:
    from results.records import write_page

    write_page(page)
    print(page)


if __name__ == "__main__":
    sys.exit(main())
