"""Where the figures of a run go while it trains: `steps.csv`, and the trackers that it names."""

import csv
from pathlib import Path

from training.trackers import Tracker


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
    """All logs of a run as one; on a process that writes nothing, none.

    Args:
        steps: takes the figures of training.
        trackers: take those of validation, too.
    """

    def __init__(self, steps: CsvLog | None, trackers: list[Tracker]) -> None:
        self._steps = steps
        self._trackers = trackers

    def training(self, step: int, figures: dict[str, float]) -> None:
        """Take what was measured over the last steps."""
        if self._steps is not None:
            self._steps.write(step, figures)
        self._track(step, "train", figures)

    def validation(self, step: int, figures: dict[str, float]) -> None:
        """Take what a validation found; `history.csv` holds it anyway."""
        self._track(step, "valid", {k.removeprefix("valid_"): v for k, v in figures.items()})

    def close(self) -> None:
        """Write what is left."""
        if self._steps is not None:
            self._steps.close()
        for tracker in self._trackers:
            tracker.close()

    def _track(self, step: int, group: str, figures: dict[str, float]) -> None:
        named = {f"{group}/{key}": value for key, value in figures.items()}
        for tracker in self._trackers:
            tracker.write(step, named)
