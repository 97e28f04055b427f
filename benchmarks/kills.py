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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tqdm import tqdm

from benchmarks.support.mortal_server import KINDS, Server
from benchmarks.support.rows import Row, figure
from service.jobs.uploads import REPORT, evaluations_folder

_WAITING = 3
_LONGEST_DELAY_S = 2.5
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


def run(*, kills: int = 200, seed: int = 0, minutes: float = 60.0) -> Iterable[Row]:
    """Kill, and score what is left.

    Args:
        kills: how many.
        seed: of what is random.
        minutes: after which nothing more is killed.
    """
    random_kinds = random.Random(seed)
    kinds = [random_kinds.choice(KINDS) for _ in range(kills)]
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
        expected = [_undisturbed(server, index) for index in range(len(SPECS))]
    moments = random.Random(seed)
    with tempfile.TemporaryDirectory() as state, Server(Path(state)) as server:
        sent: dict[str, tuple[str, int]] = {}
        for kind in tqdm(kinds, desc="kills", unit="kill"):
            if time.monotonic() - begin > seconds:
                break
            _keep_busy(server, sent)
            _kill(server, kind, moments)
            findings.kills[kind] += 1
            findings.orphans += server.revive()
        _wait_until_done(server)
        _score(server, sent, expected, findings)
    findings.seconds = time.monotonic() - begin
    return findings


def rows(findings: Findings) -> Iterator[Row]:
    """One row for each kind of damage; all of them should be 0."""
    count = sum(findings.kills.values())
    kinds = ", ".join(f"{kind} {n}" for kind, n in sorted(findings.kills.items()))
    case = f"{count} kills ({kinds}) in {findings.seconds:.0f} s"
    damages = (
        ("accepted evaluations lost", findings.lost),
        ("evaluations doubled", findings.doubled),
        ("results that differ from undisturbed ones", findings.differing),
        ("processes, folders and files left over", findings.orphans),
    )
    for label, found in damages:
        shown = f": {'; '.join(found[:5])}" if found else ""
        unit = "evaluations" if found is not findings.orphans else "left over"
        about = f"{case}, {label}{shown}"
        yield figure(about, len(found), unit, target=0, samples=findings.accepted)


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


def _kill(server: Server, kind: str, moments: random.Random) -> None:
    """Kill at a random moment of a running evaluation.

    Raises:
        RuntimeError: no evaluation ran, or what is to be killed never lived.
    """
    deadline = time.monotonic() + _END_S
    while time.monotonic() < deadline:
        server.wait_for_attempt()
        time.sleep(moments.uniform(0, _LONGEST_DELAY_S))
        if server.kill(kind):
            return
    raise RuntimeError(f"nothing lived for {_END_S:g} s that is called {kind!r}")


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


def _score(
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
            findings.lost.append(f"{identifier} {status} {server.reason(identifier)}".strip())
        elif result_digest(folder / identifier / REPORT) != expected[index]:
            findings.differing.append(identifier)
        if server.send(SPECS[index], key) != identifier:
            findings.doubled.append(f"{identifier} under its key")
    findings.orphans += [f"folder {p.name}" for p in folder.iterdir() if p.name not in ids]
    findings.orphans += [f"file {p.name}" for p in folder.rglob(".*") if p.is_file()]
