"""`python -m training`: list the recipes and train one."""

import argparse
import json
import sys
from pathlib import Path

from training import run as records
from training.distributed import Processes, process_group
from training.recipe_file import describe_file, read_recipe
from training.trainer import Trainer

_ROOT = Path(__file__).parent.parent
RECIPES = _ROOT / "recipes"


def main(argv: list[str] | None = None) -> int:
    """Run the command line.

    Returns:
        0, 2 for a bad recipe, data or folder, or 130 when interrupted.
    """
    try:
        return run_command(_parser(), argv)
    except KeyboardInterrupt:
        print("interrupted; continue with --resume", file=sys.stderr)
        return 130


def run_command(parser: argparse.ArgumentParser, argv: list[str] | None) -> int:
    """Run what the parser's `command` names; 2 with a message for input that cannot be used."""
    arguments = parser.parse_args(argv)
    try:
        return arguments.command(arguments)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


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
    return parser


def _list(arguments: argparse.Namespace) -> int:
    for path in sorted(RECIPES.glob("*.yaml")):
        print(f"recipes/{path.name:42} {describe_file(path)}")
    return 0


def _fit(arguments: argparse.Namespace) -> int:
    with process_group() as processes:
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
    if (folder / records.RECIPE).exists():
        raise ValueError(f"{folder} already holds a run; continue it with --resume {folder}")
    processes.wait()  # before the first one makes the folder
    return Trainer(recipe, folder, processes=processes, progress=True)


if __name__ == "__main__":
    sys.exit(main())
