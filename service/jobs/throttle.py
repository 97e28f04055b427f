"""An evaluation steps back while its server computes predictions.

A niced process still costs the others the caches, the memory bandwidth and, where two cores are one
for the hardware, half of a core. So an evaluation is stopped for most of the time as long as the
processes that answer predictions are busy, and never otherwise.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import psutil

from service.jobs.process import EvaluationChild
from service.processes import by_role

_BUSY = 0.1  # of a core, that all workers together use
_LOOK_S = 0.25
_FIND_S = 5.0  # to find the workers, the list of all processes is read
_PULSE_S = 0.02  # of work, between two rests


class Predictors:
    """The processes that answer predictions, of the server with a process id."""

    def __init__(self, server: int) -> None:
        self._server = server
        self._workers: list[psutil.Process] = []
        self._next_find = 0.0
        self._looked, self._used, self._busy = time.monotonic(), 0.0, False

    def busy(self) -> bool:
        """Whether they have computed much lately; looks at most four times a second."""
        now = time.monotonic()
        if now - self._looked < _LOOK_S:
            return self._busy
        if now >= self._next_find:
            self._next_find = now + _FIND_S
            found = by_role(self._server)
            self._workers = [one for role, one in found if role in ("worker", "decoder")]
            self._used = self._cpu_seconds()
        else:
            used = self._cpu_seconds()
            self._busy = used - self._used > _BUSY * (now - self._looked)
            self._used = used
        self._looked = now
        return self._busy

    def _cpu_seconds(self) -> float:
        seconds = 0.0
        for process in self._workers:
            with suppress(psutil.Error):  # it has ended
                times = process.cpu_times()
                seconds += times.user + times.system
        return seconds


@contextmanager
def throttled(child: EvaluationChild, predictors: Predictors, share: float) -> Iterator[None]:
    """Inside the block, have an evaluation work a share of its time while predictors are busy.

    The share is at least 0.02, so that no rest is long enough for others to wait for a lock of the
    table in vain, and at most 1, which changes nothing. Afterwards the evaluation runs again.
    """
    ended = threading.Event()
    rest = _PULSE_S * (1 / share - 1)

    def pace() -> None:
        """The thread."""
        while not ended.is_set():
            if predictors.busy():
                child.pause()
                ended.wait(rest)
                child.resume()
                ended.wait(_PULSE_S)
            else:
                ended.wait(_LOOK_S)

    thread = threading.Thread(target=pace, name="pace", daemon=True)
    if rest:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        if rest:
            thread.join()
