"""What an endpoint was asked and what it answered, each written down before it is used."""

import json
import sqlite3
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

FILE = "ledger.sqlite"
_TABLES = """
PRAGMA locking_mode = EXCLUSIVE;
PRAGMA journal_mode = WAL;
CREATE TABLE IF NOT EXISTS about (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS questions (
    number INTEGER PRIMARY KEY, inputs BLOB NOT NULL, again INTEGER NOT NULL, asked REAL NOT NULL,
    answered REAL, tries INTEGER
);
CREATE TABLE IF NOT EXISTS answers (
    input BLOB NOT NULL, again INTEGER NOT NULL, question INTEGER NOT NULL, scores BLOB NOT NULL,
    PRIMARY KEY (input, again)
) WITHOUT ROWID;
"""
_DIGEST = 32  # bytes of a sha256
_TOGETHER = 500  # parameters of a query
_SHOWN = 300  # characters of a fact in a message


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """How much a ledger holds.

    Attributes:
        asked: inputs that were answered, each of them once.
        again: inputs that were answered a second time, on purpose.
        open: inputs of questions that were sent and never answered.
        tries: requests, those included that were refused or lost.
    """

    asked: int
    again: int
    open: int
    tries: int


class Ledger:
    """Questions and answers of one target, by the sha256 of each input; safe among threads.

    A question is written before it is sent; with its answers it is on the disk before anybody gets
    to see them, one wait for the disk a request. Who is killed, or loses power, loses at most what
    was under way, and finds everything else again.

    Args:
        path: its file, made when it is missing.
        identity: what is asked, by key; a ledger of another target is refused.

    Raises:
        ValueError: it belongs to another target, another process has it, or it is damaged.
    """

    def __init__(self, path: Path, identity: Mapping[str, Any]) -> None:
        self._lock = threading.Lock()
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = sqlite3.connect(
            path, check_same_thread=False, isolation_level=None, timeout=0.1
        )
        try:
            self._file.executescript(_TABLES)
            known = json.loads(self.note("target", json.dumps(identity)))
        except sqlite3.OperationalError as error:
            self._file.close()
            raise ValueError(
                f"{path.name} cannot be used, another process has it: {error}"
            ) from error
        except sqlite3.DatabaseError as error:
            self._file.close()
            raise ValueError(f"{path.name} is damaged: {error}") from error
        if changed := [key for key, value in identity.items() if known.get(key) != value]:
            self._file.close()
            told = "; ".join(
                f"{key} was {str(known.get(key))[:_SHOWN]}, is {str(identity[key])[:_SHOWN]}"
                for key in changed
            )
            raise ValueError(
                f"{path.name} holds the answers of another target, or of this one before it "
                f"changed: {told}; what it is now needs an evaluation of its own (--output)"
            )

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._file.close()

    def note(self, key: str, value: str) -> str:
        """Keep a fact under a key for good; returns what was kept first."""
        with self._lock:
            self._file.execute("INSERT OR IGNORE INTO about VALUES (?, ?)", (key, value))
        kept = self.fact(key)
        return value if kept is None else kept

    def fact(self, key: str) -> str | None:
        """The fact kept under a key."""
        with self._lock:
            row = self._file.execute("SELECT value FROM about WHERE key = ?", (key,)).fetchone()
        return None if row is None else row[0]

    def known(self, inputs: Sequence[bytes], *, again: bool = False) -> dict[bytes, np.ndarray]:
        """The answers (K,) float32 that there are, by sha256 of the input."""
        found: dict[bytes, np.ndarray] = {}
        for start in range(0, len(inputs), _TOGETHER):
            part = inputs[start : start + _TOGETHER]
            marks = ",".join("?" * len(part))
            query = f"SELECT input, scores FROM answers WHERE again = ? AND input IN ({marks})"
            with self._lock:
                rows = self._file.execute(query, (again, *part)).fetchall()
            found |= {bytes(digest): np.frombuffer(scores, "<f4") for digest, scores in rows}
        return found

    def ask(self, inputs: Sequence[bytes], *, again: bool = False) -> int:
        """Write down a question that is about to be sent; returns its number."""
        with self._lock:
            self._file.execute("PRAGMA synchronous = NORMAL")
            row = self._file.execute(
                "INSERT INTO questions (inputs, again, asked) VALUES (?, ?, ?)",
                (b"".join(inputs), again, time.time()),
            )
            return int(row.lastrowid or 0)

    def answer(
        self, question: int, inputs: Sequence[bytes], scores: np.ndarray, *, again: bool, tries: int
    ) -> None:
        """Write down an answer (N, K), all of it or nothing, and wait until the disk has it."""
        rows: Iterable[tuple[bytes, bool, int, bytes]] = (
            (digest, again, question, row.astype("<f4").tobytes())
            for digest, row in zip(inputs, scores, strict=True)
        )
        with self._lock, self._file:
            self._file.execute("PRAGMA synchronous = FULL")
            self._file.execute("BEGIN")
            self._file.executemany("INSERT OR IGNORE INTO answers VALUES (?, ?, ?, ?)", rows)
            self._file.execute(
                "UPDATE questions SET answered = ?, tries = ? WHERE number = ?",
                (time.time(), tries, question),
            )

    def counts(self) -> Counts:
        """How much it holds."""
        with self._lock:
            rows = dict(
                self._file.execute("SELECT again, COUNT(*) FROM answers GROUP BY again").fetchall()
            )
            left, tries = self._file.execute(
                "SELECT TOTAL(LENGTH(inputs) * (answered IS NULL)), TOTAL(tries) FROM questions"
            ).fetchone()
        return Counts(
            asked=rows.get(0, 0), again=rows.get(1, 0), open=int(left) // _DIGEST, tries=int(tries)
        )
