"""One run of the host on its event loop: everything is put together here, and taken apart again."""

import asyncio
import logging
import os
import signal
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from engine_host.admin import admin_routes, public_admin_routes
from engine_host.admin_gateway import gateway_routes
from engine_host.admin_measures import measure_routes
from engine_host.api.types import EngineState, StateName
from engine_host.books import Served
from engine_host.changes import ChangeLog
from engine_host.doctor.gather import Gatherer
from engine_host.doctor.record import StalledClient
from engine_host.engine.process import device_kind
from engine_host.gateway.access import given_keys
from engine_host.gateway.admission import Admission
from engine_host.gateway.keys import KEYS_FILE, KeyStore
from engine_host.gateway.sessions import SessionBook
from engine_host.gateway.stores import Stores
from engine_host.gateway.view import GatewayView
from engine_host.host import EngineHost
from engine_host.logs.ring import LogRing
from engine_host.measuring import Measuring
from engine_host.options import HostOptions
from engine_host.port.app import keys_of_vllm, make_app
from engine_host.port.auth import Authenticator
from engine_host.port.stream import OpenStreams
from engine_host.ports import Ports
from engine_host.runtime import SOCKET_NAME
from engine_host.snapshots import SnapshotSource
from engine_host.supervisor import ScreenSupervisor
from engine_host.telemetry.accounting import EngineFacts
from engine_host.telemetry.device import DeviceSampler
from engine_host.telemetry.hub import TelemetryHub
from engine_host.telemetry.metrics import Metrics, render
from engine_host.telemetry.peak_book import PeakBook
from profiles.schema import Profile

log = logging.getLogger(__name__)

RETRY_AFTER_S = 2
"""What a client is told to wait while the engine starts: starts take seconds to minutes, and a retry costs nothing."""

FEED_INTERVAL_S = 0.25

USAGE_INTERVAL_S = 2.0

SWEEP_INTERVAL_S = 60.0
"""Pause between two looks for conversations to forget."""

STALLED_S = 2.0
"""A client that takes nothing for longer than this is told to the doctor: a slow one takes something each second."""

KEEP_ALIVE_S = 5.0
"""Pause between comments in streams that wait for a rebuild; proxies cut silent ones off after 30 s and more."""


class Session:
    """What runs from the first byte on the port to the last."""

    def __init__(self, options: HostOptions, directory: Path, ring: LogRing, forkserver_pid: int) -> None:
        self._directory = directory
        self._ring = ring
        self._hub = TelemetryHub()
        self._sampler = DeviceSampler(kind="cpu" if device_kind() == "cpu" else "auto")
        self._stores = Stores(
            lambda: self._host.rules().gateway,
            options.data_dir,
            lambda: self._host.model.max_model_len,
            self._message_tokens,
        )
        self._peaks = PeakBook(options.data_dir, lambda sentence: ring.append("warning", "host", sentence))
        self._measuring = Measuring(
            self._hub,
            self._sampler,
            ring,
            options.data_dir,
            lambda: self._host.rules(),
            lambda: Served(self._host.model.name, self._host.profile_name),
            self._facts,
        )
        self._host = EngineHost(
            options,
            ring,
            self._hub,
            directory,
            forkserver_pid,
            self._device_bytes,
            ChangeLog(lambda: self._snapshots.figures(), when_finished=self._measuring.event),
            self._make_admission,
            self._measuring.book,
        )
        self._streams = OpenStreams()
        self._keys = KeyStore(options.data_dir / KEYS_FILE)
        given = given_keys(options.serve_args)
        self._auth = Authenticator(
            self._keys,
            lambda: self._host.profile.keys if self._host.profile is not None else None,
            lambda: given | keys_of_vllm(self),
            os.environ.get("LLMCONSOLE_ADMIN_KEY"),
            options.allow_without_key,
        )
        self._ports = Ports(
            lambda: make_app(self, extra_routes=public_admin_routes(self._host), auth=self._auth),
            options.host,
            options.port,
            self._auth.exposure,
        )
        self._view = GatewayView(
            self._host.gate,
            self._hub,
            self._stores,
            self._keys,
            self._host.rules,
            self._measuring.book.cost_so_far,
            time.monotonic,
        )
        self._snapshots = SnapshotSource(
            self._host, self._ports, self._hub, self._sampler, self._view, self._measuring.cost
        )
        self._metrics = Metrics(self._hub, self._sampler, self._snapshots.snapshot, telemetry=self._measuring.telemetry)
        self._gatherer = Gatherer(
            profile=lambda: self._host.profile,
            snapshot=self._snapshots.snapshot,
            telemetry=self._measuring.telemetry,
            history=self._hub.history,
            requests=lambda: self._measuring.lately,
            stalled=self._stalled,
        )
        self._quit: asyncio.Event | None = None
        self._complained = False

    def _make_admission(self, rules: Callable[[], Profile]) -> Admission:
        measuring = self._measuring
        return Admission(rules, self._stores.budgets, measuring.usd_per_token, cost_of=measuring.book.cost_of)

    def _facts(self) -> EngineFacts:
        """What is known of the engine that runs."""
        host = self._host
        dtype = host.model.dtype or ""
        peaks = self._peaks.of(self._sampler.reading().name, dtype, host.rules().peaks, host.engine)
        return EngineFacts(host.flight, host.work, host.devices, peaks)

    def _stalled(self) -> list[StalledClient]:
        """Clients that take nothing now."""
        return [StalledClient(*each) for each in self._streams.stalled(time.monotonic(), STALLED_S)]

    def _message_tokens(self, message: Mapping[str, Any]) -> int:
        serving = self._host.serving
        # Without an engine nobody counts, and the request waits for one: bytes are the most tokens there can be.
        return serving.message_tokens(message) if serving is not None else len(msgspec.json.encode(message))

    # What the port asks of its host.

    def engine_state(self) -> EngineState:
        """The engine's state, for the port's replies."""
        return self._host.state

    def serving(self) -> Any:
        """vLLM's serving classes, `None` until ready."""
        return self._host.serving

    def rules(self) -> Profile:
        """The profile in force."""
        return self._host.rules()

    def sessions(self) -> SessionBook | None:
        """The conversations that are kept, if any are."""
        return self._stores.sessions()

    async def admission(self) -> None:
        """Wait while the engine is being rebuilt: a request that comes then is begun in the new one."""
        await self._host.admission()

    @property
    def streams(self) -> OpenStreams:
        """The streams that are being delivered, on either listener."""
        return self._streams

    def retry_after_s(self) -> int:
        """Seconds a client should wait before it asks again."""
        return RETRY_AFTER_S

    async def metrics_text(self) -> bytes:
        """Our metrics in Prometheus' text format."""
        return await asyncio.to_thread(render, self._metrics.collect())

    async def check_health(self) -> str | None:
        """`None` when the engine can serve, else why not."""
        state = self._host.state
        if state.name == "swapping":
            return None  # Requests are taken, and wait.
        if state.name == "ready" and self._host.engine is not None:
            try:
                await self._host.engine.check_health()
            except Exception as error:
                return f"The engine is not healthy: {error}"
            return None
        return state.reason or f"The engine is {state.name}."

    async def run(self, supervisor: ScreenSupervisor | None) -> int:
        """Serve until told to quit: by the screen, by a signal. Returns the exit code."""
        self._quit = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self._quit.set)
        admin = admin_routes(self._host, self._ports, self._snapshots, self._ring, self._quit.set)
        admin += gateway_routes(self._host, self._view)
        admin += measure_routes(self._measuring, self._gatherer)
        private = make_app(self, extra_routes=admin, trusted=True)
        self._sampler.start()
        self._measuring.start()
        feed = asyncio.create_task(self._feed_hub(), name="feed-hub")
        alive = asyncio.create_task(self._keep_streams_alive(), name="keep-alive")
        usage = asyncio.create_task(self._keep_usage(), name="keep-usage")
        try:
            await self._ports.open_socket(private, self._directory / SOCKET_NAME)
            bound = await self._ports.open_port()
            if not bound.ok:
                self._ring.append("error", "host", bound.message)
                if supervisor is None:
                    return 1
            self._host.start()
            return await self._until_quit(supervisor)
        finally:
            if supervisor is not None:
                await asyncio.to_thread(supervisor.stop)
            feed.cancel()
            alive.cancel()
            usage.cancel()
            self._sampler.stop()
            with suppress(Exception):
                await self._ports.close()
            await asyncio.to_thread(self._keys.close)
            self._measure(self._measuring.tick)
            await self._host.stop()
            self._measure(self._measuring.finish)
            await self._host.gate.stop()
            await asyncio.to_thread(self._measuring.close)
            await self._stores.close()

    async def _until_quit(self, supervisor: ScreenSupervisor | None) -> int:
        """The exit code. With a screen a failed engine is the operator's to mend; without one nobody is there to."""
        assert self._quit is not None
        quit_ = asyncio.create_task(self._quit.wait(), name="quit")
        other: asyncio.Task[Any]
        if supervisor is not None:
            other = asyncio.create_task(supervisor.watch(), name="screen")
        else:
            other = asyncio.create_task(self._never_ready(), name="never-ready")
        await asyncio.wait({quit_, other}, return_when=asyncio.FIRST_COMPLETED)
        if not other.done():
            other.cancel()
            return 0
        quit_.cancel()
        other.result()
        return 1 if supervisor is None else 0

    async def _never_ready(self) -> None:
        """Returns when the first start has failed. An engine that served once is the operator's to mend."""
        if (await self._host.until("ready", "failed")).name == "ready":
            await asyncio.Event().wait()

    def _device_bytes(self) -> int | None:
        total = self._sampler.reading().memory_total.value
        return int(total) if total is not None else None

    async def _keep_streams_alive(self) -> None:
        """Tell clients, and what stands between, that a stream which pauses goes on."""
        while True:
            state = self._host.state.name
            if state in ("swapping", "recovering"):
                self._streams.comment(f"the engine is {state}; this stream goes on")
            elif self._host.gate.any_held:
                self._streams.comment("streams wait for others; this one goes on")
            with suppress(TimeoutError):
                others: tuple[StateName, ...] = ("ready", "failed", "stopped", "starting")
                changed = ("swapping", "recovering") if state in others else others
                await asyncio.wait_for(self._host.until(*changed), KEEP_ALIVE_S)

    async def _keep_usage(self) -> None:
        """Know what the tiers have used up, and forget conversations that are past their time."""
        swept = 0.0
        while True:
            await asyncio.sleep(USAGE_INTERVAL_S)
            await self._view.refresh()
            if time.monotonic() - swept > SWEEP_INTERVAL_S:
                swept = time.monotonic()
                await self._stores.sweep()

    async def _feed_hub(self) -> None:
        """Hand over what isn't pushed: the scheduler's steps, the devices' readings, who waits, who doesn't read."""
        while True:
            await asyncio.sleep(FEED_INTERVAL_S)
            self._streams.cut_stalled(time.monotonic(), self._host.rules().gateway.clients.stall_s)
            self._hub.queued(self._host.gate.waiting)
            state = self._host.state
            self._host.gate.observe(state.reason if state.name in ("recovering", "failed") else None)
            self._measure(self._measuring.tick)

    def _measure(self, work: Callable[[], None]) -> None:
        """Do this part of the measuring. What is only shown must not end what is served; once says enough."""
        try:
            work()
        except Exception:
            if not self._complained:
                log.exception("The figures of this moment are lost.")
            self._complained = True
