"""What does it cost to ask a model over HTTP in the place of its file, and does it find the same?

Our own server has the shipped models; the same graph is attacked over the protocol V2 and as an
artifact: Square on images, Word Swap on texts. Both runs have as many workers, and share the cores
with the server.

- Flags: every clean and adversarial class and flag of every input must be the same.
- Time: that of the command's evaluation over HTTP, divided by that of the artifact's, median of
  pairs; and the shares that the server's processes, this process and its ledger have of the
  processor time.
- Kills: the command over HTTP is killed with SIGKILL at random moments, and begun again until it
  ends. No question that the ledger has an answer to may be asked again; every question stands in it
  before it is sent. The report must be that of a run that was left alone, except for its date.
"""

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from benchmarks.support.rows import Row, figure
from benchmarks.support.server import ROOT, serving
from robustness.remote.ledger import FILE, Ledger
from robustness.report.schema import Report, read_report
from service.processes import family

_CASES: dict[str, tuple[str, str, list[str]]] = {
    "Square": (
        "fashion-elliptical-adv",
        "artifacts/samples/fashion-mnist",
        ["--attack", "square", "--eps", "4/255", "8/255", "--queries"],
    ),
    "Word Swap": ("imdb-transject", "", ["--attack", "word-swap", "--rate"]),
}
_WORDS = "0.025"
_TELLING = {"robust", "confirmed", "confirmed_8bit", "adversarial_index", "name", "eps"}


def run(
    *,
    images: int = 100,
    queries: int = 400,
    texts: int = 400,
    pairs: int = 3,
    kills: int = 20,
    seed: int = 0,
) -> Iterable[Row]:
    """Compare, pair by pair, and then kill.

    Args:
        images: attacked by Square.
        queries: of Square, for one image.
        texts: attacked by Word Swap.
        pairs: of runs over HTTP and of the artifact; 0 leaves them out.
        kills: of the evaluation over HTTP; 0 leaves them out.
        seed: of the moments of the kills.
    """
    sizes = {"Square": (images, str(queries)), "Word Swap": (texts, _WORDS)}
    with tempfile.TemporaryDirectory() as folder, serving({"ASSAY_RUNTIME": "onnx-cpu"}) as server:
        pid, address = server
        for case, (limit, last) in sizes.items() if pairs else ():
            model, data, attack = _CASES[case]
            spec = ["--data", data or "imdb", *attack, last, "--limit", str(limit)]
            place = Path(folder) / case.replace(" ", "-")
            yield from _compared(case, model, spec, pid, address, pairs, place)
        model, data, attack = _CASES["Square"]
        spec = ["--data", data, *attack, str(queries), "--limit", str(images)]
        if kills:
            yield from _killed(_remote(model, address, spec), kills, seed, Path(folder) / "kills")


def _remote(model: str, address: str, spec: Sequence[str]) -> list[str]:
    return ["--target", address, "--model", model, *spec]


def _compared(
    case: str, model: str, spec: list[str], pid: int, address: str, pairs: int, folder: Path
) -> Iterable[Row]:
    """Rows of one attack."""
    ratios, shares, found = list[float](), list[dict[str, float]](), list[Report]()
    different = 0
    for pair in range(pairs):
        own, over = folder / f"local-{pair}", folder / f"remote-{pair}"
        local, _ = _timed(["--artifact", str(ROOT / "artifacts" / model), *spec], own)
        before = _cpu(pid)
        remote, client = _timed(_remote(model, address, spec), over)
        used = {"server": _cpu(pid) - before, "client": client, "ledger": _ledger_s(over)}
        shares.append({name: seconds / (used["server"] + client) for name, seconds in used.items()})
        ratios.append(remote / local)
        found = [read_report(own), read_report(over)]
        different += _different(*found)
    samples = found[0].data.samples
    about = f"{case}, {samples} inputs, {model}"
    yield figure(f"{about}: inputs flagged otherwise than locally", different, "inputs", target=0)
    yield figure(f"{about}: time over HTTP / of the artifact", ratios, "ratio", target=1.5)
    for name in ("server", "client", "ledger"):
        part = " (within the client's)" if name == "ledger" else ""
        values = [100 * each[name] for each in shares]
        yield figure(f"{about}: processor time of the {name}{part}", values, "%")


def _timed(options: Sequence[str], folder: Path) -> tuple[float, float]:
    """Run an evaluation; seconds on the wall, and of processor time with its children."""
    began, process = time.perf_counter(), _start(options, folder)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"an evaluation ended with {process.returncode}: {' '.join(options)}")
    return time.perf_counter() - began, usage.ru_utime + usage.ru_stime


def _start(options: Sequence[str], folder: Path) -> subprocess.Popen[bytes]:
    line = [sys.executable, "-m", "robustness", "evaluate", *options, "--output", str(folder)]
    null = subprocess.DEVNULL
    return subprocess.Popen(line, cwd=ROOT, stdout=null, stderr=null)


def _cpu(pid: int) -> float:
    """Processor seconds of a process and all that it started."""
    total = 0.0
    for process in family(pid):
        with suppress(psutil.NoSuchProcess):
            total += sum(process.cpu_times()[:2])
    return total


def _different(first: Report, second: Report) -> int:
    """Inputs of which two reports say different things."""
    return sum(
        _telling(a) != _telling(b) for a, b in zip(first.samples, second.samples, strict=True)
    )


def _telling(sample: Any) -> Any:
    [model] = sample.models
    attacks = [attack.model_dump(include=_TELLING) for attack in model.attacks]
    return sample.name, sample.label, model.clean.index, model.clean.correct, attacks


def _ledger_s(folder: Path) -> float:
    """Processor seconds to write down once more, question by question, what a ledger holds."""
    with closing(sqlite3.connect(folder / FILE)) as file:
        questions = file.execute(
            "SELECT inputs, again FROM questions WHERE answered > 0"
        ).fetchall()
        kept = file.execute("SELECT input, again, scores FROM answers").fetchall()
    scores = {(digest, again): np.frombuffer(row, "<f4") for digest, again, row in kept}
    with tempfile.TemporaryDirectory() as again_here:
        ledger, began = Ledger(Path(again_here) / FILE, {}), time.process_time()
        for joined, again in questions:
            inputs = [joined[start : start + 32] for start in range(0, len(joined), 32)]
            ledger.known(inputs, again=bool(again))
            number = ledger.ask(inputs, again=bool(again))
            rows = np.stack([scores[digest, again] for digest in inputs])
            ledger.answer(number, inputs, rows, again=bool(again), tries=1)
        spent = time.process_time() - began
        ledger.close()
    return spent


def _killed(options: Sequence[str], kills: int, seed: int, folder: Path) -> Iterable[Row]:
    """Kill one evaluation after another at random moments, until there were enough kills."""
    draw, done, rounds, asked_again, different = random.Random(seed), 0, 0, 0, 0
    whole = folder / "whole"
    over, _ = _timed(options, whole)
    expected = _content(whole)
    while done < kills:
        rounds += 1
        own, ended = folder / str(rounds), False
        while not ended:
            process = _start(options, own)
            with suppress(subprocess.TimeoutExpired):
                left = draw.uniform(0, 1.2 * over) if done < kills else None
                ended = process.wait(left) == 0
            if not ended:
                process.send_signal(signal.SIGKILL)
                process.wait()
                done += 1
        asked_again += _asked_again(own)
        different += _content(own) != expected
    about = f"{done} x kill -9 in {rounds} evaluations"
    yield figure(f"{about}: answered inputs asked again", asked_again, "inputs", target=0)
    alone = f"{about}: reports other than that of a run left alone"
    yield figure(alone, different, "reports", target=0)


def _asked_again(folder: Path) -> int:
    """Inputs that were sent after they had been answered, by the ledger.

    A question is written down before it is sent, so what a run sends after a kill stands in it.
    """
    with closing(sqlite3.connect(folder / FILE)) as file:
        rows = file.execute("SELECT number, inputs, again, answered FROM questions").fetchall()
    answered: dict[tuple[bytes, int], int] = {}
    count = 0
    for number, joined, again, at in sorted(rows):
        for start in range(0, len(joined), 32):
            key = joined[start : start + 32], again
            count += key in answered and answered[key] < number
            if at is not None:
                answered.setdefault(key, number)
    return count


def _content(folder: Path) -> dict[str, Any]:
    """A report without its date."""
    return json.loads((folder / "report.json").read_bytes()) | {"created": ""}
