"""The BentoML services: `Assay` answers requests, `Evaluator` runs evaluations beside it."""

import logging
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, TypeVar

import bentoml
from bentoml import Service
from starlette.types import ASGIApp

from runtimes.tasks import TEXTS
from service.http.app import Gateway, Handover
from service.http.keys import read_keys
from service.http.logging import set_up_logs
from service.jobs import worker as evaluator
from service.jobs.queue import JobStore
from service.jobs.targets import read_targets
from service.manager import manage_workers
from service.metrics import check_room
from service.predictions.images import DEFAULT_TOP_K, Prediction
from service.predictions.registry import check_models
from service.processes import watch_parent
from service.settings import Settings, absolute_paths, get_settings, log_format, process_count
from service.start import (
    claim_state,
    is_worker,
    open_run_folder,
    prepare_state,
    reporting_start,
    run_folder,
)
from service.worker import Worker

logger = logging.getLogger(__name__)

_Inner = TypeVar("_Inner")
_gateway = Gateway()

if is_worker() or "serve" in sys.argv:  # BentoML logs before it calls anything here
    set_up_logs(log_format())


class BareService(Service[_Inner]):
    """A service without BentoML's middlewares, whose time limit would end long answers."""

    def to_asgi(self, is_main: bool = True) -> ASGIApp:
        """BentoML's application with `Handover` alone."""
        app: Any = super().to_asgi(is_main)
        app.user_middleware = [m for m in app.user_middleware if m.cls is Handover]
        return app


# Its log of requests and its metrics give way to ours.
_OFF: Any = {"logging": {"access": {"enabled": False}}, "metrics": {"enabled": False}}


@bentoml.service(name="evaluator", workers=process_count("ASSAY_EVALUATORS"), **_OFF)
class Evaluator:
    """Runs evaluations one at a time, in processes of their own; answers no request."""

    @bentoml.on_startup
    def start(self) -> None:
        """Begin to claim evaluations."""
        settings = get_settings()
        with _starting("evaluator", settings):
            self._store = JobStore(settings.database_url)
            self._loop = evaluator.Evaluator(self._store, settings)
            self._loop.start()

    @bentoml.on_shutdown
    def stop(self) -> None:
        """Give the running evaluation back to the queue."""
        self._loop.stop()
        self._store.close()

    def __is_ready__(self) -> bool:
        """Whether evaluations are being claimed."""
        return self._loop.alive()


@bentoml.asgi_app(_gateway, path="/")
@bentoml.service(
    name="assay", workers=process_count("ASSAY_WORKERS"), service_class=BareService, **_OFF
)
class Assay:
    """Classifies images and texts, and evaluates the served models."""

    if os.environ.get("ASSAY_ROLE") != "predict":
        # Named only so that BentoML starts it: nothing is ever called through it.
        evaluator = bentoml.depends(Evaluator)

    @bentoml.on_deployment
    @staticmethod
    def prepare() -> None:
        """Take relative paths from the directory where the server was started; check everything.

        A worker that cannot start is started again: what is wrong must be said before.
        """
        # In its own containers BentoML would leave a process that has died, and answer no more.
        os.environ.pop("BENTOML_CONTAINERIZED", None)
        # uvicorn would believe whoever calls from this host where a request came from.
        os.environ.setdefault("FORWARDED_ALLOW_IPS", "")
        os.environ.update(absolute_paths(os.environ, Path.cwd()))
        set_up_logs(log_format())
        try:
            settings = get_settings()
            read_keys(settings.api_keys.get_secret_value())
            prepare_state(settings)
            claim_state(settings)
            predicts, targets = settings.role != "evaluate", read_targets(settings.targets)
            for target in targets.values() if settings.role != "predict" else ():
                target.key()
            with ThreadPoolExecutor(1) as beside:  # mostly it waits for a process that opens models
                models = beside.submit(check_models, settings, targets) if predicts else None
                JobStore(settings.database_url).close()
                folder = open_run_folder(settings)
                os.environ["ASSAY_RUN"] = str(folder)  # for the workers
                check_room(folder, settings.workers)
                manage_workers(folder)
            if models:
                models.result()
        except ValueError as error:
            logger.critical("Assay cannot start: %s", error)
            raise SystemExit(1) from None

    @bentoml.on_startup
    async def start(self) -> None:
        """Open what this host's role needs, and answer."""
        settings = get_settings()
        with _starting("worker", settings):
            self._worker = Worker(
                settings, _gateway, schema=Assay.schema(), evaluator_url=Evaluator.url
            )
            await self._worker.start()

    @bentoml.on_shutdown
    def stop(self) -> None:
        """Close what `start` opened."""
        self._worker.close()

    @bentoml.api
    async def classify(
        self,
        images: list[Path],
        model: str | None = None,
        top_k: int = DEFAULT_TOP_K,
        explain: bool = False,
        show_input: bool = False,
    ) -> list[Prediction]:
        """Classify image files.

        This method serves callers in this process and tells BentoML's clients what `/classify`
        takes; a request over HTTP is answered by `service.api.classify`, which is stricter.
        """
        files = [image.read_bytes() for image in images]
        served = self._worker.registry.get(model)
        return await self._worker.predictions.predict(
            files, served, top_k=top_k, explain=explain, show_input=show_input
        )

    @bentoml.api
    async def classify_text(
        self,
        texts: list[str],
        model: str | None = None,
        top_k: int = DEFAULT_TOP_K,
        explain: bool = False,
    ) -> list[Prediction]:
        """Classify texts; see `classify`."""
        served = self._worker.registry.get(model, TEXTS)
        return await self._worker.texts.predict(texts, served, top_k=top_k, explain=explain)


def _starting(name: str, settings: Settings) -> AbstractContextManager[None]:
    """What every process of a server does first; a process that is no worker does nothing."""
    if not is_worker():
        return nullcontext()
    watch_parent()
    return reporting_start(run_folder(settings), f"{name} {bentoml.server_context.worker_index}")


# BentoML's protocol describes a function here, while what it wants is a class.
Assay.add_asgi_middleware(Handover, gateway=_gateway)  # pyright: ignore[reportArgumentType]
