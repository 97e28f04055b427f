"""A disk without room, and uploads that break off: a clear answer, and nothing left or lost."""

import errno
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import event
from starlette.types import Message

from runtimes.artifact import Artifact
from service.jobs.process import ADDRESS
from service.jobs.queue import JobStore
from service.settings import ROOT
from tests.service.front import FGSM, PNG, URL, Front, archive, check_error, zipped
from tests.service.jobs.test_worker import SHORT


def _full(*_: object, **__: object) -> Any:
    raise OSError(errno.ENOSPC, "No space left on device")


SENT: dict[str, dict[str, Any]] = {
    "single files": {},
    "archive": {"files": archive(zipped({"a.png": PNG}))},
    "texts": {"files": [], "texts": '["good"]', "spec": '{"attacks": [{"name": "typos"}]}'},
}


@pytest.mark.parametrize(
    ("form", "at"),
    [
        *((form, "os.fsync") for form in SENT),
        ("single files", "tempfile.mkstemp"),
        ("single files", "pathlib.Path.mkdir"),
    ],
)
def test_an_upload_to_a_full_disk_is_refused_and_leaves_nothing(
    front: Front, monkeypatch: pytest.MonkeyPatch, at: str, form: str
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(at, _full)
        response = front.post(**SENT[form])
    check_error(response, 507, "disk_full", "nothing was accepted")
    assert front.folders() == [] and front.store.page() == ([], None)
    assert front.post(**SENT[form]).status_code == 202


def test_nothing_is_accepted_when_little_of_the_disk_is_free(
    tmp_path: Path, artifacts: dict[str, Artifact]
) -> None:
    front = Front(tmp_path, artifacts, free_mb=10**9)
    check_error(front.post(), 507, "disk_full", "nothing was accepted")
    assert front.folders() == [] and front.store.page() == ([], None)
    front.close()


def test_what_one_caller_keeps_is_bounded(front: Front, artifacts: dict[str, Artifact]) -> None:
    """Uploads of 60 MB each were kept for a week, as many as came."""
    content = zipped({"a.png": PNG, "b.png": PNG + bytes(700)})
    accepted = front.post(archive(content)).json()["id"]
    limit = front.job(accepted).stored // 2 + len(content)
    full = Front(front.settings.state, artifacts, stored_mb=limit / 1_000_000)
    refused = full.post(archive(content), key="other")
    check_error(refused, 429, "storage_spent", "'localhost' keep")
    assert full.folders() == [accepted]
    for _ in range(2):
        full.request("DELETE", f"{URL}/{accepted}")
    assert full.post(archive(content)).status_code == 202
    full.close()


@pytest.mark.anyio
@pytest.mark.parametrize("missing", [3, 300])  # bytes: of the end of the form, and of more
async def test_an_upload_whose_sender_goes_away_leaves_nothing(front: Front, missing: int) -> None:
    files = {"images": ("a.png", PNG * 3)}
    whole = httpx.Request(
        "POST", f"http://assay{URL}", data={"spec": json.dumps(FGSM)}, files=files
    )
    headers = [(name.lower(), value) for name, value in whole.headers.raw]
    scope = {"type": "http", "method": "POST", "path": URL, "query_string": b"", "headers": headers}
    part = {"type": "http.request", "body": whole.read()[:-missing], "more_body": True}
    arriving: list[Message] = [part, {"type": "http.disconnect"}]
    answered: list[Message] = []
    before = sorted(front.settings.state.rglob("*"))

    async def receive() -> Message:
        return arriving.pop(0)

    async def send(message: Message) -> None:
        answered.append(message)

    await front.as_caller(scope, receive, send)
    assert b"incomplete_body" in answered[-1]["body"]
    assert sorted(front.settings.state.rglob("*")) == before
    assert front.store.page() == ([], None)


def _limit_pages(store: JobStore) -> Callable[[], None]:
    """Let the file of the table grow no further, as on a full disk; returns the way back."""

    def limit(connection: Any, _: object) -> None:
        connection.execute("PRAGMA max_page_count = 1")  # SQLite takes the present size instead

    store.close()
    event.listen(store._engine, "connect", limit)

    def free() -> None:
        event.remove(store._engine, "connect", limit)
        store.close()

    return free


def test_a_table_that_cannot_grow_is_a_full_disk(front: Front) -> None:
    kept = front.post().headers["location"]
    free = _limit_pages(front.store)
    responses = [front.post(key=f"k{i}") for i in range(12)]
    refused = [response for response in responses if response.status_code != 202]
    assert refused
    for response in refused:
        check_error(response, 507, "disk_full", "nothing was accepted")
    accepted = len(responses) - len(refused) + 1
    assert len(front.folders()) == accepted == front.store.waiting()
    assert front.request("GET", kept).json()["status"] == "queued"
    free()
    assert front.post(key="later").status_code == 202


def test_a_table_that_does_not_answer_is_told_and_not_blamed(front: Front) -> None:
    location = front.post().headers["location"]
    front.close()
    shutil.move(front.settings.state, moved := front.settings.state.with_name("away"))
    parts = [("spec", (None, json.dumps(FGSM))), ("images", ("a.png", PNG))]
    asked = [("GET", URL, None), ("DELETE", location, None), ("POST", URL, parts)]
    for method, url, files in asked:
        response = front.request(method, url, files=files)
        check_error(response, 503, "unavailable", "does not answer")
        assert int(response.headers["retry-after"]) > 0
    shutil.rmtree(front.settings.state, ignore_errors=True)
    shutil.move(moved, front.settings.state)
    assert front.request("GET", location).json()["status"] == "queued"


CHILD = """
import errno, os, sys, tempfile
real = tempfile.mkstemp
def full(*arguments, **named):
    if "report" in str(named.get("dir")):
        raise OSError(errno.ENOSPC, "No space left on device")
    return real(*arguments, **named)
tempfile.mkstemp = full
from service.jobs.child import main
sys.exit(main(sys.argv[1:]))
"""


def test_an_evaluation_that_fills_the_disk_fails_and_says_so(front: Front) -> None:
    job_id = front.submit(SHORT, count=2)
    front.store.claim("w")
    given = ["--job", job_id, "--worker", "w", "--state", str(front.settings.state)]
    given += ["--parent", str(os.getpid()), "--models", *map(str, front.settings.models)]
    command = [sys.executable, "-c", CHILD, *given]
    ended = subprocess.run(
        command, cwd=ROOT, env={ADDRESS: front.store.address}, capture_output=True, timeout=90
    )
    assert ended.returncode == 0, ended.stderr.decode()
    job = front.job(job_id)
    assert job.error == {"code": "disk_full", "message": "the disk of the service is full"}
    assert job.status == "failed" and not [*front.folder(job_id).rglob("*.tmp")]
