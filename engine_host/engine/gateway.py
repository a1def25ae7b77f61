"""The engine client that every request passes through, whatever route it came by.

vLLM's serving classes are built on it as if it were the engine. It forwards to the live `AsyncLLM` and accounts for
each request on the way: when it arrived, when each of its tokens came out, and how it ended. The engine behind it may
be taken away, or die, and another put in its place: requests wait for that one and go on in it.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from typing import Any

from vllm.exceptions import RetryableRequestError
from vllm.outputs import PoolingRequestOutput, RequestOutput
from vllm.sampling_params import RequestOutputKind, SamplingParams
from vllm.v1.engine.exceptions import EngineDeadError

from engine_host.engine.carry import Carried
from engine_host.engine.quarantine import Quarantine
from engine_host.port.context import rendering_model, request_context
from engine_host.telemetry.hub import TelemetryHub

CUT_RETRY_S = 0.02
"""Pause between two tries to abort what an engine still works on: a request on its way into it can't be yet."""

ENGINE_DIED = "The engine ended while it worked on this request. Nothing is wrong with the request: send it again."
NOT_CARRIED = "The engine was changed while it worked on this request, which can't go on in another one. Send it again."
OTHER_MODEL = "Another model is served since this request came in. Send it again."
POISON = (
    "The engine died twice while it worked on this request, and it is not tried again. "
    "The log says what it died of; the other requests go on."
)


class PoisonRequestError(Exception):
    """A request that an engine does not survive."""


class Gateway:
    """One engine at a time, with each request reported to the telemetry hub.

    It takes the place of vLLM's `EngineClient` by having its attributes: what isn't defined here is the engine's own.
    `clock` is `time.monotonic`, the clock of EngineCore's timestamps. `when_dead` is called whenever a request finds
    that the engine has died.
    """

    def __init__(
        self,
        hub: TelemetryHub,
        clock: Callable[[], float] = time.monotonic,
        when_dead: Callable[[], None] = lambda: None,
    ) -> None:
        self._hub = hub
        self._clock = clock
        self._when_dead = when_dead
        self._engine: Any = None
        self._latest: Any = None
        self._changed = asyncio.Event()
        self._no_engine: str | None = None
        self._carried: set[Carried] = set()
        self._in_engine: set[Carried] = set()
        self._quarantine = Quarantine()

    def __getattr__(self, name: str) -> Any:
        # Between two engines a request may still be on its way here: what it asks, the last one can tell.
        return getattr(self.__dict__["_latest"], name)

    @property
    def errored(self) -> bool:
        """Whether requests are in vain: a dead engine is followed by another."""
        return self._no_engine is not None

    # The engine behind.

    def attach(self, engine: Any) -> None:
        """Go on in this engine."""
        self._engine = self._latest = engine
        self._no_engine = None
        self._wake()

    def detach(self) -> None:
        """No engine for now: whoever comes waits for the next."""
        self._engine = None
        self._wake()

    def leave(self, engine: Any) -> None:
        """Use this engine no more, where it is the one in use."""
        if engine is self._engine:
            self.detach()

    def give_up(self, sentence: str) -> None:
        """No engine will come: whoever waits is told so."""
        self._engine, self._no_engine = None, sentence
        self._wake()

    @property
    def requests(self) -> int:
        """Requests that haven't ended."""
        return len(self._carried)

    def unresumable(self) -> int:
        """Requests that another engine can't go on with as they stand."""
        return sum(not each.resumable for each in self._carried)

    def engine_died(self, engine: Any) -> None:
        """An engine was found dead. Who was in it waits for the next, and is a suspect; only the first call counts."""
        if engine is self._engine:
            self._quarantine.engine_died(self._in_engine)
            self.detach()
            self._when_dead()

    @property
    def computing(self) -> bool:
        """Whether an engine has requests to work on."""
        return bool(self._in_engine)

    async def bury(self, engine: Any) -> None:
        """A dead or hanging engine was killed: returns when no request waits for its output any more."""
        self.engine_died(engine)
        while self._in_engine:
            engine.output_processor.propagate_error(EngineDeadError())
            await asyncio.sleep(CUT_RETRY_S)

    async def cut(self, *, end: bool = False) -> None:
        """Take every request off the engine; what has come out is kept. Returns when it works on none any more.

        `end` gives all of them up: no other engine will do.
        """
        # Where it has just died there is none in use any more, and its requests are on their way out of it.
        engine = self._latest
        self.detach()
        while self._in_engine:
            for each in self._in_engine:
                each.cutting, each.abandoned = True, end
            with suppress(EngineDeadError):
                await engine.abort([each.request_id for each in self._in_engine])
            await asyncio.sleep(CUT_RETRY_S)

    # What vLLM's serving classes call.

    async def generate(
        self, prompt: Any, sampling_params: SamplingParams, request_id: str, **options: Any
    ) -> AsyncGenerator[RequestOutput, None]:
        """Forward to the engine, token by token, and account for what comes out.

        A caller that wants the final output only is given just that; the engine still tells every token, since their
        times can't be known otherwise. The order of the queue is the host's to decide: `priority` is dropped.
        """
        options.pop("priority", None)
        context = request_context.get()
        self._hub.arrived(
            request_id,
            prompt_tokens=_prompt_tokens(prompt),
            max_tokens=sampling_params.max_tokens,
            at=context.arrived if context is not None else self._clock(),
        )
        only_final = sampling_params.output_kind == RequestOutputKind.FINAL_ONLY
        if only_final:
            sampling_params = sampling_params.clone()
            sampling_params.output_kind = RequestOutputKind.DELTA
        cumulative = sampling_params.output_kind == RequestOutputKind.CUMULATIVE
        whole: RequestOutput | None = None
        seen: dict[int, int] = {}
        reason = "abort"
        carried = Carried(request_id, prompt, sampling_params, options)
        self._carried.add(carried)
        outputs = self._outputs(carried)
        try:
            async for output in outputs:
                now = self._clock()
                for part in output.outputs:
                    count = len(part.token_ids)
                    if cumulative:
                        count, seen[part.index] = count - seen.get(part.index, 0), count
                    self._hub.tokens(request_id, count, now, output.num_cached_tokens, part.index)
                if output.finished:
                    reason = next((part.finish_reason for part in output.outputs if part.finish_reason), "stop")
                if not only_final:
                    yield output
                elif whole is None:
                    whole = output
                else:
                    whole.add(output, aggregate=True)
            if whole is not None:
                whole.outputs.sort(key=lambda part: part.index)
                yield whole
        except Exception:
            reason = "error"
            raise
        finally:
            self._carried.discard(carried)
            await outputs.aclose()
            self._hub.finished(request_id, reason, self._clock())

    async def encode(self, *args: Any, **kwargs: Any) -> AsyncGenerator[PoolingRequestOutput, None]:
        """Forward an embedding or pooling request; it has no tokens to account for, and is begun again if it must."""
        kwargs.pop("priority", None)
        while True:
            engine = await self._next_engine()
            try:
                async for output in engine.encode(*args, **kwargs):
                    yield output
                return
            except EngineDeadError:
                self.engine_died(engine)

    async def _outputs(self, carried: Carried) -> AsyncGenerator[RequestOutput, None]:
        """The request's outputs, from one engine after another."""
        rendered_for = rendering_model.get()
        while True:
            stream = None
            try:
                await self._next_engine()
                await self._quarantine.enter(carried)
                engine = await self._next_engine()
                self._in_engine.add(carried)
                if rendered_for not in (None, engine.model_config.model):
                    raise RetryableRequestError(OTHER_MODEL)
                tokenizer = engine.renderer.tokenizer
                submission = carried.submission(tokenizer, engine.model_config.max_model_len)
                if submission is None:
                    yield carried.full()
                    return
                prompt, params, options = submission
                stream = engine.generate(prompt, params, carried.request_id, **options)
                async for output in stream:
                    if carried.deaths:
                        self._quarantine.survived(carried)
                    if carried.take(output, tokenizer):
                        yield output
                    if carried.stopped:
                        return
                if not carried.interrupted:
                    return
                if not carried.resumable:
                    raise RetryableRequestError(NOT_CARRIED)
            except EngineDeadError as error:
                self.engine_died(engine)
                if not carried.resumable:
                    raise RetryableRequestError(ENGINE_DIED) from error
                if carried.poison:
                    raise PoisonRequestError(POISON) from error
            finally:
                self._in_engine.discard(carried)
                self._quarantine.leave(carried)
                if stream is not None:
                    await stream.aclose()

    async def _next_engine(self) -> Any:
        while self._engine is None:
            if self._no_engine is not None:
                raise RetryableRequestError(self._no_engine)
            changed = self._changed
            await changed.wait()
        return self._engine

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


def _prompt_tokens(prompt: Any) -> int:
    ids = prompt.get("prompt_token_ids") if isinstance(prompt, dict) else getattr(prompt, "prompt_token_ids", None)
    return len(ids) if ids is not None else 0
