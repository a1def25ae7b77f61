"""Puts one immutable picture of everything together, for a screen to pull."""

import time
from collections.abc import Callable, Mapping

from engine_host.api.types import Cost, Figures, HistoryPoint, KvCache, Snapshot
from engine_host.gateway.view import GatewayView
from engine_host.host import EngineHost
from engine_host.ports import Ports
from engine_host.telemetry.device import DeviceSampler
from engine_host.telemetry.hub import TelemetryHub
from engine_host.telemetry.timeline import HISTORY_S

REFRESH_S = 0.1
"""Askers within this time get the same picture: its cost does not grow with the number of screens."""


class SnapshotSource:
    """Builds snapshots from the host's parts, at most ten a second."""

    def __init__(
        self,
        host: EngineHost,
        ports: Ports,
        hub: TelemetryHub,
        sampler: DeviceSampler,
        gateway: GatewayView,
        cost: Callable[[], Cost],
    ) -> None:
        self._cost = cost
        self._gateway = gateway
        self._host = host
        self._ports = ports
        self._hub = hub
        self._sampler = sampler
        self._began = time.monotonic()
        self._built = 0.0
        self._sequence = 0
        self._last: Snapshot | None = None

    def snapshot(self) -> Snapshot:
        """The picture of now, or of at most `REFRESH_S` ago."""
        now = time.monotonic()
        if self._last is None or now - self._built >= REFRESH_S:
            self._built = now
            self._sequence += 1
            self._last = self._build(now)
        return self._last

    def history(self, since: float) -> list[HistoryPoint]:
        """The seconds after the Unix time `since`."""
        return self._hub.history(since)

    def figures(self) -> Figures:
        """What the history of changes compares: the figures of the window that ends now."""
        latency = self._hub.latency()
        produced = self._hub.produced()
        return Figures(
            window_s=latency.window_s,
            ttft_p50=latency.ttft.p50 if latency.ttft is not None else None,
            ttl_p50=latency.ttl.p50 if latency.ttl is not None else None,
            decode_tps=produced.tokens / produced.seconds if produced.seconds else None,
            usd_per_million_output=self._cost().usd_per_million_output,
        )

    def _build(self, now: float) -> Snapshot:
        host, hub = self._host, self._hub
        kv, pages = self._kv()
        load = hub.load()
        return Snapshot(
            sequence=self._sequence,
            time=time.time(),
            uptime_s=now - self._began,
            state=host.state,
            model=host.model,
            profile=host.profile_name,
            port=self._ports.info,
            kv=kv,
            latency=hub.latency(),
            load=load,
            device=self._sampler.reading(),
            cost=self._cost(),
            requests=self._gateway.rows(hub.requests(pages)),
            flight=host.flight_files(),
            swap=host.swap,
            marks=host.changes.marks(time.time() - HISTORY_S),
            gateway=self._gateway.status(),
        )

    def _kv(self) -> tuple[KvCache | None, Mapping[str, int] | None]:
        """Totals of the page map, and the number of pages each request holds."""
        reader = self._host.flight
        if reader is None:
            return None, None
        pages, header = reader.read_pages(), reader.header
        used, cached, total = pages.used, pages.cached, len(pages.state)
        totals = KvCache(
            pages=total,
            used=used,
            cached=cached,
            free=total - used - cached,
            page_tokens=header.block_size,
            page_bytes=header.page_bytes,
            hit_ratio=self._hub.hit_ratio(),
            hit_window_s=self._hub.latency().window_s,
        )
        return totals, pages.pages_held
