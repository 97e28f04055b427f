"""What is served follows the folders of `ASSAY_MODELS`, and the runtimes that are the fastest.

A new version is opened, checked and run once in a process of its own, then in a thread beside the
predictions, and only then served; other folders are opened meanwhile. A version is immutable: other
bytes under the same name and version are refused. A folder counts as changed when it looks the same
twice, so that half a copy is not opened.
"""

import asyncio
import dataclasses
import fcntl
import logging
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from export.select import select_runtimes
from runtimes.artifact import MANIFEST, Artifact, open_artifact
from service.http.refusal import ApiError
from service.predictions.registry import Registry
from service.predictions.served import Served, require_openable, selection_options, unmeasured
from service.processes import return_memory
from service.settings import Settings

logger = logging.getLogger(__name__)

Look = tuple[tuple[str, int, int], ...]
"""How a folder looks: name, size and time of each file."""
_AT_ONCE = 4  # folders that are opened
_PATIENCE_S = 1.0  # for folders that are being opened, before the next look
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_Result = TypeVar("_Result")


@dataclass(slots=True)
class _Folder:
    """What is known of an artifact's folder, as it looked when it was opened."""

    look: Look
    artifact: Artifact | None = None
    problem: str | None = None


class Reloader:
    """Keeps a registry in step with the folders; belongs to the registry's event loop.

    Args:
        registry: opened at the start from the same settings.
        settings: the folders of models, and how often they are looked at.
        unloaded: a folder that the workers of a server share, for the names that were unloaded.
    """

    def __init__(self, registry: Registry, settings: Settings, *, unloaded: Path) -> None:
        self._registry, self._settings, self._marks = registry, settings, unloaded
        unloaded.mkdir(parents=True, exist_ok=True)
        self._thread = ThreadPoolExecutor(1, "reload")
        self._lock = asyncio.Lock()
        self._slots = asyncio.Semaphore(_AT_ONCE)
        self._opening: dict[Path, asyncio.Task[None]] = {}
        self._unloaded = set[str]()
        self._task: asyncio.Task[None] | None = None
        self._untidy = 0  # looks after which freed memory is given back
        found = {served.artifact.folder: served.artifact for served in registry.all()}
        self._seen = scan(settings.models)
        self._known = {
            path: _Folder(look, found[path]) for path, look in self._seen.items() if path in found
        }

    def start(self) -> None:
        """Look at the folders from time to time, unless that is switched off."""
        if self._settings.reload_s:
            self._task = asyncio.create_task(self._run(self._settings.reload_s))

    async def look(self, *, settled: bool = True, patience_s: float | None = None) -> None:
        """Open what is new, and let go of what is gone.

        Args:
            settled: leave folders alone that look otherwise than the last time.
            patience_s: how long to wait for what is being opened; None waits for all of it.
        """
        async with self._lock:
            seen, self._unloaded = await self._in_thread(
                lambda: (scan(self._settings.models), {p.name for p in self._marks.iterdir()})
            )
            before, self._seen = self._seen, seen
            lasting = seen.keys() | before.keys() if settled else seen.keys()
            self._known = {p: folder for p, folder in self._known.items() if p in lasting}
            for path, look in seen.items():
                if path not in self._opening and (not settled or before.get(path) == look):
                    self._opening[path] = asyncio.create_task(self._follow(path, look))
        if self._opening:
            await asyncio.wait(self._opening.values(), timeout=patience_s)
        if self._remove():
            self._untidy = 2  # a request in flight may keep a model until the next look
        if self._untidy:
            self._untidy -= 1
            await self._in_thread(return_memory)

    async def load(self, name: str) -> None:
        """Serve a model that was unloaded, or whose folder is new.

        Raises:
            ApiError: 404 unknown_model, 422 not_loadable.
        """
        if _NAME.fullmatch(name):  # a name becomes a file's, and comes from a stranger
            await self._in_thread(lambda: (self._marks / name).unlink(missing_ok=True))
            await self.look(settled=False, patience_s=0)
        while self._opening and not self._registry.versions(name):
            await asyncio.wait(self._opening.values(), return_when=asyncio.FIRST_COMPLETED)
        if self._registry.versions(name):
            return
        for folder, problem in self.problems():
            if folder == name:
                raise ApiError(422, "not_loadable", f"The model {name!r} is refused: {problem}.")
        raise ApiError(404, "unknown_model", f"There is no model {name[:100]!r} to load.")

    async def unload(self, name: str) -> None:
        """Serve a model no longer, until it is loaded or the server starts anew.

        Raises:
            ApiError: 404 unknown_model.
        """
        if not self._registry.versions(name):
            raise ApiError(404, "unknown_model", f"There is no model {name[:100]!r}.")
        await self._in_thread((self._marks / name).touch)
        await self.look(settled=False, patience_s=0)

    def problems(self) -> list[tuple[str, str]]:
        """Names of models, or of folders that could not be read, and why they are not served."""
        named = [(f.artifact.name if f.artifact else p.name, f) for p, f in self._known.items()]
        return [(name, folder.problem) for name, folder in named if folder.problem is not None]

    def unloaded(self) -> list[Artifact]:
        """Sound artifacts that are not served."""
        served = {each.artifact.digest for each in self._registry.all()}
        artifacts = [f.artifact for f in self._known.values() if f.artifact and not f.problem]
        return [artifact for artifact in artifacts if artifact.digest not in served]

    def stop(self) -> None:
        """Look no more: what is served stays.

        A process that opens a version may end with the server. Its folder would then count as one
        that cannot be served, and the version that it should replace would go all the same.
        """
        for task in (self._task, *self._opening.values()):
            if task is not None:
                task.cancel()

    def close(self) -> None:
        """Stop, and let go of the thread."""
        self.stop()
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _run(self, pause_s: float) -> None:
        while True:
            await asyncio.sleep(pause_s)
            try:
                await self.look(patience_s=_PATIENCE_S)
            except Exception:  # a disk that cannot be read now may be read later
                logger.exception("The folders of models could not be looked at")

    async def _follow(self, path: Path, look: Look) -> None:
        """Open a folder if it changed; serve its artifact if it is not served yet."""
        known = self._known.get(path)
        folder = known if known is not None and known.look == look else _Folder(look)
        try:
            if folder is not known:
                folder.artifact = await self._in_slot(lambda: open_artifact(path))
            artifact = folder.artifact
            if artifact and not folder.problem and artifact.name not in self._unloaded:
                await self._serve(artifact)
        except (ValueError, ApiError) as error:
            folder.problem = str(error)
            logger.warning("%s is not served: %s", path.name, error)
        except Exception:  # a disk that cannot be read now may be read later
            logger.exception("%s could not be opened", path.name)
            return
        finally:
            del self._opening[path]
        self._known[path] = folder

    async def _serve(self, artifact: Artifact) -> None:
        key = _reference(artifact)
        if (served := self._served(key)) is None:
            self._check_name(artifact)
            opened = await self._in_slot(lambda: self._open(artifact))
            if (served := self._served(key)) is None:
                self._check_name(artifact)  # again: other folders were opened meanwhile
                logger.info("%s is served now", key)
                self._registry.replace([*self._registry.all(), opened])
                return
        if served.artifact.digest != artifact.digest:
            raise ValueError(
                f"a version is immutable: {key} is served with other contents; "
                "give the new contents a new version"
            )
        if served.artifact.folder != artifact.folder and served.artifact.folder in self._seen:
            raise ValueError(f"{key} lies in two folders")
        if (served.artifact.folder, served.artifact.card) != (artifact.folder, artifact.card):
            new = dataclasses.replace(served, artifact=artifact)
            self._registry.replace([new if s is served else s for s in self._registry.all()])

    def _served(self, key: str) -> Served | None:
        return next((s for s in self._registry.all() if _reference(s.artifact) == key), None)

    def _check_name(self, artifact: Artifact) -> None:
        if artifact.name in self._registry.remote:
            raise ValueError(f"the name {artifact.name} is that of a remote endpoint")
        for other in (each.artifact for each in self._registry.all()):
            if other.name == artifact.name and other.manifest.task != artifact.manifest.task:
                raise ValueError(f"the name {other.name} is that of a model for another task")

    def _open(self, artifact: Artifact) -> Served:
        require_openable([artifact], self._settings)
        with exclusive(self._settings.runtimes_folder):  # its runtimes may have to be measured
            return self._registry.opener.open(artifact)

    def _remove(self) -> bool:
        """Let go of what was unloaded, and of what its folder no longer holds, if anything."""
        # What is not opened yet may be what has moved, or comes after what is gone.
        opening = bool(self._opening) or not self._seen.keys() <= self._known.keys()
        kept = []
        for served in self._registry.all():
            folder = self._known.get(served.artifact.folder)
            # Contents that are refused do not end the version that was opened from there.
            there = folder is not None and (
                folder.artifact is None
                or folder.problem is not None
                or _reference(folder.artifact) == _reference(served.artifact)
            )
            if (there or opening) and served.artifact.name not in self._unloaded:
                kept.append(served)
            else:
                logger.info("%s is served no longer", _reference(served.artifact))
        if len(kept) == len(self._registry.all()):
            return False
        self._registry.replace(kept)
        return True

    async def _in_thread(self, work: Callable[[], _Result]) -> _Result:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    async def _in_slot(self, work: Callable[[], _Result]) -> _Result:
        async with self._slots:
            return await _in_background(work)


class RuntimeSelector:
    """Moves models to the runtimes that measuring finds; belongs to the registry's event loop.

    A server answers seconds after its first start, on the runtime that every artifact was scored
    on; models move to faster ones as soon as these are known. Later starts open them at once.

    Args:
        registry: opened at the start from the same settings.
        settings: runtime, precision and where the answers are kept.
    """

    def __init__(self, registry: Registry, settings: Settings) -> None:
        self._registry, self._settings = registry, settings
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to measure, if there is a model whose fastest runtime is not known."""
        waiting = [s for s in self._registry.all() if unmeasured(s.artifact, self._settings)]
        if waiting:
            self._registry.measuring = {served.artifact.digest for served in waiting}
            self._task = asyncio.create_task(self._settle(waiting))

    def close(self) -> None:
        """Move no model any more."""
        if self._task is not None:
            self._task.cancel()

    async def _settle(self, waiting: list[Served]) -> None:
        try:
            for served in waiting:
                await _in_background(partial(self._measure, served.artifact))
                if not unmeasured(served.artifact, self._settings):
                    await self._move(served)
        except (ValueError, OSError):
            logger.exception("Models stay on the runtime that they started on")
        finally:
            self._registry.measuring = set()

    async def _move(self, served: Served) -> None:
        try:
            opened = await _in_background(partial(self._registry.opener.open, served.artifact))
        except Exception:  # whatever an engine raises, the others move all the same
            name = served.artifact.name
            logger.exception("The model %s stays on the runtime that it started on", name)
        else:
            self._registry.swap(served, opened)

    def _measure(self, artifact: Artifact) -> None:
        """Let a child measure; of several workers the first one does, and the others find it."""
        settings = self._settings
        with exclusive(settings.runtimes_folder):
            select_runtimes([artifact], **selection_options(settings))


def scan(roots: list[Path]) -> dict[Path, Look]:
    """The folders of artifacts below `roots`, as `find_artifacts` finds them, and how they look."""
    looks = {}
    for root in roots:
        inside = sorted(root.iterdir()) if root.is_dir() else []
        folders = [root] if (root / MANIFEST).exists() else inside
        for path in folders:
            if not path.name.startswith(".") and (path / MANIFEST).exists():
                looks[path] = _look(path)
    return looks


def _look(folder: Path) -> Look:
    found = []
    for path in sorted(folder.iterdir()):
        try:
            state = path.stat()
        except OSError:  # it went away meanwhile
            continue
        found.append((path.name, state.st_size, state.st_mtime_ns))
    return tuple(found)


def _reference(artifact: Artifact) -> str:
    return f"{artifact.name}:{artifact.version}"


@contextmanager
def exclusive(folder: Path) -> Iterator[None]:
    """Keep the other workers of this host out of a block."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".measuring").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


async def _in_background(work: Callable[[], _Result]) -> _Result:
    """Run something in a thread that does not hold up the end of the process."""
    future: Future[_Result] = Future()
    future.set_running_or_notify_cancel()  # nobody can cancel it now

    def run() -> None:
        """Work, and hand over what came of it."""
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name="settle", daemon=True).start()
    return await asyncio.wrap_future(future)
