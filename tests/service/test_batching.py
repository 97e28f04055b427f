import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from service.batching import MicroBatcher
from service.errors import ApiError

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


@pytest.fixture
def executor() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as pool:
        yield pool


@pytest.fixture
def batcher(executor: ThreadPoolExecutor) -> Make:
    def make(predict: Callable[[np.ndarray], np.ndarray], **changes: Any) -> MicroBatcher:
        limits = {"batch_max": 4, "queue_max": 8, "timeout_s": 10.0} | changes
        return MicroBatcher(predict, executor, **limits)

    return make


def _rows(*values: float) -> np.ndarray:
    return np.array(values, dtype=np.float32)[:, None]


def _run(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(main())


def test_waiting_requests_share_a_batch_and_get_their_own_rows(batcher: Make) -> None:
    model = Doubler()

    async def main() -> None:
        subject = batcher(model)
        first = asyncio.create_task(subject.predict(_rows(1)))
        while not model.sizes:
            await asyncio.sleep(0.001)
        others = [asyncio.create_task(subject.predict(_rows(n, n + 10))) for n in (2, 3, 4)]
        await asyncio.sleep(0)
        model.gate.set()
        assert (await first).tolist() == [[2]]
        assert [(await other).tolist() for other in others] == [
            [[4], [24]],
            [[6], [26]],
            [[8], [28]],
        ]

    _run(main)
    assert model.sizes == [1, 4, 2]


def test_large_request_is_cut_into_batches(batcher: Make) -> None:
    model = Doubler()
    model.gate.set()

    async def main() -> None:
        outputs = await batcher(model).predict(_rows(*range(10)))
        assert outputs[:, 0].tolist() == [2 * n for n in range(10)]

    _run(main)
    assert model.sizes == [4, 4, 2]


def test_bad_input_fails_alone(batcher: Make) -> None:
    model = Doubler()

    async def main() -> None:
        subject = batcher(model)
        first = asyncio.create_task(subject.predict(_rows(0)))
        while not model.sizes:
            await asyncio.sleep(0.001)
        tasks = [asyncio.create_task(subject.predict(_rows(n))) for n in (1, -1, 3)]
        await asyncio.sleep(0)
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
            await batcher(lambda inputs: inputs[:1]).predict(_rows(1, 2))

    _run(main)


def test_full_queue_refuses_with_503(batcher: Make) -> None:
    async def main() -> None:
        subject = batcher(Doubler())
        async with subject.turn(8):
            with pytest.raises(ApiError) as refused:
                async with subject.turn(1):
                    pass
        assert (refused.value.status, refused.value.code) == (503, "overloaded")
        assert refused.value.headers["retry-after"] == "1"
        async with subject.turn(9):  # alone it may be larger than the queue
            pass

    _run(main)


def test_deadline_answers_504_and_the_batcher_goes_on(batcher: Make) -> None:
    model = Doubler()

    async def main() -> None:
        subject = batcher(model, timeout_s=0.05)
        with pytest.raises(ApiError) as late:
            async with subject.turn(1):
                await subject.predict(_rows(1))
        assert (late.value.status, late.value.code) == (504, "timeout")
        model.gate.set()
        assert (await subject.predict(_rows(2))).tolist() == [[4]]

    _run(main)


def test_timeout_of_the_work_itself_is_not_taken_for_the_deadline(batcher: Make) -> None:
    async def main() -> None:
        with pytest.raises(TimeoutError):
            async with batcher(Doubler()).turn(1):
                raise TimeoutError

    _run(main)
