"""One process that answers requests: what it opens, and how it leaves."""

import math
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

from starlette.routing import BaseRoute

from service.api import evaluations
from service.api.pages import documentation_routes, page_routes, schema_route
from service.api.probes import Check, Probes, asks
from service.http.access import Access, access_of
from service.http.connections import Departure, GuardedProtocol, running_server
from service.http.keys import Keys, read_keys
from service.http.openapi import document
from service.http.rates import Rates
from service.http.site import Site
from service.jobs.queue import JobStore
from service.metrics import Metrics, share_figures
from service.predictions.images import Predictions
from service.predictions.texts import TextPredictions
from service.serving import Serving
from service.settings import Settings
from service.start import is_worker, run_folder, server_pid
from service.tracing import start_tracing, stop_tracing


class Worker:
    """Opens the models and the table of evaluations, and gives a site its routes.

    Args:
        settings: among them the role: a host that only evaluates opens no models.
        site: answers requests.
        schema: what BentoML's clients read first.
        evaluator_url: where the evaluator of this server answers; None where there is none.
    """

    predictions: Predictions
    texts: TextPredictions

    def __init__(
        self,
        settings: Settings,
        site: Site,
        *,
        schema: Mapping[str, Any],
        evaluator_url: str | None,
    ) -> None:
        self._settings = settings
        self._site = site
        self._schema = schema
        self._alive = None if settings.role == "predict" else asks(evaluator_url)
        self._folder = run_folder(settings)
        self._closing = ExitStack()

    async def start(self) -> None:
        """Open everything, run every model once, and answer from then on."""
        settings = self._settings
        self._folder.mkdir(parents=True, exist_ok=True)
        if is_worker():
            share_figures(self._folder / "metrics")
        start_tracing("assay")
        self._closing.callback(stop_tracing)
        metrics = Metrics()
        store = JobStore.open(settings)
        self._closing.callback(store.close)
        routes, checks = [], {}
        if settings.role != "evaluate":
            serving = Serving(settings, metrics, unloaded=self._folder / "unloaded")
            self._closing.callback(serving.close)
            await serving.start()
            self.predictions, self.texts = serving.predictions, serving.texts
            routes += serving.routes()
            routes += evaluations.routes(store, settings, serving.artifact)
            routes.append(schema_route(self._schema))
            checks["models"] = serving.ready
        probes = self._probes(checks, store, metrics)
        self._open_site([*routes, *probes.routes()], metrics)
        self._guard_connections(probes)

    def close(self) -> None:
        """Close what `start` opened."""
        self._closing.close()

    def _probes(self, checks: dict[str, Check], store: JobStore, metrics: Metrics) -> Probes:
        if self._alive is not None:
            checks["evaluator"] = self._alive
        return Probes(
            checks, store=store, metrics=metrics, evaluator=self._alive, server=server_pid()
        )

    def _open_site(self, routes: list[BaseRoute], metrics: Metrics) -> None:
        settings = self._settings
        keys = read_keys(settings.api_keys.get_secret_value())
        rates = None
        if keys is not None:
            rates = Rates(self._folder / "rates", keys.callers)
            self._closing.callback(rates.close)
        if settings.role != "evaluate":
            described = document(routes, access=self._access(keys))
            routes = [*routes, *documentation_routes(described), *page_routes()]
        self._site.open(routes, settings, keys=keys, rates=rates, metrics=metrics)

    def _access(self, keys: Keys | None) -> Any:
        def access(route: str) -> Access:
            """What a route needs, as this server is set."""
            return access_of(route, open_metrics=self._settings.open_metrics)

        return None if keys is None else access

    def _guard_connections(self, probes: Probes) -> None:
        """Time limits for senders, and a way to stop that loses no request."""
        server, settings = running_server(), self._settings
        if server is None:
            return
        server.config.http_protocol_class = GuardedProtocol.within(settings.header_timeout_s)
        if server.config.timeout_graceful_shutdown is None:
            server.config.timeout_graceful_shutdown = math.ceil(settings.predict_timeout_s)

        def leave() -> None:
            """The server is about to stop."""
            probes.draining = True
            self._site.leave()

        Departure(server, delay_s=settings.drain_s, on_begin=leave).prepare()
