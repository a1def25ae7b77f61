"""Traces as a real collector's endpoint gets them: protobuf over HTTP."""

import logging
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from queue import Queue
from typing import Any

import msgspec
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from engine_host.telemetry.traces import Traces, traces_url

from .test_request_log import RECORD

WAIT_S = 20
BEGAN = 1_700_000_000_250_000_000


class Collector:
    """An OTLP endpoint on a free port; `take` waits for the spans of the next batch."""

    def __init__(self) -> None:
        batches: Queue[tuple[str, ExportTraceServiceRequest]] = Queue()

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                batches.put((self.path, ExportTraceServiceRequest.FromString(body)))
                self.send_response(200)
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._batches = batches
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def batch(self) -> tuple[str, ExportTraceServiceRequest]:
        return self._batches.get(timeout=WAIT_S)

    def take(self) -> list[Span]:
        _, batch = self.batch()
        return [span for each in batch.resource_spans for scope in each.scope_spans for span in scope.spans]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def collector() -> Iterator[Collector]:
    collector = Collector()
    yield collector
    collector.close()


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_SERVICE_NAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


def exported(collector: Collector, record: Any = RECORD, parent: str | None = None) -> dict[str, Span]:
    traces = Traces(lambda: collector.url, "1.2")
    traces.request(record, parent)
    traces.close(WAIT_S)
    return {span.name: span for span in collector.take()}


def told(span: Span) -> dict[str, Any]:
    """A span's attributes."""
    found: dict[str, Any] = {}
    for each in span.attributes:
        kind = each.value.WhichOneof("value")
        value = getattr(each.value, kind)
        found[each.key] = [item.string_value for item in value.values] if kind == "array_value" else value
    return found


def test_a_request_is_one_trace_with_its_parts_where_they_were(collector: Collector) -> None:
    spans = exported(collector)
    root = spans.pop("chat smollm2")
    assert root.kind == Span.SPAN_KIND_SERVER
    assert not root.parent_span_id
    assert (root.start_time_unix_nano, root.end_time_unix_nano) == (BEGAN, BEGAN + 100_000_000)
    ms = {
        name: ((span.start_time_unix_nano - BEGAN) / 1e6, (span.end_time_unix_nano - BEGAN) / 1e6)
        for name, span in spans.items()
    }
    assert ms == {
        "guard": (0, 2), "queue": (2, 12), "prefill": (12, 47), "delivery": (47, 48), "decode": (48, 100),
    }  # fmt: skip
    assert {span.parent_span_id for span in spans.values()} == {root.span_id}
    assert {span.trace_id for span in spans.values()} == {root.trace_id}


def test_its_span_speaks_the_conventions_and_names_what_to_look_up(collector: Collector) -> None:
    root = exported(collector)["chat smollm2"]
    said = told(root)
    assert said["gen_ai.operation.name"] == "chat"
    assert said["gen_ai.request.model"] == "smollm2"
    assert said["gen_ai.response.finish_reasons"] == ["stop"]
    assert said["gen_ai.usage.input_tokens"] == 100
    assert said["gen_ai.usage.output_tokens"] == 11
    assert said["gen_ai.usage.cache_read.input_tokens"] == 64
    assert said["gen_ai.response.time_to_first_chunk"] == 0.048
    assert (said["llmconsole.request_id"], said["llmconsole.id"]) == ("req-7", "chatcmpl-req-7")
    assert (said["llmconsole.first_step"], said["llmconsole.last_step"]) == (40, 51)
    assert said["llmconsole.cost_usd"] == pytest.approx(3e-6)
    assert "nobody may read" not in str(root)


def test_the_service_is_named_and_the_path_added(collector: Collector) -> None:
    traces = Traces(lambda: collector.url + "/", "1.2")
    traces.request(RECORD)
    traces.close(WAIT_S)
    path, batch = collector.batch()
    assert path == "/v1/traces"
    resource = {each.key: each.value.string_value for each in batch.resource_spans[0].resource.attributes}
    assert (resource["service.name"], resource["service.version"]) == ("llmconsole", "1.2")


def test_the_clients_trace_goes_on_here(collector: Collector) -> None:
    trace, span = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
    root = exported(collector, parent=f"00-{trace}-{span}-01")["chat smollm2"]
    assert (root.trace_id.hex(), root.parent_span_id.hex()) == (trace, span)


def test_a_malformed_parent_begins_a_trace(collector: Collector) -> None:
    assert not exported(collector, parent="00-zz-1-01")["chat smollm2"].parent_span_id


def test_a_request_that_failed_early_has_the_parts_it_came_to(collector: Collector) -> None:
    failed = msgspec.structs.replace(
        RECORD, finish_reason="error", error="The engine died.", path="/v1/score", prefill_s=None, first_decode_s=None,
        delivery_s=None, ttft_s=None, key="",
    )  # fmt: skip
    spans = exported(collector, failed)
    assert set(spans) == {"POST /v1/score", "guard", "queue"}
    root = spans["POST /v1/score"]
    assert (root.status.code, root.status.message) == (2, "The engine died.")
    assert not {"llmconsole.key", "gen_ai.operation.name", "gen_ai.response.time_to_first_chunk"} & set(told(root))


def test_an_endpoint_may_change_while_it_runs(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "10")
    second = Collector()
    try:
        where: list[str | None] = [collector.url]
        traces = Traces(lambda: where[0], "1.2")
        for url, at in ((collector.url, collector), (None, None), (second.url, second)):
            where[0] = url
            traces.request(RECORD)
            if at is not None:
                assert at.take()
        traces.close(WAIT_S)
    finally:
        second.close()


def test_a_dead_collector_is_told_of_once_and_holds_nothing_up(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "1")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.05")
    with socket.socket() as unheard, caplog.at_level(logging.DEBUG):
        unheard.bind(("127.0.0.1", 0))  # Bound, and not listening: nobody else gets the port.
        traces = Traces(lambda: f"http://u:secret@127.0.0.1:{unheard.getsockname()[1]}", "1.2")
        for _ in range(700):  # Spans for more than one batch.
            traces.request(RECORD)
        traces.close(WAIT_S)
    said = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(said) == 1
    assert "doesn't take traces" in said[0]
    assert "secret" not in said[0]


@pytest.mark.parametrize("endpoint", ["nonsense", "http://", "http://[::1", "grpc://127.0.0.1:4317"])
def test_an_endpoint_that_is_none_is_told_of_once(endpoint: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "engine_host"):
        traces = Traces(lambda: endpoint, "1.2")
        traces.request(RECORD)
        traces.request(RECORD)
        traces.close(WAIT_S)
    (said,) = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert "log.otlp_endpoint" in said


def test_the_endpoint_is_the_profiles_else_the_environments() -> None:
    both = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://all:4318/", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://t/x"}
    assert traces_url("http://profile:4318", both) == "http://profile:4318/v1/traces"
    assert traces_url("http://profile:4318/v1/traces", both) == "http://profile:4318/v1/traces"
    assert traces_url(None, both) == "http://t/x"
    assert traces_url(None, {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://all:4318/"}) == "http://all:4318/v1/traces"
    assert traces_url(None, {}) is None


def test_without_an_endpoint_nothing_is_imported_and_nothing_runs() -> None:
    program = """
import sys, threading
from engine_host.telemetry.traces import Traces
from tests.telemetry.test_request_log import RECORD
traces = Traces(lambda: None, "1")
traces.request(RECORD)
traces.close()
print(threading.active_count(), sorted(name for name in sys.modules if name.startswith("opentelemetry")))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "1 []\n"
