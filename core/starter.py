"""The end of a process with the one that started it."""

import ctypes
import signal
import sys

_PR_SET_PDEATHSIG = 1


def end_with_starter(number: signal.Signals = signal.SIGKILL) -> None:
    """Have the kernel signal this process, stopped or not, when the thread that started it ends.

    Only on Linux; elsewhere nothing happens. A fork does not inherit it.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)
