import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from core.files import find_by_digest, remove_leftovers, replacing, sha256, write_whole


def test_a_file_is_written_whole_into_a_new_folder_and_readable_by_all(tmp_path: Path) -> None:
    path = tmp_path / "new" / "file.txt"
    write_whole(path, "é")
    write_whole(path, b"two")
    assert path.read_bytes() == b"two" and path.stat().st_mode & 0o777 == 0o644
    assert [entry.name for entry in path.parent.iterdir()] == ["file.txt"]


def test_an_error_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_whole(path, b"old")
    with pytest.raises(KeyboardInterrupt), replacing(path) as partial:
        partial.write_bytes(b"half")
        raise KeyboardInterrupt
    assert path.read_bytes() == b"old" and list(tmp_path.iterdir()) == [path]


def test_leftovers_of_dead_processes_go_and_those_of_living_ones_stay(tmp_path: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    names = [f".file.{process}-x.tmp" for process in (ended.pid, os.getpid())]
    for name in names:
        (tmp_path / name).touch()
    remove_leftovers(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == names[1:]


def test_a_digest_is_that_of_the_bytes_and_finds_its_file(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "manifest.json"
    write_whole(path, b"one")
    write_whole(tmp_path / "other" / "manifest.json", b"two")
    assert sha256(path) == sha256(b"one") == hashlib.sha256(b"one").hexdigest()
    assert find_by_digest([tmp_path / "missing", tmp_path], "manifest.json", sha256(b"one")) == path
    assert find_by_digest([path.parent], "manifest.json", sha256(b"one")) == path
    assert find_by_digest([tmp_path], "manifest.json", sha256(b"three")) is None
