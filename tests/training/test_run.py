import json
import subprocess
from pathlib import Path

import pytest

from training import run as records


def git(folder: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=test", "-c", "user.email=test@localhost"]
    subprocess.run(["git", "-C", folder, *identity, *arguments], check=True, capture_output=True)


@pytest.fixture
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository of code that takes the place of our own, with one commit."""
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "step.py").write_text("lr = 1\n")
    (folder / "weights").write_bytes(bytes(range(256)))
    git(folder, "init")
    git(folder, "add", ".")
    git(folder, "commit", "-m", "Begin")
    monkeypatch.setattr(records, "_CODE", folder)
    return folder


def commits(run: Path) -> list[str]:
    sittings = json.loads((run / records.RUN).read_text())["sittings"]
    return [sitting["commit"] for sitting in sittings]


def test_changes_since_the_commit_are_kept_for_each_sitting(code: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (code / "notes").write_text("not tracked")
    records.record_session(run, 0, {}, 1)
    assert not list(run.glob("*.patch"))
    for step, name in ((0, "changes.patch"), (8, "changes-8.patch")):
        changed = {"step.py": b"lr = %d # \xff\n" % step, "weights": bytes(range(step, 250))}
        for file, content in changed.items():
            (code / file).write_bytes(content)
        records.record_session(run, step, {}, 1)
        git(code, "checkout", ".")
        git(code, "apply", str(run / name))
        assert all((code / file).read_bytes() == content for file, content in changed.items())
    assert len(list(run.glob("*.patch"))) == 2
    assert [len(commit) for commit in commits(run)] == [40, 41, 41]


def test_code_without_git_is_recorded_as_unknown(
    code: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (code / "step.py").write_text("lr = 2\n")
    monkeypatch.setenv("PATH", str(tmp_path))
    records.record_session(tmp_path, 0, {}, 1)
    assert commits(tmp_path) == ["unknown"] and not list(tmp_path.glob("*.patch"))


def test_later_sittings_keep_what_was_recorded(tmp_path: Path) -> None:
    records.record_session(tmp_path, 0, {"data": "images", "init_digest": "1f"}, 1)
    records.record_session(tmp_path, 8, {"data": "images"}, 2)
    recorded = json.loads((tmp_path / records.RUN).read_text())
    assert recorded["init_digest"] == "1f"
    assert [(each["step"], each["processes"]) for each in recorded["sittings"]] == [(0, 1), (8, 2)]
