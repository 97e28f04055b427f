"""The process of one evaluation as the evaluator sees it: started, watched, ended."""

import os
import select
import signal
import subprocess
import sys
import time

import psutil

from runtimes.threads import available_cores
from service.jobs.job import Job
from service.memory import available_memory, resident_bytes
from service.processes import family
from service.settings import ROOT, Settings

ADDRESS = "ASSAY_DATABASE"  # a URL may hold a password, and every user may read command lines
_STOP_S = 3.0
# To find the descendants, the list of all processes is read: not at every look.
_LOOK_FOR_CHILDREN_S = 1.0


class EvaluationChild:
    """A running `python -m service.jobs.child`.

    Args:
        job: the evaluation, claimed by `worker`.
        worker: its owner.
        address: of the table of evaluations.
        settings: where the state and the artifacts are, threads.
    """

    def __init__(self, job: Job, worker: str, address: str, settings: Settings) -> None:
        threads = str(evaluation_threads(settings))
        command = [sys.executable, "-m", "service.jobs.child", "--job", job.id]
        command += ["--worker", worker, "--state", str(settings.state)]
        command += ["--parent", str(os.getpid()), "--threads", threads]
        command += ["--models", *map(str, settings.models)]
        self._armed, armed = os.pipe()
        command += ["--armed", str(armed)]
        given = {ADDRESS: address, "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
        try:
            self._process = subprocess.Popen(
                command,
                cwd=ROOT,
                env=os.environ | given,
                stdin=subprocess.DEVNULL,
                pass_fds=(armed,),
            )
        except BaseException:
            os.close(self._armed)
            raise
        finally:
            os.close(armed)
        self._family: list[psutil.Process] = []
        self._next_look = 0.0

    def wait(self, timeout: float) -> int | None:
        """The exit status, or None after so many seconds; negative for a signal."""
        try:
            return self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            return None

    def resident_bytes(self) -> int:
        """The memory of the process and of those that it has started."""
        now = time.monotonic()
        if now >= self._next_look:
            self._next_look = now + _LOOK_FOR_CHILDREN_S
            self._family = family(self._process.pid)
        return resident_bytes(self._family)

    def pause(self) -> None:
        """Let the process, which has no children, stand still until `resume`.

        Nothing happens before the process has seen to it that it ends with this one.
        """
        if select.select([self._armed], [], [], 0)[0]:
            self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let the process go on."""
        self._process.send_signal(signal.SIGCONT)

    def end(self, *, at_once: bool = False) -> None:
        """End the process and those that it has started, the first one gently unless `at_once`."""
        if self._process.poll() is not None:
            self._close()
            return
        others = family(self._process.pid)[1:]
        if not at_once:
            self._process.terminate()
        if at_once or self.wait(_STOP_S) is None:
            self._process.kill()
            self._process.wait()
        for process in others:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        self._close()

    def _close(self) -> None:
        if self._armed >= 0:
            os.close(self._armed)
            self._armed = -1


def evaluation_threads(settings: Settings) -> int:
    """Threads of one evaluation: what predictions leave, shared by the evaluators of this host."""
    if settings.evaluation_threads is not None:
        return settings.evaluation_threads
    cores = available_cores()
    left = cores // 2 if settings.predict_threads is None else cores - settings.predict_threads
    return max(1, left // settings.evaluators)


def evaluation_memory(settings: Settings) -> int:
    """Bytes at which an evaluation is ended: its share of half of the memory, unless it is set."""
    if settings.evaluation_memory_mb is not None:
        return int(settings.evaluation_memory_mb * 1_000_000)
    return available_memory() // 2 // settings.evaluators
