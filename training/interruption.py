"""Let a run end its step and save when it is asked to stop."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType


@contextlib.contextmanager
def interruption() -> Iterator[Callable[[], bool]]:
    """Turn the first Ctrl-C or SIGTERM inside the `with` block into a flag.

    A second Ctrl-C interrupts at once. Outside of the main thread signals are left alone.

    Yields:
        Whether the run was asked to stop.
    """
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield asked.is_set
        return

    def ask(number: int, frame: FrameType | None) -> None:
        if asked.is_set():
            raise KeyboardInterrupt
        asked.set()

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked.is_set
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
