"""How a command line reads its words, and how it ends: one sentence for whatever goes wrong."""

import argparse
import os
import re
import signal
import sys
from collections.abc import Callable
from typing import Any, NoReturn

from core.names import nearest

_BAD_REQUEST, _INTERRUPTED = 2, 130


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one sentence; an unknown option is answered with the nearest."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # "-1/255" is a value that a rule refuses, not an option.
        self._negative_number_matcher = re.compile(r"-\.?\d")

    def error(self, message: str) -> NoReturn:
        """End with the message alone: the usage of many options would hide it."""
        self.exit(_BAD_REQUEST, f"error: {message} ({self.prog} --help tells more)\n")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride] - argparse has overloads
        """See `argparse`; here nothing may be left over."""
        namespace, rest = super().parse_known_args(args, namespace)
        if rest:
            known = [name for name in self._option_string_actions if name.startswith("--")]
            hint = f"; {nearest(rest[0], known)}" if rest[0].startswith("-") else ""
            self.error(f"unexpected {rest[0][:40]!r}{hint}")
        return namespace, rest


def run_command(command: Callable[[], int]) -> int:
    """Run a command, and say in one sentence why it ends early.

    Returns:
        The command's own exit code; 2 for a ValueError or OSError; 130 when interrupted, with what
        the KeyboardInterrupt says; 141, silently, when whoever reads the output has gone.
    """
    try:
        code = command()
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # Python would write what is left at exit, and fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except (ValueError, OSError) as error:
        told = str(error)
        if isinstance(error, OSError) and error.filename is not None and error.strerror:
            told = f"{error.filename}: {error.strerror}"
        sys.stderr.write(f"error: {told}\n")
        return _BAD_REQUEST
    except KeyboardInterrupt as stop:
        sys.stderr.write(f"{str(stop) or 'interrupted'}\n")
        return _INTERRUPTED
