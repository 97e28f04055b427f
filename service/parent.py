"""End this process when the process that started it is gone.

BentoML's workers run in their own session, so killing their parent with SIGKILL leaves them, and
what they started, running for ever. Every process of the service watches its parent instead.
"""

import ctypes
import os
import signal
import sys
import threading
import time

_PR_SET_PDEATHSIG = 1


def watch_parent(
    *, parent: int | None = None, interval: float = 0.25, grace: float = 1.0
) -> threading.Thread:
    """Start a thread that ends this process soon after its parent died.

    This thread stands still while its process is stopped; see `die_with_starter`.

    Args:
        parent: process id that the parent is known to have; closes the gap in which it dies
            before the watch begins. None takes the present parent.
        interval: seconds between two looks.
        grace: seconds from SIGTERM to SIGKILL; 0 kills at once.

    Raises:
        ValueError: `interval` is not positive or `grace` is negative.
    """
    if interval <= 0 or grace < 0:
        raise ValueError(
            f"interval must be > 0 and grace >= 0, received {interval} and {grace} seconds"
        )
    expected = os.getppid() if parent is None else parent
    thread = threading.Thread(
        target=_watch, args=(expected, interval, grace), name="watch-parent", daemon=True
    )
    thread.start()
    return thread


def die_with_starter() -> None:
    """Have the kernel kill this process, stopped or not, when the thread that started it ends.

    Only on Linux; elsewhere nothing happens.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _watch(parent: int, interval: float, grace: float) -> None:
    while os.getppid() == parent:
        time.sleep(interval)
    if grace:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(grace)
    # SIGKILL and not os._exit: it also ends a process that is stuck in an uninterruptible handler.
    os.kill(os.getpid(), signal.SIGKILL)
