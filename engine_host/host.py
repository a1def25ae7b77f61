"""The engine's life: what state it is in, and the steps from one to the next.

    stopped → starting(phase) → ready ⇄ swapping, ready ⇄ recovering → stopped
                     └────────────┴──→ failed(reason) → starting …

One task lives it from the start on: a change, a death and an end come one after the other, never at once.
"""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine_host.api.flight import FlightReader
from engine_host.api.types import (
    ApplyCommand,
    CommandReply,
    EngineState,
    FlightFile,
    ModelInfo,
    Outcome,
    ProfileChange,
    StartCommand,
    StateName,
    SwapProgress,
    SwapStage,
)
from engine_host.books import RequestBook
from engine_host.building import Built, EngineBuilder
from engine_host.changes import ChangeLog
from engine_host.engine.process import DeviceKind
from engine_host.flight.knobs import KnobRefusedError
from engine_host.gateway.admission import Admission
from engine_host.gateway.seats import Capacity
from engine_host.logs.ring import LogRing
from engine_host.models.store import ModelStore
from engine_host.options import HostOptions
from engine_host.planning import profile_change
from engine_host.startup import Failure, explain, progress_of
from engine_host.state import StateBoard
from engine_host.telemetry.hub import TelemetryHub
from engine_host.telemetry.work import WorkModel
from profiles.schema import Profile
from profiles.store import ProfileStore, default_profile

WATCH_INTERVAL_S = 0.25
"""How often a ready engine is asked whether it is alive and makes steps."""

DRAIN_INTERVAL_S = 0.05

LOG_LAG_S = 0.3
"""How long an ended process's last lines may still be on their way through the pipe."""

MAX_BACK_OFF_S = 30.0
"""Most that the pause between two tries to bring a dead engine back grows to."""

STABLE_S = 60.0
"""An engine that has lived for this long has recovered: what comes after is a new failure, not the next in a row."""

_UNLOADED = Profile(name="unloaded", description="")
"""The rules before a profile has been read: the defaults."""

NOT_BACK = "The engine died, and could not be brought back. Nothing is wrong with the request: send it again later."


@dataclass(frozen=True)
class _Wanted:
    """A change to be made by a rebuild."""

    command: ApplyCommand
    profile: Profile
    path: Path
    change: int
    cancelled: asyncio.Event


class EngineHost:
    """Owns one engine and says what it is doing. All methods are for the event loop's thread.

    `directory` is this host's runtime folder, where the flight record goes; `device_bytes` says how much memory the
    device has, `None` if that isn't known; `changes` is their history; `make_admission` puts together what lets
    requests in, by the rules of the profile it is given; `book` is told of each request's end.
    """

    def __init__(
        self,
        options: HostOptions,
        ring: LogRing,
        hub: TelemetryHub,
        directory: Path,
        forkserver_pid: int,
        device_bytes: Callable[[], int | None],
        changes: ChangeLog,
        make_admission: Callable[[Callable[[], Profile]], Admission],
        book: RequestBook,
    ) -> None:
        self.options = options
        self.hub = hub
        self.profiles = ProfileStore(options.config_dir / "profiles")
        self.models = ModelStore(options.data_dir / "models")
        self.changes = changes
        self.swap: SwapProgress | None = None
        self.gate = make_admission(self.rules)
        self._builder = EngineBuilder(
            options, ring, hub, directory, forkserver_pid, self._engine_died, self.gate, self._capacity, book
        )
        self.profile_name = options.profile or default_profile(self.device)
        self.profile: Profile | None = None
        self.model_name = options.model
        self._ring = ring
        self._device_bytes = device_bytes
        self._built: Built | None = None
        self._model = ModelInfo(name=options.model or "", path=options.model or "")
        self._board = StateBoard()
        self._task: asyncio.Task[None] | None = None
        self._news = asyncio.Event()
        self._wanted: _Wanted | None = None
        self._failures = 0
        self._ready_since = 0.0
        self._steps_seen = 0
        self._step_seen_at = 0.0

    @property
    def device(self) -> DeviceKind:
        """What engines run on."""
        return self._builder.device

    @property
    def state(self) -> EngineState:
        """What the engine is doing now."""
        return self._board.now

    @property
    def model(self) -> ModelInfo:
        """The model being served or started."""
        return self._model

    @property
    def engine(self) -> Any:
        """The live `AsyncLLM`, `None` where there is none."""
        return self._built.engine if self._built is not None else None

    @property
    def serving(self) -> Any:
        """vLLM's serving classes over the live engine, `None` where there is none."""
        return self._built.serving if self._built is not None else None

    @property
    def flight(self) -> FlightReader | None:
        """The live engine's flight record."""
        return self._built.flight if self._built is not None else None

    @property
    def work(self) -> WorkModel | None:
        """vLLM's estimate of the live model's work."""
        return self._built.work if self._built is not None else None

    @property
    def devices(self) -> int:
        """Devices that the live engine is on."""
        return self._built.devices if self._built is not None else 1

    def rules(self) -> Profile:
        """The profile whose live knobs are in force; the defaults before one has been read."""
        return self.profile or _UNLOADED

    def flight_files(self) -> tuple[FlightFile, ...]:
        """Where the live engine's flight record lies."""
        if self._built is None or self._built.flight is None:
            return ()
        return (FlightFile(0, str(self._built.flight_path)),)

    def start(self, command: StartCommand | None = None) -> CommandReply:
        """Begin starting an engine, with another model or profile where `command` names one. Returns at once."""
        command = command or StartCommand()
        if self._board.now.name in ("ready", "swapping", "recovering"):
            return CommandReply(False, "The engine is running. Apply another profile to change it.")
        previous = self._task
        if command.model is not None:
            self.model_name = command.model
        if command.profile is not None:
            self.profile_name = command.profile
        self._failures = 0
        self._board.set("starting", phase="import")
        self._task = asyncio.create_task(self._live(previous), name="engine-life")
        return CommandReply(True)

    async def until(self, *names: StateName) -> EngineState:
        """Wait for the engine to be in one of the states `names`."""
        return await self._board.until(*names)

    async def admission(self) -> None:
        """Wait while the engine is being changed or brought back; returns at once in every other state."""
        await self.until("stopped", "starting", "ready", "failed")

    async def stop(self) -> None:
        """End the engine for good, whatever it is doing; its processes are gone on return."""
        self._builder.ending = True
        task, self._task = self._task, None
        await self._cancel(task)
        await self._take_down()
        if self._board.now.name != "failed":
            self._board.set("stopped")

    # Changing what runs.

    async def plan(self, name: str, model: str | None = None) -> ProfileChange:
        """What applying the profile `name` would do. Raises `ProfileError` or `ModelError`."""
        return (await self._planned(name, model))[0]

    async def apply(self, command: ApplyCommand) -> CommandReply:
        """Change the running profile: live knobs at once, anything else by a rebuild that is begun here.

        Where no engine runs, one is started with it. Raises `ProfileError` or `ModelError`.
        """
        if self._board.now.name in ("failed", "stopped"):
            await asyncio.to_thread(self.profiles.load, command.profile)
            return self.start(StartCommand(command.model, command.profile))
        if (refusal := self._not_now()) is not None:
            return refusal
        change, profile, path = await self._planned(command.profile, command.model)
        if (refusal := self._not_now()) is not None:
            return refusal
        assert self.profile is not None
        assert self._built is not None
        if change.refused is not None:
            return CommandReply(False, change.refused)
        if change.rebuild or path != self._built.path:
            number = self.changes.begin("rebuild", self.profile_name, profile.name, command.who, command.why)
            self._wanted = _Wanted(command, profile, path, number, asyncio.Event())
            self._progress("checking", cancellable=True)
            self._news.set()
            return CommandReply(True, f"Applying {profile.name}: the engine is rebuilt, and requests go on in it.")
        try:
            self._built.want(profile)
        except KnobRefusedError as error:
            return CommandReply(False, str(error))
        number = self.changes.begin("live", self.profile_name, profile.name, command.who, command.why)
        self.profile, self.profile_name = profile, profile.name
        self.changes.finish(number, "done")
        self.gate.pump()
        self._ring.append("info", "host", f"Profile {profile.name} is in force ({command.who}).")
        return CommandReply(True, f"{profile.name} is in force from the next step on.")

    def cancel_change(self) -> CommandReply:
        """Give up the change under way, if it has not reached the engine yet."""
        if self._wanted is None or self.swap is None:
            return CommandReply(False, "No change is under way.")
        if not self.swap.cancellable:
            return CommandReply(False, "The old engine is already being taken down: the change can't be cancelled.")
        self._wanted.cancelled.set()
        return CommandReply(True)

    def _not_now(self) -> CommandReply | None:
        if self._wanted is not None:
            return CommandReply(
                False, f"{self._wanted.profile.name} is being applied. Wait for that, or cancel it, and ask again."
            )
        if self._board.now.name != "ready":
            return CommandReply(
                False, f"The engine is {self._board.now.name}: a profile is applied to one that serves."
            )
        return None

    async def _planned(self, name: str, model: str | None) -> tuple[ProfileChange, Profile, Path]:
        profile = await asyncio.to_thread(self.profiles.load, name)
        path = await asyncio.to_thread(self.models.resolve, model or self.model_name or profile.engine.model)
        built, running = self._built, self.profile or profile

        def change() -> ProfileChange:
            if built is None:
                return profile_change(running, running, profile, path, None, self.device, self._device_bytes())
            # Late: it imports vLLM, which the engine has done already.
            from engine_host.engine.serve_args import overridden

            now, base, new = (
                overridden(each, str(path), self.options.serve_args, self.device)
                for each in (running, built.profile, profile)
            )
            other = path if path != built.path else None
            return profile_change(now, base, new, built.path, other, self.device, self._device_bytes())

        return await asyncio.to_thread(change), profile, path

    # The life.

    async def _live(self, previous: asyncio.Task[None] | None) -> None:
        await self._cancel(previous)
        await self._take_down()
        profile = path = None
        try:
            profile = await asyncio.to_thread(self.profiles.load, self.profile_name)
            path = await asyncio.to_thread(self.models.resolve, self.model_name or profile.engine.model)
            self.profile = profile
            self._model = ModelInfo(name=path.name, path=str(path))
        except Exception as error:
            self._fail(_known(error) or explain(error, []))
            return
        failure = await self._bring_up(profile, path)
        if failure is not None:
            self._fail(failure)
            return
        self._ready()
        while self._built is not None:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait(), WATCH_INTERVAL_S)
            self._news.clear()
            self.changes.tick()
            if self._built.engine.errored or self._board.now.name == "recovering":
                await self._recover("it ended unexpectedly")
            elif (stood := self._standing_still()) is not None:
                await self._recover(f"it has made no step for {stood:.0f} s while requests run")
            elif self._wanted is not None:
                await self._swap(self._wanted)
                self._wanted = self.swap = None

    async def _bring_up(self, profile: Profile, path: Path) -> Failure | None:
        """Build an engine and make it the one that runs; what went wrong otherwise."""
        mark = self._ring.tail(1)
        began = mark[0].sequence if mark else 0
        self._ring.sinks.append(self._watch_start)
        self._loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self.options.start_timeout_s):
                self._built = await self._builder.build(profile, path)
        except TimeoutError:
            return Failure(
                f"The engine was not ready after {self.options.start_timeout_s:.0f} s and was ended.",
                "See the log for where it stood, or choose another model.",
            )
        except Exception as error:
            await self._builder.take_down(None)
            await asyncio.sleep(LOG_LAG_S)
            log = self._ring.page(began, 20_000).records if began else self._ring.tail(20_000)
            return _known(error) or explain(error, log)
        finally:
            self._ring.sinks.remove(self._watch_start)
        self._model = self._built.model
        return None

    async def _swap(self, wanted: _Wanted) -> None:
        """Rebuild the engine with another profile, and carry over what runs in it."""
        assert self._built is not None
        assert self.profile is not None
        gateway, old_profile, old_path = self._builder.gateway, self._built.profile, self._built.path
        other_model = wanted.path != old_path
        self._board.set("swapping", phase=None)
        if not await self._drained(wanted, other_model):
            self.changes.finish(wanted.change, "cancelled", "Cancelled before the engine was touched.")
            self._board.set("ready")
            return
        self._progress("stopping")
        stalled_since = time.monotonic()
        await gateway.cut(end=other_model)
        await self._take_down()
        self._progress("building")
        outcome: Outcome = "done"
        message = ""
        failure = await self._bring_up(wanted.profile, wanted.path)
        if failure is not None:
            outcome, message = "rolled-back", f"{failure.reason} {failure.hint}"
            self._ring.append("error", "host", f"{wanted.profile.name} could not be applied: {failure.reason}")
            self._progress("building", target=old_profile.name)
            failure = await self._bring_up(old_profile, old_path)
        else:
            self.profile, self.profile_name = wanted.profile, wanted.profile.name
            self.model_name = wanted.command.model or self.model_name
        if failure is not None:
            self._fail(failure)
            self.changes.finish(wanted.change, "failed", f"{message} The old profile did not start either.")
            return
        if outcome == "rolled-back":
            # What was changed live since the old engine was built holds for the new one too.
            with suppress(KnobRefusedError):
                self._built.want(self.profile)
        stalled = time.monotonic() - stalled_since
        self.changes.finish(wanted.change, outcome, message, stalled)
        self._ready()

    async def _drained(self, wanted: _Wanted, everything: bool) -> bool:
        """Let what can't go on in another engine end first; whether the change is still wanted."""
        assert self.profile is not None
        gateway = self._builder.gateway
        deadline = time.monotonic() + self.profile.recovery.drain_s
        while not wanted.cancelled.is_set():
            left = gateway.requests if everything else gateway.unresumable()
            self._progress("draining", waiting_for=left, cancellable=True)
            if not left or time.monotonic() >= deadline or self.engine is None or self.engine.errored:
                return True
            with suppress(TimeoutError):
                await asyncio.wait_for(wanted.cancelled.wait(), DRAIN_INTERVAL_S)
        return False

    async def _recover(self, why: str) -> None:
        """Bring a dead or hanging engine back, and let its requests go on."""
        assert self._built is not None
        assert self.profile is not None
        engine, path = self._built.engine, self._built.path
        gateway, profile = self._builder.gateway, self.profile
        stalled_since = time.monotonic()
        await asyncio.to_thread(self._builder.kill)
        await gateway.bury(engine)
        del engine
        if time.monotonic() - self._ready_since > STABLE_S:
            self._failures = 0
        self._board.set("recovering", reason=f"The engine is being started again: {why}.")
        number = self.changes.begin("recovery", self.profile_name, self.profile_name, "host", why)
        await self._take_down()
        await asyncio.sleep(LOG_LAG_S)
        failure = explain(None, self._ring.tail(200))
        self._ring.append("error", "host", f"The engine is started again: {why}. {failure.reason}")
        while self._failures < profile.recovery.max_failures:
            if self._failures:
                await asyncio.sleep(min(profile.recovery.back_off_s * 2 ** (self._failures - 1), MAX_BACK_OFF_S))
            self._failures += 1
            found = await self._bring_up(profile, path)
            if found is None:
                self.changes.finish(number, "done", stalled_s=time.monotonic() - stalled_since)
                self._ready()
                return
            failure = found
        self.changes.finish(number, "failed", failure.reason)
        self._fail(
            Failure(
                f"The engine died {profile.recovery.max_failures} times in a row and is not started again: "
                f"{failure.reason}",
                "See the log; then start it again, or choose another model or profile.",
            )
        )

    def _standing_still(self) -> float | None:
        """Seconds without a step while requests run, once they are more than the profile allows."""
        assert self._built is not None
        assert self.profile is not None
        now, reader = time.monotonic(), self._built.flight
        if reader is None or not self._builder.gateway.computing:
            self._step_seen_at = now
            return None
        if reader.steps_made != self._steps_seen:
            self._steps_seen, self._step_seen_at = reader.steps_made, now
        stood = now - self._step_seen_at
        return stood if stood > self.profile.recovery.hang_s else None

    def _ready(self) -> None:
        self._ready_since = self._step_seen_at = time.monotonic()
        self._steps_seen = 0
        self._board.set("ready")
        self.gate.pump()
        seconds = self._board.now.phase_seconds
        took = ", ".join(f"{name} {each:.1f} s" for name, each in seconds.items())
        self._ring.append("info", "host", f"The engine is ready: {self._model.name} ({took}).")

    def _fail(self, failure: Failure) -> None:
        if self._builder.gateway is not None:
            self._builder.gateway.give_up(NOT_BACK)
        if self._wanted is not None:
            self.changes.finish(self._wanted.change, "failed", failure.reason)
            self._wanted = self.swap = None
        self._ring.append("error", "host", failure.reason)
        self._board.set("failed", reason=failure.reason, hint=failure.hint)

    async def _take_down(self) -> None:
        built, self._built = self._built, None
        await self._builder.take_down(built)

    async def _cancel(self, task: asyncio.Task[None] | None) -> None:
        if task is None or task.done():
            return
        task.cancel()
        await asyncio.wait({task})

    # Saying what goes on.

    def _capacity(self) -> Capacity | None:
        """What the engine holds, by its knobs and its scheduler's last report."""
        built = self._built
        if built is None:
            return None
        if built.flight is None or self.hub.kv_usage is None:
            return Capacity(built.max_active)
        pages = built.control.blocks if built.control is not None else None
        free = int(pages * (1 - self.hub.kv_usage)) if pages is not None else None
        return Capacity(built.max_active, pages, free, built.flight.header.block_size, self.hub.stats_at)

    def _engine_died(self) -> None:
        """A request has found the engine dead: whoever comes waits from now on, and the life sees to the rest."""
        if self._board.now.name == "ready":
            self._board.set("recovering", reason="The engine ended unexpectedly, and is started again.")
        self._news.set()

    def _progress(
        self, stage: SwapStage, *, target: str | None = None, waiting_for: int = 0, cancellable: bool = False
    ) -> None:
        assert self._wanted is not None
        since = self.swap.since if self.swap is not None and self.swap.stage == stage else time.time()
        gateway = self._builder.gateway
        self.swap = SwapProgress(
            change=self._wanted.change,
            stage=stage,
            target=target or self._wanted.profile.name,
            since=since,
            waiting_for=waiting_for,
            held=gateway.requests if gateway is not None else 0,
            cancellable=cancellable,
        )

    def _watch_start(self, record: Any) -> None:
        """A log line's phase, handed over from the log thread."""
        if (progress := progress_of(record)) is not None:
            self._loop.call_soon_threadsafe(self._board.advance, progress.phase, progress.fraction)


def _known(error: BaseException) -> Failure | None:
    """Errors of our own already say what to do."""
    module = type(error).__module__
    if module.startswith(("engine_host.", "profiles")):
        return Failure(str(error), "Choose another model or profile to go on.")
    return None
