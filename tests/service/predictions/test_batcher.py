import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from typing import Any

import numpy as np
import pytest

from service.http.errors import ApiError
from service.metrics import Metrics
from service.predictions.batcher import CapacityLimiter, MicroBatcher
from service.settings import Settings

Make = Callable[..., MicroBatcher]


class Doubler:
    """A model whose first batch waits for `gate`, and that remembers the size of each batch."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.sizes: list[int] = []

    def __call__(self, inputs: np.ndarray) -> np.ndarray:
        self.sizes.append(len(inputs))
        self.gate.wait(10)
        if (inputs < 0).any():
            raise ValueError("negative")
        return inputs * 2


class Notes(Metrics):
    """Keeps what it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[tuple[str, int]] = []
        self.counts: list[int] = []
        self.seconds: list[float] = []

    def batch(self, model: str, size: int, queue_s: float, compute_s: float) -> None:
        self.batches.append((model, size))
        self.seconds += [queue_s, compute_s]

    def queued(self, model: str, count: int) -> None:
        self.counts.append(count)


@pytest.fixture
def executor() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as pool:
        yield pool


@pytest.fixture
def batcher(executor: ThreadPoolExecutor) -> Make:
    def make(predict: Callable[[np.ndarray], np.ndarray], **changes: Any) -> MicroBatcher:
        limits = {"batch_max": 4, "queue": 16, "wait_s": 10.0, "timeout_s": 10.0}
        known = limits | {name: changes.pop(name) for name in limits if name in changes}
        batch_max = known.pop("batch_max")
        settings = Settings(batch_max=batch_max, **{f"predict_{k}": v for k, v in known.items()})
        return MicroBatcher(predict, executor, settings, **changes)

    return make


def _slow(seconds: float) -> tuple[Callable[[np.ndarray], np.ndarray], list[int]]:
    """A model that takes so long for an input, and the sizes of its batches."""
    sizes: list[int] = []

    def predict(inputs: np.ndarray) -> np.ndarray:
        sizes.append(len(inputs))
        time.sleep(seconds * len(inputs))
        return inputs

    return predict, sizes


def _rows(*values: float) -> np.ndarray:
    return np.array(values, dtype=np.float32)[:, None]


async def _predict(
    batcher: MicroBatcher, rows: np.ndarray, *, arrived: float | None = None
) -> np.ndarray:
    async def read() -> np.ndarray:
        return rows

    async with batcher.admission(len(rows), arrived=arrived) as admitted:
        return await admitted.predict(read)


def _run(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(main())


async def _until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.001)


def test_waiting_requests_share_a_batch_and_get_their_own_rows(batcher: Make) -> None:
    model = Doubler()

    async def main() -> None:
        subject = batcher(model, batch_max=8)
        first = asyncio.create_task(_predict(subject, _rows(1)))
        await _until(lambda: model.sizes)
        others = [asyncio.create_task(_predict(subject, _rows(n, n + 10))) for n in (2, 3, 4)]
        await asyncio.sleep(0.01)
        model.gate.set()
        assert (await first).tolist() == [[2]]
        assert [(await other).tolist() for other in others] == [
            [[4], [24]],
            [[6], [26]],
            [[8], [28]],
        ]

    _run(main)
    assert model.sizes == [1, 6]


def test_large_request_is_cut_into_batches(batcher: Make) -> None:
    model = Doubler()
    model.gate.set()

    async def main() -> None:
        outputs = await _predict(batcher(model), _rows(*range(10)))
        assert outputs[:, 0].tolist() == [2 * n for n in range(10)]

    _run(main)
    assert model.sizes == [4, 4, 2]


def test_bad_input_fails_alone(batcher: Make) -> None:
    model = Doubler()

    async def main() -> None:
        subject = batcher(model)
        first = asyncio.create_task(_predict(subject, _rows(0)))
        await _until(lambda: model.sizes)
        tasks = [asyncio.create_task(_predict(subject, _rows(n))) for n in (1, -1, 3)]
        await asyncio.sleep(0.01)
        model.gate.set()
        await first
        good, bad, good_too = await asyncio.gather(*tasks, return_exceptions=True)
        assert isinstance(bad, ValueError)
        assert isinstance(good, np.ndarray) and good.tolist() == [[2]]
        assert isinstance(good_too, np.ndarray) and good_too.tolist() == [[6]]

    _run(main)
    assert model.sizes == [1, 3, 1, 1, 1]


def test_wrong_number_of_outputs_is_an_error(batcher: Make) -> None:
    async def main() -> None:
        with pytest.raises(RuntimeError, match="2 inputs gave 1 outputs"):
            await _predict(batcher(lambda inputs: inputs[:1]), _rows(1, 2))

    _run(main)


def test_full_queue_refuses_with_503(batcher: Make) -> None:
    async def main() -> None:
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

    _run(main)


def test_who_could_not_be_answered_in_time_or_would_wait_too_long_is_refused(
    batcher: Make,
) -> None:
    slow, _ = _slow(0.05)

    async def main() -> None:
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

    _run(main)


@pytest.mark.parametrize(("ago_s", "largest"), [(1.7, 7), (0, 10)])
def test_a_batch_fits_the_oldest_request_and_a_quarter_of_the_deadline(
    batcher: Make, ago_s: float, largest: int
) -> None:
    slow, sizes = _slow(0.05)

    async def main() -> None:
        subject = batcher(slow, batch_max=32, queue=64, timeout_s=2)
        await _predict(subject, _rows(1))
        arrived = asyncio.get_running_loop().time() - ago_s
        with suppress(ApiError) if ago_s else nullcontext():  # 0.6 s are needed, 0.3 s are left
            await _predict(subject, _rows(*range(12)), arrived=arrived)

    _run(main)
    assert sizes[0] == 1 and 1 <= max(sizes[1:]) <= largest


def test_the_deadline_counts_from_the_arrival(batcher: Make) -> None:
    model = Doubler()
    model.gate.set()

    async def main() -> None:
        subject = batcher(model)
        with pytest.raises(ApiError) as late:
            await _predict(subject, _rows(1), arrived=asyncio.get_running_loop().time() - 11)
        assert (late.value.status, late.value.code) == (503, "overloaded")

    _run(main)
    assert model.sizes == []


def test_what_the_runtime_did_not_finish_is_504_and_what_it_never_saw_503(batcher: Make) -> None:
    model = Doubler()

    async def main() -> None:
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

    _run(main)
    assert model.sizes == [1, 1]  # the second was never computed


def test_timeout_of_the_work_itself_is_not_taken_for_the_deadline(batcher: Make) -> None:
    async def main() -> None:
        with pytest.raises(TimeoutError):
            async with batcher(Doubler()).admission(1):
                raise TimeoutError

    _run(main)


def test_inputs_are_read_only_when_there_is_a_place_for_them(batcher: Make) -> None:
    model = Doubler()
    read: list[int] = []

    async def main() -> None:
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

    _run(main)


def test_places_of_large_requests_never_block_each_other() -> None:
    async def main() -> None:
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

    _run(main)


def test_the_metrics_and_the_totals_see_every_batch(batcher: Make) -> None:
    model, notes = Doubler(), Notes()
    model.gate.set()

    async def main() -> None:
        subject = batcher(model, model="m", metrics=notes)
        await _predict(subject, _rows(*range(6)))
        totals = subject.totals
        assert (totals.inputs, totals.batches, totals.failures) == (6, 2, 0)
        assert totals.queue_s >= 0 and totals.compute_s > 0

    _run(main)
    assert notes.batches == [("m", 4), ("m", 2)]
    assert notes.counts == [6, 0] and min(notes.seconds) >= 0
