"""A whole worker in this process, as settings want it."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.testclient import TestClient

from service.app import Assay
from service.http.app import Gateway
from service.settings import Settings
from service.worker import Worker


@contextmanager
def serving(settings: Settings) -> Iterator[TestClient]:
    """A client of a worker that is opened for it; no evaluator runs."""
    gateway = Gateway()
    worker = Worker(settings, gateway, schema=Assay.schema(), evaluator_url=None)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        await worker.start()
        yield
        worker.close()

    app = Starlette(lifespan=lifespan, routes=[Mount("/", gateway)])
    with TestClient(app, raise_server_exceptions=False) as client:
        yield client
