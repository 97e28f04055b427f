"""The fastest runtime of every model, measured while the models are served already.

A server answers seconds after its first start, on the runtime that every artifact was scored on;
models move to faster ones as soon as these are known. Later starts open them at once.
"""

import asyncio
import fcntl
import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar

from export.select import select_runtimes
from runtimes.threads import available_cores
from service.predictions.registry import Registry
from service.predictions.served import Served, unmeasured
from service.settings import Settings

logger = logging.getLogger(__name__)

_Result = TypeVar("_Result")


class RuntimeSelector:
    """Moves models to the runtimes that measuring finds; belongs to the registry's event loop.

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
            await _in_background(partial(self._measure, waiting))
            for served in waiting:
                if not unmeasured(served.artifact, self._settings):
                    await self._move(served)
        except (ValueError, OSError):
            logger.exception("Models stay on the runtime that they started on")
        finally:
            self._registry.measuring = set()

    async def _move(self, served: Served) -> None:
        try:
            opened = await _in_background(partial(self._open, served))
        except Exception:  # whatever an engine raises, the others move all the same
            name = served.artifact.name
            logger.exception("The model %s stays on the runtime that it started on", name)
        else:
            self._registry.swap(served, opened)

    def _measure(self, waiting: list[Served]) -> None:
        """Let a child measure; of several workers the first one does, and the others find it."""
        settings = self._settings
        with exclusive(settings.runtimes_folder):
            select_runtimes(
                [served.artifact for served in waiting],
                name=settings.runtime,
                mode=settings.precision,
                threads=settings.predict_threads or available_cores(),
                cache=settings.runtimes_folder,
            )

    def _open(self, served: Served) -> Served:
        opened = self._registry.opener.open(served.artifact)
        self._registry.opener.warm_up(opened)
        return opened


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
        """The thread."""
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name="settle", daemon=True).start()
    return await asyncio.wrap_future(future)
