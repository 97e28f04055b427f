"""Every command block of README and docs: it is about what exists, and runs as it stands.

A block that cannot run here says before it what it needs: `<!-- needs: four GPUs -->`; one that
ends otherwise than with 0 says how: `<!-- exit: 130 -->`. Where a command's output is shown, "..."
stands for any text.
"""

import contextlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from benchmarks.__main__ import names as benchmarks
from benchmarks.support.server import end, free_port
from export.__main__ import _COMMANDS, _export_parser
from results.__main__ import _parser as results_parser
from robustness.arguments import read_spec
from robustness.options import parser as robustness_parser
from service.settings import ROOT
from training.__main__ import _parser as training_parser
from training.plan import expand
from training.recipe_file import read_recipe

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(
    r"(?:^<!-- (needs|exit): ([^\n]+) -->\n)?^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL
)
PORT = ":3000"
SERVER = ("make demo", "./assay serve")
LINE = re.compile(r"^.*(: \d+%|\d of \d).* so far$\n?", re.MULTILINE)  # of progress


@dataclass
class Block:
    page: Path
    language: str
    text: str
    needs: str | None = None
    exit: int = 0

    def commands(self) -> Iterator[tuple[str, str]]:
        """Each command with what is shown of its output; without prompts every line is one."""
        prompts, lines = "\n$ " in f"\n{self.text}", self.text.splitlines()
        while lines:
            line = lines.pop(0)
            if not line.strip() or (prompts and not line.startswith("$ ")):
                continue
            command, last = [line.removeprefix("$ ") if prompts else line], line
            here = re.search(r"<<'(\w+)'", line)
            while (last.endswith("\\") if here is None else last != here[1]) and lines:
                last = lines.pop(0)
                command.append(last)
            shown = []
            while prompts and lines and not lines[0].startswith("$ "):
                shown.append(lines.pop(0))
            yield "\n".join(command), "\n".join(shown)


def blocks(page: Path) -> list[Block]:
    found = []
    for mark, told, language, text in BLOCK.findall(page.read_text()):
        if language in ("", "python"):
            needs, code = (told if mark == "needs" else None), (int(told) if mark == "exit" else 0)
            found.append(Block(page, language, text, needs, code))
    return found


COMMANDS = [
    pytest.param(command, id=f"{page.stem}: {command.split(chr(10))[0][:70]}")
    for page in PAGES
    for block in blocks(page)
    if not block.language
    for command, _ in block.commands()
]
NEW = ("artifacts/mine", "runs/", "first", "second", "compare", "mine")  # made by the commands


def check_assay(name: str, words: list[str]) -> None:
    """Refuse what the command would not understand, as it would itself."""
    if name in ("evaluate", "verify", "convert", "replay", "check-serving"):
        arguments = robustness_parser().parse_args([name, *words])
        if name == "evaluate" and arguments.spec is None:
            read_spec(arguments)
    elif name == "train":
        check_train(words)
    elif name == "export":
        known = words[0] in _COMMANDS
        parser = _COMMANDS[words[0]][1]() if known else _export_parser()
        parser.parse_args(words[known:])
    elif name == "results":
        results_parser().parse_args(words)
    else:
        assert name in ("serve", "smoke", "runtimes") or (
            name == "bench" and words[0] in benchmarks()
        )


def check_train(words: list[str]) -> None:
    if words == ["--help"]:
        return
    own = words[0] in ("all", "list", "plan", "generate")
    arguments = training_parser().parse_args(words if own else ["fit", *words])
    if words[0] in ("all", "plan"):
        files, choices = (
            [word for word in arguments.words if ("=" in word) is chooses]
            for chooses in (False, True)
        )
        assert list(expand([ROOT / file for file in files], choices))
    if getattr(arguments, "recipe", None):
        read_recipe(ROOT / arguments.recipe, arguments.overrides)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_documented_command_names_what_exists(command: str) -> None:
    words = shlex.split(command.partition("<<")[0].replace("\\\n", " "), comments=True)
    for word in words:
        path = word.partition("@")[2] or word
        if re.match(r"(artifacts|recipes|deploy|docs)/", path) and not path.startswith(NEW):
            assert (ROOT / path).exists(), path
    if words[0] == "./assay":
        check_assay(words[1], words[2:])
    elif words[0] == "make":
        targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        assert all(word in targets for word in words[1:] if word[0] != "-" and "=" not in word)
    elif words[0] == ".venv/bin/torchrun":
        rest = words[words.index("training") + 1 :]
        check_assay("train", rest[1:])


def test_commands_in_sentences_are_commands_of_the_entry() -> None:
    told = (ROOT / "assay").read_text()
    listed = re.search(r"known: ([a-z, -]+)", told)
    assert listed is not None
    for page in PAGES:
        for name in re.findall(r"`\./assay ([\w-]+)", page.read_text()):
            assert name in listed[1].split(", "), f"{page.name}: {name}"


def test_a_block_is_read_command_by_command() -> None:
    text = "$ cat > a <<'END'\n{}\nEND\n$ ls \\\n  a\na\n\n..."
    found = list(Block(ROOT, "", text).commands())
    assert found == [("cat > a <<'END'\n{}\nEND", ""), ("ls \\\n  a", "a\n\n...")]
    assert list(Block(ROOT, "", "a\n\nb\n").commands()) == [("a", ""), ("b", "")]


def clone(folder: Path) -> Path:
    """The files of the repository as they are now, and an environment that is set up."""
    listed = [
        "git",
        "-C",
        str(ROOT),
        "ls-files",
        "-z",
        "--cached",
        "--others",
        "--exclude-standard",
    ]
    names = subprocess.run(listed, capture_output=True, check=True).stdout.decode().split("\0")
    for name in filter(None, names):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    (folder / ".venv").mkdir()
    for path in Path(sys.prefix).iterdir():
        (folder / ".venv" / path.name).symlink_to(path)
    for stamp in (".torch", ".cpu", ".dev"):
        (folder / ".venv" / stamp).unlink(missing_ok=True)
        (folder / ".venv" / stamp).touch()
    return folder


class Shell:
    """Runs commands in a clone, each in a fresh shell; a server goes on until the end."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._port = folder, free_port()
        kept = {k: v for k, v in os.environ.items() if k in ("HOME", "LANG", "TMPDIR")}
        self._environment = kept | {"PATH": "/usr/local/bin:/usr/bin:/bin"}
        self._servers: list[subprocess.Popen[bytes]] = []

    def run(self, command: str) -> tuple[int, str]:
        """The exit status of a command, and what it wrote."""
        command = command.replace(PORT, f":{self._port}")
        if command.startswith(SERVER):
            return self._serve(command), ""
        ended = subprocess.run(
            ["bash", "-c", command], cwd=self.folder, env=self._environment, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        return ended.returncode, ended.stdout.replace(f":{self._port}", PORT)

    def python(self, text: str) -> tuple[int, str]:
        """Run a block of Python from the root of the clone."""
        (self.folder / "block.py").write_text(text.replace(PORT, f":{self._port}"))
        return self.run("PYTHONPATH=. .venv/bin/python block.py")

    def _serve(self, command: str) -> int:
        if self._servers:
            return 0
        option = f"PORT={self._port}" if command.startswith("make") else f"--port {self._port}"
        words = shlex.split(command, comments=True) + option.split()
        log = self.folder / "server.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                words, cwd=self.folder, env=self._environment, stdout=output,
                stderr=subprocess.STDOUT,
            )  # fmt: skip
        self._servers.append(process)
        ready = f"Ready: open http://127.0.0.1:{self._port}"
        until = time.monotonic() + 120
        while ready not in log.read_text():
            assert process.poll() is None and time.monotonic() < until, log.read_text()
            time.sleep(0.2)
        return 0

    def close(self) -> None:
        for process in self._servers:
            end(process)


def plain(text: str) -> str:
    """A text without what may differ: blanks, and the last digits of numbers."""
    text = re.sub(r"\d+\.\d{5,}", lambda number: f"{float(number[0]):.4f}", LINE.sub("", text))
    return re.sub(r"\s+", "", text)


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=[page.stem for page in PAGES])
def test_the_commands_of_a_page_run_in_a_fresh_clone(page: Path, tmp_path: Path) -> None:
    found = [block for block in blocks(page) if block.needs is None]
    if not found:
        pytest.skip("no command, or all of them need more than a machine")
    with contextlib.closing(Shell(clone(tmp_path))) as shell:
        for block in found:
            if block.language == "python":
                status, output = shell.python(block.text)
                assert status == 0, output
                continue
            for command, shown in block.commands():
                status, output = shell.run(command)
                assert status == block.exit, f"{command}\n{output}"
                if not command.startswith(SERVER):
                    check_output(command, shown, output)


def check_output(command: str, shown: str, output: str) -> None:
    """Refuse an output that differs from the one shown, part by part."""
    rest = plain(output)
    for part in filter(None, map(plain, shown.split("..."))):
        assert part in rest, f"{command}\nshown: {part}\nwritten: {output}"
        rest = rest.partition(part)[2]
