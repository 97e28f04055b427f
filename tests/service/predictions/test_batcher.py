import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from typing import Any

import numpy as np
import pytest

from service.http.refusal import ApiError
from service.predictions.batcher import CapacityLimiter, MicroBatcher
from service.settings import Settings

pytestmark = pytest.mark.anyio
Make = Callable[..., MicroBatcher]


class Doubler:
    """A model that remembers the size of each batch.

    Its first batch waits for `gate`, unless each input takes it some seconds.
    """

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds, self.gate = seconds, threading.Event()
        self.sizes: list[int] = []

    def __call__(self, inputs: np.ndarray) -> np.ndarray:
        self.sizes.append(len(inputs))
        self.gate.wait(len(inputs) * self.seconds or 10)
        if (inputs < 0).any():
            raise ValueError("negative")
        return inputs * 2


@pytest.fixture
def batcher() -> Iterator[Make]:
    """Makes batchers; limits are named as the settings are, without `predict_`."""
    with ThreadPoolExecutor(1) as executor:

        def make(
            predict: Callable[[np.ndarray], np.ndarray], *, batch_max: int = 4, **limits: float
        ) -> MicroBatcher:
            limits = {"queue": 16, "wait_s": 10.0, "timeout_s": 10.0} | limits
            given: dict[str, Any] = {f"predict_{name}": value for name, value in limits.items()}
            return MicroBatcher(predict, executor, Settings(batch_max=batch_max, **given))

        yield make


def _rows(*values: float) -> np.ndarray:
    return np.array(values, dtype=np.float32)[:, None]


async def _predict(
    batcher: MicroBatcher, rows: np.ndarray, *, arrived: float | None = None
) -> np.ndarray:
    async def read() -> np.ndarray:
        return rows

    async with batcher.admission(len(rows), arrived=arrived) as admitted:
        return await admitted.predict(read)


async def _until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.001)


async def _behind(subject: MicroBatcher, model: Doubler, *requests: Sequence[float]) -> list[Any]:
    """What a first request gets, and those that came while the model computed it."""
    tasks = [asyncio.create_task(_predict(subject, _rows(0)))]
    await _until(lambda: model.sizes)
    tasks += [asyncio.create_task(_predict(subject, _rows(*values))) for values in requests]
    await asyncio.sleep(0.01)
    model.gate.set()
    return await asyncio.gather(*tasks, return_exceptions=True)


async def test_waiting_requests_share_a_batch_and_get_their_own_rows(batcher: Make) -> None:
    model = Doubler()
    answers = await _behind(batcher(model, batch_max=8), model, (2, 12), (3, 13), (4, 14))
    expected = [[[0]], [[4], [24]], [[6], [26]], [[8], [28]]]
    assert [answer.tolist() for answer in answers] == expected
    assert model.sizes == [1, 6]


async def test_large_request_is_cut_into_batches_which_the_totals_count(batcher: Make) -> None:
    model = Doubler()
    model.gate.set()
    subject = batcher(model)
    outputs = await _predict(subject, _rows(*range(10)))
    assert outputs[:, 0].tolist() == [2 * n for n in range(10)]
    totals = subject.totals
    assert (totals.inputs, totals.batches, totals.failures) == (10, 3, 0)
    assert totals.queue_s >= 0 and totals.compute_s > 0
    with pytest.raises(ApiError) as late:  # the deadline counts from the arrival
        await _predict(subject, _rows(1), arrived=asyncio.get_running_loop().time() - 11)
    assert (late.value.status, late.value.code) == (503, "overloaded")
    assert model.sizes == [4, 4, 2]


async def test_bad_input_fails_alone(batcher: Make) -> None:
    model = Doubler()
    _, good, bad, good_too = await _behind(batcher(model), model, (1,), (-1,), (3,))
    assert isinstance(bad, ValueError)
    assert (good.tolist(), good_too.tolist()) == ([[2]], [[6]])
    assert model.sizes == [1, 3, 1, 1, 1]


async def test_errors_of_the_model_and_of_the_work_itself_are_shown_as_they_are(
    batcher: Make,
) -> None:
    with pytest.raises(RuntimeError, match="2 inputs gave 1 outputs"):
        await _predict(batcher(lambda inputs: inputs[:1]), _rows(1, 2))
    with pytest.raises(TimeoutError):  # it is not taken for the deadline
        async with batcher(Doubler()).admission(1):
            raise TimeoutError


async def test_full_queue_refuses_with_503(batcher: Make) -> None:
    subject = batcher(Doubler())
    async with subject.admission(16):
        for refuse in (subject.check_room, lambda: subject.check_room(2)):
            with pytest.raises(ApiError) as refused:
                refuse()
            assert (refused.value.status, refused.value.code) == (503, "overloaded")
            assert refused.value.headers["retry-after"] == "1"
        with pytest.raises(ApiError):
            async with subject.admission(1):
                pass
    subject.check_room()
    async with subject.admission(17):  # alone it may be larger than the queue
        pass


async def test_who_could_not_be_answered_in_time_or_would_wait_too_long_is_refused(
    batcher: Make,
) -> None:
    slow = Doubler(0.05)
    subject = batcher(slow, timeout_s=1)
    await _predict(subject, _rows(1))
    async with subject.admission(10):
        subject.check_room(1, left_s=10)
        with pytest.raises(ApiError) as refused:
            subject.check_room(1, left_s=0.2)
        assert (refused.value.status, refused.value.headers["retry-after"]) == (503, "1")
    patient = batcher(slow, wait_s=0.125)
    await _predict(patient, _rows(1))
    async with patient.admission(2):
        patient.check_room()  # 0.1 s
        async with patient.admission(1):
            with pytest.raises(ApiError, match="Too many inputs are waiting"):
                patient.check_room()


@pytest.mark.parametrize(("ago_s", "largest"), [(1.7, 7), (0, 10)])
async def test_a_batch_fits_the_oldest_request_and_a_quarter_of_the_deadline(
    batcher: Make, ago_s: float, largest: int
) -> None:
    slow = Doubler(0.05)
    subject = batcher(slow, batch_max=32, queue=64, timeout_s=2)
    await _predict(subject, _rows(1))
    arrived = asyncio.get_running_loop().time() - ago_s
    with suppress(ApiError) if ago_s else nullcontext():  # 0.6 s are needed, 0.3 s are left
        await _predict(subject, _rows(*range(12)), arrived=arrived)
    assert slow.sizes[0] == 1 and 1 <= max(slow.sizes[1:]) <= largest


async def test_what_the_runtime_did_not_finish_is_504_and_what_it_never_saw_503(
    batcher: Make,
) -> None:
    model = Doubler()
    subject = batcher(model, timeout_s=0.1)
    first = asyncio.create_task(_predict(subject, _rows(1)))
    await _until(lambda: model.sizes)
    second = asyncio.create_task(_predict(subject, _rows(2)))
    late, never = await asyncio.gather(first, second, return_exceptions=True)
    assert isinstance(late, ApiError) and (late.status, late.code) == (504, "timeout")
    assert isinstance(never, ApiError) and (never.status, never.code) == (503, "overloaded")
    model.gate.set()
    assert (await _predict(subject, _rows(3))).tolist() == [[6]]
    assert subject.totals.failures == 2
    assert model.sizes == [1, 1]  # the second was never computed


async def test_inputs_are_read_only_when_there_is_a_place_for_them(batcher: Make) -> None:
    model = Doubler()
    read: list[int] = []
    subject = batcher(model, batch_max=1)  # so that there are two places

    async def ask(number: int) -> np.ndarray:
        async def rows() -> np.ndarray:
            read.append(number)
            return _rows(number)

        async with subject.admission(1) as admitted:
            return await admitted.predict(rows)

    tasks = [asyncio.create_task(ask(number)) for number in range(5)]
    await _until(lambda: model.sizes)
    await asyncio.sleep(0.01)
    assert read == [0, 1]
    model.gate.set()
    answers = await asyncio.gather(*tasks)
    assert [answer.tolist() for answer in answers] == [[[2 * n]] for n in range(5)]


async def test_places_of_large_requests_never_block_each_other() -> None:
    places = CapacityLimiter(4)
    order: list[int] = []

    async def hold(number: int, count: int) -> None:
        async with places.acquired(count):
            order.append(number)
            await asyncio.sleep(0.001)

    async with asyncio.timeout(10):
        await asyncio.gather(*(hold(n, count) for n, count in enumerate((3, 4, 9, 1, 2))))
    assert order == [0, 1, 2, 3, 4]
    waiting = asyncio.create_task(hold(5, 4))
    async with places.acquired(1):
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
    async with asyncio.timeout(10), places.acquired(4):  # a cancelled one left nothing behind
        pass
