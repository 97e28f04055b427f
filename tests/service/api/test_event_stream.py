"""Whoever waits for an evaluation goes on waiting while its table does not answer."""

import asyncio
from unittest.mock import Mock

import pytest
from sqlalchemy.exc import OperationalError, TimeoutError

from service.api.event_stream import Feed
from service.jobs.queue import JobStore
from service.jobs.table import Job

JOB = Mock(spec=Job, id="one")


@pytest.mark.parametrize("error", [OperationalError("select", {}, Exception()), TimeoutError()])
def test_a_follower_outlives_a_table_that_does_not_answer(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    store = Mock(spec=JobStore)
    store.get_all.side_effect = [error, {"one": JOB}, error, error, error, error]

    async def follow() -> tuple[Job | None, Job | None]:
        with Feed(store).follow("one") as follower:
            return await follower.next(timeout=5), await follower.next(timeout=0.4)

    assert asyncio.run(follow()) == (JOB, None)
    assert "does not answer" in caplog.text
