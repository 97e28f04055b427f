"""Tells whoever waits for evaluations what has become of them.

However many wait, the table is read by one task of the process, a few times a second.
"""

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager

from anyio import to_thread
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as AllConnectionsTakenError

from service.jobs.job import Job
from service.jobs.queue import JobStore

logger = logging.getLogger(__name__)

_POLL_S = 0.25


class Follower:
    """Sees the changes of one evaluation.

    Attributes:
        job_id: of the evaluation.
    """

    def __init__(self, job_id: str) -> None:
        self.job_id = job_id
        self._job: Job | None = None
        self._changed = asyncio.Event()

    async def next(self, timeout: float) -> Job | None:
        """The row when it has changed, at first always; None when it has not for some seconds."""
        try:
            async with asyncio.timeout(timeout):
                await self._changed.wait()
        except TimeoutError:
            return None
        self._changed.clear()
        return self._job

    def show(self, job: Job) -> None:
        """Take notice of the row as it is now."""
        if job != self._job:
            self._job = job
            self._changed.set()


class Feed:
    """Reads the rows that are followed.

    Args:
        store: the table of evaluations.
    """

    def __init__(self, store: JobStore) -> None:
        self._store = store
        self._followers: set[Follower] = set()
        self._reading: asyncio.Task[None] | None = None

    @contextmanager
    def follow(self, job_id: str) -> Iterator[Follower]:
        """Follow an evaluation within the block."""
        follower = Follower(job_id)
        self._followers.add(follower)
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._read())
        try:
            yield follower
        finally:
            self._followers.discard(follower)

    async def _read(self) -> None:
        while self._followers:
            ids = {follower.job_id for follower in self._followers}
            try:
                found = await to_thread.run_sync(self._store.get_all, ids)
            except (DBAPIError, AllConnectionsTakenError):
                # It restarts, perhaps; whoever waits goes on waiting.
                logger.warning("The table of evaluations does not answer")
                found = {}
            for follower in self._followers:
                if follower.job_id in found:
                    follower.show(found[follower.job_id])
            await asyncio.sleep(_POLL_S)
