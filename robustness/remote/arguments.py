"""From the options of a command to an endpoint that answers."""

import argparse
import json
import os
from pathlib import Path

from robustness.kinds import read_shows
from robustness.remote import v2
from robustness.remote.connection import Connection, Manners
from robustness.remote.mapping import MappingFile, mapped, read_mapping
from robustness.remote.model import RemoteModel
from robustness.remote.target import Asked, open_endpoint
from robustness.remote.tokens import read_tokens
from robustness.target import Target
from robustness.text_target import open_model
from runtimes.artifact import Artifact

_MANNERS = ("per_second", "concurrency", "batch", "timeout", "patience")
_AT_ONCE, _PATIENCE_S = 8, 3.0  # of a check of a server
_MOST = 20 * 2**20  # bytes of a file of labels


def reach(
    arguments: argparse.Namespace,
    folder: Path,
    shows: str | None = None,
    surrogate: Artifact | None = None,
) -> Target:
    """The target that the options name; whoever calls closes its endpoint.

    Args:
        arguments: of `evaluate` or `verify`.
        folder: where the ledger lies.
        shows: what attacks may see, "scores", "top-5" or "label".
        surrogate: a local copy, whose gradients attacks follow.

    Raises:
        ValueError: the options do not name one, or make no sense together.
        EndpointError: it does not answer as it should.
    """
    if not arguments.model:
        raise ValueError("--target needs --model, the name of the model on the server")
    what, best = read_shows(shows or "scores")
    manners = Manners(
        **{name: value for name in _MANNERS if (value := getattr(arguments, name)) is not None}
    )
    mapping = None if arguments.mapping is None else read_mapping(arguments.mapping)
    labels = None if mapping is None else mapping.labels
    asked = Asked(
        shows=what,
        best=best,
        labels=labels if arguments.labels is None else _labels(arguments.labels),
        max_queries=arguments.max_queries,
    )
    return open_target(
        arguments.target,
        arguments.model,
        folder,
        asked=asked,
        manners=manners,
        key=_key(arguments),
        mapping=mapping,
        beside=None if arguments.mapping is None else arguments.mapping.parent,
        output=arguments.output_tensor,
        surrogate=surrogate,
    )


def open_target(
    url: str,
    model: str,
    folder: Path,
    *,
    asked: Asked,
    manners: Manners,
    key: str | None = None,
    mapping: MappingFile | None = None,
    beside: Path | None = None,
    output: str | None = None,
    surrogate: Artifact | None = None,
) -> Target:
    """A model behind an address as a target; whoever calls closes its endpoint.

    Args:
        url: of the server.
        model: on the server, NAME or, by the protocol V2, NAME:VERSION.
        folder: where the ledger lies.
        asked: what is asked of it.
        manners: how it is treated.
        key: sent with every request.
        mapping: how it is asked where it does not speak V2.
        beside: the folder of the mapping.
        output: the tensor to read; None for the usual one.
        surrogate: a local copy, whose gradients attacks follow.

    Raises:
        ValueError: this makes no sense together, or the model is of no use.
        EndpointError: it does not answer as it should.
    """
    copy = None if surrogate is None else open_model(surrogate, threads=1)
    connection = _connection(url, key, manners, mapping)
    try:
        found = model_of(connection, model, mapping, beside=beside, output=output)
        return open_endpoint(found, folder, asked, copy)
    except BaseException:
        connection.close()
        raise


def server(arguments: argparse.Namespace, mapping: MappingFile | None) -> Connection:
    """A connection to the server that `check-serving` is about.

    Raises:
        ValueError: no such URL or key.
        EndpointError: its name has no address.
    """
    times = {} if arguments.timeout is None else {"timeout": arguments.timeout}
    patience = min(_PATIENCE_S, arguments.timeout or _PATIENCE_S)
    manners = Manners(concurrency=_AT_ONCE, patience=patience, **times)
    return _connection(arguments.target, _key(arguments), manners, mapping)


def model_of(
    connection: Connection,
    name: str,
    mapping: MappingFile | None,
    *,
    beside: Path | None,
    output: str | None,
) -> RemoteModel:
    """The model of a name, or NAME:VERSION, by the protocol V2 or by the user's file.

    Args:
        connection: to its server.
        name: of the model.
        mapping: the user's file.
        beside: its folder, where a tokenizer lies.
        output: the tensor to read; None for the usual one.

    Raises:
        EndpointError, OSError, ValueError: see `v2.describe` and `read_tokens`.
    """
    tokens = None
    if mapping is not None:
        given = mapping.input
        if given.tokenizer is None or given.max_len is None:
            if output is not None:
                raise ValueError("--output-tensor has a meaning for the protocol V2 only")
            return mapped(connection, name, mapping)
        tokens = read_tokens((beside or Path()) / given.tokenizer, given.max_len)
    name, _, version = name.partition(":")
    return v2.describe(connection, name, version or None, output=output, tokens=tokens)


def _connection(
    url: str, key: str | None, manners: Manners, mapping: MappingFile | None
) -> Connection:
    header = {} if mapping is None else {"key_header": (mapping.key.header, mapping.key.prefix)}
    return Connection(url, manners, key=key, **header)


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
