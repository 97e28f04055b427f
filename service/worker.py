"""One process that answers requests: what it opens, and how it leaves."""

import math
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from starlette.routing import BaseRoute

from service.api import evaluations, models
from service.api.classify import Classify
from service.api.system import Check, Probes, asks, page_routes, schema_routes
from service.api.v2.routes import V2
from service.http.app import Gateway, create_app
from service.http.auth import Rates
from service.http.body import Bodies
from service.http.connections import GracefulShutdown, GuardedProtocol, running_server
from service.http.keys import read_keys
from service.http.openapi import document
from service.jobs.queue import JobStore
from service.metrics import Metrics, share_figures
from service.predictions.images import Predictions
from service.predictions.registry import Registry
from service.predictions.reload import Reloader, RuntimeSelector
from service.predictions.texts import TextPredictions
from service.settings import Settings
from service.start import is_worker, run_folder, server_pid
from service.tracing import start_tracing, stop_tracing


class Serving:
    """The served models and the routes that answer with them; belongs to one event loop.

    Args:
        settings: models, runtime and limits.
        metrics: counts every model's batches.
        unloaded: see `Reloader`.

    Attributes:
        registry: the models.
        predictions: answers ``/classify``.
        texts: answers ``/classify_text``.

    Raises:
        ValueError: a model cannot be opened.
    """

    def __init__(
        self, settings: Settings, metrics: Metrics | None = None, *, unloaded: Path
    ) -> None:
        self._settings = settings
        self.registry = Registry.open(settings, metrics)
        self._reloader = Reloader(self.registry, settings, unloaded=unloaded)
        self._selector = RuntimeSelector(self.registry, settings)
        self.predictions = Predictions(settings)
        self.texts = TextPredictions(settings)

    async def start(self) -> None:
        """Run every model once; then find faster runtimes, and follow the folders of models."""
        await self.registry.warm_up()
        self._selector.start()
        self._reloader.start()

    def routes(self) -> list[BaseRoute]:
        """Predictions, the protocol V2, the list of models, and the samples."""
        bodies, registry = Bodies(self._settings), self.registry
        v2 = V2(
            settings=self._settings,
            registry=registry,
            reloader=self._reloader,
            texts=self.texts,
            bodies=bodies,
        )
        return [
            *Classify(self.predictions, self.texts, registry, bodies).routes(),
            *v2.routes(),
            *models.routes(self._settings, registry),
        ]

    def close(self) -> None:
        """Let the running batch end and start no other."""
        self._selector.close()
        self._reloader.close()
        self.predictions.close()
        self.texts.close()
        self.registry.close()


class Worker:
    """Opens the models and the table of evaluations, and gives a gateway its application.

    Args:
        settings: among them the role: a host that only evaluates opens no models.
        gateway: answers requests once the worker has started.
        schema: what BentoML's clients read first.
        evaluator_url: where the evaluator of this server answers; None where there is none.
    """

    serving: Serving

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
            tempfile.tempdir = str(self._folder)  # large uploads are spooled
            share_figures(self._folder / "metrics")
        start_tracing("assay")
        self._closing.callback(stop_tracing)
        metrics = Metrics()
        store = JobStore.open(settings)
        self._closing.callback(store.close)
        routes, checks = [], {}
        if settings.role != "evaluate":
            serving = Serving(settings, metrics, unloaded=self._folder / "unloaded")
            self.serving, registry = serving, serving.registry
            self._closing.callback(serving.close)
            await serving.start()
            routes += serving.routes()
            routes += evaluations.routes(
                store, settings, lambda *asked: registry.get(*asked).artifact
            )
            routes += schema_routes(self._schema)
            checks["models"] = registry.ready
        routes += self._probes(checks, store, metrics)
        self._open(routes, metrics)

    def close(self) -> None:
        """Close what `start` opened."""
        self._closing.close()

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
        app = create_app(routes, keys=keys, rates=rates, metrics=metrics)
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

        GracefulShutdown(server, delay_s=settings.drain_s, on_begin=leave).prepare()
