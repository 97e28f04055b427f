"""Doing ranges on a machine that shares no disk with the process that evaluates."""

import tempfile
import threading
from dataclasses import dataclass, replace
from pathlib import Path

from core.files import write_whole
from robustness import store as shards
from robustness.executors.workplace import Desk, Workplace
from robustness.progress import Cancelled, Progress
from robustness.ranges import Task

Files = dict[str, bytes]
"""Contents by name, of files in one folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Glance:
    """How far an actor is with its range, and which files it finished since the last glance."""

    done: int
    stage: str
    files: Files


class Bench:
    """An actor: does ranges in a folder of its own.

    Args:
        place: what all ranges have in common; its folders are the caller's.
        files: of each model its artifact's files.
    """

    def __init__(self, place: Workplace, files: list[Files]) -> None:
        self._home = tempfile.TemporaryDirectory(prefix="assay-")
        home = Path(self._home.name)
        models = []
        for position, (model, contents) in enumerate(zip(place.models, files, strict=True)):
            folder = home / f"artifact-{position}"
            write_files(folder, contents)
            models.append(replace(model, folder=folder))
        self._place = replace(place, models=tuple(models), folder=home / "evaluation")
        self._desk = Desk(self._place)
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._sent: set[str] = set()
        self._progress = Progress(done=0, total=0, stage="starting")

    def work(self, task: Task, known: Files) -> Files | None:
        """Do one range; the files that no glance has shown, or None when stopped.

        Args:
            task: the range.
            known: its files that an earlier attempt finished.
        """
        self._progress = Progress(done=0, total=0, stage="starting")
        folder = self._folder(task.model)
        write_files(folder, known)
        with self._lock:
            self._sent |= set(known)
        try:
            self._desk.work(task, on_progress=self._note, should_stop=self._stop.is_set)
        except Cancelled:
            return None
        return self._fresh(folder)

    def look(self, model: int) -> Glance:
        """How far the range of that model is; runs beside `work`."""
        progress = self._progress
        files = self._fresh(self._folder(model))
        return Glance(done=progress.done, stage=progress.stage, files=files)

    def stop(self) -> None:
        """Stop within one model evaluation."""
        self._stop.set()

    def _note(self, progress: Progress) -> None:
        self._progress = progress

    def leave(self) -> None:
        """Remove everything."""
        self._home.cleanup()

    def _folder(self, model: int) -> Path:
        return shards.model_folder(self._place.folder, self._place.models[model].digest)

    def _fresh(self, folder: Path) -> Files:
        with self._lock:
            paths = [path for path in folder.glob("[!.]*") if path.name not in self._sent]
            self._sent |= {path.name for path in paths}
        return {path.name: path.read_bytes() for path in paths}


def write_files(folder: Path, files: Files) -> None:
    """Write files into a folder, each whole or not at all."""
    for name, content in files.items():
        write_whole(folder / Path(name).name, content)
