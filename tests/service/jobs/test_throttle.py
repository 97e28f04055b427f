"""An evaluation gives way to predictions."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator

import psutil
import pytest

from service.jobs.process import EvaluationChild
from service.jobs.throttle import Predictors, throttled
from tests.service.conftest import wait_until

# A server with one worker, which computes until a line comes.
SERVER = """
import subprocess, sys
worker = subprocess.Popen([sys.executable, "-c", "while True: pass"])
sys.stdin.readline()
worker.kill()
worker.wait()
"""


class Busy(Predictors):
    """Predictors that compute without an end."""

    def busy(self) -> bool:
        return True


class Spinning(EvaluationChild):
    """Computes until it is ended."""

    def __init__(self) -> None:
        self._armed, self.unarmed = os.pipe()
        self._process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
        self.process = psutil.Process(self._process.pid)
        self.pauses = 0

    def pause(self) -> None:
        self.pauses += 1
        super().pause()


@pytest.fixture
def spinning() -> Iterator[Spinning]:
    child = Spinning()
    os.close(child.unarmed)
    yield child
    child.end(at_once=True)


def test_an_evaluation_works_its_share_while_predictions_are_computed(spinning: Spinning) -> None:
    with throttled(spinning, Busy(0), 0.1):
        time.sleep(0.3)
        began, times = time.monotonic(), spinning.process.cpu_times()
        time.sleep(1.5)
        used = spinning.process.cpu_times()
        worked = (used.user + used.system - times.user - times.system) / (time.monotonic() - began)
    assert 0 < worked < 0.25
    pauses, idle = spinning.pauses, Predictors(spinning.process.pid)
    for share, predictors in ((1, Busy(0)), (0.1, idle)):
        with throttled(spinning, predictors, share):
            time.sleep(0.5)
    assert spinning.pauses == pauses  # it never rests without need


def test_a_process_goes_on_when_nothing_paces_it_any_more(spinning: Spinning) -> None:
    for _ in range(5):
        with throttled(spinning, Busy(0), 0.01):
            time.sleep(0.05)
        assert wait_until(lambda: spinning.process.status() != psutil.STATUS_STOPPED, seconds=2)


def test_a_process_is_not_stopped_before_it_ends_with_its_parent() -> None:
    child = Spinning()
    child.pause()
    assert not wait_until(lambda: child.process.status() == psutil.STATUS_STOPPED, seconds=0.3)
    os.close(child.unarmed)
    child.pause()
    assert wait_until(lambda: child.process.status() == psutil.STATUS_STOPPED, seconds=2)
    child.end(at_once=True)


def test_predictions_are_what_the_workers_of_the_server_compute() -> None:
    spin = [sys.executable, "-c", "while True: pass"]
    spinning = [subprocess.Popen([*spin, each]) for each in ("evaluator", "core.confined")]
    try:  # what a server computes besides slows nothing
        assert not wait_until(Predictors(os.getpid()).busy, seconds=1)
    finally:
        for process in spinning:
            process.kill()
            process.wait()
    server = subprocess.Popen([sys.executable, "-c", SERVER], stdin=subprocess.PIPE)
    predictors = Predictors(server.pid)
    assert not predictors.busy()
    assert wait_until(predictors.busy, seconds=20)
    server.communicate(b"\n")  # the worker ends, and the server with it
    assert wait_until(lambda: not predictors.busy(), seconds=20)
