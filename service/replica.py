"""Which servers may use a state folder: with SQLite one of each role, on one host."""

import fcntl
from typing import IO

from service.jobs.queue import JobStore
from service.settings import Settings

_ROLES = ("predict", "evaluate")
# The lock ends with the process, however it ends; nothing else may close the files.
_held: list[IO[str]] = []


def claim_replica(settings: Settings) -> None:
    """Check the database, and keep other servers of the same role away until this process ends.

    On PostgreSQL there may be any number of servers.

    Raises:
        ValueError: the database cannot be used, or another server uses the state.
    """
    if not settings.database.get_secret_value():
        settings.state.mkdir(parents=True, exist_ok=True)
        for role in _ROLES if settings.role == "all" else (settings.role,):
            _lock(settings, role)
    JobStore.open(settings).close()


def _lock(settings: Settings, role: str) -> None:
    file = (settings.state / f"{role}.lock").open("a")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        raise ValueError(
            f"another server uses this ASSAY_STATE to {role}; name a PostgreSQL database in"
            " ASSAY_DATABASE to run several, or another ASSAY_STATE"
        ) from None
    _held.append(file)
