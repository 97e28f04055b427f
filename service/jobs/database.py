"""The database behind the table of evaluations: SQLite in one file, or PostgreSQL.

Every change is on the disk when it returns. Whoever opens the database first brings it to the
present schema; the others wait for that.
"""

import fcntl
import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import (
    Connection,
    Double,
    Engine,
    cast,
    create_engine,
    event,
    extract,
    func,
    inspect,
    literal,
    text,
)
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError
from sqlalchemy.sql.elements import ColumnElement

_VERSIONS = ("0001", "0002")  # the steps in `migrations`
HEAD = _VERSIONS[-1]
_SQLITE_WAIT_S = 30
_CONNECT_S = 10
_LOCK = 4_702_111_234  # any number that nobody else locks in the same database
_DRIVER = "postgresql+psycopg"
_FULL_SQLITE, _FULL_POSTGRESQL = 13, "53100"
_RULE = "ASSAY_DATABASE must be a URL like postgresql://user:password@host/name"


def read_url(address: str) -> URL:
    """The URL `postgresql://user:password@host/name`, or `sqlite:///` before an absolute path.

    Raises:
        ValueError: it is neither; the message quotes nothing of it, for it may hold a password.
    """
    try:
        url = make_url(address)
    except (ArgumentError, ValueError):
        raise ValueError(_RULE) from None
    if url.drivername in ("postgres", "postgresql", _DRIVER):
        return url.set(drivername=_DRIVER)
    if url.drivername == "sqlite" and os.path.isabs(url.database or ""):
        return url
    raise ValueError(f"{_RULE}, or sqlite:/// before an absolute path")


def open_database(address: str) -> Engine:
    """Connect to an address as in `read_url`, and bring the schema up to date.

    Raises:
        ValueError: the address is wrong, nothing answers there, or the schema is a newer one.
    """
    url = read_url(address)
    engine = _engine(url)
    try:
        with _first(url), writing_alone(engine) as connection:
            _migrate(connection)
    except (DBAPIError, sqlite3.Error, OSError) as error:
        engine.dispose()
        raise _unusable(url, error) from error
    except BaseException:
        engine.dispose()
        raise
    return engine


@contextmanager
def writing(engine: Engine) -> Iterator[Connection]:
    """A transaction that may write; in SQLite nobody else writes meanwhile."""
    with engine.execution_options(writes=True).begin() as connection:
        yield connection


@contextmanager
def writing_alone(engine: Engine) -> Iterator[Connection]:
    """A transaction during which no other of this function runs, in any process."""
    with writing(engine) as connection:
        if connection.dialect.name == "postgresql":
            connection.execute(text(f"SELECT pg_advisory_xact_lock({_LOCK})"))
        yield connection


def present(engine: Engine) -> ColumnElement[float]:
    """Seconds since the epoch, by a clock that all who use the database share."""
    if engine.dialect.name == "postgresql":
        return cast(extract("epoch", func.clock_timestamp()), Double)
    return literal(time.time())


def is_full(error: DBAPIError) -> bool:
    """Whether a change failed because the disk of the database is full."""
    code = getattr(error.orig, "sqlite_errorcode", None)
    return code == _FULL_SQLITE or getattr(error.orig, "sqlstate", None) == _FULL_POSTGRESQL


def _engine(url: URL) -> Engine:
    if url.drivername == _DRIVER:
        # A connection may have died since its last use: the server restarts, a proxy forgets.
        waits = {"connect_timeout": _CONNECT_S}
        return create_engine(url, pool_pre_ping=True, connect_args=waits)
    engine = create_engine(url, connect_args={"timeout": _SQLITE_WAIT_S})
    event.listen(engine, "connect", _set_up_sqlite)
    event.listen(engine, "begin", _begin_sqlite)
    return engine


def _set_up_sqlite(connection: Any, _: object) -> None:
    connection.isolation_level = None  # the driver's own transactions begin too late
    connection.execute("PRAGMA synchronous = FULL")


def _begin_sqlite(connection: Connection) -> None:
    # Taking the write lock first: a transaction that read before it wrote could not wait for it.
    writes = connection.get_execution_options().get("writes")
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


@contextmanager
def _first(url: URL) -> Iterator[None]:
    """Make the folder and the file; the change to write-ahead logging waits for nobody itself."""
    if url.drivername == _DRIVER:
        yield
        return
    path = Path(url.database or "")
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with closing(sqlite3.connect(path, timeout=_SQLITE_WAIT_S)) as connection:
            connection.execute("PRAGMA journal_mode = WAL")
        yield


def _migrate(connection: Connection) -> None:
    """Run the steps that are missing, in the transaction that is open."""
    found = None
    if inspect(connection).has_table("alembic_version"):
        found = connection.execute(text("SELECT version_num FROM alembic_version")).scalar()
    if found not in (None, *_VERSIONS):
        raise ValueError(
            f"the state was written with schema version {found}, this service reads up to version"
            f" {HEAD}; start the service that wrote it, or name an empty ASSAY_STATE or"
            " ASSAY_DATABASE"
        )
    if found == HEAD:
        return
    # Only a version's first start needs it; it takes longer to import than all else of the table.
    from alembic import command
    from alembic.config import Config

    config = Config()
    steps = Path(__file__).parent / "migrations"
    config.set_main_option("script_location", str(steps).replace("%", "%%"))
    config.attributes["connection"] = connection
    command.upgrade(config, HEAD)


def _unusable(url: URL, error: Exception) -> ValueError:
    """Says where and why, without the password."""
    if url.drivername != _DRIVER:
        return ValueError(
            f"the table of evaluations in {url.database} cannot be opened: {_reason(error)}"
        )
    place = f"{url.host or 'the local socket'}, database {url.database or 'of the user'}"
    reason = _reason(error)
    if url.password and str(url.password) in reason:
        reason = "the server refused"
    return ValueError(f"the database of ASSAY_DATABASE ({place}) cannot be used: {reason}")


def _reason(error: Exception) -> str:
    cause = error.orig if isinstance(error, DBAPIError) else error
    lines = str(cause).strip().splitlines()
    return lines[-1].strip() if lines else type(error).__name__
