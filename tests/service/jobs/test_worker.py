import hashlib
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from data.errors import DataError
from runtimes.artifact import Artifact
from service.jobs.uploads import open_inputs
from service.settings import ROOT
from tests.service.conftest import wait_until
from tests.service.front import Front, check_error
from tests.service.tiny_artifact import LABELS

LONG = {"name": "pgd", "eps": ["0.01", "0.02"], "steps": 40}
SHORT = {"name": "fgsm", "eps": ["0.05"]}


def shards(front: Front, job_id: str) -> dict[str, str]:
    """Digest of every finished shard."""
    files = (front.folder(job_id) / "report").rglob("*.safetensors")
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def shard_times(front: Front, job_id: str) -> dict[str, int]:
    """When every finished shard was written."""
    files = (front.folder(job_id) / "report").rglob("*.safetensors")
    return {path.name: path.stat().st_mtime_ns for path in files}


def child_of(job_id: str) -> int | None:
    """The process that runs an evaluation."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            arguments = (folder / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"service.jobs.child" in arguments and job_id.encode() in arguments:
            return int(folder.name)
    return None


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, artifacts: dict[str, Artifact]) -> Front:
    """The long evaluation has run in one go; it is the first of the page."""
    front = Front(tmp_path_factory.mktemp("undisturbed"), artifacts)
    job_id = front.submit(LONG)
    job = front.run_all()[job_id]
    assert (job.status, job.attempts, job.done, job.total) == ("succeeded", 1, job.cost, job.cost)
    return front


def _run_evaluator_alone(front: Front) -> subprocess.Popen[bytes]:
    code = (
        "import sys, time; from pathlib import Path;"
        "from service.jobs.worker import Evaluator;"
        "from service.jobs.queue import JobStore;"
        "from service.settings import Settings;"
        "state, models = map(Path, sys.argv[1:]);"
        "settings = Settings(state=state, models=[models]);"
        "store = JobStore(settings.database_url);"
        "Evaluator(store, settings, lost_after=3).start(); time.sleep(600)"
    )
    places = [str(front.settings.state), str(front.settings.models[0])]
    return subprocess.Popen([sys.executable, "-c", code, *places], cwd=ROOT)


def test_killing_children_and_evaluators_loses_nothing_and_leaves_no_orphan(
    front: Front, undisturbed: Front
) -> None:
    job_id = front.submit(LONG)
    with _run_evaluator_alone(front) as alone:
        assert wait_until(lambda: shards(front, job_id))
        assert (child := wait_until(lambda: child_of(job_id)))
        os.kill(child, signal.SIGKILL)
        assert (replaced := wait_until(lambda: (found := child_of(job_id)) != child and found))
        assert wait_until(lambda: os.getpriority(os.PRIO_PROCESS, replaced) == 19)  # it is set up
        os.kill(replaced, signal.SIGSTOP)  # it cannot see that its evaluator dies
        alone.kill()
    assert wait_until(lambda: child_of(job_id) is None, seconds=2)
    assert front.job(job_id).status == "running"
    (reference,), _ = undisturbed.store.page()
    assert front.run_all()[job_id].result == reference.result
    assert shards(front, job_id) == shards(undisturbed, reference.id)


def test_what_is_stopped_or_cancelled_is_continued_to_the_same_result(
    front: Front, undisturbed: Front
) -> None:
    place = f"/v1/evaluations/{(job_id := front.submit(LONG))}"
    with front.evaluator():
        assert wait_until(lambda: front.job(job_id).stage)
    assert (front.job(job_id).status, front.job(job_id).attempts) == ("queued", 0)
    assert child_of(job_id) is None
    with front.evaluator():
        assert wait_until(lambda: len(shards(front, job_id)) >= 2)
        front.store.request_cancel(job_id)
        assert wait_until(lambda: front.job(job_id).status == "cancelled", seconds=5)
        kept = shard_times(front, job_id)
    assert child_of(job_id) is None
    answer = front.request("POST", f"{place}/continue")
    assert answer.status_code == 202 and answer.json()["status"] == "queued"
    assert answer.json() == answer.json() | {"finished": None, "cancel_requested": False}
    (reference,), _ = undisturbed.store.page()
    assert front.run_all()[job_id].result == reference.result
    assert shards(front, job_id) == shards(undisturbed, reference.id)
    assert kept and kept.items() <= shard_times(front, job_id).items()  # not written again
    check_error(front.request("POST", f"{place}/continue"), 409, "evaluation_not_cancelled", "")


def test_an_idle_evaluator_looks_for_work_at_intervals(
    front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[float] = []
    monkeypatch.setattr(front.store, "waiting", lambda: looks.append(time.monotonic()))
    with front.evaluator():
        time.sleep(1)
    assert 2 <= len(looks) <= 5


def test_faults_are_told_in_their_code_without_a_path(front: Front, tmp_path: Path) -> None:
    codes = ("unreadable_inputs", "internal_error")
    expected = {front.submit(SHORT, count=2): code for code in codes}
    cut, gone = map(front.folder, expected)
    whole = (cut / "pixels-0.npy").read_bytes()
    for content in (b"nothing", whole[:-1]):
        (cut / "pixels-0.npy").write_bytes(content)
        with pytest.raises(DataError):
            open_inputs(cut, LABELS)
    (gone / "inputs.json").unlink()
    for job_id, job in front.run_all().items():
        assert job.error is not None
        assert job.error["code"] == expected[job_id] and "/" not in job.error["message"]
    job_id = front.submit(SHORT)
    (tmp_path / "empty").mkdir()
    message = "the model fashion-elliptical:1 is no longer served"
    job = front.run_all(models=[tmp_path / "empty"])[job_id]
    assert job.error == {"code": "model_gone", "message": message}


def test_leftovers_and_expired_evaluations_are_removed(front: Front) -> None:
    job_id, kept = front.submit(SHORT, count=2), front.submit(SHORT, count=2)
    for each in (job_id, kept):
        front.store.request_cancel(each)
    fresh, stale = front.folder("fresh"), front.folder("stale")
    fresh.mkdir()
    shutil.copytree(front.folder(job_id), stale)
    for folder in (stale, front.folder(job_id), front.folder(kept)):
        os.utime(folder, (0, 0))
    front.store.delete(job_id)
    with front.evaluator():
        assert wait_until(lambda: not stale.exists() and not front.folder(job_id).exists())
    assert fresh.exists() and front.folder(kept).exists()
    with front.evaluator(retention_hours=1e-9):
        assert wait_until(lambda: not front.folder(kept).exists())
    assert front.job(kept).deleted is not None
