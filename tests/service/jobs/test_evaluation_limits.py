"""What an evaluation may take of the machine, and that it fails alone when it takes more."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil

from runtimes.artifact import Artifact
from runtimes.threads import available_cores
from service.jobs.process import evaluation_memory, evaluation_threads
from service.processes import available_memory, family, resident_bytes
from service.settings import Settings
from tests.service.jobs.postgres import truncated
from tests.service.jobs.test_worker import SHORT, House, child_of, finished, house, wait_for

__all__ = ["house"]  # the fixture


def test_an_evaluation_over_its_memory_is_ended_and_fails_alone(house: House) -> None:
    greedy = house.submit(SHORT)
    # Less than what it takes to load torch, which the child really does.
    house.settings = house.settings.model_copy(update={"evaluation_memory_mb": 120.0})
    with house.evaluator() as evaluator:
        job = wait_for(finished(house, greedy))
        assert evaluator.alive()
    message = "the evaluation needs more than the 120 MB of memory allowed"
    assert (job.status, job.error) == ("failed", {"code": "out_of_memory", "message": message})
    assert child_of(greedy) is None
    assert {path.name for path in house.folder(greedy).iterdir()} == {"images.zip", "inputs.json"}


def test_the_time_of_an_evaluation_is_limited_over_all_attempts(house: House) -> None:
    house.settings = house.settings.model_copy(update={"evaluation_max_hours": 0.5 / 3600})
    job_id = house.submit(SHORT)
    with house.evaluator():
        job = wait_for(finished(house, job_id))
    assert job.error is not None and job.error["code"] == "time_limit"
    assert "longer than" in job.error["message"] and child_of(job_id) is None


def test_a_child_that_is_killed_again_and_again_fails_its_job(house: House) -> None:
    job_id, seen = house.submit(SHORT), set[int]()
    with house.evaluator():
        while len(seen) < 3:
            child = wait_for(lambda: child_of(job_id))
            if child not in seen:
                os.kill(child, signal.SIGKILL)  # what the kernel does when memory runs out
                seen.add(child)
        job = wait_for(finished(house, job_id))
    assert job.error is not None and job.error["code"] == "evaluator_died"
    assert "killed by signal 9" in job.error["message"]
    assert not (house.folder(job_id) / "report").exists()


def test_several_evaluators_share_one_table_of_postgresql(
    tmp_path: Path, artifacts: dict[str, Artifact], postgresql_server: str
) -> None:
    house = House(tmp_path, artifacts, database=truncated(postgresql_server))
    ids = [house.submit(SHORT, count=2, seed=seed) for seed in range(2)]
    with house.evaluator(), house.evaluator():
        child = wait_for(lambda: child_of(ids[0]))
        assert postgresql_server.encode() not in Path(f"/proc/{child}/cmdline").read_bytes()
        jobs = [wait_for(finished(house, job_id)) for job_id in ids]
    assert [(job.status, job.error) for job in jobs] == [("succeeded", None)] * 2
    assert all(job.done == job.total for job in jobs)
    first, second = sorted((job.started, job.finished) for job in jobs)
    assert second[0] < first[1]
    assert not (tmp_path / "assay.sqlite3").exists()
    house.store.close()


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
