"""Progress as server-sent events, in process and over a socket."""

import asyncio
import contextlib
import json
import socket
import threading
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from sqlalchemy.exc import OperationalError, TimeoutError

from runtimes.artifact import Artifact
from service.api.event_stream import Feed
from service.jobs.table import Job
from tests.service.conftest import wait_until
from tests.service.front import URL, Front, check_error


@contextlib.contextmanager
def served(front: Front) -> Iterator[str]:
    """The routes on a real socket, because only there a client can leave."""
    config = uvicorn.Config(front.app, log_level="critical", lifespan="off")
    server = uvicorn.Server(config)
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        assert wait_until(lambda: server.started, seconds=10)
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        server.should_exit = True
        thread.join(10)
        assert not thread.is_alive()


def follow(url: str) -> Generator[tuple[str, Any]]:
    """The status and headers of an answer, then the name and the content of each event."""
    with httpx.stream("GET", url, timeout=20) as response:
        yield str(response.status_code), response.headers
        name = ""
        for line in response.iter_lines():
            if line.startswith("event: "):
                name = line.removeprefix("event: ")
            elif line.startswith("data: "):
                yield name, json.loads(line.removeprefix("data: "))


def test_events_tell_of_every_change_until_the_end(front: Front) -> None:
    location = front.post().headers["location"]
    job_id = location.removeprefix(f"{URL}/")
    with served(front) as server:
        stream = follow(server + location + "/events")
        _, headers = next(stream)
        assert headers["content-type"].startswith("text/event-stream")
        assert headers["cache-control"] == "no-store"
        name, shown = next(stream)
        assert name == "progress" and shown == front.request("GET", location).json()
        assert (shown["status"], shown["queue_position"]) == ("queued", 1)
        front.store.claim("w")
        assert next(stream)[1]["status"] == "running"
        front.store.progress(job_id, "w", done=5, total=9, stage="fgsm", eta=1.0)
        assert next(stream)[1]["progress"]["done"] == 5
        front.store.heartbeat(job_id, "w")  # nothing that anybody sees
        front.store.finish(job_id, "w", {"models": []})
        shown = front.request("GET", location).json()
        assert [*stream] == [("progress", shown), ("end", shown)]
        assert shown["progress"]["eta_s"] is None
        late = [*follow(server + location + "/events")]
        assert [name for name, _ in late] == ["200", "progress", "end"]


def test_a_client_takes_its_share_of_streams_and_makes_room_when_it_leaves(
    tmp_path: Path, artifacts: dict[str, Artifact]
) -> None:
    """A hundred streams of one client left none for others."""
    front = Front(tmp_path, artifacts, event_streams=4)
    location = front.post().headers["location"]
    with served(front) as server:
        url = server + location + "/events"
        first, second = follow(url), follow(url)
        for stream in (first, second):
            assert [next(stream)[0], next(stream)[0]] == ["200", "progress"]
        refused = httpx.get(url)
        check_error(refused, 503, "too_many_streams", "You follow 2 evaluations")
        assert int(refused.headers["retry-after"]) > 0
        waited = httpx.get(f"{server}{location}?wait=30", timeout=10)  # answers at once instead
        assert waited.json()["status"] == "queued"
        assert httpx.head(url).status_code == 200
        other = {"x-forwarded-for": "10.0.0.2"}  # as from a proxy
        with httpx.stream("GET", url, headers=other) as others:
            assert others.status_code == 200
        first.close()
        assert wait_until(lambda: next(follow(url))[0] == "200", seconds=5)
        front.request("DELETE", location)
        assert next(second)[1]["status"] == "cancelled"
        second.close()
    front.close()


def test_streams_and_waits_end_when_the_server_leaves(front: Front) -> None:
    location = front.post().headers["location"]
    with served(front) as server, ThreadPoolExecutor() as threads:
        stream = follow(server + location + "/events")
        assert [next(stream)[0], next(stream)[0]] == ["200", "progress"]
        waiting = threads.submit(httpx.get, f"{server}{location}?wait=30", timeout=40)
        front.app.state.leaving = True
        assert [*stream] == []
        assert waiting.result(timeout=10).json()["status"] == "queued"  # long before its own end


def test_many_followers_read_the_table_together(
    front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    location = front.post().headers["location"]
    asked: list[int] = []
    read = front.store.get_all

    def counted(ids: set[str]) -> Any:
        asked.append(len(ids))
        return read(ids)

    async def conversation(client: httpx.AsyncClient) -> list[httpx.Response]:
        waits = [client.get(f"{location}?wait=1") for _ in range(20)]
        monkeypatch.setattr(front.store, "get_all", counted)
        return await asyncio.gather(*waits)

    answers = front.talk(conversation)
    assert {answer.json()["status"] for answer in answers} == {"queued"}
    # 40 of them are the first and the last look of each request.
    assert len(asked) <= 40 + 10


@pytest.mark.parametrize("error", [OperationalError("select", {}, Exception()), TimeoutError()])
def test_a_follower_outlives_a_table_that_does_not_answer(
    front: Front,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: Exception,
) -> None:
    job = front.job(front.post().json()["id"])
    read, failing = front.store.get_all, iter([True, False])

    def get_all(ids: set[str]) -> dict[str, Job]:
        """Fails at first, and again after one answer."""
        if next(failing, True):
            raise error
        return read(ids)

    async def follow() -> tuple[Job | None, Job | None]:
        with Feed(front.store).follow(job.id) as follower:
            return await follower.next(timeout=5), await follower.next(timeout=0.4)

    monkeypatch.setattr(front.store, "get_all", get_all)
    assert asyncio.run(follow()) == (job, None)
    assert "does not answer" in caplog.text
