import subprocess
import sys

import psutil
import pytest

from service.settings import ROOT
from tests.service.conftest import wait_until

_CHILD = """
import signal, sys, time
from service.processes import watch_parent
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
    code = "from service.processes import watch_parent; import time;"
    code += "watch_parent(parent=999999999, grace=0); time.sleep(60)"
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=30)
    assert ran.returncode == -9


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's signal is Linux's")
def test_the_kernel_ends_a_process_that_stands_still() -> None:
    child = "from service.processes import die_with_starter; import time; die_with_starter();"
    child += "print('ready', flush=True); time.sleep(60)"
    starter = f"import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', {child!r}]);"
    starter += "print(p.pid, flush=True); p.wait()"
    with subprocess.Popen([sys.executable, "-c", starter], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        lines = {parent.stdout.readline().strip() for _ in range(2)}
        process = psutil.Process(int(next(line for line in lines if line != b"ready")))
        process.suspend()
        parent.kill()
    assert wait_until(lambda: not psutil.pid_exists(process.pid), seconds=5)
