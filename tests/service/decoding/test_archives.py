"""Archives: read in processes that end with their limits or their senders, never in the worker."""

import errno
import io
import os
import signal
import subprocess
import sys
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data.labels import Classes
from service.decoding.pool import Decoders
from service.decoding.process import Decoder, Unpacked, _check
from service.http.refusal import ApiError
from service.settings import ROOT, Settings
from tests.service.conftest import wait_until
from tests.service.decoding.test_pool import processes

ROWS = b"text,label\ngood,pos\n\xc3\xa9,neg\n"
LONG = b"text\n" + (b"word " * 6000 + b"\n") * 300
CLASSES = Classes(label_names=["neg", "pos"])


def read(decoder: Decoder, content: bytes, file: Any = None) -> Unpacked:
    return decoder.unpack(content, "texts", CLASSES, file or io.BytesIO())


def test_texts_come_back_as_their_bytes() -> None:
    decoder, file = Decoder(Settings()), io.BytesIO()
    for _ in range(2):
        found = read(decoder, ROWS, file)
        assert (found.names, found.labels) == (["texts/000000", "texts/000001"], [1, 0])
        assert found.sizes == [4, 2]
        with pytest.raises(ApiError, match="no column 'text'"):
            read(decoder, b"a\n")
    assert file.getvalue().decode() == "goodégoodé"
    decoder.end()


def test_only_the_process_imports_pyarrow() -> None:
    stream = io.BytesIO()
    pq.write_table(pa.table({"text": ["a", "b"]}), stream)
    code = """
import io, sys
import service.jobs.submit
from data.labels import Classes
from service.decoding.pool import Decoders
from service.settings import Settings
decoders, file = Decoders(Settings()), io.BytesIO()
with decoders.request("me", pixels=1, seconds=60) as files:
    files.unpack(sys.stdin.buffer.read(), "texts", Classes(label_names=["pos"]), file).result(60)
decoders.close()
print(file.getvalue().decode(), "pyarrow" in sys.modules)
"""
    command = [sys.executable, "-c", code]
    done = subprocess.run(
        command, cwd=ROOT, input=stream.getvalue(), check=True, capture_output=True
    )
    assert done.stdout.split() == [b"ab", b"False"]


def test_giving_up_ends_the_reading_of_an_archive() -> None:
    decoders = Decoders(Settings())
    with decoders.request("me", pixels=1, seconds=60) as files:
        future = files.unpack(LONG * 6, "texts", CLASSES, io.BytesIO())
        assert wait_until(lambda: bool(processes()), seconds=30)
        files.give_up()
        assert future.cancelled()
        assert wait_until(lambda: not processes(), seconds=5)
    decoders.close()


@pytest.mark.parametrize("limit", ["processor", "memory", "clock"])
def test_an_archive_that_costs_too_much_is_refused(limit: str) -> None:
    settings = Settings() if limit == "memory" else Settings(decode_cpu_s=0.02)
    decoder = Decoder(settings, memory=20_000_000 if limit == "memory" else None)
    if limit == "clock":
        os.kill(decoder.pid, signal.SIGSTOP)
    with pytest.raises(ApiError) as caught:
        read(decoder, LONG)
    assert caught.value.code == "archive_too_costly"
    assert decoder.alive() == (limit == "memory")
    decoder.end()


def test_a_file_that_cannot_be_written_ends_the_process() -> None:
    class Full(io.BytesIO):
        def write(self, content: Any) -> int:
            raise OSError(errno.ENOSPC, "full")

    decoder = Decoder(Settings())
    with pytest.raises(OSError, match="full"):
        read(decoder, ROWS, Full())
    assert not decoder.alive()


@pytest.mark.parametrize(
    ("labels", "sizes"),
    [(None, [1]), (None, [1, 1, 1]), (None, [1, 10**9]), ([0], [1, 1]), ([0, 2], [1, 1])],
)
def test_what_a_process_tells_is_not_believed(labels: list[int] | None, sizes: list[int]) -> None:
    found = Unpacked(names=["a", "b"], labels=labels, classes=None, sizes=sizes)
    with pytest.raises(ValueError, match="more than there can be"):
        _check(found, samples=2, size=10**6, num_classes=2)


def test_a_process_may_not_name_any_number_of_classes() -> None:
    with pytest.raises(ValueError, match="at most 30000 items"):
        Unpacked(names=["a"], labels=[0], classes=["b"] * 30_001, sizes=[1])
