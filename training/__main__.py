"""`python -m training list` and `python -m training fit RECIPE`."""

import argparse
import json
import sys
from pathlib import Path

from training import records
from training.fit import Trainer
from training.recipe import read_recipe

RECIPES = Path(__file__).parent.parent / "recipes"


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
    listing = commands.add_parser("list", help="list the recipes")
    listing.set_defaults(command=_list)
    fit = commands.add_parser("fit", help="train a recipe")
    fit.add_argument("recipe", type=Path, nargs="?", help="a recipe file")
    fit.add_argument("overrides", nargs="*", metavar="key=value", help="e.g. train.epochs=1")
    fit.add_argument("--output", type=Path, help="folder of the run (default: runs/NAME)")
    fit.add_argument("--resume", type=Path, metavar="DIR", help="continue the run in this folder")
    fit.set_defaults(command=_fit)
    return parser


def _list(arguments: argparse.Namespace) -> int:
    for path in sorted(RECIPES.glob("*.yaml")):
        recipe = read_recipe(path)
        print(f"recipes/{path.name:40} {recipe.name:26} {recipe.model['name']}")
    return 0


def _fit(arguments: argparse.Namespace) -> int:
    trainer = _resumed(arguments) if arguments.resume else _started(arguments)
    print(json.dumps(trainer.run(), indent=2))
    print(f"run: {trainer.folder}")
    return 0


def _resumed(arguments: argparse.Namespace) -> Trainer:
    if arguments.recipe or arguments.output:
        raise ValueError("--resume continues a run as it was started: give no recipe or --output")
    return Trainer(records.recorded_recipe(arguments.resume), arguments.resume)


def _started(arguments: argparse.Namespace) -> Trainer:
    if not arguments.recipe:
        raise ValueError("name a recipe file, or a run with --resume")
    recipe = read_recipe(arguments.recipe, arguments.overrides)
    folder = arguments.output or Path("runs") / recipe.name
    records.check_unused(folder)
    trainer = Trainer(recipe, folder)  # reads the data: a mistake leaves no folder behind
    records.start_run(folder, recipe)
    return trainer


if __name__ == "__main__":
    sys.exit(main())
