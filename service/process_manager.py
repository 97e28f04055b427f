"""Keep the sockets of BentoML's process manager private.

BentoML 1.4.39 has circus listen on two TCP ports of 127.0.0.1, without authentication and without
a setting for their addresses: every user of the host could run commands as this user and read the
environment, API keys included. This is the only file that reaches behind BentoML's public names.
"""

import functools
import inspect
from pathlib import Path
from typing import Any

SOCKETS = ("control", "events")


def use_private_sockets(folder: Path) -> None:
    """Have the process manager that starts next listen on Unix sockets only.

    Args:
        folder: a folder that no other user may enter.
    """
    from circus.arbiter import Arbiter  # imported here: workers have no process manager

    original = inspect.unwrap(Arbiter.__init__)
    control, events = (f"ipc://{folder / name}" for name in SOCKETS)

    @functools.wraps(original)
    def with_private_sockets(self: Arbiter, *args: Any, **options: Any) -> None:
        options |= {"endpoint": control, "pubsub_endpoint": events}
        original(self, *args, **options)

    Arbiter.__init__ = with_private_sockets
