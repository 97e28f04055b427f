"""The BentoML services: `Assay` answers requests, `Evaluator` runs evaluations beside it."""

import os
from pathlib import Path
from typing import Any, TypeVar

import bentoml
from bentoml import Service
from starlette.types import ASGIApp

from service import catalog, evaluations, evaluator
from service.jobs import JobStore
from service.parent import watch_parent
from service.predictions import DEFAULT_TOP_K, Prediction, Predictions
from service.registry import Registry, check_models
from service.settings import absolute_paths, get_settings
from service.site import Front, create_site, fill
from service.texts import TextPredictions

_Inner = TypeVar("_Inner")
_site = create_site()


class UntimedService(Service[_Inner]):
    """A service without BentoML's own timeout.

    That one keeps a timer for every request until it would have fired, and its answer is not in
    our shape. Bodies and predictions have deadlines of their own, see `service.settings`.
    """

    def to_asgi(self, is_main: bool = True) -> ASGIApp:
        """BentoML's application less one middleware."""
        app: Any = super().to_asgi(is_main)
        kept = [m for m in app.user_middleware if m.cls.__name__ != "TimeoutMiddleware"]
        app.user_middleware = kept
        return app


@bentoml.service(name="evaluator", workers=1)
class Evaluator:
    """Runs evaluations one at a time, in processes of their own; answers no request."""

    @bentoml.on_startup
    def start(self) -> None:
        """Begin to claim evaluations, unless this host only predicts."""
        _watch_server()
        settings = get_settings()
        self._loop: evaluator.Evaluator | None = None
        if settings.role != "predict":
            self._store = JobStore(settings.jobs_file)
            self._loop = evaluator.Evaluator(self._store, settings)
            self._loop.start()

    @bentoml.on_shutdown
    def stop(self) -> None:
        """Give the running evaluation back to the queue."""
        if self._loop is not None:
            self._loop.stop()
            self._store.close()

    def __is_ready__(self) -> bool:
        """Whether evaluations are being claimed, or need not be."""
        return self._loop is None or self._loop.alive()


# BentoML's log of requests reads the content type as UTF-8 and breaks off the answer if it is not.
_LOGGING: Any = {"access": {"enabled": True, "request_content_type": False}}


@bentoml.service(name="assay", workers=1, service_class=UntimedService, logging=_LOGGING)
class Assay:
    """Classifies images and texts, and puts the served models on trial."""

    # Named only so that BentoML starts it: nothing is ever called through it.
    evaluator = bentoml.depends(Evaluator)

    @bentoml.on_deployment
    @staticmethod
    def prepare() -> None:
        """Take relative paths from the directory where the server was started; check the models.

        A worker that cannot start is started again for ever: what is wrong must be said before.
        """
        os.environ.update(absolute_paths(os.environ, Path.cwd()))
        try:
            os.environ.update(check_models(get_settings()))
        except ValueError as error:
            raise SystemExit(f"Assay cannot start: {error}") from None

    @bentoml.on_startup
    async def start(self) -> None:
        """Open the models, run each once, and put the routes in place."""
        _watch_server()
        settings = get_settings()
        self._registry = Registry.open(settings)
        self._predictions = Predictions(settings, self._registry)
        self._texts = TextPredictions(settings, self._registry)
        self._store = JobStore(settings.jobs_file)
        await self._registry.warm_up()
        routes = [*catalog.routes(settings, self._registry)]
        routes += evaluations.routes(
            self._store, settings, lambda name, task: self._registry.get(name, task).artifact
        )
        fill(
            _site,
            routes,
            predictions=self._predictions,
            texts=self._texts,
            base_document=Assay.openapi_spec.asdict(),
        )

    async def __is_ready__(self) -> bool:
        """Whether every model answers: a runtime may lose its device at any time."""
        return await self._registry.ready()

    @bentoml.on_shutdown
    def stop(self) -> None:
        """Close what `start` opened."""
        self._predictions.close()
        self._texts.close()
        self._registry.close()
        self._store.close()

    @bentoml.api
    async def classify(
        self, images: list[Path], model: str | None = None, top_k: int = DEFAULT_TOP_K
    ) -> list[Prediction]:
        """Classify image files.

        This method serves callers in this process and tells BentoML's clients what `/classify`
        takes; a request over HTTP is read by `service.forms`, which is stricter.
        """
        files = [image.read_bytes() for image in images]
        return await self._predictions.classify(files, model=model, top_k=top_k)

    @bentoml.api
    async def classify_text(
        self, texts: list[str], model: str | None = None, top_k: int = DEFAULT_TOP_K
    ) -> list[Prediction]:
        """Classify texts; see `classify`."""
        return await self._texts.classify(texts, model=model, top_k=top_k)


def _watch_server() -> None:
    """End with the server; in a process that is no worker of one, nothing is watched."""
    if bentoml.server_context.worker_index is not None:
        watch_parent()


# BentoML's protocol describes a function here, while what it wants is a class.
Assay.add_asgi_middleware(Front, site=_site, settings=get_settings)  # pyright: ignore[reportArgumentType]
