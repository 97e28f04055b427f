"""What does ten times the load that the service sustains do to it?

DeiT-tiny at 224 x 224 with the default settings. The sustained load is what 16 connections get
answered with nothing else to do; ten times as many requests a second are then due for ten minutes,
whether or not those before were answered. A request that finds none of the generator's connections
free waits for one, and its time counts from when it was due. The generator shares the cores.

- Answers: only 200, 429 and 503; a broken connection is no answer and counts against the service.
- The 99th percentile of the accepted requests against the deadline, `ASSAY_PREDICT_TIMEOUT_S`.
- Memory of all processes of the server, what they share counted once (PSS): the last tenth of the
  time against the first, of which its first half is left out as warming up.
- Recovery: from the end of the load until half the sustained load is answered as it was before,
  every request with 200 and the median within 1.5 times, for two seconds on end.
"""

import io
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import numpy as np
from PIL import Image

from benchmarks.support.deit_artifact import pictures, write_deit_tiny
from benchmarks.support.load import Answer, drive, form_request, sustained, throughput
from benchmarks.support.rows import Row, figure
from benchmarks.support.server import pss, serving
from core.progress import Bar
from service.settings import Settings

FACTOR = 10
ACCEPTED, REFUSED = 200, (429, 503)
_CONNECTIONS = 512
_PICTURES = 64
_SAMPLE_EVERY_S = 2.0
_RECOVERY_WATCHED_S = 12.0
_BIN_S, _STEADY_BINS = 0.5, 4
_SLOWER = 1.5
_RECOVERY_TARGET_S = 5.0
_GROWTH_TARGET = 1.1
# The generator itself must have kept its word, or nothing follows from the rest.
_OFFERED_TARGET = 0.95 * FACTOR


def run(*, seconds: float = 600.0) -> Iterable[Row]:
    """Overload a server, then watch it recover.

    Args:
        seconds: how long the overload lasts.
    """
    with tempfile.TemporaryDirectory() as name:
        artifact = write_deit_tiny(Path(name) / "models")
        requests = [form_request("/classify", "p.jpg", jpeg) for jpeg in _jpegs()]
        settings = {"ASSAY_MODELS": str(artifact.folder), "ASSAY_DEFAULT_IMAGE": artifact.name}
        with serving(settings) as (pid, address):
            rate = sustained(requests, address)
            half = {"connections": _CONNECTIONS, "rate": rate / 2}
            before = drive(requests, address, seconds=_RECOVERY_WATCHED_S, **half)
            throughput(before)  # refuses failures
            with _memory(pid, seconds) as memory:
                begin = time.monotonic()
                answers = drive(
                    requests, address, connections=_CONNECTIONS, seconds=seconds, rate=FACTOR * rate
                )
            waited = max(0.0, time.monotonic() - begin - seconds)
            after = drive(requests, address, seconds=_RECOVERY_WATCHED_S, **half)
    usual = median(answer.seconds for answer in before)
    yield from answer_rows(rate, seconds, answers)
    yield memory_row(rate, seconds, memory)
    yield recovery_row(rate, waited, after, usual)


def answer_rows(rate: float, seconds: float, answers: Sequence[Answer]) -> Iterator[Row]:
    """How many were due and accepted, which were wrong, how long; `rate` is requests per second."""
    counts = Counter(answer.status for answer in answers)
    accepted = [answer.seconds for answer in answers if answer.status == ACCEPTED]
    wrong = sum(n for status, n in counts.items() if status not in (ACCEPTED, *REFUSED))
    shown = ", ".join(f"{status or 'no answer'}: {n}" for status, n in sorted(counts.items()))
    case = _case(rate)
    for what, some, target in (
        ("requests due", answers, _OFFERED_TARGET),
        ("accepted", accepted, None),
    ):
        ratio, about = len(some) / (seconds * rate), f"{case}, {what} / sustained load"
        yield figure(about, ratio, "ratio", target=target, better="higher", samples=len(some))
    about = f"{case}, answers but 200, 429 and 503 ({shown})"
    yield figure(about, wrong, "answers", target=0, samples=len(answers))
    deadline = Settings().predict_timeout_s
    half, most, all_of = (float(v) for v in np.percentile(accepted or [np.inf], (50, 99, 100)))
    yield figure(
        f"{case}, p99 of accepted requests (deadline {deadline:g} s; spread: p50 to p100)",
        most, "s", target=1.2 * deadline, samples=len(accepted), spread=(half, all_of),
    )  # fmt: skip


def memory_row(rate: float, seconds: float, samples: Sequence[tuple[float, float]]) -> Row:
    """Memory at the end over that at the beginning; samples are seconds since then, and MiB."""
    first = median(m for at, m in samples if 0.05 * seconds <= at <= 0.1 * seconds)
    last = median(m for at, m in samples if 0.9 * seconds <= at <= seconds)
    spread = (min(m for _, m in samples) / first, max(m for _, m in samples) / first)
    case = f"{_case(rate)}, memory (PSS) at the end / begin ({first:.0f} MiB), {seconds:.0f} s"
    return figure(
        case, last / first, "ratio", target=_GROWTH_TARGET, samples=len(samples), spread=spread
    )


def recovery_row(rate: float, waited: float, after: Sequence[Answer], usual: float) -> Row:
    """How long after the overload, of which `waited` seconds passed before `after`, all is well."""
    case = f"after {_case(rate)}, until half the load is answered as before"
    seconds = waited + recovered_after(after, usual)
    return figure(case, seconds, "s", target=_RECOVERY_TARGET_S, samples=len(after))


def recovered_after(answers: Sequence[Answer], usual: float) -> float:
    """When two seconds begin in which all is answered with 200, half of it nearly as fast as usual.

    Args:
        answers: of requests due at a steady rate.
        usual: median seconds of an answer at that rate.

    Returns:
        Seconds; infinity when there are none.
    """
    bins: defaultdict[int, list[Answer]] = defaultdict(list)
    for answer in answers:
        bins[int(answer.due / _BIN_S)].append(answer)
    steady = 0
    for index in range(max(bins, default=-1) + 1):
        steady = steady + 1 if _as_usual(bins[index], usual) else 0
        if steady == _STEADY_BINS:
            return (index + 1 - _STEADY_BINS) * _BIN_S
    return float("inf")


def _as_usual(answers: Sequence[Answer], usual: float) -> bool:
    if not answers or any(answer.status != ACCEPTED for answer in answers):
        return False
    return median(answer.seconds for answer in answers) <= _SLOWER * usual


@contextmanager
def _memory(pid: int, seconds: float) -> Iterator[list[tuple[float, float]]]:
    """Sample the memory of a server inside the block, with a bar that shows the time."""
    stop, samples, begin = threading.Event(), [], time.monotonic()

    def sample() -> None:
        """Reading it costs the server time as well, the more the more it holds."""
        with Bar(total=round(seconds), desc="overload", unit="s") as bar:
            while not stop.wait(min(_SAMPLE_EVERY_S, seconds / 100)):
                at = time.monotonic() - begin
                samples.append((at, pss(pid)))
                bar.update(min(round(at), round(seconds)) - bar.n)

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield samples
    finally:
        stop.set()
        thread.join()


def _jpegs() -> list[bytes]:
    """Pictures of 224 x 224 as files."""
    files = []
    for pixels in (255 * pictures(_PICTURES)).round().astype(np.uint8):
        stream = io.BytesIO()
        Image.fromarray(pixels.transpose(1, 2, 0)).save(stream, "JPEG", quality=75)
        files.append(stream.getvalue())
    return files


def _case(rate: float) -> str:
    return f"DeiT-tiny 224, {FACTOR} x {rate:.0f} requests/s"
