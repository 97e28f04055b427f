"""A server that may be killed in part or whole, and that comes back on the same state and port."""

import json
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import psutil
from sqlalchemy import NullPool, create_engine, select

from benchmarks.isolation import sample_files
from benchmarks.support.server import end, free_port, start, wait_until_ready
from service.jobs.claims import MAX_ATTEMPTS
from service.jobs.table import jobs
from service.processes import family

KINDS = ("evaluator", "evaluation", "worker", "parent", "everything")
"""What may be killed: a process, or all of them."""
_SAMPLES = 8
_ORPHAN_S = 10.0
_RETRY_S = 90.0


class Server:
    """The server.

    Args:
        state: its state folder.
    """

    def __init__(self, state: Path) -> None:
        self.state = state
        self._port = free_port()
        self._family: list[psutil.Process] = []

    def __enter__(self) -> "Server":
        """Start it and wait until it is ready."""
        try:
            self._start()
        except RuntimeError:
            end(self._process)
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """End it."""
        end(self._process)

    def kill(self, kind: str) -> bool:
        """Send SIGKILL to what `kind` names, see `KINDS`; False when nothing of it lives now."""
        self._family = family(self._process.pid)
        killed = False
        for process in self._family:
            if kind == "everything" or _kind(process, self._process.pid) == kind:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
                    killed = True
        return killed

    def revive(self) -> list[str]:
        """Start it again if its parent died, when all of the old one is gone.

        Returns:
            Processes that outlived by ten seconds who started them; they are killed.
        """
        # BentoML's parent starts its own workers again; only its own end is ours to mend.
        with suppress(psutil.TimeoutExpired):
            psutil.Process(self._process.pid).wait(0.2)
        present = family(self._process.pid) if self._process.poll() is None else []
        _, left = psutil.wait_procs(set(self._family) - set(present), timeout=_ORPHAN_S)
        names = [f"process {_kind(process, self._process.pid)}" for process in left]
        for process in left:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        if self._process.poll() is not None:
            self._start()
        return names

    def wait_for_attempt(self) -> None:
        """Wait until an evaluation runs that may die once more without being given up.

        Raises:
            RuntimeError: none did in time.
        """
        deadline = time.monotonic() + _RETRY_S
        while time.monotonic() < deadline:
            attempts = self._running_attempts()
            if attempts and max(attempts) < MAX_ATTEMPTS:
                return
            time.sleep(0.05)
        raise RuntimeError(f"no evaluation ran within {_RETRY_S:g} s")

    def ask(self, method: str, url: str, **options: Any) -> httpx.Response:
        """Send a request until it is answered with less than 500.

        Raises:
            RuntimeError: it was not in time.
        """
        deadline = time.monotonic() + _RETRY_S
        while time.monotonic() < deadline:
            with suppress(httpx.TransportError):
                answer = httpx.request(method, f"{self._address}{url}", timeout=30, **options)
                if answer.status_code < 500:
                    return answer
            time.sleep(0.1)
        raise RuntimeError(f"{method} {url} was not answered within {_RETRY_S:g} s")

    def send(self, spec: Mapping[str, Any], key: str) -> str | None:
        """Send an evaluation; returns its id, or None when the queue is full.

        Raises:
            RuntimeError: it was refused for another reason.
        """
        images = [("images", file) for file in sample_files()[:: 300 // _SAMPLES][:_SAMPLES]]
        headers = {"Idempotency-Key": key}
        answer = self.ask(
            "POST",
            "/v1/evaluations",
            data={"spec": json.dumps(spec)},
            files=images,
            headers=headers,
        )
        if answer.status_code == 429:
            return None
        if answer.status_code != 202:
            raise RuntimeError(f"the evaluation was refused: {answer.text[:500]}")
        return answer.json()["id"]

    def evaluations(self) -> dict[str, str]:
        """The status of every evaluation that the server lists."""
        found: dict[str, str] = {}
        cursor = ""
        while True:
            page = self.ask("GET", f"/v1/evaluations?limit=100{cursor}").json()
            found |= {one["id"]: one["status"] for one in page["evaluations"]}
            if page["next_cursor"] is None:
                return found
            cursor = f"&cursor={page['next_cursor']}"

    def reason(self, identifier: str) -> str:
        """Why an evaluation has failed; empty when it has not, or is gone."""
        error = self.ask("GET", f"/v1/evaluations/{identifier}").json().get("error")
        return json.dumps(error) if error else ""

    @property
    def _address(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def _start(self) -> None:
        self._process = start(str(self.state), {}, self._port)
        wait_until_ready(self._process, self._address)

    def _running_attempts(self) -> list[int]:
        """Read from the table: the service does not tell, and only this benchmark needs it."""
        # Not read-only: SQLite cannot read a log written ahead without writing beside it.
        engine = create_engine(f"sqlite:///{self.state / 'assay.sqlite3'}", poolclass=NullPool)
        with engine.connect() as connection:
            running = select(jobs.c.attempts).where(jobs.c.status == "running")
            return list(connection.execute(running).scalars())


def _kind(process: psutil.Process, parent: int) -> str:
    """Which of `KINDS` a process of the server is."""
    with suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
        if process.pid == parent:
            return "parent"
        words = " ".join(process.cmdline())
        if "service.jobs.child" in words:
            return "evaluation"
        if "worker.service" in words:
            return "evaluator" if "--service-name evaluator" in words else "worker"
    return "other"
