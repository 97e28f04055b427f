"""The SQLite file behind the table of evaluations, and its version."""

import fcntl
import sqlite3
from pathlib import Path

SCHEMA_VERSION = 1

_TABLE = """
CREATE TABLE IF NOT EXISTS jobs (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    status TEXT NOT NULL
        CHECK (status IN ('queued', 'running', 'succeeded', 'failed', 'cancelled')),
    spec TEXT NOT NULL,
    models TEXT NOT NULL,
    samples INTEGER NOT NULL,
    cost INTEGER NOT NULL,
    fingerprint TEXT NOT NULL,
    idempotency_key TEXT UNIQUE,
    created REAL NOT NULL,
    started REAL,
    finished REAL,
    done INTEGER NOT NULL DEFAULT 0,
    total INTEGER NOT NULL DEFAULT 0,
    stage TEXT NOT NULL DEFAULT '',
    eta REAL,
    best INTEGER NOT NULL DEFAULT 0,
    owner TEXT,
    heartbeat REAL,
    attempts INTEGER NOT NULL DEFAULT 0,
    starts INTEGER NOT NULL DEFAULT 0,
    cancel_requested INTEGER NOT NULL DEFAULT 0,
    result TEXT,
    error TEXT,
    deleted REAL
)
"""
_INDEX = "CREATE INDEX IF NOT EXISTS jobs_by_status ON jobs (status, seq)"


class StateError(RuntimeError):
    """The state folder was written by another version of the service."""


def open_database(path: Path) -> sqlite3.Connection:
    """Open the file, making it when missing; changes survive a loss of power.

    Raises:
        StateError: the file has another schema version.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # The change to write-ahead logging does not wait for other processes, so only one makes it.
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        db = sqlite3.connect(path, timeout=30, isolation_level=None, check_same_thread=False)
        try:
            _prepare(db)
        except BaseException:
            db.close()
            raise
    return db


def _prepare(db: sqlite3.Connection) -> None:
    db.row_factory = sqlite3.Row
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = FULL")
    version = db.execute("PRAGMA user_version").fetchone()[0]
    if version not in (0, SCHEMA_VERSION):
        raise StateError(
            f"the state was written with schema version {version}, this service reads version"
            f" {SCHEMA_VERSION}; start the service that wrote it, or name an empty ASSAY_STATE"
        )
    db.execute("BEGIN IMMEDIATE")
    db.execute(_TABLE)
    db.execute(_INDEX)
    db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
    db.execute("COMMIT")
