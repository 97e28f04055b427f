"""`./assay train`, or `python -m training fit`: train a recipe; `list` and `plan` tell of them."""

import argparse
import json
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

from core.command import Parser, run_command
from training.recipe import entries

if TYPE_CHECKING:
    from training.distributed import Processes
    from training.recipe import Recipe
    from training.trainer import Trainer

# torch takes seconds to import: help and mistakes are answered before.

_ROOT = Path(__file__).parent.parent
RECIPES = _ROOT / "recipes"
RUNS = Path("runs")
LEFT = 1


def main(argv: list[str] | None = None) -> int:
    """Run the command line.

    Returns:
        0, 1 when `all` left runs unfinished, 2 for a bad recipe, data or folder, or 130 when
        interrupted.
    """
    arguments = _parser().parse_args(argv)
    return run_command(lambda: arguments.command(arguments))


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="python -m training", description="Train models.")
    commands = parser.add_subparsers(required=True)
    listing = commands.add_parser(
        "list", prog="./assay train list", help="list the recipes with their variants and sizes"
    )
    listing.set_defaults(command=_list)
    _add_fit(commands)
    _add_generate(commands)
    _add_all_and_plan(commands)
    return parser


def _add_fit(commands: Any) -> None:
    fit = commands.add_parser(
        "fit",
        prog="./assay train",
        help="train a recipe",
        description="Train a recipe; './assay train list' lists the recipes, './assay train plan'\n"
        "says how long they take. Under 'torchrun -m "
        "training fit ...' several processes train one model together, which\nshare each batch.",
        epilog=_entries(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
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


def _add_generate(commands: Any) -> None:
    writing = commands.add_parser(
        "generate",
        prog="./assay train generate",
        help="continue a text with a language model",
        description="Continue a text with the best weights of a language model's run.",
    )
    writing.add_argument("run", type=Path, metavar="RUN_DIR", help="folder of the run")
    writing.add_argument("prompt", help="what to continue")
    about = "tokens to add (default: 100)"
    writing.add_argument("--count", type=int, default=100, metavar="N", help=about)
    about = "0 takes the likeliest token, more draws among others (default: 0)"
    writing.add_argument("--temperature", type=float, default=0.0, metavar="T", help=about)
    writing.add_argument("--seed", type=int, default=0, help="of the draws (default: 0)")
    writing.set_defaults(command=_generate)


def _add_all_and_plan(commands: Any) -> None:
    together = commands.add_parser(
        "all",
        prog="./assay train all",
        help="train the runs of recipes, several at a time",
        description="Train all runs of recipes, several at a time on one device; each data set is "
        "read once. Finished\nruns are left as they are, interrupted ones continue. 'plan' says "
        "how long it takes.",
        epilog="exit codes: 0; 1 runs are left unfinished; 2 a bad request; 130 interrupted",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    together.set_defaults(command=_all)
    planning = commands.add_parser(
        "plan",
        prog="./assay train plan",
        help="say how long runs will take",
        description="Say how long runs will take, before any is started: a few steps of each are "
        "measured here, and a part of a validation. No run is begun.",
    )
    planning.set_defaults(command=_plan)
    about = "after which all are saved and left, finished or not (default: no limit)"
    _several(together, about)
    _several(planning, "say also how many end within them")
    about = "steps of each run to measure (default: 3)"
    planning.add_argument("--steps", type=int, default=3, metavar="N", help=about)


def _several(command: argparse.ArgumentParser, about_minutes: str) -> None:
    """Options that name several runs, and what they have to share."""
    about = (
        "recipe files, and overrides as of ./assay train; variant=A,B and seed=0,1,2 name several, "
        "without a variant all are meant"
    )
    command.add_argument("words", nargs="+", metavar="RECIPE|key=value", help=about)
    about = "folder of the runs, finished or not (default: runs)"
    command.add_argument("--runs", type=Path, default=RUNS, metavar="DIR", help=about)
    about = "runs that train at a time (default: 1)"
    command.add_argument("--at-once", type=int, default=1, metavar="N", help=about)
    command.add_argument("--minutes", type=float, metavar="M", help=about_minutes)


def _entries() -> str:
    """Every entry of a recipe, for help."""
    lines = []
    for title, found in entries():
        lines += ["", f"{title}:"]
        for name, told in found.items():
            indent = " " * 30
            head = f"  {name:27} "
            lines += textwrap.wrap(f"{head}{told}", 100, subsequent_indent=indent) or [head]
    return "\n".join(["entries of a recipe, each to be overridden by key=value:", *lines])


def _list(_: argparse.Namespace) -> int:
    from training.recipe_file import describe_file

    for path in sorted(RECIPES.glob("*.yaml")):
        print(f"recipes/{path.name:42} {describe_file(path)}")
    return 0


def _recipes(arguments: argparse.Namespace) -> list["Recipe"]:
    """Those that the words name, in their order."""
    from training.plan import expand

    for name, value in (("at-once", arguments.at_once), ("minutes", arguments.minutes)):
        if value is not None and value <= 0:
            raise ValueError(f"--{name} must be above 0, got {value}")
    paths = [Path(word) for word in arguments.words if "=" not in word]
    if not paths:
        raise ValueError("name a recipe file")
    return list(expand(paths, [word for word in arguments.words if "=" in word]))


def _all(arguments: argparse.Namespace) -> int:
    from training.together import train_all

    recipes, minutes = _recipes(arguments), arguments.minutes
    seconds = None if minutes is None else 60 * minutes
    left = train_all(recipes, arguments.runs, at_once=arguments.at_once, seconds=seconds)
    print(f"{len(recipes) - len(left)} of {len(recipes)} runs are finished")
    return LEFT if left else 0


def _plan(arguments: argparse.Namespace) -> int:
    import torch

    from training.plan import ends, plan

    if arguments.steps < 1:
        raise ValueError(f"--steps must be at least 1, got {arguments.steps}")
    recipes = _recipes(arguments)
    width = max(len(recipe.run_name) for recipe in recipes)

    def show(*cells: str) -> None:
        """Print a line at once: to measure all runs may take minutes."""
        name, state, *figures = cells
        print(f"{name:{width}}  {state:16}" + "".join(f"{one:>12}" for one in figures), flush=True)

    show("run", "state", "steps", "s/step", "hours left", "to its end")
    planned = plan(recipes, arguments.runs, steps=arguments.steps)
    last, in_time = 0.0, 0
    for run, end in ends(planned, arguments.at_once):
        paced = ("", "") if run.pace is None else (f"{run.pace.steps:,}", f"{run.pace.step:.3f}")
        show(run.folder.name, run.state, *paced, *(f"{s / 3600:.2f}" for s in (run.seconds, end)))
        last = max(last, end)
        in_time += arguments.minutes is None or end <= 60 * arguments.minutes
    turns = "one after another" if arguments.at_once == 1 else f"{arguments.at_once} at once"
    about = f"{len(recipes)} runs, {turns}, threads: {torch.get_num_threads()}"
    print(f"{last / 3600:.1f} hours for {about}")
    if arguments.minutes is not None:
        print(f"{in_time} of them end within {arguments.minutes:g} minutes")
    return 0


def _generate(arguments: argparse.Namespace) -> int:
    from training.language import continue_text

    options = {name: getattr(arguments, name) for name in ("count", "temperature", "seed")}
    print(arguments.prompt + continue_text(arguments.run, arguments.prompt, **options))
    return 0


def _fit(arguments: argparse.Namespace) -> int:
    from training import run as records
    from training.distributed import process_group

    if arguments.resume and (metrics := records.finished(arguments.resume)):
        _show(metrics, f"already finished: {arguments.resume}")
        return 0
    with process_group() as processes:
        trainer = (_resumed if arguments.resume else _started)(arguments, processes)
        try:
            metrics = trainer.run()
        except KeyboardInterrupt:
            raise KeyboardInterrupt(_continuation(trainer.folder, processes)) from None
        if processes.is_first:
            _show(metrics, f"run: {trainer.folder}")
    return 0


def _show(metrics: object, last: str) -> None:
    print(json.dumps(metrics, indent=2))
    print(last)


def _continuation(folder: Path, processes: "Processes") -> str:
    command = "./assay train" if processes.size == 1 else "torchrun ... -m training fit"
    return f"interrupted; continue with: {command} --resume {folder}"


def _resumed(arguments: argparse.Namespace, processes: "Processes") -> "Trainer":
    from training.run import recorded_recipe
    from training.trainer import Trainer

    if arguments.recipe or arguments.output:
        raise ValueError("--resume continues a run as it was started: give no recipe or --output")
    recipe = recorded_recipe(arguments.resume)
    return Trainer(recipe, arguments.resume, processes=processes, progress=True)


def _started(arguments: argparse.Namespace, processes: "Processes") -> "Trainer":
    from training.recipe_file import read_recipe
    from training.run import RECIPE
    from training.trainer import Trainer

    if not arguments.recipe:
        raise ValueError("name a recipe file, or a run with --resume")
    recipe = read_recipe(arguments.recipe, arguments.overrides)
    folder = arguments.output or RUNS / recipe.run_name
    if (folder / RECIPE).exists():
        raise ValueError(f"{folder} already holds a run; continue it with --resume {folder}")
    processes.wait()  # before the first one makes the folder
    return Trainer(recipe, folder, processes=processes, progress=True)


if __name__ == "__main__":
    sys.exit(main())
