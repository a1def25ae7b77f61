"""Builds engines and takes them down: all that is done to an engine, and nothing of when or why."""

import asyncio
import os
import shutil
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from engine_host.api.flight import FlightReader
from engine_host.api.types import ModelInfo
from engine_host.books import RequestBook
from engine_host.engine.process import (
    BUILD_THREAD,
    DeviceKind,
    build_engine,
    device_kind,
    engine_processes,
    import_engine,
)
from engine_host.flight.knobs import ControlBlock, KnobRefusedError
from engine_host.gateway.admission import Admission
from engine_host.gateway.seats import Capacity
from engine_host.logs.ring import LogRing
from engine_host.options import HostOptions
from engine_host.runtime import SCRATCH, remember_processes, shared_memory_of
from engine_host.telemetry.hub import TelemetryHub
from engine_host.telemetry.work import WorkModel
from profiles.schema import Profile

SHUTDOWN_TIMEOUT_S = 5.0
"""What an engine gets to end by itself before its processes are killed."""


@dataclass
class Built:
    """One engine with all that stands around it. `serving` is `None` until it can serve; `shared` is its own memory
    in `/dev/shm`, which a killed one leaves there; `work` is the estimate of its model's work."""

    engine: Any
    profile: Profile
    path: Path
    model: ModelInfo
    serving: Any = None
    flight: FlightReader | None = None
    flight_path: Path | None = None
    control: ControlBlock | None = None
    shared: set[Path] = field(default_factory=set)
    work: WorkModel | None = None
    devices: int = 1
    max_active: int = 1
    """Most requests that run at once."""

    def want(self, profile: Profile) -> None:
        """Have the live knobs of `profile` in force from the next step on. Raises `KnobRefusedError`."""
        if self.control is None:
            raise KnobRefusedError("This engine has no flight record, through which knobs are changed. Start it again.")
        knobs, now = profile.live_values(), self.control.in_force
        wanted = replace(
            now,
            token_budget=knobs.token_budget,
            max_active=knobs.max_active,
            long_prefill_threshold=knobs.long_prefill_threshold,
            watermark_blocks=int(knobs.watermark * self.control.blocks),
            chunked_prefill=knobs.chunked_prefill,
            policy=knobs.policy,
            snapshot_hz=knobs.snapshot_hz,
        )
        self.control.want(wanted, self.model.max_model_len or 0)
        self.max_active = knobs.max_active


class EngineBuilder:
    """Builds one engine at a time. All methods are for the event loop's thread.

    `gateway` is there once vLLM has been imported: the one engine client, through which every request goes, whatever
    engine is behind it. `when_dead` is called when a request finds its engine dead; `admission` lets requests in, up to
    `capacity`; `book` is told of each request's end.
    """

    def __init__(
        self,
        options: HostOptions,
        ring: LogRing,
        hub: TelemetryHub,
        directory: Path,
        forkserver_pid: int,
        when_dead: Callable[[], None],
        admission: Admission,
        capacity: Callable[[], Capacity | None],
        book: RequestBook,
    ) -> None:
        self.device: DeviceKind = device_kind()
        self.gateway: Any = None
        self.ending = False
        self._options = options
        self._ring = ring
        self._hub = hub
        self._directory = directory
        self._forkserver_pid = forkserver_pid
        self._when_dead = when_dead
        self._admission = admission
        self._capacity = capacity
        self._book = book
        self._starts = 0

    async def build(self, profile: Profile, path: Path) -> Built:
        """From a profile and a model's folder to a serving engine: vLLM, EngineCore, serving classes.

        Raises what vLLM raises. Whatever was begun is taken down again, also when this is cancelled.
        """
        self._starts += 1
        flight_path = self._directory / f"flight-{self._starts}"
        engine, args = await self._build_in_thread(profile, path, flight_path)
        config = engine.vllm_config
        names = config.model_config.served_model_name
        model = ModelInfo(
            name=names if isinstance(names, str) else names[0],
            path=str(path),
            dtype=str(config.model_config.dtype).removeprefix("torch."),
            max_model_len=config.model_config.max_model_len,
        )
        from engine_host.engine.work import work_model

        parallel = config.parallel_config
        built = Built(engine, profile, path, model, flight_path=flight_path)
        built.work = await asyncio.to_thread(work_model, config)
        built.devices = parallel.tensor_parallel_size * parallel.pipeline_parallel_size
        try:
            await self._furnish(built, args)
        except BaseException:
            await asyncio.shield(self.take_down(built))
            raise
        return built

    async def _furnish(self, built: Built, args: Any) -> None:
        from engine_host.engine.gateway import Gateway
        from engine_host.engine.serving import build_serving

        if self.gateway is None:
            self.gateway = Gateway(self._hub, self._admission, self._capacity, self._book, when_dead=self._when_dead)
        processes = await asyncio.to_thread(engine_processes, self._forkserver_pid)
        await asyncio.to_thread(remember_processes, self._directory, processes)
        built.shared = await asyncio.to_thread(self._shared)
        assert built.flight_path is not None
        try:
            built.flight = await asyncio.to_thread(FlightReader, built.flight_path)
            built.control = await asyncio.to_thread(ControlBlock, built.flight_path)
            built.max_active = built.control.in_force.max_active
        except OSError as error:
            # A recorder that could not start costs the page map and the live knobs, not the engine.
            built.max_active = built.profile.scheduler.max_active
            self._ring.append("warning", "host", f"There is no flight record, and so no page map: {error}")
        # Requests that wait go on from here; new ones once the serving classes stand.
        self.gateway.attach(built.engine)
        built.serving = await build_serving(self.gateway, args)

    async def take_down(self, built: Built | None) -> None:
        """End an engine and what it left. Nobody may be working in it any more."""
        if built is not None:
            if self.gateway is not None:
                self.gateway.leave(built.engine)
            self._hub.engine_stopped()
            built.shared |= await asyncio.to_thread(self._shared)
            if len(await asyncio.to_thread(engine_processes, self._forkserver_pid)) == 1:
                # One process holds nothing that the kernel doesn't take back, and ending itself takes it seconds.
                if built.engine.output_handler is not None:
                    built.engine.output_handler.cancel()  # Or it would report the end as its own failure.
                with suppress(AttributeError):
                    built.engine.engine_core.resources.engine_dead = True  # Or vLLM would report a death.
                await asyncio.to_thread(self.kill)
            with suppress(Exception):
                await asyncio.to_thread(built.engine.engine_core.shutdown, SHUTDOWN_TIMEOUT_S)
            with suppress(Exception):
                await asyncio.to_thread(built.engine.shutdown, SHUTDOWN_TIMEOUT_S)
        await asyncio.to_thread(self.kill)
        await asyncio.to_thread(self._sweep, built)

    def kill(self) -> None:
        """Kill the engine's processes, if there are any."""
        for process in engine_processes(self._forkserver_pid):
            with suppress(Exception):
                process.kill()

    def _shared(self) -> set[Path]:
        """What of `/dev/shm` only the engine's processes use."""
        engine = shared_memory_of(process.pid for process in engine_processes(self._forkserver_pid))
        return engine - shared_memory_of((os.getpid(), self._forkserver_pid))

    def _sweep(self, built: Built | None) -> None:
        """Remove the files of engines that are gone: a killed one can't."""
        for name in SCRATCH:
            for left in (self._directory / name).iterdir() if (self._directory / name).is_dir() else []:
                shutil.rmtree(left, ignore_errors=True) if left.is_dir() else left.unlink(missing_ok=True)
        if built is None:
            return
        for path in [*built.shared, *([built.flight_path] if built.flight_path is not None else [])]:
            path.unlink(missing_ok=True)

    async def _build_in_thread(self, profile: Profile, path: Path, flight_path: Path) -> tuple[Any, Any]:
        """Build the engine in a thread of its own, which the end of this process does not wait for.

        The thread can't be stopped, and forgetting it would leave an engine nobody owns: when cancelled, this ends the
        engine's processes, which makes it return, and waits for that; unless the host is ending, and all with it.
        """
        loop = asyncio.get_running_loop()
        built: asyncio.Future[tuple[Any, Any]] = loop.create_future()

        def deliver(result: tuple[Any, Any] | None, error: BaseException | None) -> None:
            if built.cancelled():
                return
            if result is not None:
                built.set_result(result)
            else:
                built.set_exception(error or RuntimeError("the engine was not built"))

        def work() -> None:
            result, error = None, None
            try:
                result = self._build(profile, path, flight_path)
            except BaseException as caught:
                error = caught
            with suppress(RuntimeError):  # The loop is closed: nobody waits any more.
                loop.call_soon_threadsafe(deliver, result, error)

        threading.Thread(target=work, name=BUILD_THREAD, daemon=True).start()
        cancelled = False
        while not built.done():
            try:
                if cancelled:
                    await asyncio.to_thread(self.kill)
                await asyncio.wait({built}, timeout=0.2 if cancelled else None)
            except asyncio.CancelledError:
                if self.ending:
                    raise
                cancelled = True
        if not cancelled:
            return built.result()
        if built.exception() is None:
            with suppress(Exception):
                await asyncio.to_thread(built.result()[0].shutdown, SHUTDOWN_TIMEOUT_S)
        raise asyncio.CancelledError

    def _build(self, profile: Profile, path: Path, flight_path: Path) -> tuple[Any, Any]:
        """Import vLLM and build the engine (worker thread)."""
        import_engine()
        from engine_host.engine.serve_args import parse_serve_args
        from engine_host.engine.stats import stat_logger_factory

        knobs = profile.live_values()
        args = parse_serve_args(str(path), self._options.serve_args, profile.engine_arguments(self.device))
        running = {"snapshot_hz": knobs.snapshot_hz}
        # A ceiling named on the command line is meant to be used.
        if args.max_num_batched_tokens == profile.allocated_tokens:
            running["token_budget"] = knobs.token_budget
        if args.max_num_seqs == profile.allocated_requests:
            running["max_active"] = knobs.max_active
        recorder: dict[str, object] = {
            "flight_path": str(flight_path),
            "engine_id": 0,
            "snapshot_hz": knobs.snapshot_hz,
            "knobs": running,
        }
        return build_engine(args, recorder, [stat_logger_factory(self._hub)]), args
