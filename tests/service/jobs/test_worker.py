import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from runtimes.artifact import Artifact
from service.jobs.table import Job
from service.jobs.uploads import evaluations_folder
from service.jobs.worker import Evaluator
from service.settings import ROOT
from tests.service.front import Front, pictures
from tests.service.tiny_artifact import LABELS

LONG = {"name": "pgd", "eps": ["0.01", "0.02"], "steps": 60}
SHORT = {"name": "fgsm", "eps": ["0.05"]}


class House(Front):
    """The routes of evaluations with an evaluator that a test may stop."""

    def submit(self, *attacks: dict[str, Any], count: int = 40, **spec: Any) -> str:
        labels = json.dumps([LABELS[index % 3] for index in range(count)])
        spec = {"attacks": attacks} | spec
        response = self.post(pictures(count), spec=json.dumps(spec), labels=labels)
        assert response.status_code == 202, response.text
        return response.json()["id"]

    def job(self, job_id: str) -> Job:
        job = self.store.get(job_id)
        assert job is not None
        return job

    def folder(self, job_id: str) -> Path:
        return evaluations_folder(self.settings.state) / job_id

    def shards(self, job_id: str) -> dict[str, str]:
        """Digest of every finished shard."""
        files = (self.folder(job_id) / "report").rglob("*.safetensors")
        return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}

    @contextmanager
    def evaluator(self) -> Iterator[Evaluator]:
        evaluator = Evaluator(self.store, self.settings, lost_after=3.0)
        evaluator.start()
        try:
            yield evaluator
        finally:
            evaluator.stop()
            assert not evaluator.alive()


@pytest.fixture
def house(tmp_path: Path, artifacts: dict[str, Artifact]) -> Iterator[House]:
    house = House(tmp_path / "state", artifacts)
    yield house
    house.store.close()


def wait_for(condition: Callable[[], Any], timeout: float = 90.0) -> Any:
    until = time.monotonic() + timeout
    while not (value := condition()):
        assert time.monotonic() < until, "it did not happen in time"
        time.sleep(0.05)
    return value


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


def finished(house: House, job_id: str) -> Callable[[], Job | None]:
    return lambda: None if house.job(job_id).active else house.job(job_id)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, artifacts: dict[str, Artifact]) -> House:
    """A house in which the long evaluation has run in one go; its id is the first of the page."""
    house = House(tmp_path_factory.mktemp("undisturbed"), artifacts)
    with house.evaluator():
        job_id = house.submit(LONG)
        job = wait_for(finished(house, job_id))
    assert job.status == "succeeded", job.error
    return house


def check_same_as_undisturbed(house: House, job_id: str, undisturbed: House) -> None:
    (reference,), _ = undisturbed.store.page()
    job = house.job(job_id)
    assert job.error is None
    assert job.result == reference.result
    assert house.shards(job_id) == undisturbed.shards(reference.id)


def test_an_evaluation_runs_to_its_report(undisturbed: House) -> None:
    (job,), _ = undisturbed.store.page()
    assert (job.done, job.total, job.attempts) == (job.cost, job.cost, 1)
    report = json.loads((undisturbed.folder(job.id) / "report" / "report.json").read_bytes())
    assert job.result == report["summary"]
    assert job.result is not None and job.result["models"][0]["samples"] == 40
    assert undisturbed.store.seconds_of(job.models, job.cost)


def _run_evaluator_alone(house: House) -> subprocess.Popen[bytes]:
    code = (
        "import sys, time; from pathlib import Path;"
        "from service.jobs.worker import Evaluator;"
        "from service.jobs.queue import JobStore;"
        "from service.settings import Settings;"
        "state, models = map(Path, sys.argv[1:]);"
        "settings = Settings(state=state, models=[models]);"
        "Evaluator(JobStore.open(settings), settings, lost_after=3).start(); time.sleep(600)"
    )
    places = [str(house.settings.state), str(house.settings.models[0])]
    return subprocess.Popen([sys.executable, "-c", code, *places], cwd=ROOT)


def test_killing_children_and_evaluators_loses_nothing_and_leaves_no_orphan(
    house: House, undisturbed: House
) -> None:
    job_id = house.submit(LONG)
    with _run_evaluator_alone(house) as alone:
        wait_for(lambda: house.shards(job_id))
        child = wait_for(lambda: child_of(job_id))
        os.kill(child, signal.SIGKILL)
        replaced = wait_for(lambda: (found := child_of(job_id)) != child and found)
        wait_for(lambda: os.getpriority(os.PRIO_PROCESS, replaced) == 19)  # it is set up
        os.kill(replaced, signal.SIGSTOP)  # it cannot see that its evaluator dies
        alone.kill()
    wait_for(lambda: child_of(job_id) is None, timeout=2)
    assert house.job(job_id).status == "running"
    with _run_evaluator_alone(house) as alone:
        last = wait_for(lambda: child_of(job_id))
        wait_for(lambda: len(house.shards(job_id)) >= 2)
        alone.kill()
        os.kill(last, signal.SIGKILL)
    with house.evaluator():
        wait_for(finished(house, job_id))
    check_same_as_undisturbed(house, job_id, undisturbed)


def test_a_stop_gives_a_running_job_back_and_a_cancellation_ends_it_between_two_steps(
    house: House,
) -> None:
    job_id = house.submit(LONG | {"steps": 1000})
    with house.evaluator():
        wait_for(lambda: house.job(job_id).stage)
    assert (house.job(job_id).status, house.job(job_id).attempts) == ("queued", 0)
    assert child_of(job_id) is None
    done = house.job(job_id).done
    with house.evaluator():
        wait_for(lambda: "pgd" in house.job(job_id).stage and house.job(job_id).done > done)
        house.store.request_cancel(job_id)
        job = wait_for(finished(house, job_id), timeout=5)
    assert job.status == "cancelled" and child_of(job_id) is None


def damaged(house: House, name: str, damage: Callable[[bytes], bytes] | None = None) -> str:
    """An evaluation with a file that is changed, or gone."""
    job_id = house.submit(SHORT, count=2)
    path = house.folder(job_id) / name
    content = path.read_bytes()
    path.unlink()
    if damage is not None:
        path.write_bytes(damage(content))
    return job_id


def test_faults_are_told_in_their_code_without_a_path(house: House, tmp_path: Path) -> None:
    expected = {
        damaged(house, "images.zip", lambda _: b"PK nothing"): "unreadable_inputs",
        # Its checksum is then wrong.
        damaged(
            house, "images.zip", lambda zipped: zipped.replace(b"IDAT", b"IDOT")
        ): "unreadable_inputs",
        damaged(house, "inputs.json"): "internal_error",
    }
    with house.evaluator():
        jobs = {job_id: wait_for(finished(house, job_id)) for job_id in expected}
    for job_id, code in expected.items():
        assert (error := jobs[job_id].error) is not None
        assert error["code"] == code and "/" not in error["message"]
    job_id = house.submit(SHORT)
    (tmp_path / "empty").mkdir()
    house.settings = house.settings.model_copy(update={"models": [tmp_path / "empty"]})
    with house.evaluator():
        job = wait_for(finished(house, job_id))
    message = "the model fashion-elliptical:1 is no longer served"
    assert (job.status, job.error) == ("failed", {"code": "model_gone", "message": message})


def test_leftovers_and_expired_evaluations_are_removed(house: House) -> None:
    job_id, kept = house.submit(SHORT, count=2), house.submit(SHORT, count=2)
    for each in (job_id, kept):
        house.store.request_cancel(each)
    fresh, stale = house.folder("fresh"), house.folder("stale")
    fresh.mkdir()
    shutil.copytree(house.folder(job_id), stale)
    for folder in (stale, house.folder(job_id), house.folder(kept)):
        os.utime(folder, (0, 0))
    house.store.delete(job_id)
    with house.evaluator():
        wait_for(lambda: not stale.exists() and not house.folder(job_id).exists())
    assert fresh.exists() and house.folder(kept).exists()
    house.settings = house.settings.model_copy(update={"retention_hours": 1e-9})
    with house.evaluator():
        wait_for(lambda: not house.folder(kept).exists())
    assert house.job(kept).deleted is not None
