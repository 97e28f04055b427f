"""One process that answers requests: what it opens, and how it leaves."""

import asyncio
import gc
import logging
import math
import sys
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

import bentoml
import uvicorn
from starlette.routing import BaseRoute

from runtimes.artifact import Artifact
from runtimes.tasks import Task
from service.api import evaluations, models
from service.api.classify import Classify
from service.api.score import Score
from service.api.segment import Segment
from service.api.system import Check, Probes, asks, page_routes, schema_routes
from service.api.v2.routes import V2
from service.decoding.pool import Decoders
from service.http.app import Gateway, create_app
from service.http.body import Bodies
from service.http.connections import (
    GracefulShutdown,
    GuardedProtocol,
    address_when_ready,
    running_server,
)
from service.http.keys import read_keys
from service.http.openapi import document
from service.http.rates import Rates
from service.http.refusal import ApiError
from service.jobs.queue import JobStore
from service.jobs.targets import RemoteTarget, read_targets
from service.metrics import Metrics, share_figures
from service.predictions.images import Predictions
from service.predictions.registry import Registry
from service.predictions.reload import Reloader, RuntimeSelector
from service.predictions.texts import TextPredictions
from service.settings import Settings
from service.start import is_worker, run_folder, server_pid
from service.tracing import start_tracing, stop_tracing

logger = logging.getLogger(__name__)


class Worker:
    """Opens the models and the table of evaluations, and gives a gateway its application.

    Args:
        settings: among them the role: a host that only evaluates opens no models.
        gateway: answers requests once the worker has started.
        schema: what BentoML's clients read first.
        evaluator_url: where the evaluator of this server answers; None where there is none.

    Attributes:
        registry: the served models.
        predictions: answers ``/classify``.
        texts: answers ``/classify_text``.
    """

    registry: Registry
    predictions: Predictions
    texts: TextPredictions
    _reloader: Reloader | None = None  # of a host that serves models

    def __init__(
        self,
        settings: Settings,
        gateway: Gateway,
        *,
        schema: Mapping[str, Any],
        evaluator_url: str | None,
    ) -> None:
        self._settings = settings
        self._gateway = gateway
        self._schema = schema
        self._alive = None if settings.role == "predict" else asks(evaluator_url)
        self._folder = run_folder(settings)
        self._closing = ExitStack()

    async def start(self) -> None:
        """Open everything, run every model once, and answer from then on."""
        settings = self._settings
        if is_worker():
            sys.set_int_max_str_digits(640)  # the least there is: reading takes the square of them
            tempfile.tempdir = str(self._folder)  # large uploads are spooled
            share_figures(self._folder / "metrics")
        start_tracing("assay")
        self._closing.callback(stop_tracing)
        metrics = Metrics()
        store = JobStore(settings.database_url)
        self._closing.callback(store.close)
        routes, checks = [], {}
        if settings.role != "evaluate":
            routes += await self._serve(metrics)
            routes += evaluations.routes(store, settings, self._find_model, self._decoders)
            routes += schema_routes(self._schema)
            checks["models"] = self.registry.ready
        routes += self._probes(checks, store, metrics)
        self._open(routes, metrics)
        if is_worker():
            # What stays for good is not searched again: that would hold everybody for 0.1 s.
            gc.collect()
            gc.freeze()

    def close(self) -> None:
        """Close what `start` opened."""
        self._closing.close()

    def _find_model(self, reference: str | None, task: Task) -> Artifact | RemoteTarget:
        """What an evaluation is asked of; see `Submitter`."""
        target = self._targets.get(reference or "")
        if target is None:
            return self.registry.get(reference, task).artifact
        if target.task != task:
            message = f"The model {target.name!r} reads something else."
            raise ApiError(422, "wrong_task", message, {"task": target.task})
        return target

    async def _serve(self, metrics: Metrics) -> list[BaseRoute]:
        """Open the models, run each once, find faster runtimes and follow their folders."""
        settings = self._settings
        self._targets = read_targets(settings.targets)
        self.registry = registry = Registry.open(settings, metrics, self._targets)
        self._decoders = decoders = Decoders(settings)
        self.texts, self.predictions = TextPredictions(settings), Predictions(settings, decoders)
        self._reloader = reloader = Reloader(registry, settings, unloaded=self._folder / "unloaded")
        selector = RuntimeSelector(registry, settings)
        # Closed in the reverse order: the running batch ends, and no other starts.
        for part in (registry, self.texts, self.predictions, decoders, reloader, selector):
            self._closing.callback(part.close)
        await registry.warm_up()
        selector.start()
        reloader.start()
        bodies = Bodies.of_predictions(settings)
        v2 = V2(
            settings=settings, registry=registry, reloader=reloader, texts=self.texts, bodies=bodies
        )
        return [
            *Classify(self.predictions, self.texts, registry, bodies).routes(),
            *Segment(self.predictions, registry, bodies).routes(),
            *Score(self.texts, registry, bodies).routes(),
            *v2.routes(),
            *models.routes(settings, registry, [t.describe() for t in self._targets.values()]),
        ]

    def _probes(
        self, checks: dict[str, Check], store: JobStore, metrics: Metrics
    ) -> list[BaseRoute]:
        if self._alive is not None:
            checks["evaluator"] = self._alive
        probes = Probes(
            checks=checks,
            store=store,
            figures=metrics,
            evaluator=self._alive,
            server=server_pid(),
        )
        return probes.routes(open_metrics=self._settings.open_metrics)

    def _open(self, routes: list[BaseRoute], metrics: Metrics) -> None:
        keys = read_keys(self._settings.api_keys.get_secret_value())
        rates = None
        if keys is not None:
            rates = Rates(self._folder / "rates", keys.callers)
            self._closing.callback(rates.close)
        if self._settings.role != "evaluate":
            described = document(routes, keys=keys is not None)
            routes = [*routes, *page_routes(described)]
        hosts = self._settings.known_hosts
        app = create_app(routes, keys=keys, rates=rates, metrics=metrics, hosts=hosts)
        self._gateway.app = app
        self._guard_connections(app.state)

    def _guard_connections(self, state: Any) -> None:
        """Time limits for senders, and a way to stop that loses no request."""
        server, settings = running_server(), self._settings
        if server is None:
            return
        server.config.http_protocol_class = GuardedProtocol.within(settings.header_timeout_s)
        if server.config.timeout_graceful_shutdown is None:
            server.config.timeout_graceful_shutdown = math.ceil(settings.predict_timeout_s)

        def leave() -> None:
            """The server is about to stop: keep no connection, end answers without an end."""
            state.leaving = True
            if self._reloader is not None:
                self._reloader.stop()

        GracefulShutdown(server, delay_s=settings.drain_s, on_begin=leave).prepare()
        self._announced = asyncio.create_task(_announce(server))


async def _announce(server: uvicorn.Server) -> None:
    """Say once where the server answers; its other workers answer there, too."""
    address = await address_when_ready(server)
    if bentoml.server_context.worker_index == 1:
        logger.info("Ready: open %s", address)
