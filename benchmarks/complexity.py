"""Does any request cost the server more than it should, or hold the others?

Each family of `support.nasty` is sent at growing sizes, four times as large while it costs next to
nothing and twice as large from there on, up to its limit or to a size that costs half of `--limit`;
one that costs all of it is ended, and the server with it. A family that misses an aim is sent again
at the same sizes, and the better figures count: its first may have started a process, and the
machine has other things to do. The server has the demo models, on `onnx-cpu`, and
`ASSAY_ROLE=predict`: an evaluation that it accepts is deleted and never runs.

Aims, for every size and beyond what an ordinary request costs where predictions are the answer:

- CPU / allowed: CPU seconds of all processes until the answer over 0.02, and 1 for each MB sent and
  for each 25 megapixels that pictures announce, and 2 at most.
- Exponent: to which power of the size they grow, over any three sizes that cost 50 ms or more.
- CPU s after: what the server goes on to compute when it has answered, or the sender has left.
- `/livez`, asked every 20 ms by another process: its 99th percentile, and how much longer than it
  ever did in the idle seconds of the run it takes.
- Errors: their kilobytes, and how many say 500.
- Memory of all processes (RSS) a minute after each group, over that of the server when it was new.

Children of the server count; those that have ended, with what their parents were told.
"""

import dataclasses
import math
import re
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

import numpy as np

from benchmarks.support.nasty import Family, families
from benchmarks.support.rows import Row, figure
from benchmarks.support.server import ROOT
from benchmarks.support.watched import Case, Server
from core.progress import Bar

AIMS: Mapping[str, float] = {
    "CPU / allowed": 1.0,
    "exponent": 1.2,
    "CPU s after": 0.2,
    "/livez p99 ms": 100.0,
    "/livez ms over idle": 100.0,
    "error kB": 64.0,
    "500": 0.0,
    "memory": 1.1,
}
"""The most that each figure may be."""
_MEASURABLE_S, _MEMORY_S = 0.05, 60.0
_SMALLEST = {"bytes": 4000, "pixels": 1_000_000}


@dataclass(slots=True, kw_only=True)
class FamilyRow(Row):
    """A row of a family: how many aims it misses.

    Attributes:
        figures: by name, the worst of all sizes; also the size with the most CPU seconds.
        missed: names of the figures that miss their aims.
    """

    figures: dict[str, float | str] = field(default_factory=dict)
    missed: list[str] = field(default_factory=list)


def run(*, only: str = "", limit: float = 20.0, source: str = str(ROOT)) -> Iterable[Row]:
    """Send every family.

    Args:
        only: families whose name has this pattern, such as "^json: .* /classify".
        limit: CPU seconds after which a request, with its server, is ended.
        source: tree whose server is tried.
    """
    chosen = [family for family in families() if re.search(only, family.name)]
    of = commit(source)
    with Server(Path(source)) as server, Bar(total=len(chosen), unit="case") as bar:
        for group, members in groupby(chosen, lambda family: family.group):
            for family in members:
                bar.set_description(family.name)
                row = measured(family, server, limit)
                yield dataclasses.replace(row, versions=row.versions | of)
                bar.update()
            ratio = server.memory_left(_MEMORY_S, AIMS["memory"])
            row = figure(f"{group}: memory after / before", ratio, "ratio", target=AIMS["memory"])
            yield dataclasses.replace(row, versions=row.versions | of)


def commit(tree: str) -> dict[str, str]:
    """The commit of a tree, as an entry of a row's versions."""
    command = ["git", "-C", tree, "describe", "--always", "--dirty", "--exclude=*"]
    return {"commit": subprocess.check_output(command, text=True).strip()}


def measured(family: Family, server: Server, limit: float) -> FamilyRow:
    """What a family does at growing sizes; what misses an aim had two chances."""
    cases = list(grow(family, server, limit))
    row = family_row(family, cases, server.idle, limit)
    if not row.missed or any(case.ended for case in cases):
        return row
    again = [server.measure(family, case.size, limit) for case in cases]
    return family_row(family, list(map(_better, cases, again)), server.idle, limit)


def _better(first: Case, second: Case) -> Case:
    """The better figures of two requests of one size."""
    return dataclasses.replace(
        first,
        cpu=min(first.cpu, second.cpu),
        after=min(first.after, second.after),
        waits=min(first.waits, second.waits, key=max),
    )


def grow(family: Family, server: Server, limit: float) -> Iterator[Case]:
    """A family at growing sizes, which are its limit over powers of two."""
    most, smallest = family.kind.limit, _SMALLEST[family.kind.unit]
    halved = max(0, int(math.log2(most / smallest)))
    while True:
        yield (case := server.measure(family, most >> halved, limit))
        if not halved or case.ended or case.cpu + case.after > limit / 2:
            return
        halved = max(0, halved - (2 if case.cpu < _MEASURABLE_S else 1))


def exponent(cases: Sequence[Case], limit: float) -> float:
    """To which power of the size CPU seconds grow at most; 0 where nothing can be measured."""
    costs = [(case.size, limit if case.ended else case.cpu) for case in cases]
    costs = [(size, cost) for size, cost in costs if cost >= _MEASURABLE_S]
    ends = zip(costs, costs[2:] or costs[1:], strict=False)
    slopes = [math.log(more / less) / math.log(big / small) for (small, less), (big, more) in ends]
    return max([0.0, *slopes])


def family_row(
    family: Family, cases: Sequence[Case], idle: Sequence[float], limit: float
) -> FamilyRow:
    """What a family did, beside the aims.

    Args:
        family: whose cases they are.
        cases: by size.
        idle: seconds that `/livez` takes with nothing else to do.
        limit: CPU seconds at which a case was ended.
    """
    costliest = max(cases, key=lambda case: case.cpu)
    waits = [1000 * float(np.percentile(case.waits, 99)) for case in cases]
    found = {
        "CPU / allowed": max(case.cpu / case.allowed for case in cases),
        "exponent": exponent(cases, limit),
        "CPU s after": max(case.after for case in cases),
        "/livez p99 ms": max(waits),
        "/livez ms over idle": 1000 * (max(max(case.waits) for case in cases) - max(idle)),
        "error kB": max(case.answer * (case.status >= 400) for case in cases) / 1000,
        "500": sum(case.status == 500 for case in cases),
    }
    seen = dict.fromkeys(str(case.status or "none") for case in cases)
    shown: dict[str, float | str] = {
        "size": f"{costliest.size:,} {family.kind.unit}",
        "status": " ".join(seen),
        "CPU s": f"> {limit:g}" if costliest.ended else round(costliest.cpu, 3),
        "peak MiB": round(max(case.memory for case in cases)),
    }
    shown |= {name: round(value, 3) for name, value in found.items()}
    missed = [name for name, value in found.items() if value > AIMS[name]]
    row = figure(family.name, len(missed), "aims missed", target=0, samples=len(cases))
    return FamilyRow(**dataclasses.asdict(row), figures=shown, missed=missed)
