"""What does it cost to ask a model over HTTP in the place of its file, and does it find the same?

Our own server and MLServer (in an environment of its own) have the shipped models; the same graph
is attacked over the protocol V2 and as an artifact: Square on images, Word Swap on texts. Both runs
have as many workers, and share the cores with the server. Ours knows binary tensors and reads
texts; MLServer takes JSON alone, and tokens, which the command makes of texts. Its own batching is
off, as it comes: questions carry batches.

- Flags: every clean and adversarial class and flag of every input must be the same.
- Time: that of the command's evaluation over HTTP, divided by that of the artifact's, median of
  pairs; the shares of the processor time that the server's processes and the command's have; and
  the share of the time on the wall that the ledger has, which waits for the disk.
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
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from benchmarks.peers.running import TENSORS, serving_peer
from benchmarks.support.rows import Row, figure
from benchmarks.support.server import ROOT, serving
from robustness.remote.ledger import FILE, Ledger
from robustness.report.schema import Report, read_report
from runtimes.artifact import open_artifact
from service.processes import family

_CASES: dict[str, tuple[str, str, list[str]]] = {
    "Square": (
        "fashion-elliptical-adv",
        "artifacts/samples/fashion-mnist",
        ["--attack", "square", "--eps", "4/255", "8/255", "--queries"],
    ),
    "Word Swap": ("imdb-transject", "imdb", ["--attack", "word-swap:rate=0.025", "--seed"]),
}
_TELLING = {"robust", "confirmed", "confirmed_8bit", "adversarial_index", "name", "eps"}
_SERVERS = {"ours": "our server", "mlserver": "MLServer"}


def run(
    *,
    images: int = 100,
    queries: int = 400,
    texts: int = 400,
    pairs: int = 3,
    kills: int = 20,
    seed: int = 0,
    only: str = "",
) -> Iterable[Row]:
    """Compare, pair by pair, and then kill.

    Args:
        images: attacked by Square.
        queries: of Square, for one image.
        texts: attacked by Word Swap.
        pairs: of runs over HTTP and of the artifact; 0 leaves them out.
        kills: of the evaluation over HTTP; 0 leaves them out.
        seed: of the moments of the kills.
        only: one server, of ours and mlserver; empty: both, and the kills with ours.
    """
    sizes = {"Square": (images, str(queries)), "Word Swap": (texts, "0")}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for kind in [only] if only else _SERVERS:
            for case, (limit, last) in sizes.items() if pairs else ():
                model, data, attack = _CASES[case]
                spec = ["--data", data, *attack, last, "--limit", str(limit)]
                place = folder / f"{kind}-{case}"
                with _server(kind, model, folder) as (pid, target):
                    about = f"{case}, {limit} inputs, {model}, {_SERVERS[kind]}"
                    yield from _compared(about, model, spec, pid, target, pairs, place)
        model, data, attack = _CASES["Square"]
        spec = ["--data", data, *attack, str(queries), "--limit", str(images)]
        if kills and only in ("", "ours"):
            with _server("ours", model, folder) as (_, target):
                yield from _killed([*target, *spec], kills, seed, folder / "kills")


@contextmanager
def _server(kind: str, model: str, folder: Path) -> Iterator[tuple[int, list[str]]]:
    """The process of a server of one of the shipped models, and the options that name it."""
    if kind == "ours":
        with serving({"ASSAY_RUNTIME": "onnx-cpu"}) as (pid, address):
            yield pid, ["--target", address, "--model", model]
        return
    artifact = open_artifact(ROOT / "artifacts" / model)
    labels, mapping = folder / "labels.json", folder / "mapping.yaml"
    labels.write_text(json.dumps(artifact.labels))
    options = ["--model", model, "--labels", str(labels)]
    if artifact.manifest.task == "text-classification":
        given = {"kind": "tokens", "tokenizer": str(artifact.folder / "tokenizer.json")}
        given |= {"max_len": artifact.text_spec.max_len}
        mapping.write_text(json.dumps({"input": given}))
        options += ["--mapping", str(mapping)]
    with serving_peer(TENSORS["mlserver-single"], artifact.folder) as (pid, address):
        yield pid, ["--target", address, *options]


def _compared(
    about: str,
    model: str,
    spec: list[str],
    pid: int,
    target: list[str],
    pairs: int,
    folder: Path,
) -> Iterable[Row]:
    """Rows of one attack on one server."""
    ratios, server, ledger, different = list[float](), list[float](), list[float](), 0
    for pair in range(pairs):
        own, over = folder / f"local-{pair}", folder / f"remote-{pair}"
        local, _ = _timed(["--artifact", str(ROOT / "artifacts" / model), *spec], own)
        before = _cpu(pid)
        remote, client = _timed([*target, *spec], over)
        used = _cpu(pid) - before
        server.append(100 * used / (used + client))
        ledger.append(100 * _ledger_s(over) / remote)
        ratios.append(remote / local)
        different += _different(read_report(own), read_report(over))
    yield figure(f"{about}: inputs flagged otherwise than locally", different, "inputs", target=0)
    yield figure(f"{about}: time over HTTP / of the artifact", ratios, "ratio", target=1.5)
    yield figure(f"{about}: processor time of the server, the rest is the command's", server, "%")
    yield figure(f"{about}: time of the ledger, of the command's on the wall", ledger, "%")


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
    """Seconds to write down once more, question by question, what a ledger holds."""
    with closing(sqlite3.connect(folder / FILE)) as file:
        questions = file.execute(
            "SELECT inputs, again FROM questions WHERE answered > 0"
        ).fetchall()
        kept = file.execute("SELECT input, again, scores FROM answers").fetchall()
    scores = {(digest, again): np.frombuffer(row, "<f4") for digest, again, row in kept}
    with tempfile.TemporaryDirectory() as again_here:
        ledger, began = Ledger(Path(again_here) / FILE, {}), time.perf_counter()
        for joined, again in questions:
            inputs = [joined[start : start + 32] for start in range(0, len(joined), 32)]
            ledger.known(inputs, again=bool(again))
            number = ledger.ask(inputs, again=bool(again))
            rows = np.stack([scores[digest, again] for digest in inputs])
            ledger.answer(number, inputs, rows, again=bool(again), tries=1)
        spent = time.perf_counter() - began
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
