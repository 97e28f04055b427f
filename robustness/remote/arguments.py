"""From the options of a command to an endpoint that answers."""

import argparse
import json
import os
import re
from pathlib import Path

from robustness.kinds import Shows
from robustness.remote import v2
from robustness.remote.connection import Connection, Manners
from robustness.remote.target import Asked, open_endpoint
from robustness.target import Target

_MANNERS = ("per_second", "concurrency", "batch", "timeout", "patience")
_TOP = re.compile("top-([1-9][0-9]{0,5})", re.ASCII)
_MOST = 20 * 2**20  # bytes of a file of labels


def reach(arguments: argparse.Namespace, folder: Path, shows: str | None = None) -> Target:
    """The target that the options name; whoever calls closes its endpoint.

    Args:
        arguments: of `evaluate` or `verify`.
        folder: where the ledger lies.
        shows: what attacks may see, "scores", "top-5" or "label".

    Raises:
        ValueError: the options do not name one, or make no sense together.
        EndpointError: it does not answer as it should.
    """
    if not arguments.model:
        raise ValueError("--target needs --model, the name of the model on the server")
    what, best = _seen(shows or "scores")
    manners = Manners(
        **{name: value for name in _MANNERS if (value := getattr(arguments, name)) is not None}
    )
    asked = Asked(
        shows=what,
        best=best,
        labels=None if arguments.labels is None else _labels(arguments.labels),
        max_queries=arguments.max_queries,
    )
    connection = Connection(arguments.target, manners, key=_key(arguments))
    try:
        name, _, version = arguments.model.partition(":")
        model = v2.describe(connection, name, version or None, output=arguments.output_tensor)
        return open_endpoint(model, folder, asked)
    except BaseException:
        connection.close()
        raise


def _seen(text: str) -> tuple[Shows, int]:
    """What attacks may see, and of how many classes."""
    if text in ("scores", "label"):
        return text, 0
    match = _TOP.fullmatch(text)
    if match is None or int(match[1]) < 2:
        raise ValueError(f"--shows must be scores, label, or top-2 and above, got {text[:40]!r}")
    return "top-k", int(match[1])


def _key(arguments: argparse.Namespace) -> str | None:
    """The key, which no message repeats."""
    variable, file = arguments.key_env, arguments.key_file
    if variable is not None and file is not None:
        raise ValueError("--key-env and --key-file name one key: leave one of them out")
    if variable is not None and not os.environ.get(variable):
        raise ValueError(f"--key-env names {variable[:80]!r}, and the environment has no such key")
    if variable is not None:
        return os.environ[variable].strip()
    return None if file is None else file.read_text().strip()


def _labels(path: Path) -> list[str]:
    """Names of classes from a file: a list of JSON, or one a line.

    Raises:
        OSError: it cannot be read.
        ValueError: it holds no names, or one twice.
    """
    if path.stat().st_size > _MOST:
        raise ValueError(f"--labels: {path.name} is larger than 20 MiB")
    text = path.read_text()
    names = json.loads(text) if text.lstrip().startswith("[") else text.splitlines()
    if not all(isinstance(name, str) and name.strip() for name in names):
        raise ValueError(f"--labels: every class of {path.name} must have a name")
    if len(set(names)) < len(names):
        raise ValueError(f"--labels: {path.name} must not name a class twice")
    return [name.strip() for name in names]
