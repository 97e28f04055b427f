"""One worker process: does the ranges that the process which started it sends.

    python -m robustness.executors.worker DESCRIPTOR

The descriptor is one end of a socket. First comes a pickled `Workplace`, then one `Task` after
another, at last an empty message: stop within one model evaluation. When the socket closes without
it, whoever started this process is gone, and this process ends at once.
"""

import os
import pickle
import queue
import signal
import sys
import threading
import time
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING

from robustness.executors.messages import STOP, Ended, Step, portable
from robustness.progress import Cancelled, Progress

if TYPE_CHECKING:
    from robustness.executors.workplace import Desk

_REPORT_EVERY_S = 0.1


class Inbox:
    """What was sent and not yet read, and the wish to stop, heard while a range is under way.

    Args:
        connection: this process's end of the socket.
    """

    def __init__(self, connection: Connection) -> None:
        self.stopped = threading.Event()
        self._connection = connection
        self._messages: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        threading.Thread(target=self._listen, name="inbox", daemon=True).start()

    def take(self) -> bytes:
        """The next message; waits for it."""
        return self._messages.get()

    def _listen(self) -> None:
        message = None
        while message != STOP:
            try:
                message = self._connection.recv_bytes()
            except (EOFError, OSError):
                # SIGKILL: files are written whole or not at all, and nobody waits for this process.
                os.kill(os.getpid(), signal.SIGKILL)
                return
            if message == STOP:
                self.stopped.set()
            self._messages.put(message)


class Report:
    """Tells the other side how far a range is, a few times a second.

    Args:
        connection: this process's end of the socket.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._told = 0.0

    def step(self, progress: Progress) -> None:
        """Say how far the range is, if it was not said just now."""
        now = time.monotonic()
        if now - self._told >= _REPORT_EVERY_S:
            self._told = now
            self._connection.send(Step(done=progress.done, stage=progress.stage))


def main(descriptor: int) -> None:
    """Work until told to stop."""
    connection = Connection(descriptor)
    inbox = Inbox(connection)
    # After the thread that listens, because torch takes seconds to import.
    from robustness.executors.workplace import Desk

    desk = Desk(pickle.loads(inbox.take()))
    while (message := inbox.take()) != STOP:
        try:
            _work(desk, message, inbox, connection)
        except Cancelled:
            return


def _work(desk: "Desk", message: bytes, inbox: Inbox, connection: Connection) -> None:
    """Do one range, and say so; only what another worker may be spared of ends this one."""
    error = None
    try:
        desk.work(
            pickle.loads(message),
            on_progress=Report(connection).step,
            should_stop=inbox.stopped.is_set,
        )
    except (Cancelled, MemoryError):
        raise
    except Exception as problem:  # whatever it is, the other side raises it
        error = portable(problem)
    connection.send(Ended(error=error))


if __name__ == "__main__":
    main(int(sys.argv[1]))
