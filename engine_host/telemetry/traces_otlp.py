"""The spans of a request, by OpenTelemetry's conventions, and their export. Imported where there is an endpoint."""

import logging
import os
from collections.abc import Iterator, Sequence
from typing import NamedTuple
from urllib.parse import urlsplit

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import SpanKind, Status, StatusCode, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from engine_host.api.records import RequestRecord

log = logging.getLogger(__name__)

_OPERATIONS = {
    "/v1/chat/completions": "chat",
    "/v1/responses": "chat",
    "/v1/messages": "chat",
    "/v1/completions": "text_completion",
    "/v1/embeddings": "embeddings",
}
"""`gen_ai.operation.name` by path; the values are those of OpenTelemetry's GenAI conventions (semconv 1.37)."""

_NOISY = ("opentelemetry.exporter.otlp.proto.http.trace_exporter", "opentelemetry.sdk._shared_internal")
"""Loggers of the library that tell of each batch that isn't taken; `_Exporter` tells of the first."""

Value = str | bool | int | float | Sequence[str]


class Part(NamedTuple):
    """A part of a request's time, in seconds from the last byte of its body."""

    name: str
    start: float
    end: float


class Exporting:
    """Makes spans and exports them in batches to one URL. For one thread."""

    def __init__(self, url: str, version: str) -> None:
        for name in _NOISY:
            logging.getLogger(name).setLevel(logging.CRITICAL)
        service = os.environ.get("OTEL_SERVICE_NAME") or "llmconsole"
        resource = Resource.create({SERVICE_NAME: service, SERVICE_VERSION: version})
        # Not at exit: the library would wait half a minute for a collector that is gone.
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(_Exporter(url)))
        self._tracer = self._provider.get_tracer("llmconsole", version)
        self._propagator = TraceContextTextMapPropagator()

    def add(self, record: RequestRecord, parent: str | None) -> None:
        """One trace: a span of the request, and one of each part of its time that is known."""
        context = self._propagator.extract({"traceparent": parent} if parent else {})
        began = round(record.time * 1e6) * 1000  # A Unix time as a float is exact to less than a microsecond.
        ended = began + _ns(record.total_s)
        known = {name: value for name, value in attributes(record).items() if value is not None}
        span = self._tracer.start_span(_name(record), context, SpanKind.SERVER, known, start_time=began)
        if record.finish_reason == "error":
            span.set_status(Status(StatusCode.ERROR, record.error))
        inside = set_span_in_context(span)
        for part in parts(record):
            child = self._tracer.start_span(part.name, inside, start_time=began + _ns(part.start))
            child.end(min(began + _ns(part.end), ended))
        span.end(ended)

    def close(self) -> None:
        """Send what waits; it takes as long as the collector, and at most half a minute."""
        self._provider.shutdown()


def parts(record: RequestRecord) -> Iterator[Part]:
    """The parts of a request one after the other, as far as it came: guard, queue, prefill, delivery, decode.

    prefill is until the first token was computed, delivery until the socket had it, decode the rest.
    """
    if record.guard_s is None or record.queue_s is None:
        return
    queued = record.guard_s
    scheduled = queued + record.queue_s
    yield Part("guard", 0.0, queued)
    yield Part("queue", queued, scheduled)
    if record.prefill_s is None or record.first_decode_s is None:
        return
    computed = scheduled + record.prefill_s + record.first_decode_s
    yield Part("prefill", scheduled, computed)
    if record.delivery_s is None:
        return
    delivered = computed + record.delivery_s
    yield Part("delivery", computed, delivered)
    yield Part("decode", delivered, max(record.total_s, delivered))


def attributes(record: RequestRecord) -> dict[str, Value | None]:
    """What a request's span says: OpenTelemetry's GenAI and HTTP conventions, and ours under `llmconsole`."""
    cost = record.cost
    return {
        "gen_ai.operation.name": _OPERATIONS.get(record.path),
        "gen_ai.provider.name": "vllm",
        "gen_ai.request.model": record.model,
        "gen_ai.response.model": record.model,
        "gen_ai.request.choice.count": record.sequences if record.sequences > 1 else None,
        "gen_ai.response.finish_reasons": (record.finish_reason,),
        "gen_ai.response.time_to_first_chunk": record.ttft_s,
        "gen_ai.usage.input_tokens": record.prompt_tokens,
        "gen_ai.usage.output_tokens": record.output_tokens,
        "gen_ai.usage.cache_read.input_tokens": record.cached_tokens,
        "error.type": "error" if record.finish_reason == "error" else None,
        "http.request.method": "POST",
        "http.route": record.path,
        "llmconsole.request_id": record.request_id or record.id,
        "llmconsole.id": record.id,
        "llmconsole.engine": record.engine_id,
        "llmconsole.profile": record.profile,
        "llmconsole.tier": record.tier,
        "llmconsole.key": record.key or None,
        "llmconsole.lane": record.lane,
        "llmconsole.tpot_s": record.tpot_s,
        "llmconsole.ttl_p50_s": record.ttl_p50_s,
        "llmconsole.ttl_p99_s": record.ttl_p99_s,
        "llmconsole.held_s": record.held_s,
        "llmconsole.set_aside": record.set_aside,
        "llmconsole.preemptions": record.preemptions,
        "llmconsole.pages_peak": record.pages_peak,
        "llmconsole.first_step": record.first_step,
        "llmconsole.last_step": record.last_step,
        "llmconsole.device_s": None if cost is None else cost.seconds,
        "llmconsole.cost_usd": None if cost is None else cost.usd,
    }


class _Exporter(SpanExporter):
    """The library's exporter, telling of the first batch that isn't taken."""

    def __init__(self, url: str) -> None:
        self._inner = OTLPSpanExporter(endpoint=url)
        self._where = (urlsplit(url).netloc or url).rpartition("@")[2]  # Without what may be a password in it.
        self._said = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = self._inner.export(spans)
        if result is not SpanExportResult.SUCCESS and not self._said:
            self._said = True
            log.warning(
                "The collector at %s doesn't take traces; requests go on without. This is said once: see whether it "
                "runs, and log.otlp_endpoint of the profile.",
                self._where,
            )
        return result

    def shutdown(self) -> None:
        self._inner.shutdown()  # type: ignore[no-untyped-call]

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._inner.force_flush(timeout_millis)


def _name(record: RequestRecord) -> str:
    operation = _OPERATIONS.get(record.path)
    return f"{operation} {record.model}" if operation else f"POST {record.path}"


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)
