"""Do the tests notice when a statement is broken?

Statements of all packages are drawn by `--seed`, three times as likely where they score, compute
intervals, mask, limit, check keys, resume or compare answers. Each is broken alone, in a drawn way
(`support.mutants`), in a clone of the last commit; the working tree is never touched. Then
the default tests that reach the statement run until the first one fails. A statement is *caught*
when a test fails that passes without the break.

The default tests run once under coverage first, to learn which tests reach what. That and every
result are kept under `build/mutation`, by commit and seed: a run that was stopped goes on.
"""

import argparse
import dataclasses
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

from coverage import CoverageData
from tqdm import tqdm

from benchmarks.support.mutants import PACKAGES, Mutant, draw
from benchmarks.support.reach import CHOSEN, FIXTURE, RUNNING, TESTS
from benchmarks.support.rows import Row

NAME = "mutation"
ROOT = Path(__file__).parents[1]
_SHARE = 55 / 60  # of the statements that should be caught
_LEAST_S, _TIMES = 90.0, 10.0  # a test may take that long, and so many times what it took before
_PYTEST = ["pytest", "-p", "benchmarks.support.reach", "-q", "-p", "no:cacheprovider"]
_TIMES_OF_FILES = itertools.count(int(time.time()))
_COVERAGE = """[run]
data_file = {folder}/lines
source = {sources}
parallel = True
patch = subprocess
sigterm = True
disable_warnings = no-data-collected,module-not-imported,module-not-measured,couldnt-parse
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of one mutant.

    Attributes:
        mutant: the statement and its break, on one line.
        caught: whether a test failed because of it.
        reason: the test that failed, or why none did.
        tests: how many reach it.
    """

    mutant: str
    caught: bool
    reason: str
    tests: int

    def __str__(self) -> str:
        """One line for a terminal."""
        word = "caught" if self.caught else "MISSED"
        return f"{word}  {self.mutant}  [{self.reason}; {self.tests} tests reach it]"


def parser() -> argparse.ArgumentParser:
    """The options of this benchmark."""
    options = argparse.ArgumentParser(
        prog=f"python -m benchmarks {NAME}",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    options.add_argument("--seed", default="0", help="any text (%(default)s)")
    options.add_argument("--count", type=int, default=60, help="statements (%(default)s)")
    options.add_argument("--jobs", type=int, default=2, help="mutants at a time (%(default)s)")
    options.add_argument(
        "--minutes", type=float, default=10.0, help="of tests for one mutant (%(default)s)"
    )
    return options


def run(*, seed: str = "0", count: int = 60, jobs: int = 2, minutes: float = 10.0) -> Iterable[Row]:
    """Break statements, one at a time, and count those that the tests notice.

    Args:
        seed: draws statements and breaks.
        count: how many statements.
        jobs: how many mutants are tested at a time.
        minutes: how long the tests of one mutant may take in all.
    """
    commit = _git(ROOT, "rev-parse", "HEAD")
    folder = ROOT / "build" / NAME / commit[:12]
    clones = [_clone(commit, folder / f"tree-{number}") for number in range(jobs)]
    reach = _learn(folder, clones[0], jobs)
    results = folder / f"seed-{seed}-{count}.jsonl"
    outcomes = _known(results)
    mutants = draw(clones[0], count=count, seed=seed)
    waiting = [mutant for mutant in mutants if str(mutant) not in outcomes]
    with tqdm(total=count, initial=count - len(waiting), desc=f"seed {seed}", unit="") as bar:
        for outcome in _test_all(waiting, clones, reach, minutes * 60):
            outcomes[outcome.mutant] = outcome
            with results.open("a") as file:
                file.write(json.dumps(dataclasses.asdict(outcome)) + "\n")
            tqdm.write(str(outcome), file=sys.stderr)
            bar.update()
    found = [outcomes[str(mutant)] for mutant in mutants]
    _show_missed(found)
    caught = sum(outcome.caught for outcome in found)
    yield Row(
        name=NAME,
        case=f"{count} statements of {commit[:12]}, seed {seed}",
        measured=caught,
        unit="caught",
        better="higher",
        target=round(_SHARE * count),
        samples=count,
        spread=(caught, caught),
    )


def _show_missed(outcomes: list[Outcome]) -> None:
    for outcome in outcomes:
        if not outcome.caught:
            tqdm.write(str(outcome), file=sys.stderr)


def _known(results: Path) -> dict[str, Outcome]:
    if not results.exists():
        return {}
    rows = [Outcome(**json.loads(line)) for line in results.read_text().splitlines()]
    return {row.mutant: row for row in rows}


def _git(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def _clone(commit: str, folder: Path) -> Path:
    """A clone of one commit, made new where there is none, without what a killed run left."""
    if not (folder / ".git").exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        _git(ROOT, "clone", "--quiet", "--shared", "--no-checkout", str(ROOT), str(folder))
    _git(folder, "checkout", "--quiet", "--force", commit)
    return folder


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reach:
    """What the run under coverage found.

    Attributes:
        data: for each line the tests that reach it.
        seconds: of each test that passes.
        users: the tests that use a fixture.
        root: the tree that was run.
    """

    data: CoverageData
    seconds: dict[str, float]
    users: Mapping[str, set[str]]
    root: Path

    def tests(self, mutant: Mutant) -> list[str]:
        """The tests that reach a mutant; where it runs at import, those that use what it binds.

        Where no test reaches a line that says its name, those that reach the same file.
        """
        contexts = self._contexts(mutant.path, range(mutant.line, mutant.end + 1))
        found = self._named(contexts)
        if found or "" not in contexts:
            return self._in_order(found)
        for name in mutant.names or (mutant.scope.split(".")[-1],):
            for path, lines in _mentions(self.root, name, mutant.path):
                found |= self._named(self._contexts(path, lines))
        return self._in_order(found or self._named(self._contexts(mutant.path, None)))

    def _contexts(self, path: str, lines: Iterable[int] | None) -> set[str]:
        """What reached lines of a file: tests, fixtures, and "" for imports; None is all lines."""
        found = self.data.contexts_by_lineno(str(self.root / path))
        return {name for line in lines or found for name in found.get(line, ())}

    def _named(self, contexts: set[str]) -> set[str]:
        tests = contexts & self.seconds.keys()
        for name in contexts:
            if name.startswith(FIXTURE):
                tests |= self.users.get(name.removeprefix(FIXTURE), set())
        return tests

    def _in_order(self, tests: set[str]) -> list[str]:
        """File by file, so that fixtures are made once; the file that takes least comes first."""
        files: defaultdict[str, float] = defaultdict(float)
        for name in tests:
            files[name.split("::")[0]] += self.seconds[name]
        return sorted(tests, key=lambda name: (files[name.split("::")[0]], self.seconds[name]))


def _mentions(root: Path, name: str, path: str) -> Iterator[tuple[str, list[int]]]:
    """Files and lines that name what a module binds; only its own where the name is private."""
    word = re.compile(rf"\b{re.escape(name)}\b")
    everywhere = (file for package in PACKAGES for file in sorted((root / package).rglob("*.py")))
    for file in [root / path] if name.startswith("_") else everywhere:
        lines = file.read_text().splitlines()
        found = [number for number, line in enumerate(lines, 1) if word.search(line)]
        if found:
            yield str(file.relative_to(root)), found


def _learn(folder: Path, clone: Path, jobs: int) -> _Reach:
    """Run the default tests once under coverage, or read what an earlier run learned."""
    done, tests = folder / "reach", folder / "reach" / TESTS
    if not (done / "whole").exists():
        shutil.rmtree(done, ignore_errors=True)
        done.mkdir(parents=True)
        settings = done / "coveragerc"
        sources = ",".join(str(clone / name) for name in PACKAGES)
        settings.write_text(_COVERAGE.format(folder=done, sources=sources))
        tool = [sys.executable, "-m", "coverage"]
        pytest = ["-m", *_PYTEST, "-n", str(jobs), "--dist", "worksteal"]
        with _started([*tool, "run", f"--rcfile={settings}", *pytest], clone, done) as process:
            _follow(process, tests)
        command = [*tool, "combine", f"--rcfile={settings}", "--quiet"]
        subprocess.run(command, check=True, cwd=clone, stdout=subprocess.DEVNULL)
        (done / "whole").touch()
    data = CoverageData(str(done / "lines"))
    data.read()
    rows = [json.loads(line) for line in tests.read_text().splitlines()]
    passed = [(name, seconds, fixtures) for name, seconds, good, fixtures in rows if good]
    users: defaultdict[str, set[str]] = defaultdict(set)
    for name, _, fixtures in passed:
        for fixture in fixtures:
            users[fixture].add(name)
    seconds = {name: seconds for name, seconds, _ in passed}
    return _Reach(data=data, seconds=seconds, users=users, root=clone)


def _follow(process: subprocess.Popen[bytes], tests: Path) -> None:
    """Show how many tests are done until a run has ended."""
    with tqdm(desc="default tests under coverage", unit=" tests") as bar:
        while process.poll() is None:
            time.sleep(1)
            bar.update((tests.read_text().count("\n") if tests.exists() else 0) - bar.n)


@contextmanager
def _started(command: list[str], clone: Path, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process group in a clone, with the plugin's folder; whatever is left of it is ended."""
    environment = os.environ | {"ASSAY_TESTS": str(folder)}
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            command,
            cwd=clone,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _test_all(
    mutants: list[Mutant], clones: list[Path], reach: _Reach, seconds: float
) -> Iterator[Outcome]:
    free: SimpleQueue[Path] = SimpleQueue()
    for clone in clones:
        free.put(clone)

    def test(mutant: Mutant) -> Outcome:
        clone = free.get()
        try:
            return _test(mutant, clone, reach, seconds)
        finally:
            free.put(clone)

    with ThreadPoolExecutor(len(clones)) as pool:
        yield from (done.result() for done in as_completed([pool.submit(test, m) for m in mutants]))


def _test(mutant: Mutant, clone: Path, reach: _Reach, seconds: float) -> Outcome:
    """Run the tests that reach a mutant until one fails that passes without it."""
    tests, path = reach.tests(mutant), clone / mutant.path
    left, source = list(tests), path.read_bytes()
    reason = None
    while left and reason is None:
        _write(path, mutant.apply(source))
        try:
            failed = _first_failure(left, clone, reach, seconds)
        finally:
            _write(path, source)
        if failed is None:
            break
        if _first_failure([failed], clone, reach, seconds) is None:
            reason = failed
        left = left[left.index(failed) + 1 :]
    nothing = "all of them pass" if tests else "no default test reaches it"
    return Outcome(
        mutant=str(mutant), caught=reason is not None, reason=reason or nothing, tests=len(tests)
    )


def _write(path: Path, source: bytes) -> None:
    """Write a source with a time of its own: Python knows compiled files by time and size."""
    path.write_bytes(source)
    now = next(_TIMES_OF_FILES)
    os.utime(path, (now, now))


def _first_failure(tests: list[str], clone: Path, reach: _Reach, seconds: float) -> str | None:
    """The first of some tests that fails, hangs, or does not survive; None when none does."""
    limits = {name: max(_LEAST_S, _TIMES * reach.seconds[name]) for name in tests}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / CHOSEN).write_text(json.dumps(limits))
        files = list(dict.fromkeys(test.split("::")[0] for test in tests))
        with _started([sys.executable, "-m", *_PYTEST, "-x", *files], clone, folder) as process:
            try:
                status = process.wait(seconds)
            except subprocess.TimeoutExpired:
                return None
        if status == 0:
            return None
        rows = folder / TESTS
        ran = [json.loads(line) for line in rows.read_text().splitlines()] if rows.exists() else []
        running = folder / RUNNING
        at = running.read_text() if running.exists() else tests[0]
        return next((test for test, _, passed, _ in ran if not passed), at)
