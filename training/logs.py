"""Where the figures of a run go while it trains: `steps.csv`."""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol


class Log(Protocol):
    """Takes figures by step."""

    def write(self, step: int, figures: dict[str, float]) -> None:
        """Take the figures of a step."""
        ...

    def close(self) -> None:
        """Write what is left."""
        ...


class CsvLog:
    """One row a call in a csv file.

    Args:
        path: a file of a resumed run loses the rows after `step` that it was killed with.
        step: steps done so far.
    """

    def __init__(self, path: Path, step: int) -> None:
        rows: list[dict[str, str]] = []
        if path.is_file():
            with path.open(newline="") as file:
                rows = [row for row in csv.DictReader(file) if int(row["step"]) <= step]
        self._file = path.open("w", newline="")
        self._writer: csv.DictWriter[str] | None = None
        for row in rows:
            self._row(row)

    def write(self, step: int, figures: dict[str, float]) -> None:
        """Add a row; the figures have the same names in every call."""
        self._row({"step": step} | figures)
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _row(self, row: dict[str, float] | dict[str, str] | dict[str, int | float]) -> None:
        if self._writer is None:
            self._writer = csv.DictWriter(self._file, list(row))
            self._writer.writeheader()
        self._writer.writerow(row)


class Logs:
    """Several logs as one.

    Args:
        logs: each takes all figures.
    """

    def __init__(self, logs: Sequence[Log]) -> None:
        self._logs = logs

    def write(self, step: int, figures: dict[str, float]) -> None:
        """Hand the figures of a step to every log."""
        for log in self._logs:
            log.write(step, figures)

    def close(self) -> None:
        """Close every log."""
        for log in self._logs:
            log.close()
