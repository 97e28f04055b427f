"""Let a run end its step and save when it is asked to stop."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


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

    before = {number: signal.signal(number, ask) for number in _SIGNALS}
    try:
        yield asked.is_set
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def sheltered() -> Iterator[None]:
    """Processes started inside the `with` block hear neither Ctrl-C nor SIGTERM.

    Launchers signal all processes of a group. Workers that died of it would end the run, with an
    error, before it has saved; so they live until the run ends them.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)  # children inherit what is blocked
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
