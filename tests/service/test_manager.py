"""What the server notes of its workers' ends, and when it gives up."""

import logging
import os
import signal
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from service.manager import Deaths, check_free
from service.start import reporting_start


class Starts:
    """Workers that begin, start or not, and end, as circus tells it."""

    def __init__(self, folder: Path, name: str = "service", wid: int = 1) -> None:
        self.folder, self.deaths, self.stopping = folder, Deaths(folder), False
        processes = {os.getpid(): SimpleNamespace(wid=wid)}
        stopping = lambda: self.stopping  # noqa: E731
        self.watcher: Any = SimpleNamespace(name=name, processes=processes, is_stopping=stopping)

    def one(self, exit_code: int | None, *, reason: str = "", begins: bool = True) -> None:
        self.deaths.spawned(watcher=self.watcher, pid=os.getpid(), hook_name="after_spawn")
        if begins:
            try:
                with reporting_start(self.folder, "worker 1"):
                    if reason:
                        raise ValueError(reason)
            except ValueError:
                pass
        given = {"process_pid": os.getpid(), "exit_code": exit_code, "time": 0.0}
        loop = SimpleNamespace(call_later=lambda _, call, *given: call(*given))
        self.deaths.reaped(watcher=self.watcher, arbiter=SimpleNamespace(loop=loop), **given)


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The signals that were sent; nothing is done at exit."""
    sent: list[int] = []
    monkeypatch.setattr("os.kill", lambda _, number: sent.append(number))
    monkeypatch.setattr("atexit.register", lambda *_: None)
    return sent


def test_a_worker_that_fails_three_times_in_a_row_ends_the_server(
    tmp_path: Path, sent: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    workers = Starts(tmp_path)
    for reason in ("no model", "no model", "", "no disk", "no model"):
        workers.one(3, reason=reason)
    assert sent == []
    workers.one(3, reason="no model")
    assert sent == [signal.SIGTERM]
    last = caplog.records[-1]
    assert last.levelname == "CRITICAL"
    message = "Assay ends: the worker 1 could not start 3 times in a row: no model"
    assert last.getMessage() == message
    assert list(tmp_path.iterdir()) == []


def test_a_start_that_nothing_could_report_counts_too(
    tmp_path: Path, sent: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    workers = Starts(tmp_path, name="service_evaluator", wid=2)
    for _ in range(3):
        workers.one(-signal.SIGBUS, begins=False)
    assert sent == [signal.SIGTERM]
    assert (
        caplog.records[-1]
        .getMessage()
        .endswith("evaluator 2 could not start 3 times in a row: SIGBUS")
    )


@pytest.mark.parametrize(
    ("exit_code", "told"),
    [(-signal.SIGBUS, "SIGBUS"), (-99, "signal 99"), (3, "exit status 3"), (None, "not known")],
)
def test_the_end_of_a_worker_is_logged_unless_the_server_stops(
    tmp_path: Path, sent: list[int], caplog: pytest.LogCaptureFixture, exit_code: int, told: str
) -> None:
    workers = Starts(tmp_path)
    workers.one(exit_code)
    (record,) = caplog.records
    assert record.levelno == logging.ERROR and record.getMessage().endswith(told)
    assert f"The worker 1 (process {os.getpid()}) has ended: " in record.getMessage()
    workers.stopping = True
    for _ in range(4):
        workers.one(exit_code)
    assert caplog.records == [record] and sent == []


@pytest.mark.parametrize(
    ("host", "said"),
    [("127.0.0.1", "port {} of 127.0.0.1 is in use; name another with --port"),
     ("192.0.2.1", "port {} of 192.0.2.1 cannot be used: Cannot assign requested address")],
)  # fmt: skip
def test_an_address_that_cannot_be_listened_on_is_named(host: str, said: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        wanted = SimpleNamespace(host=host, port=port, family=socket.AF_INET, is_unix=False)
        with pytest.raises(ValueError) as error:
            check_free([SimpleNamespace(is_unix=True), wanted])
        assert str(error.value) == said.format(port)
    wanted.host = "127.0.0.1"
    check_free([wanted])
