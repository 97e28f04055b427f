"""A runtime that stops answering makes the service unready, and never slow in silence."""

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from starlette.testclient import TestClient

from runtimes.base import Inputs, InvalidInputs
from runtimes.onnx import OnnxRuntime
from service.http.refusal import ApiError
from service.predictions import served
from service.predictions.served import Monitored, Readiness
from tests.service.conftest import png

PROBE = np.zeros((1, 2), np.float32)


class Device:
    """A runtime whose device can hang, and come back."""

    name, precision = "onnx-cuda", "fp32"

    def __init__(self) -> None:
        self.free = threading.Event()
        self.free.set()
        self.calls = 0

    def predict(self, inputs: Inputs) -> np.ndarray:
        self.calls += 1
        assert self.free.wait(10)
        if not isinstance(inputs, np.ndarray):
            raise InvalidInputs("inputs must be an array")
        return inputs


@pytest.fixture
def executor() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as pool:
        yield pool


def test_a_device_that_gives_no_numbers_is_lost_and_wrong_inputs_are_no_fault_of_it() -> None:
    runtime = Monitored(Device(), PROBE)
    with pytest.raises(ApiError) as failure:
        runtime.predict(np.full((1, 2), np.nan, np.float32))
    assert (failure.value.status, failure.value.code) == (503, "runtime_failed")
    assert runtime.failed and runtime.busy_s == 0
    runtime.check()
    with pytest.raises(ApiError) as refused:
        runtime.predict({})
    assert (refused.value.status, refused.value.code) == (422, "invalid_inputs")
    assert refused.value.message == "The inputs must be an array." and not runtime.failed


class Lost(Device):
    """A runtime that answers zeros while its device is there."""

    there = False

    def predict(self, inputs: Inputs) -> np.ndarray:
        if isinstance(inputs, np.ndarray) and (inputs.any() or not self.there):
            raise RuntimeError("CUDA error: device is lost")
        return super().predict(inputs)


def test_device_that_stays_lost_ends_its_worker_and_hard_inputs_do_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ended: list[int] = []
    device = Lost()
    runtime = Monitored(device, PROBE, on_loss=lambda: ended.append(1))

    def fail() -> None:
        with pytest.raises(ApiError, match="has failed"):
            runtime.predict(PROBE + 1)

    fail()
    assert not ended
    monkeypatch.setattr(served, "_LOST_S", 0.0)
    device.there = True
    fail()
    assert not ended
    device.there = False
    fail()
    assert ended == [1]


def test_worker_alone_ends_and_with_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    ends: list[int] = []
    monkeypatch.setattr(served.os, "_exit", ends.append)
    served.leave()
    assert not ends
    monkeypatch.setattr(served, "is_worker", lambda: True)
    served.leave()
    assert ends == [1]


@pytest.mark.anyio
async def test_a_device_that_hangs_is_not_ready_and_is_asked_once(
    executor: ThreadPoolExecutor,
) -> None:
    device = Device()
    device.free.clear()
    monitored = Monitored(device, PROBE)
    readiness = Readiness(lambda: [monitored], executor, timeout_s=0.05)
    for pause in (0, 0, 0, 0.1):
        await asyncio.sleep(pause)
        assert not await readiness.ready()
    assert device.calls == 1
    device.free.set()
    while not await readiness.ready():
        await asyncio.sleep(0.01)


def test_while_it_predicts_the_last_outcome_counts(executor: ThreadPoolExecutor) -> None:
    device = Device()
    runtime = Monitored(device, PROBE)
    readiness = Readiness(lambda: [runtime], executor, timeout_s=5)
    device.free.clear()
    running = executor.submit(runtime.predict, PROBE)
    while not runtime.busy_s:
        pass
    assert asyncio.run(readiness.ready())
    runtime.failed = True
    assert not asyncio.run(readiness.ready())
    device.free.set()
    running.result()
    assert device.calls == 1


def test_the_service_is_not_ready_while_a_runtime_is_lost(
    client: TestClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def lost(self: OnnxRuntime, inputs: Inputs) -> np.ndarray:
        raise RuntimeError("CUDA error: device is lost")

    with monkeypatch.context() as patch:
        patch.setattr(OnnxRuntime, "predict", lost)
        answer = client.get("/readyz")
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "unavailable")
        failed = client.post("/classify", files={"images": png()})
        assert (failed.status_code, failed.json()["error"]["code"]) == (503, "runtime_failed")
        assert failed.headers["retry-after"] and "CUDA" not in failed.text
        assert "device is lost" in caplog.text
        assert client.get("/livez").status_code == 200
    assert client.get("/readyz").status_code == 200
    answer = client.post("/classify", files={"images": png()})
    assert (answer.status_code, answer.headers["x-assay-precision"]) == (200, "fp32")
    assert answer.headers["x-assay-runtime"] == "onnx-cpu"
