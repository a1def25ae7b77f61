"""One OpenTelemetry trace a request, where an endpoint is set; without one nothing is imported and nothing runs."""

import logging
import os
import threading
from collections.abc import Callable, Mapping
from queue import SimpleQueue
from typing import TYPE_CHECKING

from engine_host.api.records import RequestRecord

if TYPE_CHECKING:
    from engine_host.telemetry.traces_otlp import Exporting

log = logging.getLogger(__name__)

MOST_WAITING = 2_048
"""Requests that may wait to be made into spans; more are left out. They wait while the libraries are being imported."""

_PATH = "v1/traces"

_Item = tuple[RequestRecord, str | None] | None


class Traces:
    """Exports a trace of each request over OTLP/HTTP, from threads of its own: `request` never waits for anything.

    `endpoint` gives the profile's collector (a base URL such as `http://localhost:4318`, or the whole URL with
    `/v1/traces`), `None` for that of the environment; it is asked at each request, so a change holds at once.
    Headers, timeouts, sampling and the service's name are those of the OpenTelemetry environment variables.
    """

    def __init__(self, endpoint: Callable[[], str | None], version: str) -> None:
        self._endpoint = endpoint
        self._version = version
        self._exporter: _Exporter | None = None

    def request(self, record: RequestRecord, parent: str | None = None) -> None:
        """Export the trace of a request that has ended, below the client's span if `parent` is its `traceparent`."""
        url = traces_url(self._endpoint(), os.environ)
        if self._exporter is not None and self._exporter.url != url:
            self._exporter.end()
            self._exporter = None
        if url is None:
            return
        if self._exporter is None:
            self._exporter = _Exporter(url, self._version)
        self._exporter.put(record, parent)

    def close(self, timeout_s: float = 2.0) -> None:
        """Send what waits, for at most `timeout_s` seconds; what a collector hasn't taken by then is lost."""
        if self._exporter is not None:
            self._exporter.end(timeout_s)
            self._exporter = None


def traces_url(endpoint: str | None, environ: Mapping[str, str]) -> str | None:
    """Where traces go: the profile's endpoint, else the environment's; `None` for nowhere.

    As OpenTelemetry defines it, `OTEL_EXPORTER_OTLP_TRACES_ENDPOINT` is a whole URL and `OTEL_EXPORTER_OTLP_ENDPOINT`
    one that the path is added to.
    """
    if endpoint:
        return endpoint if endpoint.rstrip("/").endswith(_PATH) else f"{endpoint.rstrip('/')}/{_PATH}"
    if whole := environ.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"):
        return whole
    base = environ.get("OTEL_EXPORTER_OTLP_ENDPOINT")
    return f"{base.rstrip('/')}/{_PATH}" if base else None


class _Exporter:
    """A thread that makes spans and hands them to the library's own, which sends them to one URL in batches."""

    def __init__(self, url: str, version: str) -> None:
        self.url = url
        self._version = version
        self._waiting: SimpleQueue[_Item] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="traces", daemon=True)
        self._thread.start()

    def put(self, record: RequestRecord, parent: str | None) -> None:
        if self._waiting.qsize() < MOST_WAITING and self._thread.is_alive():
            self._waiting.put((record, parent))

    def end(self, timeout_s: float = 0.0) -> None:
        self._waiting.put(None)
        if timeout_s:
            self._thread.join(timeout_s)

    def _run(self) -> None:
        exporting: Exporting | None = None
        while (item := self._waiting.get()) is not None:
            try:
                if exporting is None:
                    exporting = _exporting(self.url, self._version)
                exporting.add(*item)
            except Exception as error:  # Telemetry of a request must never cost more than the telemetry.
                log.warning("Traces are not exported: %s. Set log.otlp_endpoint to the collector's URL.", error)
                return
        if exporting is not None:
            exporting.close()


def _exporting(url: str, version: str) -> "Exporting":
    # Imported here, on this thread: on the event loop the time it takes would hold up every stream.
    from engine_host.telemetry.traces_otlp import Exporting

    return Exporting(url, version)
