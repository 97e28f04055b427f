import subprocess
import sys

import pytest

from service.parent import watch_parent
from service.settings import ROOT

_CHILD = """
import signal, sys, time
from service.parent import watch_parent
signal.signal(signal.SIGTERM, lambda *_: print("asked", flush=True) if {stubborn} else sys.exit())
watch_parent(grace={grace})
print("watching", flush=True)
time.sleep(60)
"""
_PARENT = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", sys.argv[1]])
print(child.pid, flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("stubborn", [False, True])
def test_a_process_ends_soon_after_its_parent_was_killed(stubborn: bool) -> None:
    code = _CHILD.format(stubborn=stubborn, grace=1.0)
    command = [sys.executable, "-c", _PARENT, code]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        lines = {parent.stdout.readline().strip(), parent.stdout.readline().strip()}
        assert b"watching" in lines
        parent.kill()
        # The child holds the other end of the pipe: all is read when it is gone.
        rest, _ = parent.communicate(timeout=20)
    assert rest == (b"asked\n" if stubborn else b"")


def test_a_parent_that_died_before_the_watch_began_is_noticed() -> None:
    code = "from service.parent import watch_parent; import time;"
    code += "watch_parent(parent=999999999, grace=0); time.sleep(60)"
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=30)
    assert ran.returncode == -9


def test_meaningless_times_are_refused() -> None:
    with pytest.raises(ValueError, match="received 0 and 1.0 seconds"):
        watch_parent(interval=0)
