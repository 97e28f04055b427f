"""What an evaluation may take of the machine, and that it fails alone when it takes more."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from runtimes.artifact import Artifact
from runtimes.threads import available_cores
from service.jobs.process import evaluation_memory, evaluation_threads
from service.processes import available_memory, family, resident_bytes
from service.settings import Settings
from tests.service.conftest import wait_until
from tests.service.front import Front
from tests.service.jobs.postgres import emptied
from tests.service.jobs.test_worker import SHORT, child_of

LIMITS = {
    # Less than what it takes to load torch, which the child really does.
    "out_of_memory": ({"evaluation_memory_mb": 120.0}, "needs more than the 120 MB of memory"),
    "storage_spent": ({"stored_mb": 0.001}, "and others of its sender keep more than the 0.001 MB"),
    "time_limit": ({"evaluation_max_hours": 0.36 / 3600}, "takes longer than the 0.0001 hours"),
}


@pytest.mark.parametrize("code", LIMITS)
def test_an_evaluation_over_a_limit_is_ended_and_fails_alone(front: Front, code: str) -> None:
    limit, excess = LIMITS[code]
    job_id = front.submit(SHORT)
    job = front.run_all(**limit)[job_id]
    message = f"the evaluation {excess} allowed"
    assert (job.status, job.error) == ("failed", {"code": code, "message": message})
    assert child_of(job_id) is None
    assert {path.name for path in front.folder(job_id).iterdir()} == {"inputs.json", "pixels-0.npy"}


def test_a_child_that_is_killed_again_and_again_fails_its_job(front: Front) -> None:
    job_id, seen = front.submit(SHORT), set[int]()
    with front.evaluator():
        while len(seen) < 3:
            assert (child := wait_until(lambda: child_of(job_id)))
            if child not in seen:
                os.kill(child, signal.SIGKILL)  # what the kernel does when memory runs out
                seen.add(child)
        assert wait_until(lambda: not front.job(job_id).active)
    error = front.job(job_id).error
    assert error is not None and error["code"] == "evaluator_died"
    assert "killed by signal 9" in error["message"]
    assert not (front.folder(job_id) / "report").exists()


def test_several_evaluators_share_one_table_of_postgresql(
    tmp_path: Path, artifacts: dict[str, Artifact], postgresql_server: str
) -> None:
    front = Front(tmp_path, artifacts, database=emptied(postgresql_server))
    first_id, _ = (front.submit(SHORT, count=2, seed=seed) for seed in range(2))
    with front.evaluator():
        assert (child := wait_until(lambda: child_of(first_id)))
        assert postgresql_server.encode() not in Path(f"/proc/{child}/cmdline").read_bytes()
        jobs = front.run_all().values()
    assert [(job.status, job.error) for job in jobs] == [("succeeded", None)] * 2
    assert all(job.done == job.total for job in jobs)
    first, second = sorted((job.started or 0, job.finished or 0) for job in jobs)
    assert second[0] < first[1]
    assert not (tmp_path / "assay.sqlite3").exists()
    front.close()


def test_the_memory_of_descendants_counts() -> None:
    inner = "x = bytearray(150_000_000); print('ready', flush=True); input()"
    outer = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]])"
    command = [sys.executable, "-c", outer, inner]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"ready\n"
        members = family(process.pid)
        assert len(members) == 2
        assert 150_000_000 < resident_bytes(members) < 300_000_000
        process.communicate(b"\n")
    assert resident_bytes(members) == 0 and family(process.pid) == []


def test_memory_is_a_share_of_what_the_container_has(tmp_path: Path) -> None:
    everything = psutil.virtual_memory().total
    assert available_memory(root=tmp_path) == everything
    for limit, expected in (("max\n", everything), ("1000000\n", 1_000_000)):
        (tmp_path / "memory.max").write_text(limit)
        assert available_memory(root=tmp_path) == expected
    whole = available_memory()
    assert evaluation_memory(Settings()) == whole // 2
    assert evaluation_memory(Settings(evaluators=2)) == whole // 2 // 2
    assert evaluation_memory(Settings(evaluation_memory_mb=1.5)) == 1_500_000


def test_threads_are_what_predictions_leave() -> None:
    cores = available_cores()
    assert evaluation_threads(Settings(evaluation_threads=7)) == 7
    assert evaluation_threads(Settings(predict_threads=cores)) == 1
    for evaluators in (1, 2):
        half = max(1, cores // 2 // evaluators)
        assert evaluation_threads(Settings(evaluators=evaluators)) == half
        settings = Settings(predict_threads=1, evaluators=evaluators)
        assert evaluation_threads(settings) == max(1, (cores - 1) // evaluators)
