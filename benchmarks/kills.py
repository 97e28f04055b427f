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
cause may be itself. So a third kill waits until the evaluation has gone on.
"""

import hashlib
import json
import random
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil
from sqlalchemy import NullPool, create_engine, select

from benchmarks.support.rows import Row, figure
from benchmarks.support.server import (
    end,
    free_port,
    sample_files,
    start,
    until,
    wait_until_ready,
)
from core.progress import Bar
from service.jobs.claims import MAX_ATTEMPTS
from service.jobs.table import jobs
from service.jobs.uploads import REPORT, evaluations_folder
from service.processes import family, role_of

KINDS = ("evaluator", "evaluation", "worker", "server", "everything")
"""What may be killed: a process, or all of them."""
_WAITING, _SAMPLES = 3, 8
_LONGEST_DELAY_S = 2.5
_ORPHAN_S, _RETRY_S, _END_S = 10.0, 90.0, 600.0
_ACTIVE = {"queued", "running"}
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


def run(*, kills: int = 200, seed: int = 0, minutes: float = 60.0) -> Iterable[Row]:
    """Kill, and score what is left.

    Args:
        kills: how many.
        seed: of what is random.
        minutes: after which nothing more is killed.
    """
    kinds = random.Random(seed).choices(KINDS, k=kills)
    return rows(inflict(kinds, seed=seed, seconds=60 * minutes))


def inflict(kinds: Sequence[str], *, seed: int, seconds: float) -> Findings:
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
        expected = [_undisturbed(server, spec) for spec in SPECS]
    moments = random.Random(seed)
    with tempfile.TemporaryDirectory() as state, Server(Path(state)) as server:
        sent: dict[str, tuple[str, int]] = {}
        for kind in Bar(kinds, desc="kills", unit="kill"):
            if time.monotonic() - begin > seconds:
                break
            _keep_busy(server, sent)
            until(lambda k=kind: _kill(server, k, moments), _END_S, f"no {kind!r} lived")
            findings.kills[kind] += 1
            findings.orphans += server.revive()
        server.wait_until_done()
        _score(server, sent, expected, findings)
    findings.seconds = time.monotonic() - begin
    return findings


def rows(findings: Findings) -> list[Row]:
    """One row for each kind of damage; all of them should be 0."""
    count = findings.kills.total()
    kinds = ", ".join(f"{kind} {n}" for kind, n in sorted(findings.kills.items()))
    case = f"{count} kills ({kinds}) in {findings.seconds:.0f} s"
    damages = (
        ("accepted evaluations lost", findings.lost, "evaluations"),
        ("evaluations doubled", findings.doubled, "evaluations"),
        ("results that differ from undisturbed ones", findings.differing, "evaluations"),
        ("processes, folders and files left over", findings.orphans, "left over"),
    )
    found = []
    for label, what, unit in damages:
        about = f"{case}, {label}{': ' * bool(what)}{'; '.join(what[:5])}"
        found.append(figure(about, len(what), unit, target=0, samples=findings.accepted))
    return found


def result_digest(report: Path) -> str:
    """sha256 of what a report says, the time apart.

    Args:
        report: the folder of the report.
    """
    told = json.loads((report / "report.json").read_bytes())
    del told["created"]
    digest = hashlib.sha256(json.dumps(told, sort_keys=True).encode())
    for path in sorted(p for p in report.rglob("*") if p.is_file() and p.name not in _TIMED):
        digest.update(f"\n{path.relative_to(report)}\n".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _undisturbed(server: "Server", spec: Mapping[str, Any]) -> str:
    """The digest of an evaluation on a server that is left alone."""
    identifier = server.send(spec, uuid.uuid4().hex)
    server.wait_until_done()
    if identifier is None or server.evaluations()[identifier] != "succeeded":
        raise RuntimeError("an evaluation did not succeed on a server that was left alone")
    return result_digest(evaluations_folder(server.state) / identifier / REPORT)


def _keep_busy(server: "Server", sent: dict[str, tuple[str, int]]) -> None:
    """Send evaluations until some are waiting; `sent` maps a key to an id and a spec's index."""
    active = [status for status in server.evaluations().values() if status in _ACTIVE]
    for _ in range(_WAITING - len(active)):
        index, key = len(sent) % len(SPECS), uuid.uuid4().hex
        identifier = server.send(SPECS[index], key)
        if identifier is not None:
            sent[key] = identifier, index


def _kill(server: "Server", kind: str, moments: random.Random) -> bool:
    """Kill at a random moment of a running evaluation; False when nothing of that kind lived."""
    until(server.may_die, _RETRY_S, "no evaluation ran")
    time.sleep(moments.uniform(0, _LONGEST_DELAY_S))
    return server.kill(kind)


def _score(
    server: "Server",
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
            findings.lost.append(f"{identifier} {status} {server.reason(identifier)}".strip())
        elif result_digest(folder / identifier / REPORT) != expected[index]:
            findings.differing.append(identifier)
        if server.send(SPECS[index], key) != identifier:
            findings.doubled.append(f"{identifier} under its key")
    findings.orphans += [f"folder {p.name}" for p in folder.iterdir() if p.name not in ids]
    findings.orphans += [f"file {p.name}" for p in folder.rglob(".*") if p.is_file()]


class Server:
    """A server that may be killed, and that comes back on the same state and port.

    Args:
        state: its state folder.
    """

    def __init__(self, state: Path) -> None:
        self.state = state
        self._port = free_port()
        self._address = f"http://127.0.0.1:{self._port}"
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

    def _start(self) -> None:
        self._process = start(str(self.state), {}, self._port)
        wait_until_ready(self._process, self._address)

    def kill(self, kind: str) -> bool:
        """Send SIGKILL to what `kind` names, see `KINDS`; False when nothing of it lives now."""
        self._family = family(self._process.pid)
        chosen = [p for p in self._family if kind in ("everything", self._kind(p))]
        for process in chosen:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        return bool(chosen)

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
        names = [f"process {self._kind(process)}" for process in left]
        for process in left:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        if self._process.poll() is not None:
            self._start()
        return names

    def _kind(self, process: psutil.Process) -> str:
        with suppress(psutil.Error):
            return role_of(process, self._process.pid)
        return "gone"

    def may_die(self) -> bool:
        """Whether an evaluation runs that may die once more without being given up."""
        # Read from the table, as the service does not tell. Not read-only: SQLite cannot read a
        # log written ahead without writing beside it.
        engine = create_engine(f"sqlite:///{self.state / 'assay.sqlite3'}", poolclass=NullPool)
        with engine.connect() as connection:
            running = select(jobs.c.attempts).where(jobs.c.status == "running")
            attempts = list(connection.execute(running).scalars())
        return bool(attempts) and max(attempts) < MAX_ATTEMPTS

    def ask(self, method: str, url: str, **options: Any) -> httpx.Response:
        """Send a request until it is answered with less than 500; see `until`."""

        def answer() -> httpx.Response | None:
            """The answer, if it counts."""
            with suppress(httpx.TransportError):
                got = httpx.request(method, f"{self._address}{url}", timeout=30, **options)
                return got if got.status_code < 500 else None

        return until(answer, _RETRY_S, f"{method} {url} was not answered")

    def send(self, spec: Mapping[str, Any], key: str) -> str | None:
        """Send an evaluation; returns its id, or None when the queue is full.

        Raises:
            RuntimeError: it was refused for another reason.
        """
        form = {
            "data": {"spec": json.dumps(spec)},
            "files": [("images", f) for f in sample_files()[:: 300 // _SAMPLES][:_SAMPLES]],
            "headers": {"Idempotency-Key": key},
        }
        answer = self.ask("POST", "/v1/evaluations", **form)
        if answer.status_code not in (202, 429):
            raise RuntimeError(f"the evaluation was refused: {answer.text[:500]}")
        return answer.json()["id"] if answer.status_code == 202 else None

    def evaluations(self) -> dict[str, str]:
        """The status of every evaluation that the server lists."""
        found: dict[str, str] = {}
        cursor: str | None = ""
        while cursor is not None:
            page = self.ask("GET", f"/v1/evaluations?limit=100{cursor}").json()
            found |= {one["id"]: one["status"] for one in page["evaluations"]}
            cursor = f"&cursor={page['next_cursor']}" if page["next_cursor"] else None
        return found

    def wait_until_done(self) -> None:
        """Wait until nothing is queued or running; see `until`."""
        until(
            lambda: _ACTIVE.isdisjoint(self.evaluations().values()),
            _END_S,
            "evaluations did not end",
        )

    def reason(self, identifier: str) -> str:
        """Why an evaluation has failed; empty when it has not, or is gone."""
        error = self.ask("GET", f"/v1/evaluations/{identifier}").json().get("error")
        return json.dumps(error) if error else ""
