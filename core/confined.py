"""Run a module in a process that may write into a few folders only.

`python -m core.confined [--write DIR]... MODULE ...`: elsewhere the kernel refuses to open files
for writing (so they cannot be mapped either), to make, rename or remove them, and to use TCP. That
is Landlock, which needs no privileges: files from Linux 5.13, truncating from 6.2, TCP from 6.7.
Without it nothing is refused. Modes and times of files can still be changed, files be read, and
Unix sockets be reached.
"""

import ctypes
import os
import resource
import runpy
import struct
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from core.starter import end_with_starter

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # system calls, the same everywhere
_VERSION, _PATH_BENEATH = 1, 1
_SET_NO_NEW_PRIVS = 38
_WRITE_FILE, _REFER, _TRUNCATE = 1 << 1, 1 << 13, 1 << 14
_REMOVE_AND_MAKE = sum(1 << bit for bit in range(4, 13))
_TCP = 0b11  # to bind, to connect
_DEVICES = ("/dev/null", "/dev/nvidia*", "/dev/nvidia-caps/*")


def landlock_version() -> int:
    """What the kernel can refuse, as a number; 0 when it can refuse nothing."""
    if sys.platform != "linux":
        return 0
    return max(0, ctypes.CDLL(None).syscall(_CREATE_RULESET, None, 0, _VERSION))


def confine(folders: Sequence[Path]) -> None:
    """Let this thread, and those that it starts, write below some folders only; see the module.

    Raises:
        OSError: one of the folders is not there, or the kernel does not do what it promises.
    """
    version = landlock_version()
    if not version:
        return
    truncate = _TRUNCATE if version >= 3 else 0
    rights = _WRITE_FILE | _REMOVE_AND_MAKE | truncate | (_REFER if version >= 2 else 0)
    refused = struct.pack("=QQ", rights, _TCP) if version >= 4 else struct.pack("=Q", rights)
    ruleset = _call(_CREATE_RULESET, refused, len(refused), 0)
    devices = [path for pattern in _DEVICES for path in Path("/").glob(pattern[1:])]
    allowed = [(path, rights) for path in folders]
    allowed += [(path, _WRITE_FILE | truncate) for path in devices if not path.is_dir()]
    for path, what in allowed:
        opened = os.open(path, os.O_PATH | os.O_CLOEXEC)
        _call(_ADD_RULE, ruleset, _PATH_BENEATH, struct.pack("=Qi", what, opened), 0)
        os.close(opened)
    ctypes.CDLL(None).prctl(_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    _call(_RESTRICT_SELF, ruleset, 0)
    os.close(ruleset)


def _call(*arguments: object) -> int:
    library = ctypes.CDLL(None, use_errno=True)
    result = library.syscall(*arguments)
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"Landlock: {os.strerror(code)}")
    return result


def main() -> None:
    """Confine this process while it has one thread, and become the module.

    It ends with the thread that started it, and first of all when memory runs out.
    """
    end_with_starter()
    if sys.platform == "linux":
        with suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text("1000")
    arguments, folders = sys.argv[1:], list[Path]()
    while arguments[0] == "--write":
        folders.append(Path(arguments[1]))
        del arguments[:2]
    confine(folders)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    sys.argv = arguments
    runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
