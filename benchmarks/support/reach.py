"""A pytest plugin for `benchmarks.mutation`: which tests reach which lines; chosen tests alone.

`REACHED_TESTS` names a folder. Where it holds `chosen.json`, only those tests run, in that order,
each within its time; else coverage records for each test, and for processes that it starts, the
lines reached; those of a fixture that several tests share belong to all of them. Either way
`tests.jsonl` gets a line for each test: name, seconds, whether it passed, its fixtures.
"""

import base64
import json
import os
import signal
from collections import defaultdict
from collections.abc import Generator
from pathlib import Path
from types import FrameType

import coverage
import pytest

FOLDER = "REACHED_TESTS"
CHOSEN, TESTS, RUNNING = "chosen.json", "tests.jsonl", "running"
FIXTURE = "fixture "  # begins the context of a fixture that is made once for several tests
_CHILDREN = "COVERAGE_PROCESS_CONFIG"  # what coverage tells the processes that a test starts
_FOLDER = Path(os.environ.get(FOLDER, ""))  # read now: tests change the environment
_context = ""
_seconds: defaultdict[str, float] = defaultdict(float)
_failed: set[str] = set()


def _chosen() -> dict[str, float] | None:
    path = _FOLDER / CHOSEN
    return json.loads(path.read_text()) if path.exists() else None


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the chosen tests, in their order."""
    chosen = _chosen()
    if chosen is not None:
        found = {item.nodeid: item for item in items}
        items[:] = [found[name] for name in chosen if name in found]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, bool | None, bool | None]:
    """Name the test to coverage and to its child processes, or limit its time."""
    chosen = _chosen()
    if chosen is None:
        item.user_properties.append(("fixtures", list(getattr(item, "fixturenames", ()))))
        _record(item.nodeid)
        return (yield)
    (_FOLDER / RUNNING).write_text(item.nodeid)
    signal.signal(signal.SIGALRM, _too_long)
    signal.setitimer(signal.ITIMER_REAL, chosen[item.nodeid])
    try:
        return (yield)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(
    fixturedef: pytest.FixtureDef[object], request: pytest.FixtureRequest
) -> Generator[None, object, object]:
    """Book what a shared fixture reaches on the fixture, and no longer on its first test."""
    if fixturedef.scope == "function" or _chosen() is not None:
        return (yield)
    test = _context
    _record(f"{FIXTURE}{fixturedef.baseid} {fixturedef.argname}")
    try:
        return (yield)
    finally:
        _record(test)


def _record(test: str) -> None:
    """Let coverage book the lines reached from now on, in child processes too, on a test."""
    global _context
    _context = test
    measured = coverage.Coverage.current()
    if measured is not None:
        measured.switch_context(test)
    if _CHILDREN in os.environ:
        settings = json.loads(base64.b64decode(os.environ[_CHILDREN])) | {"context": test}
        os.environ[_CHILDREN] = base64.b64encode(json.dumps(settings).encode()).decode()


def _too_long(number: int, frame: FrameType | None) -> None:
    pytest.fail("it takes many times as long as it should")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Keep what became of a test, and how long it took; under xdist in the first process alone."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        return
    _seconds[report.nodeid] += report.duration
    if report.outcome != "passed":
        _failed.add(report.nodeid)
    if report.when == "teardown":
        fixtures = dict(report.user_properties).get("fixtures", [])
        row = [report.nodeid, _seconds[report.nodeid], report.nodeid not in _failed, fixtures]
        with (_FOLDER / TESTS).open("a") as file:
            file.write(json.dumps(row) + "\n")
