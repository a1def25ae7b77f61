"""The engine's life: what state it is in, and the steps from one to the next.

    stopped → starting(phase) → ready → stopped
                     └────────────┴──→ failed(reason) → starting …

One task at a time moves it; whoever asks meanwhile is told so, or takes the task's place by cancelling it.
"""

import asyncio
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from engine_host.api.flight import FlightReader
from engine_host.api.types import (
    CommandReply,
    EngineState,
    FlightFile,
    ModelInfo,
    PhaseName,
    StartCommand,
    StateName,
)
from engine_host.engine.process import (
    BUILD_THREAD,
    DeviceKind,
    build_engine,
    device_kind,
    engine_processes,
    import_engine,
)
from engine_host.logs.ring import LogRing
from engine_host.models.store import ModelStore
from engine_host.options import HostOptions
from engine_host.runtime import remember_processes
from engine_host.startup import Failure, explain, progress_of
from engine_host.telemetry.hub import TelemetryHub
from profiles.schema import Profile
from profiles.store import ProfileStore, default_profile

WATCH_INTERVAL_S = 0.25
"""How often a ready engine is asked whether it is alive."""

SHUTDOWN_TIMEOUT_S = 5.0
"""What an engine gets to end by itself before its processes are killed."""


class EngineHost:
    """Owns one engine and says what it is doing. All methods are for the event loop's thread.

    `directory` is this host's runtime folder, where the flight record goes.
    """

    def __init__(
        self, options: HostOptions, ring: LogRing, hub: TelemetryHub, directory: Path, forkserver_pid: int
    ) -> None:
        self.options = options
        self.hub = hub
        self.profiles = ProfileStore(options.config_dir / "profiles")
        self.models = ModelStore(options.data_dir / "models")
        self.device: DeviceKind = device_kind()
        self.profile_name = options.profile or default_profile(self.device)
        self.profile: Profile | None = None
        self.model_name = options.model
        self.serving: Any = None
        self.flight: FlightReader | None = None
        self._ring = ring
        self._directory = directory
        self._forkserver_pid = forkserver_pid
        self._engine: Any = None
        self._model = ModelInfo(name=options.model or "", path=options.model or "")
        self._state = EngineState("stopped", since=time.time())
        self._phase_began = 0.0
        self._changed = asyncio.Event()
        self._ending = False
        self._task: asyncio.Task[None] | None = None
        self._starts = 0

    @property
    def state(self) -> EngineState:
        """What the engine is doing now."""
        return self._state

    @property
    def model(self) -> ModelInfo:
        """The model being served or started."""
        return self._model

    @property
    def engine(self) -> Any:
        """The live `AsyncLLM`, `None` until ready."""
        return self._engine

    def flight_files(self) -> tuple[FlightFile, ...]:
        """Where the live engine's flight record lies."""
        return (FlightFile(0, str(self._flight_path)),) if self.flight is not None else ()

    def start(self, command: StartCommand | None = None) -> CommandReply:
        """Begin starting an engine, with another model or profile where `command` names one. Returns at once."""
        command = command or StartCommand()
        if self._state.name == "ready":
            return CommandReply(False, "The engine is running. Stop it first to start it with something else.")
        previous = self._task
        if command.model is not None:
            self.model_name = command.model
        if command.profile is not None:
            self.profile_name = command.profile
        self._set("starting", phase="import")
        self._task = asyncio.create_task(self._run_start(previous), name="engine-start")
        return CommandReply(True)

    async def until(self, *names: StateName) -> EngineState:
        """Wait for the engine to be in one of the states `names`."""
        while self._state.name not in names:
            changed = self._changed
            await changed.wait()
        return self._state

    async def stop(self) -> None:
        """End the engine for good, whatever it is doing; its processes are gone on return."""
        self._ending = True
        task, self._task = self._task, None
        await self._cancel(task)
        await self._end_engine()
        if self._state.name != "failed":
            self._set("stopped")

    async def _cancel(self, task: asyncio.Task[None] | None) -> None:
        if task is None or task.done():
            return
        task.cancel()
        await asyncio.wait({task})

    async def _run_start(self, previous: asyncio.Task[None] | None) -> None:
        await self._cancel(previous)
        await self._end_engine()
        mark = self._ring.tail(1)
        began = mark[0].sequence if mark else 0
        self._ring.sinks.append(self._watch_start)
        self._loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self.options.start_timeout_s):
                await self._bring_up()
        except asyncio.CancelledError:
            await self._end_engine()
            raise
        except TimeoutError:
            await self._fail(
                Failure(
                    f"The engine was not ready after {self.options.start_timeout_s:.0f} s and was ended.",
                    "See the log for where it stood, or choose another model.",
                )
            )
        except Exception as error:
            # The failed process's last lines are still on their way through the pipe.
            await asyncio.sleep(0.3)
            log = self._ring.page(began, 20_000).records if began else self._ring.tail(20_000)
            await self._fail(_known(error) or explain(error, log))
        finally:
            self._ring.sinks.remove(self._watch_start)
        if self._state.name == "ready":
            await self._watch_ready()

    async def _bring_up(self) -> None:
        """From nothing to ready: profile, model, vLLM, EngineCore, serving classes."""
        profile = self.profile = await asyncio.to_thread(self.profiles.load, self.profile_name)
        path = await asyncio.to_thread(self.models.resolve, self.model_name or profile.engine.model)
        self._model = ModelInfo(name=path.name, path=str(path))
        self._starts += 1
        self._flight_path = self._directory / f"flight-{self._starts}"
        engine, args = await self._build_in_thread(profile, path)
        self._engine = engine
        from engine_host.engine.gateway import Gateway
        from engine_host.engine.serving import build_serving

        serving = await build_serving(Gateway(engine, self.hub), args)
        config = engine.vllm_config
        names = config.model_config.served_model_name
        self._model = ModelInfo(
            name=names if isinstance(names, str) else names[0],
            path=str(path),
            dtype=str(config.model_config.dtype).removeprefix("torch."),
            max_model_len=config.model_config.max_model_len,
        )
        processes = await asyncio.to_thread(engine_processes, self._forkserver_pid)
        await asyncio.to_thread(remember_processes, self._directory, processes)
        try:
            self.flight = await asyncio.to_thread(FlightReader, self._flight_path)
        except OSError as error:
            # A recorder that could not start costs the page map, not the engine.
            self._ring.append("warning", "host", f"There is no flight record, and so no page map: {error}")
        self.serving = serving
        self._set("ready")
        took = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in self._state.phase_seconds.items())
        self._ring.append("info", "host", f"The engine is ready: {self._model.name} ({took}).")

    async def _build_in_thread(self, profile: Profile, path: Path) -> tuple[Any, Any]:
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
                result = self._build(profile, path)
            except BaseException as caught:
                error = caught
            with suppress(RuntimeError):  # The loop is closed: nobody waits any more.
                loop.call_soon_threadsafe(deliver, result, error)

        threading.Thread(target=work, name=BUILD_THREAD, daemon=True).start()
        cancelled = False
        while not built.done():
            try:
                if cancelled:
                    await asyncio.to_thread(self._kill_processes)
                await asyncio.wait({built}, timeout=0.2 if cancelled else None)
            except asyncio.CancelledError:
                if self._ending:
                    raise
                cancelled = True
        if not cancelled:
            return built.result()
        if built.exception() is None:
            self._engine = built.result()[0]
        raise asyncio.CancelledError

    def _build(self, profile: Profile, path: Path) -> tuple[Any, Any]:
        """Import vLLM and build the engine (worker thread)."""
        import_engine()
        from engine_host.engine.serve_args import parse_serve_args
        from engine_host.engine.stats import stat_logger_factory

        knobs = profile.live_values()
        args = parse_serve_args(str(path), self.options.serve_args, profile.engine_arguments(self.device))
        recorder: dict[str, object] = {
            "flight_path": str(self._flight_path),
            "engine_id": 0,
            "snapshot_hz": knobs.snapshot_hz,
        }
        return build_engine(args, recorder, [stat_logger_factory(self.hub)]), args

    async def _watch_ready(self) -> None:
        """Until the engine dies."""
        while True:
            await asyncio.sleep(WATCH_INTERVAL_S)
            if self._engine.errored:
                break
        await asyncio.sleep(0.3)
        why = explain(None, self._ring.tail(200))
        await self._fail(Failure(f"The engine ended unexpectedly: {why.reason}", "Start it again, or see the log."))

    async def _fail(self, failure: Failure) -> None:
        await self._end_engine()
        self._ring.append("error", "host", failure.reason)
        self._set("failed", reason=failure.reason, hint=failure.hint)

    async def _end_engine(self) -> None:
        self.serving = None
        self.flight = None
        engine, self._engine = self._engine, None
        if engine is not None:
            self.hub.engine_stopped()
            with suppress(Exception):
                await asyncio.to_thread(engine.shutdown, SHUTDOWN_TIMEOUT_S)
        await asyncio.to_thread(self._kill_processes)

    def _kill_processes(self) -> None:
        for process in engine_processes(self._forkserver_pid):
            with suppress(Exception):
                process.kill()

    def _watch_start(self, record: Any) -> None:
        """A log line's phase, handed over from the log thread."""
        if (progress := progress_of(record)) is not None:
            self._loop.call_soon_threadsafe(self._advance, progress.phase, progress.fraction)

    def _advance(self, phase: PhaseName, fraction: float | None) -> None:
        if self._state.name == "starting":
            self._set("starting", phase=phase, progress=fraction)

    def _set(
        self,
        name: StateName,
        *,
        phase: PhaseName | None = None,
        progress: float | None = None,
        reason: str | None = None,
        hint: str | None = None,
    ) -> None:
        """Move to a state; the seconds each start-up phase took are kept until the next start."""
        old, now = self._state, time.time()
        seconds = {} if name == "starting" and phase == "import" else dict(old.phase_seconds)
        if (name, phase) != (old.name, old.phase):
            if old.phase is not None and phase != "import":
                seconds[old.phase] = now - self._phase_began
            self._phase_began = now
        since = old.since if name == old.name and phase != "import" else now
        self._state = EngineState(name, since, phase, progress, reason, hint, seconds)
        self._changed.set()
        self._changed = asyncio.Event()


def _known(error: BaseException) -> Failure | None:
    """Errors of our own already say what to do."""
    module = type(error).__module__
    if module.startswith(("engine_host.", "profiles")):
        return Failure(str(error), "Choose another model or profile to go on.")
    return None
