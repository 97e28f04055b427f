"""The options of the command line, and the spec that they spell."""

import argparse
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

from robustness.catalog import KINDS, AttackName, Norm
from robustness.spec import EvaluationSpec

_SETTINGS: dict[str, tuple[type, str]] = {
    "steps": (int, "gradient steps, or iterations of spsa"),
    "queries": (int, "model evaluations of one input at most"),
    "samples": (int, "pairs of evaluations in an iteration of spsa; noisy copies of smoothing"),
    "names": (str, "corruptions, such as fog; the 15 of ImageNet-C when not given"),
    "severities": (int, "severities of corruptions, 1 to 5"),
    "sigma": (str, "standard deviations of the noise of smoothing"),
    "rate": (str, "shares of the words that word-swap replaces"),
    "edits": (int, "tokens that hotflip replaces, words that typos changes, at most"),
}
_SINGLE = ("steps", "queries", "samples")
_OF_SPEC = ("attack", "eps", "norm", *_SETTINGS, "top_k", "seed", "gate")


def parser() -> argparse.ArgumentParser:
    """The parser of all commands."""
    top = argparse.ArgumentParser(
        prog="python -m robustness", description="Put artifacts on trial, and check reports."
    )
    commands = top.add_subparsers(dest="command", required=True)
    _add_evaluate(commands.add_parser("evaluate", help="put an artifact on trial"))
    _add_verify(commands.add_parser("verify", help="judge the stored inputs of a report again"))
    return top


def _add_evaluate(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("--artifact", type=Path, required=True, metavar="DIR", help="the model on trial")
    add("--compare", type=Path, metavar="DIR", help="a second model, judged on the same inputs")
    add("--data", required=True, metavar="PATH", help="folder, zip, parquet, csv, idx, hf:NAME")
    _add_spec(command)
    add("--limit", type=int, metavar="N", help="judge N inputs, drawn at random by the seed")
    add("--output", type=Path, metavar="DIR", help="keep report and shards; a stopped run goes on")
    add("--card", action="store_true", help="write the figures onto the artifacts' cards")
    add("--engine", choices=("process", "ray"), default="process", help="who does the work")
    add("--workers", type=int, metavar="N", help="worker processes (default: one for each core)")
    add("--address", metavar="HOST:PORT", help="a running Ray cluster, with --engine ray")
    add("--threads", type=int, default=1, metavar="N", help="threads of each worker (default 1)")
    add("--deadline", type=float, metavar="SECONDS", help="stop then; the same command goes on")


def _add_spec(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    names = get_args(AttackName)
    many: dict[str, Any] = {"nargs": "+", "action": "extend"}
    add("--attack", **many, choices=names, metavar="NAME", help=" or ".join(names))
    add("--eps", **many, metavar="EPS", help="radii such as 8/255 or 0.03")
    add("--norm", choices=get_args(Norm), help="of the radii (default Linf)")
    for name, (kind, text) in _SETTINGS.items():
        several: dict[str, Any] = {} if name in _SINGLE else many
        add(f"--{name}", **several, type=kind, metavar="N", help=f"{text} ({_knowing(name)})")
    add("--top-k", **many, type=int, metavar="K", help="ranks at which accuracy is reported")
    add("--seed", type=int, metavar="N", help="all random draws derive from it (default 0)")
    add("--gate", metavar="RULE", help='such as "robust_accuracy>=0.40"; exit 1 when it fails')
    add("--spec", type=Path, metavar="FILE", help="all of these as JSON, as a report has them")


def _add_verify(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("report", type=Path, metavar="REPORT.json", help="with its folder of shards beside it")
    add(
        "--artifact",
        type=Path,
        nargs="+",
        action="extend",
        metavar="DIR",
        help="where the models lie, found by digest (default: artifacts/*)",
    )
    add("--data", metavar="PATH", help="compare the stored inputs with their source, too")
    add("--limit", type=int, metavar="N", help="judge a sample of N inputs")


def read_spec(arguments: argparse.Namespace) -> EvaluationSpec:
    """The spec that the options spell, or the one in the file that they name.

    Raises:
        ValueError: an option is missing, has no meaning or a wrong value.
        OSError: the file cannot be read.
    """
    given = [name for name in _OF_SPEC if getattr(arguments, name) is not None]
    if arguments.spec is not None:
        if given:
            raise ValueError(f"--spec stands for all of its options; leave out {_option(given[0])}")
        return EvaluationSpec.model_validate(json.loads(arguments.spec.read_bytes()))
    if not arguments.attack:
        raise ValueError("--attack must name at least one attack, or --spec a file")
    _refuse_useless(arguments)
    return EvaluationSpec.model_validate(
        {
            "seed": arguments.seed or 0,
            "gate": arguments.gate,
            "top_k": arguments.top_k or [1],
            "attacks": [_attack(name, arguments) for name in arguments.attack],
        }
    )


def _attack(name: AttackName, arguments: argparse.Namespace) -> dict[str, Any]:
    """One attack with those options that mean something for it."""
    kind = KINDS[name]
    known = [setting for setting in _SETTINGS if setting in kind.fields]
    if kind.norms:
        known += ["eps", "norm"]
    return {"name": name} | {option: getattr(arguments, option) for option in known}


def _refuse_useless(arguments: argparse.Namespace) -> None:
    for option in ("eps", "norm", *_SETTINGS):
        if getattr(arguments, option) is None:
            continue
        if not any(_knows(name, option) for name in arguments.attack):
            raise ValueError(f"--{option} has a meaning for {_knowing(option)} only")


def _knows(name: AttackName, option: str) -> bool:
    kind = KINDS[name]
    return bool(kind.norms) if option in ("eps", "norm") else option in kind.fields


def _knowing(option: str) -> str:
    return ", ".join(name for name in KINDS if _knows(name, option))


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")


def check_numbers(arguments: argparse.Namespace, names: Sequence[str]) -> None:
    """Refuse numbers that count nothing.

    Raises:
        ValueError: one of these options was given and is below 1, or not above 0 for seconds.
    """
    for name in names:
        value = getattr(arguments, name)
        if value is not None and value < 1:
            raise ValueError(f"{_option(name)} must be at least 1, got {value}")


def default_workers(threads: int) -> int:
    """As many workers as keep the cores of this process busy."""
    return max(1, len(os.sched_getaffinity(0)) // threads)
