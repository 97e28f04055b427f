"""What a confined process may still do; see core.confined."""

import subprocess
import sys
from pathlib import Path

import pytest

from core.confined import landlock_version

TRIES = {
    "write a new file": "open(outside + '/new', 'w')",
    "map a file": "__import__('mmap').mmap(open(victim, 'r+b').fileno(), 0)",
    "append": "open(victim, 'ab')",
    "remove a file": "os.unlink(victim)",
    "rename a file": "os.rename(victim, victim + '2')",
    "move one out": "open('mine', 'w').close(); os.rename('mine', outside + '/mine')",
    "make a folder": "os.mkdir(outside + '/folder')",
    "write in its own folder": "open('mine', 'w').write('x'); os.rename('mine', 'moved')",
    "throw away": "open('/dev/null', 'w').write('x')",
    "read": "open(victim).read()",
}
ALLOWED = ["write in its own folder", "throw away", "read"]


@pytest.mark.skipif(not landlock_version(), reason="the kernel has no Landlock")
def test_a_confined_process_writes_in_its_own_folder_only(tmp_path: Path) -> None:
    own, outside = tmp_path / "own", tmp_path / "outside"
    own.mkdir()
    outside.mkdir()
    victim = outside / "victim"
    victim.write_text("untouched")
    lines = [f"import os; outside, victim = {str(outside)!r}, {str(victim)!r}"]
    for what, code in TRIES.items():
        lines += ["try:", f"    {code}", f"    print({what!r})", "except PermissionError: pass"]
    (own / "tries.py").write_text("\n".join(lines))
    command = [sys.executable, "-m", "core.confined", "--write", str(own), "tries"]
    folders = f"{Path(__file__).parents[2]}:{own}"
    told = subprocess.run(
        command, cwd=own, env={"PYTHONPATH": folders}, capture_output=True, text=True, check=True
    )
    assert told.stdout.splitlines() == ALLOWED
    assert [path.name for path in outside.iterdir()] == ["victim"]
    assert victim.read_text() == "untouched"
