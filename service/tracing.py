"""OpenTelemetry traces, when ``OTEL_EXPORTER_OTLP_ENDPOINT`` is set; nothing otherwise.

Spans: every request; in it the decoding of inputs and their way through queue and batch; and, in
the process of an evaluation, the evaluation as a child of the request that asked for it, with its
stages. OpenTelemetry is imported only when it is used.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from starlette.datastructures import Headers
from starlette.types import Scope

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
_PROBES = frozenset({"/livez", "/readyz", "/metrics"})
_FLUSH_MS = 3000
_provider: Any = None


def start_tracing(service: str) -> None:
    """Send the spans of this process to the endpoint that the environment names, if any.

    Args:
        service: name under which they appear, unless ``OTEL_SERVICE_NAME`` gives another.
    """
    global _provider
    if _provider is not None or not any(os.environ.get(name) for name in _ENDPOINTS):
        return
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import SERVICE_NAME, OTELResourceDetector, Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    resource = Resource.create({SERVICE_NAME: service}).merge(OTELResourceDetector().detect())
    _provider = TracerProvider(resource=resource)
    _provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))


def stop_tracing() -> None:
    """Send what is left."""
    global _provider
    if _provider is not None:
        _provider.force_flush(_FLUSH_MS)
        _provider.shutdown()
        _provider = None


def span(
    name: str, *, continuing: str | None = None, **attributes: str | int | float
) -> AbstractContextManager[object]:
    """A span around a block, in the span around it or, of another process, in a `traceparent`."""
    if _provider is None:
        return nullcontext()
    context = None if continuing is None else _extracted({"traceparent": continuing})
    tracer = _provider.get_tracer(__name__)
    return tracer.start_as_current_span(name, context=context, attributes=attributes)


def traceparent() -> str | None:
    """The present span in the form of a W3C ``traceparent``; None when nothing is traced."""
    if _provider is None:
        return None
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    carrier: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(carrier)
    return carrier.get("traceparent")


class Stages:
    """Spans of the stages of some work, one after the other."""

    def __init__(self) -> None:
        self._stage = ""
        self._span: AbstractContextManager[object] = nullcontext()

    def enter(self, stage: str) -> None:
        """The work is in this stage now."""
        if stage != self._stage:
            self.close()
            self._stage, self._span = stage, span(f"stage {stage}")
            self._span.__enter__()

    def close(self) -> None:
        """The last stage is over."""
        self._span.__exit__(None, None, None)
        self._stage, self._span = "", nullcontext()


@contextmanager
def request_span(scope: Scope) -> Iterator[Callable[[str, int], None]]:
    """The span of a request, continuing the trace that its ``traceparent`` names.

    Yields:
        What names the route and the status of the answer.
    """
    method = scope["method"][:16]
    if _provider is None or scope["path"] in _PROBES:
        yield lambda route, status: None
        return
    from opentelemetry.trace import SpanKind, StatusCode

    attributes = {"http.request.method": method, "assay.request_id": scope["state"]["request_id"]}
    with _provider.get_tracer(__name__).start_as_current_span(
        method,
        context=_extracted(Headers(scope=scope)),
        kind=SpanKind.SERVER,
        attributes=attributes,
    ) as current:

        def answered(route: str, status: int) -> None:
            """Name the span and say how it ended."""
            current.update_name(f"{method} {route}")
            current.set_attribute("http.route", route)
            current.set_attribute("http.response.status_code", status)
            if status >= 500:
                current.set_status(StatusCode.ERROR)

        yield answered


def _extracted(carrier: Mapping[str, str]) -> Any:
    from opentelemetry.context import Context
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    given = {"traceparent": carrier.get("traceparent", "")}
    return TraceContextTextMapPropagator().extract(given, context=Context())
