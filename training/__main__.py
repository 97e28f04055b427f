"""`python -m training`: list the recipes, train one, look into it, write down the results."""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from robustness.attacks.word_swap import RATE
from training import records
from training.analysis import analyse
from training.fit import Trainer
from training.processes import Processes, joined
from training.recipe_file import describe_file, read_recipe
from training.results import collect, keep, write_page
from training.word_swap import judge_swapped

_ROOT = Path(__file__).parent.parent
RECIPES = _ROOT / "recipes"
RESULTS = _ROOT / "docs" / "results.md"


def main(argv: list[str] | None = None) -> int:
    """Run the command line.

    Returns:
        0, 2 for a bad recipe, data or folder, or 130 when interrupted.
    """
    arguments = _parser().parse_args(argv)
    try:
        return arguments.command(arguments)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted; continue with --resume", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m training", description="Train classifiers.")
    commands = parser.add_subparsers(required=True)
    listing = commands.add_parser("list", help="list the recipes with their variants and sizes")
    listing.set_defaults(command=_list)
    fit = commands.add_parser(
        "fit",
        help="train a recipe",
        description="Train a recipe. Under `torchrun -m training fit ...` several processes train "
        "one model together; the batch of the recipe is shared among them.",
    )
    fit.add_argument("recipe", type=Path, nargs="?", help="a recipe file")
    fit.add_argument(
        "overrides",
        nargs="*",
        metavar="key=value",
        help="variant=NAME, size=NAME, or any entry of the recipe, e.g. train.epochs=1",
    )
    fit.add_argument("--output", type=Path, help="folder of the run (default: runs/NAME)")
    fit.add_argument("--resume", type=Path, metavar="DIR", help="continue the run in this folder")
    fit.set_defaults(command=_fit)
    _add_results(commands)
    return parser


def _add_results(commands: Any) -> None:
    """The commands that write the page of results."""
    results = commands.add_parser(
        "results",
        help="write docs/results.md from the records of runs and evaluations",
        description="Take up finished runs and evaluations as records in the folder results beside "
        "the page, and write the page from all records there.",
    )
    results.add_argument("folders", type=Path, nargs="*", help="folders of runs and evaluations")
    results.set_defaults(command=_results)
    analyse = commands.add_parser(
        "analyse",
        help="record and draw what trained models do inside, layer by layer",
        description="Record activation factors, entropies, expert weights and cosine similarities "
        "of finished runs on test samples; write page and pictures from all records.",
    )
    analyse.set_defaults(command=_analyse)
    swap = commands.add_parser("word-swap", help="judge runs on texts with words swapped")
    swap.add_argument("--rate", type=float, default=RATE, help=f"share of words (default {RATE})")
    swap.add_argument("--seed", type=int, default=0, metavar="N", help="of the swaps (default 0)")
    swap.set_defaults(command=_word_swap)
    for command, limit in ((analyse, 128), (swap, None)):
        command.add_argument("folders", type=Path, nargs="+", help="folders of runs")
        command.add_argument(
            "--limit",
            type=int,
            default=limit,
            metavar="N",
            help=f"samples (default {limit or 'all'})",
        )
    for command in (results, analyse, swap):
        command.add_argument(
            "--output", type=Path, default=RESULTS, help="default: docs/results.md"
        )


def _list(arguments: argparse.Namespace) -> int:
    for path in sorted(RECIPES.glob("*.yaml")):
        print(f"recipes/{path.name:42} {describe_file(path)}")
    return 0


def _fit(arguments: argparse.Namespace) -> int:
    with joined() as processes:
        _train(arguments, processes)
    return 0


def _train(arguments: argparse.Namespace, processes: Processes) -> None:
    trainer = (_resumed if arguments.resume else _started)(arguments, processes)
    metrics = trainer.run()
    if processes.is_first:
        print(json.dumps(metrics, indent=2))
        print(f"run: {trainer.folder}")


def _resumed(arguments: argparse.Namespace, processes: Processes) -> Trainer:
    if arguments.recipe or arguments.output:
        raise ValueError("--resume continues a run as it was started: give no recipe or --output")
    recipe = records.recorded_recipe(arguments.resume)
    return Trainer(recipe, arguments.resume, processes=processes, progress=True)


def _started(arguments: argparse.Namespace, processes: Processes) -> Trainer:
    if not arguments.recipe:
        raise ValueError("name a recipe file, or a run with --resume")
    recipe = read_recipe(arguments.recipe, arguments.overrides)
    folder = arguments.output or Path("runs") / recipe.run_name
    records.check_unused(folder)
    processes.wait()  # before the first one makes the folder
    return Trainer(recipe, folder, processes=processes, progress=True)


def _results(arguments: argparse.Namespace) -> int:
    unfinished = 0
    for folder in arguments.folders:
        try:
            target = arguments.output.parent / "results"
            print(f"{folder} -> {collect(folder, target, RECIPES)}")
        except ValueError as error:
            print(f"left out: {error}", file=sys.stderr)
            unfinished = 2
    return _page(arguments) or unfinished


def _analyse(arguments: argparse.Namespace) -> int:
    count = _limit(arguments)
    for folder in arguments.folders:
        figures = analyse(folder, count=count, progress=True)
        print(keep("analysis", folder, figures, arguments.output.parent / "results"))
    return _page(arguments)


def _word_swap(arguments: argparse.Namespace) -> int:
    options = {"rate": arguments.rate, "seed": arguments.seed, "count": _limit(arguments)}
    for folder in arguments.folders:
        figures = judge_swapped(folder, **options, progress=True)
        print(keep("word-swap", folder, figures, arguments.output.parent / "results"))
    return _page(arguments)


def _limit(arguments: argparse.Namespace) -> int | None:
    if arguments.limit is not None and arguments.limit < 1:
        raise ValueError(f"--limit must be at least 1, got {arguments.limit}")
    return arguments.limit


def _page(arguments: argparse.Namespace) -> int:
    write_page(arguments.output)
    print(arguments.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
