"""OpenTelemetry traces, when ``OTEL_EXPORTER_OTLP_ENDPOINT`` is set; nothing otherwise.

Spans: every request; in it the decoding of inputs and their way through queue and batch; and, in
the process of an evaluation, the evaluation as a child of the request that asked for it, with its
stages. OpenTelemetry is imported only when it is used.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from starlette.datastructures import Headers
from starlette.types import Scope

if TYPE_CHECKING:
    from opentelemetry.trace import Span

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


def span(name: str, **attributes: str | int | float) -> AbstractContextManager[object]:
    """A span around a block; a child of the span around it."""
    if _provider is None:
        return nullcontext()
    tracer = _provider.get_tracer(__name__)
    return tracer.start_as_current_span(name, attributes=attributes)


def continued(traceparent: str | None, name: str, **attributes: str | int) -> Any:
    """A span around a block, as a child of the span of another process that `traceparent` gave."""
    if _provider is None:
        return nullcontext()
    context = _extracted({"traceparent": traceparent or ""})
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


class RequestSpan:
    """The span of a request, if there is one."""

    def __init__(self, current: "Span | None", method: str) -> None:
        self._span, self._method = current, method

    def answered(self, route: str, status: int) -> None:
        """Name the span and say how it ended."""
        if self._span is None:
            return
        from opentelemetry.trace import StatusCode

        self._span.update_name(f"{self._method} {route}")
        self._span.set_attribute("http.route", route)
        self._span.set_attribute("http.response.status_code", status)
        if status >= 500:
            self._span.set_status(StatusCode.ERROR)


@contextmanager
def request_span(scope: Scope) -> Iterator[RequestSpan]:
    """The span of a request, continuing the trace that its ``traceparent`` names."""
    method = scope["method"][:16]
    if _provider is None or scope["path"] in _PROBES:
        yield RequestSpan(None, method)
        return
    from opentelemetry.trace import SpanKind

    attributes = {"http.request.method": method, "assay.request_id": scope["state"]["request_id"]}
    with _provider.get_tracer(__name__).start_as_current_span(
        method,
        context=_extracted(Headers(scope=scope)),
        kind=SpanKind.SERVER,
        attributes=attributes,
    ) as current:
        yield RequestSpan(current, method)


def _extracted(carrier: Mapping[str, str]) -> Any:
    from opentelemetry.context import Context
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    given = {"traceparent": carrier.get("traceparent", "")}
    return TraceContextTextMapPropagator().extract(given, context=Context())
