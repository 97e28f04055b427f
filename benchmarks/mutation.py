"""Do the tests notice when a statement is broken?

Statements of all packages are drawn by `--seed`, three times as likely where they score, compute
intervals, mask, limit, check keys, resume or compare answers. Each is broken alone, in a drawn way
(`support.mutants` says which ways there are), in a clone of the last commit; the working tree is
never touched. Then the default tests that reach the statement run until the first one fails: those
that mirror its folder first, of these the files that take least. A statement is *caught* when a
test fails, or does not end, that passes without the break.

The default tests run once under coverage first, folder by folder, to learn which tests reach what:
lines reached in a process that a test starts belong to that test, those of a fixture that several
tests share to all of them. Everything is kept under `build/mutation`, by commit and seed: a run
that was stopped goes on. At the end a Markdown file there lists every statement and who caught it.
"""

import dataclasses
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

import psutil
from coverage import CoverageData

from benchmarks.support.mutants import PACKAGES, Mutant, draw
from benchmarks.support.reach import CHOSEN, FIXTURE, FOLDER, RUNNING, TESTS
from benchmarks.support.rows import Row, figure
from core.progress import Bar
from core.tables import markdown_table
from runtimes.threads import available_cores

NAME = "mutation"
ROOT = Path(__file__).parents[1]
_SHARE = 55 / 60  # of the statements that should be caught
_LEAST_S, _TIMES = 60.0, 10.0  # a test may take that long, and so many times what it took before
_GRACE_S = 30.0  # more for a test that its alarm does not end
_BATCH_S, _LARGER, _FILE_S = 15.0, 4, 0.5  # of the first run of a mutant's tests; of one file more
_COVERAGE = """[run]
data_file = {folder}/lines
include = {sources}
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
        seconds: until that was known.
    """

    mutant: str
    caught: bool
    reason: str
    tests: int
    seconds: float

    def __str__(self) -> str:
        """One line for a terminal."""
        word = "caught" if self.caught else "MISSED"
        about = f"{self.reason}; {self.tests} tests reach it; {self.seconds:.0f} s"
        return f"{word}  {self.mutant}  [{about}]"


def run(
    *, seed: str = "0", count: int = 60, minutes: float = 10.0, packages: tuple[str, ...] = PACKAGES
) -> Iterable[Row]:
    """Break statements, one at a time, and count those that the tests notice.

    Args:
        seed: draws statements and breaks.
        count: how many statements.
        minutes: how long the tests of one mutant may take in all.
        packages: those to break; if not all, only the tests of their folders run.
    """
    commit = _git(ROOT, "rev-parse", "HEAD")
    folder = ROOT / "build" / NAME / commit[:12]
    clones = [_clone(commit, folder / f"tree-{number}") for number in range(available_cores())]
    some = "" if len(packages) == len(PACKAGES) else "-" + "-".join(packages)
    reach = _learn(folder, clones[0], packages if some else None)
    results = folder / f"seed-{seed}-{count}{some}.jsonl"
    outcomes = _known(results)
    mutants = draw(clones[0], count=count, seed=seed, packages=packages)
    waiting = [mutant for mutant in mutants if str(mutant) not in outcomes]
    with Bar(total=count, initial=count - len(waiting), desc=f"seed {seed}", unit="") as bar:
        for outcome in _test_all(waiting, clones, reach, minutes * 60):
            outcomes[outcome.mutant] = outcome
            with results.open("a") as file:
                file.write(json.dumps(dataclasses.asdict(outcome)) + "\n")
            Bar.write(str(outcome), file=sys.stderr)
            bar.update()
    found = [outcomes[str(mutant)] for mutant in mutants]
    results.with_suffix(".md").write_text(_listed(found))
    caught = sum(outcome.caught for outcome in found)
    case = f"{count} statements of {commit[:12]}{some}, seed {seed}"
    target = round(_SHARE * count)
    yield figure(case, caught, "caught", better="higher", target=target, samples=count)


def _listed(outcomes: Iterable[Outcome]) -> str:
    """Every mutant as a line of a table, the missed ones first."""
    rows = [
        ("caught" if each.caught else "**missed**", each.mutant, each.reason, round(each.seconds))
        for each in sorted(outcomes, key=lambda each: each.caught)
    ]
    cells = [[str(cell).replace("|", "\\|") for cell in row] for row in rows]
    return markdown_table(("", "statement and break", "test, or reason", "s"), cells) + "\n"


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


class _Reach:
    """What the run of a tree under coverage found: the tests that reach each line."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.data: list[CoverageData] = []  # a part for each folder of tests
        self.seconds: dict[str, float] = {}  # of each test
        self.users: defaultdict[str, set[str]] = defaultdict(set)  # of each fixture

    def read(self, folder: Path) -> None:
        """Take in what the run of one folder of tests found."""
        part = CoverageData(str(folder / "lines"))
        part.read()
        self.data.append(part)
        for line in (folder / TESTS).read_text().splitlines():
            name, seconds, _, fixtures = json.loads(line)
            self.seconds[name] = seconds
            for fixture in fixtures:
                self.users[fixture].add(name)

    def tests(self, mutant: Mutant) -> list[str]:
        """The tests that reach a mutant; where it runs at import, those that use what it binds.

        Where no test reaches a line that says its name, those that reach the same file. Nearest
        first, file by file, so that fixtures are made once.
        """
        found = self._reaching(mutant)
        files: defaultdict[str, float] = defaultdict(float)
        for name in found:
            files[_file(name)] += self.seconds[name]

        def order(name: str) -> tuple[int, float, str, float]:
            """Nearest first, then what takes least."""
            file = _file(name)
            return -_nearness(file, mutant.path), files[file], file, self.seconds[name]

        return sorted(found, key=order)

    def _reaching(self, mutant: Mutant) -> set[str]:
        contexts = self._contexts(mutant.path, range(mutant.line, mutant.end + 1))
        found = self._named(contexts)
        if "" not in contexts:
            return found
        # What imports it in a process of its own is only a part of what uses it.
        for name in mutant.names or (mutant.scope.split(".")[-1],):
            for path, lines in _mentions(self.root, name, mutant.path):
                found |= self._named(self._contexts(path, lines))
        return found or self._named(self._contexts(mutant.path, None))

    def _contexts(self, path: str, lines: Iterable[int] | None) -> set[str]:
        """What reached lines of a file: tests, fixtures, and "" for imports; None is all lines."""
        names: set[str] = set()
        for part in self.data:
            found = part.contexts_by_lineno(str(self.root / path))
            names |= {name for line in lines or found for name in found.get(line, ())}
        return names

    def _named(self, contexts: set[str]) -> set[str]:
        tests = contexts & self.seconds.keys()
        for context in contexts:
            if context.startswith(FIXTURE):
                base, _, name = context.removeprefix(FIXTURE).rpartition(" ")
                tests |= {test for test in self.users[name] if test.startswith(base)}
        return tests


def _file(test: str) -> str:
    return test.partition("::")[0]


def _nearness(file: str, path: str) -> int:
    """How many parts of its path a file of tests has in common with what it might mirror."""
    own = [part.removeprefix("test_") for part in Path(file).parts[1:]]
    pairs = zip(own, Path(path).parts, strict=False)
    return next((at for at, (one, other) in enumerate(pairs) if one != other), len(own))


def _mentions(root: Path, name: str, path: str) -> Iterator[tuple[str, list[int]]]:
    """Files and lines that name what a module binds; only its own where the name is private."""
    word = re.compile(rf"\b{re.escape(name)}\b")
    everywhere = (file for package in PACKAGES for file in sorted((root / package).rglob("*.py")))
    for file in [root / path] if name.startswith("_") else everywhere:
        lines = file.read_text().splitlines()
        found = [number for number, line in enumerate(lines, 1) if word.search(line)]
        if found:
            yield str(file.relative_to(root)), found


def _learn(folder: Path, clone: Path, packages: Sequence[str] | None) -> _Reach:
    """Run each folder of the default tests once under coverage, or read what was learned."""
    reach = _Reach(clone)
    top = sorted(path for path in (clone / "tests").iterdir() if path.name != "__pycache__")
    groups = {path.name: [path] for path in top if path.is_dir()}
    if packages is None:
        groups["files"] = [path for path in top if path.name.startswith("test_")]
    for name in Bar(packages or groups, desc="default tests under coverage", unit="folder"):
        done = folder / "reach" / name
        if not (done / "whole").exists():
            _cover(done, clone, groups[name])
        reach.read(done)
    return reach


def _cover(folder: Path, clone: Path, paths: Sequence[Path]) -> None:
    """Run tests under coverage; those that a broken run leaves out can catch nothing."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    settings = folder / "coveragerc"
    sources = ",".join(f"{clone / name}/*" for name in PACKAGES)
    settings.write_text(_COVERAGE.format(folder=folder, sources=sources))
    tool = ["-m", "coverage", "run", f"--rcfile={settings}"]
    workers = ["-n", str(available_cores()), "--dist", "worksteal"]
    with _pytest(folder, clone, workers + [str(path) for path in paths], tool) as process:
        status = process.wait()
    if not (folder / TESTS).exists():
        raise RuntimeError(f"the tests could not be run, see {folder / 'log'}")
    if status > 1:  # 1: a test failed, which may be due to coverage
        Bar.write(f"{folder.name} broke off, see {folder / 'log'}", file=sys.stderr)
    combine = [sys.executable, "-m", "coverage", "combine", f"--rcfile={settings}", "--quiet"]
    subprocess.run(combine, check=True, cwd=clone, stdout=subprocess.DEVNULL)
    (folder / "whole").touch()


@contextmanager
def _pytest(
    folder: Path, clone: Path, arguments: Sequence[str], tool: Sequence[str] = ()
) -> Iterator[subprocess.Popen[bytes]]:
    """Pytest in a clone, with the plugin's folder; whatever is left of it is killed."""
    own = {FOLDER: str(folder)}
    command = [sys.executable, *tool, "-m", "pytest", "-p", "benchmarks.support.reach"]
    command += ["-q", "-p", "no:cacheprovider", *arguments]
    with (folder / "log").open("wb") as log:
        environment, nothing = os.environ | own, subprocess.DEVNULL
        process = subprocess.Popen(
            command, cwd=clone, env=environment, stdin=nothing, stdout=log, stderr=log
        )
        try:
            yield process
        finally:
            for each in psutil.process_iter():
                with suppress(psutil.Error):
                    if own.items() <= each.environ().items():
                        each.kill()
            process.wait()


def _test_all(
    mutants: list[Mutant], clones: list[Path], reach: _Reach, seconds: float
) -> Iterator[Outcome]:
    free: SimpleQueue[Path] = SimpleQueue()
    for clone in clones:
        free.put(clone)

    def test(mutant: Mutant) -> Outcome:
        """Test in a clone that no other uses meanwhile."""
        clone = free.get()
        try:
            return _test(mutant, clone, reach, seconds)
        finally:
            free.put(clone)

    with ThreadPoolExecutor(len(clones)) as pool:
        yield from (done.result() for done in as_completed([pool.submit(test, m) for m in mutants]))


def _test(mutant: Mutant, clone: Path, reach: _Reach, seconds: float) -> Outcome:
    """Run the tests that reach a mutant until one fails that passes without it."""
    tests, path, begin = reach.tests(mutant), clone / mutant.path, time.monotonic()
    source = path.read_bytes()
    reason = "all of them pass" if tests else "no default test reaches it"
    caught = False
    for left in _batches(tests, reach.seconds):
        while left and not caught:
            _write(path, mutant.apply(source))
            try:
                failed = _first_failure(left, clone, reach.seconds, begin + seconds)
            finally:
                _write(path, source)
            if failed is None:
                break
            if _first_failure([failed], clone, reach.seconds) is None:
                caught, reason = True, failed
            left = left[left.index(failed) + 1 :]
        if caught:
            break
        if time.monotonic() > begin + seconds:
            reason = f"not all of them ran within {seconds / 60:g} minutes"
            break
    return Outcome(
        mutant=str(mutant),
        caught=caught,
        reason=reason,
        tests=len(tests),
        seconds=round(time.monotonic() - begin, 1),
    )


def _batches(tests: Sequence[str], seconds: dict[str, float]) -> Iterator[list[str]]:
    """The tests in ever larger runs: most mutants fall in the first, which begins at once."""
    batch: list[str] = []
    took, most = 0.0, _BATCH_S
    for index, test in enumerate(tests):
        another = index == 0 or _file(test) != _file(tests[index - 1])
        took += seconds[test] + _FILE_S * another
        batch.append(test)
        if took > most:
            yield batch
            batch, took, most = [], 0.0, _LARGER * most
    yield batch


def _write(path: Path, source: bytes) -> None:
    """Write a source with a time of its own: Python knows compiled files by time and size."""
    path.write_bytes(source)
    long_ago = random.getrandbits(30)
    os.utime(path, (long_ago, long_ago))


def _first_failure(
    tests: list[str], clone: Path, seconds: dict[str, float], end: float = float("inf")
) -> str | None:
    """The first of some tests that fails, hangs, or does not survive; None when none has."""
    limits = {name: max(_LEAST_S, _TIMES * seconds[name]) for name in tests}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / CHOSEN).write_text(json.dumps(limits))
        with _pytest(folder, clone, ["-x", *dict.fromkeys(map(_file, tests))]) as process:
            while process.poll() is None:
                time.sleep(0.1)
                running, since = _running(folder, tests[0])
                if time.time() > since + limits[running] + _GRACE_S:
                    return running
                if time.monotonic() > end:
                    return None
        if process.returncode == 0:
            return None
        rows = folder / TESTS
        ran = [json.loads(line) for line in rows.read_text().splitlines()] if rows.exists() else []
        failed = (test for test, _, passed, _ in ran if not passed)
        return next(failed, _running(folder, tests[0])[0])


def _running(folder: Path, first: str) -> tuple[str, float]:
    """The test that runs, and since when; the first one, while tests are still collected."""
    begun = folder / RUNNING
    if not begun.exists():
        return first, (folder / CHOSEN).stat().st_mtime
    return begun.read_text() or first, begun.stat().st_mtime
