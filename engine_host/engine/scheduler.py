"""The scheduler vLLM loads in EngineCore: its own, with a recorder around it.

vLLM doesn't declare this interface stable: a test names everything of it that is used.
"""

import logging
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler

from engine_host.engine.recorder import FlightRecorder

logger = logging.getLogger("vllm.llmconsole")

SETTINGS = "llmconsole"
"""Our key in `additional_config`: flight_path, engine_id, snapshot_hz."""


class Recorder:
    """Records steps and pages around a vLLM scheduler. A mixin: put it before the scheduler's class."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._recorder: FlightRecorder | None = None
        self._recorder_lock: AbstractContextManager[Any] = nullcontext()
        super().__init__(*args, **kwargs)
        settings = (self.vllm_config.additional_config or {}).get(SETTINGS)  # type: ignore[attr-defined]
        if settings:
            try:
                self._recorder = FlightRecorder(self, settings)
                self._recorder_lock = self._recorder.lock
            except Exception:
                logger.exception("The flight record can't be written; the engine goes on without it.")

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        """Schedule a step with the knobs the host wants, and note what it will do."""
        with self._recorder_lock:
            self._record(FlightRecorder.obey)
            began = time.monotonic()
            output = super().schedule(*args, **kwargs)  # type: ignore[misc]
            self._record(FlightRecorder.scheduled, began, output)
        return output

    def update_from_output(self, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        """Take in what the step produced, and record it."""
        with self._recorder_lock:
            began = time.monotonic()
            outputs = super().update_from_output(scheduler_output, *args, **kwargs)  # type: ignore[misc]
            self._record(FlightRecorder.updated, began, scheduler_output)
        return outputs

    def finish_requests(self, *args: Any, **kwargs: Any) -> Any:
        """End requests from outside (an abort), and show their pages as free."""
        with self._recorder_lock:
            finished = super().finish_requests(*args, **kwargs)  # type: ignore[misc]
            if finished:
                self._record(FlightRecorder.changed)
        return finished

    def set_pause_state(self, pause_state: Any) -> None:
        """Pause or resume; a paused scheduler makes no steps, so its pages are recorded here."""
        with self._recorder_lock:
            super().set_pause_state(pause_state)  # type: ignore[misc]
            self._record(FlightRecorder.paused, pause_state)

    def reset_prefix_cache(self, *args: Any, **kwargs: Any) -> Any:
        """Drop the prefix cache, and record that it is gone."""
        with self._recorder_lock:
            done = super().reset_prefix_cache(*args, **kwargs)  # type: ignore[misc]
            self._record(FlightRecorder.changed)
        return done

    def shutdown(self) -> None:
        """End, and mark the record as past."""
        with self._recorder_lock:
            self._record(FlightRecorder.stop)
        super().shutdown()  # type: ignore[misc]

    def _free_request(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        """End a request, and count it: each passes here once, whatever ends it."""
        self._record(FlightRecorder.ended, request.request_id)
        return super()._free_request(request, *args, **kwargs)  # type: ignore[misc]

    def _record(self, action: Callable[..., None], *args: Any) -> None:
        if self._recorder is not None:
            self._recorder.guard(action, *args)


class RecordingScheduler(Recorder, Scheduler):
    """vLLM's scheduler, recorded."""


class RecordingAsyncScheduler(Recorder, AsyncScheduler):
    """vLLM's scheduler for asynchronous scheduling, recorded."""


def scheduler_class_for(vllm_config: Any) -> type[Recorder]:
    """The recorded form of the scheduler vLLM would choose for this final configuration."""
    return RecordingAsyncScheduler if vllm_config.scheduler_config.async_scheduling else RecordingScheduler
