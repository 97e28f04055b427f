"""A whole worker in this process, as settings want it."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from starlette.applications import Starlette
from starlette.testclient import TestClient

from service.app import Assay
from service.http.site import Front, Site
from service.settings import Settings
from service.worker import Worker


@contextmanager
def serving(settings: Settings) -> Iterator[TestClient]:
    """A client of a worker that is opened for it; no evaluator runs."""
    site = Site()
    worker = Worker(settings, site, schema=Assay.schema(), evaluator_url=None)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        await worker.start()
        yield
        worker.close()

    app = Starlette(lifespan=lifespan)
    app.add_middleware(Front, site=site)
    with TestClient(app, raise_server_exceptions=False) as client:
        yield client
