"""Does anything that was accepted get lost when processes die at random?

Small evaluations of a demo model are sent all the time while `kill -9` falls on one process after
another, at random moments of a running evaluation: on the evaluator, on the process of the
evaluation, on the worker that answers requests, on BentoML's parent or on all of them at once. A
server whose parent died is started again on the same state. Sending is repeated under the same
idempotency key until it is answered, as a client would.

What must hold at the end, for every evaluation that was accepted:

- It has succeeded: none is lost, none is given up.
- It is there once: as many evaluations as were sent, and a key once more sent finds its own.
- Its result is that of the same request on a server that was left alone, byte for byte: every file
  of the report, the shards with the adversarial inputs included, but `report.json`, `report.html`
  and `card.md`, which name the time; of the first, everything except `created`.
- Nothing is left over: no process of a server that is gone, no folder without an evaluation, no
  unfinished file.

An evaluation that has died three times without any progress is given up by design, because the
cause may be itself. So a fourth kill waits until the evaluation has gone on.
"""

import argparse
import hashlib
import json
import random
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil
from sqlalchemy import NullPool, create_engine, select
from tqdm import tqdm

from benchmarks.isolation import sample_files
from benchmarks.rows import Row
from benchmarks.server import end, family, free_port, start, wait_until_ready
from service.job_claims import MAX_ATTEMPTS
from service.jobs_table import jobs
from service.uploads import REPORT, evaluations_folder

NAME = "kills"
KINDS = ("evaluator", "evaluation", "worker", "parent", "everything")
_WAITING = 3
_SAMPLES = 8
_LONGEST_DELAY_S = 2.5
_ORPHAN_S = 10.0
_RETRY_S = 90.0
_END_S = 600.0
_TIMED = ("report.html", "report.json", "card.md")
_MODEL = "fashion-elliptical"
SPECS: Sequence[Mapping[str, Any]] = (
    {"model": _MODEL, "seed": 1, "attacks": [{"name": "pgd", "eps": ["2/255", "4/255", "8/255"]}]},
    {"model": _MODEL, "seed": 2, "attacks": [{"name": "square", "eps": ["4/255"], "queries": 100}]},
    {
        "model": _MODEL,
        "compare_with": "fashion-dot",
        "seed": 3,
        "attacks": [{"name": "fgsm", "eps": [f"{n}/255" for n in range(1, 9)]}],
    },
)


@dataclass(slots=True)
class Findings:
    """What was found at the end.

    Attributes:
        kills: how often each kind was killed.
        accepted: evaluations that were accepted.
        lost: of those, the ones that are gone or have not succeeded.
        doubled: evaluations beyond one for each that was sent.
        differing: evaluations whose result is not that of the undisturbed one.
        orphans: processes, folders and files left over.
        seconds: how long it took.
    """

    kills: Counter[str] = field(default_factory=Counter)
    accepted: int = 0
    lost: list[str] = field(default_factory=list)
    doubled: list[str] = field(default_factory=list)
    differing: list[str] = field(default_factory=list)
    orphans: list[str] = field(default_factory=list)
    seconds: float = 0.0


def parser() -> argparse.ArgumentParser:
    """The options of this benchmark."""
    options = argparse.ArgumentParser(
        prog=f"python -m benchmarks {NAME}",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    options.add_argument("--kills", type=int, default=200, help="how many (%(default)s)")
    options.add_argument("--seed", type=int, default=0, help="of what is random (%(default)s)")
    options.add_argument(
        "--minutes", type=float, default=60, help="no kill after so many (%(default)s)"
    )
    return options


def run(*, kills: int = 200, seed: int = 0, minutes: float = 60) -> Iterable[Row]:
    """Kill, and judge what is left.

    Args:
        kills: how many.
        seed: of what is random.
        minutes: after which nothing more is killed.
    """
    random_kinds = random.Random(seed)
    kinds = [random_kinds.choice(KINDS) for _ in range(kills)]
    return rows(trial(kinds, seed=seed, seconds=60 * minutes))


def trial(kinds: Sequence[str], *, seed: int, seconds: float) -> Findings:
    """Compute undisturbed results, then kill, and compare.

    Args:
        kinds: what to kill, in order; see `KINDS`.
        seed: of the moments.
        seconds: after which nothing more is killed.

    Raises:
        RuntimeError: the server did not come back, or an undisturbed evaluation failed.
    """
    findings, begin = Findings(), time.monotonic()
    with tempfile.TemporaryDirectory() as quiet, Server(Path(quiet)) as server:
        expected = [_undisturbed(server, index) for index in range(len(SPECS))]
    moments = random.Random(seed)
    with tempfile.TemporaryDirectory() as state, Server(Path(state)) as server:
        sent: dict[str, tuple[str, int]] = {}
        for kind in tqdm(kinds, desc=NAME, unit="kill"):
            if time.monotonic() - begin > seconds:
                break
            _keep_busy(server, sent)
            server.wait_for_attempt()
            time.sleep(moments.uniform(0, _LONGEST_DELAY_S))
            server.kill(kind)
            findings.kills[kind] += 1
            findings.orphans += server.revive()
        _wait_until_done(server)
        _judge(server, sent, expected, findings)
    findings.seconds = time.monotonic() - begin
    return findings


def rows(findings: Findings) -> Iterator[Row]:
    """One row for each kind of damage; all of them should be 0."""
    count = sum(findings.kills.values())
    shown = ", ".join(f"{kind} {n}" for kind, n in sorted(findings.kills.items()))
    case = f"{count} kills ({shown}) in {findings.seconds:.0f} s"
    damages = (
        ("accepted evaluations lost", findings.lost),
        ("evaluations doubled", findings.doubled),
        ("results that differ from undisturbed ones", findings.differing),
        ("processes, folders and files left over", findings.orphans),
    )
    for label, found in damages:
        yield Row(
            name=NAME,
            case=f"{case}, {label}" + (f": {'; '.join(found[:5])}" if found else ""),
            measured=len(found),
            unit="evaluations" if found is not findings.orphans else "left over",
            better="lower",
            target=0,
            samples=findings.accepted,
            spread=(len(found), len(found)),
        )


class Server:
    """A server on one state and one port, that may be killed in part or whole and comes back.

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

    def kill(self, kind: str) -> None:
        """Send SIGKILL to what `kind` names, if it lives; see `KINDS`."""
        self._family = family(self._process.pid)
        for process in self._family:
            if kind == "everything" or _kind(process, self._process.pid) == kind:
                with suppress(psutil.NoSuchProcess):
                    process.kill()

    def revive(self) -> list[str]:
        """Start it again if its parent died, when all of the old one is gone.

        Returns:
            Processes that outlived their parent by ten seconds; they are killed.
        """
        # BentoML's parent starts its own workers again; only its own end is ours to mend.
        with suppress(psutil.TimeoutExpired):
            psutil.Process(self._process.pid).wait(0.2)
        if self._process.poll() is None:
            return []
        _, left = psutil.wait_procs(self._family, timeout=_ORPHAN_S)
        names = [f"process {_kind(process, self._process.pid)}" for process in left]
        for process in left:
            with suppress(psutil.NoSuchProcess):
                process.kill()
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


def result_digest(report: Path) -> str:
    """sha256 of what a report says, the time apart.

    Args:
        report: the folder of the report.
    """
    digest = hashlib.sha256()
    told = json.loads((report / "report.json").read_bytes())
    del told["created"]
    digest.update(json.dumps(told, sort_keys=True).encode())
    for path in sorted(p for p in report.rglob("*") if p.is_file() and p.name not in _TIMED):
        digest.update(f"\n{path.relative_to(report)}\n".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _kind(process: psutil.Process, parent: int) -> str:
    """Which of `KINDS` a process of the server is."""
    with suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
        if process.pid == parent:
            return "parent"
        words = " ".join(process.cmdline())
        if "service.evaluation_process" in words:
            return "evaluation"
        if "worker.service" in words:
            return "evaluator" if "--service-name evaluator" in words else "worker"
    return "other"


def _undisturbed(server: Server, index: int) -> str:
    """The digest of an evaluation on a server that is left alone.

    Raises:
        RuntimeError: it has not succeeded.
    """
    identifier = server.send(SPECS[index], uuid.uuid4().hex)
    _wait_until_done(server)
    if identifier is None or server.evaluations()[identifier] != "succeeded":
        raise RuntimeError(f"evaluation {index} did not succeed on a server that was left alone")
    return result_digest(evaluations_folder(server.state) / identifier / REPORT)


def _keep_busy(server: Server, sent: dict[str, tuple[str, int]]) -> None:
    """Send evaluations until some are waiting; `sent` maps a key to an id and a spec's index."""
    active = [s for s in server.evaluations().values() if s in ("queued", "running")]
    for _ in range(_WAITING - len(active)):
        index, key = len(sent) % len(SPECS), uuid.uuid4().hex
        identifier = server.send(SPECS[index], key)
        if identifier is not None:
            sent[key] = identifier, index


def _wait_until_done(server: Server) -> None:
    """Wait until nothing is queued or running.

    Raises:
        RuntimeError: it was not so in time.
    """
    deadline = time.monotonic() + _END_S
    while {"queued", "running"} & set(server.evaluations().values()):
        if time.monotonic() > deadline:
            raise RuntimeError(f"evaluations were still active after {_END_S:g} s")
        time.sleep(0.2)


def _judge(
    server: Server,
    sent: Mapping[str, tuple[str, int]],
    expected: Sequence[str],
    findings: Findings,
) -> None:
    statuses, ids = server.evaluations(), {identifier for identifier, _ in sent.values()}
    folder = evaluations_folder(server.state)
    findings.accepted = len(sent)
    findings.doubled += sorted(set(statuses) - ids)
    for key, (identifier, index) in sent.items():
        status = statuses.get(identifier, "gone")
        if status != "succeeded":
            findings.lost.append(f"{identifier} {status}")
        elif result_digest(folder / identifier / REPORT) != expected[index]:
            findings.differing.append(identifier)
        if server.send(SPECS[index], key) != identifier:
            findings.doubled.append(f"{identifier} under its key")
    findings.orphans += [f"folder {p.name}" for p in folder.iterdir() if p.name not in ids]
    findings.orphans += [f"file {p.name}" for p in folder.rglob(".*") if p.is_file()]
