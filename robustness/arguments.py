"""What the options of a command line say: the spec that they spell, and numbers within reason."""

import argparse
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from robustness.options import OPTIONS
from robustness.parsing import parse_eps
from robustness.spec import ATTACKS, EvaluationSpec

_MOST = 1024  # threads or processes; torch ends the process on absurd numbers
_FASTEST = 1e9  # inputs a second
_OF_SPEC = ("attack", *OPTIONS, "top_k", "seed", "gate", "stop", "class_map")


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
        return EvaluationSpec.model_validate(_json(arguments.spec, "--spec"))
    if not arguments.attack:
        raise ValueError("--attack must name at least one attack, or --spec a file")
    _refuse_useless(arguments)
    return EvaluationSpec.model_validate(
        {
            "seed": arguments.seed or 0,
            "gate": arguments.gate,
            "stop": arguments.stop or "end",
            "class_map": _class_map(arguments.class_map),
            "top_k": arguments.top_k or [1],
            "attacks": [_attack(name, arguments) for name in arguments.attack],
        }
    )


def settle_rate(arguments: argparse.Namespace) -> None:
    """Take --rate for --per-second where an endpoint is asked and it is no attack's.

    It is an attack's where one is named that knows a rate and is given none of its own, as in
    `word-swap:rate=0.1`.

    Raises:
        ValueError: it is no number of what it stands for, or --per-second stands there, too.
    """
    rate = arguments.rate
    if arguments.target is None or rate is None:
        return
    named = [text.split(":") for text in arguments.attack or ()]
    for name, *words in named:
        if name in OPTIONS["rate"] and not any(word.startswith("rate=") for word in words):
            try:
                [parse_eps(text, name="--rate") for text in rate]
            except ValueError as error:
                told = f"{error}: it is {name}'s here; inputs a second are --per-second N"
                raise ValueError(told) from None
            return
    if arguments.per_second is not None or len(rate) > 1:
        raise ValueError("--rate must be one number of inputs a second, and without --per-second")
    arguments.per_second, arguments.rate = parse_eps(rate[0], name="--rate", limit=_FASTEST), None


def _json(path: Path, option: str) -> Any:
    try:
        return json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{option} must name a file of JSON, and {path.name} is none") from error


def _table(path: Path) -> Any:
    """A table of words: JSON, or a word and its alternatives in each line, with tabs between."""
    text = path.read_text(encoding="utf-8-sig")
    if text.lstrip().startswith("{"):
        return _json(path, "--table")
    found = dict[str, list[str]]()
    for line in filter(str.strip, text.splitlines()):
        word, *others = (part.strip() for part in line.split("\t"))
        if word in found:
            raise ValueError(f"--table must name a word once, got {word[:40]!r} twice")
        found[word] = [other for other in others if other]
    return found


def _class_map(text: str | None) -> Any:
    if text is None or text == "index":
        return text
    if not text.lstrip().startswith("{"):
        return _json(Path(text), "--class-map")
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"--class-map must be JSON: {error}") from error


def _attack(text: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """One attack with those options that mean something for it, and its own."""
    name, *words = text.split(":")
    shared = {
        option: getattr(arguments, option) for option, knowing in OPTIONS.items() if name in knowing
    }
    if isinstance(shared.get("table"), Path):
        shared["table"] = _table(shared["table"])
    return {"name": name} | shared | ATTACKS[name].spelled(words)


def _refuse_useless(arguments: argparse.Namespace) -> None:
    asked = {text.partition(":")[0] for text in arguments.attack}
    for option, knowing in OPTIONS.items():
        if getattr(arguments, option) is not None and not asked & set(knowing):
            raise ValueError(f"--{option} has a meaning for {', '.join(knowing)} only")


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")


def check_numbers(arguments: argparse.Namespace, names: Sequence[str]) -> None:
    """Refuse numbers that count nothing, and more threads or processes than any machine runs.

    Raises:
        ValueError: one of these options was given and is below 1, or too large.
    """
    for name in names:
        value = getattr(arguments, name)
        if value is not None and value < 1:
            raise ValueError(f"{_option(name)} must be at least 1, got {value}")
        if value is not None and name in ("threads", "workers") and value > _MOST:
            raise ValueError(f"{_option(name)} must be at most {_MOST}, got {value}")


def default_workers(threads: int) -> int:
    """As many workers as keep the cores of this process busy."""
    return max(1, len(os.sched_getaffinity(0)) // threads)
