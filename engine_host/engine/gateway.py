"""The engine client that every request passes through, whatever route it came by.

vLLM's serving classes are built on it as if it were the engine. It forwards to the live `AsyncLLM` and accounts for
each request on the way: when it arrived, when each of its tokens came out, and how it ended. The engine behind it may
be taken away, or die, and another put in its place: requests wait for that one and go on in it.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from functools import partial
from typing import Any

from vllm.exceptions import RetryableRequestError
from vllm.outputs import PoolingRequestOutput, RequestOutput
from vllm.sampling_params import RequestOutputKind, SamplingParams
from vllm.v1.engine.exceptions import EngineDeadError

from engine_host.books import RequestBook
from engine_host.engine.carry import Carried
from engine_host.engine.quarantine import Quarantine
from engine_host.engine.refused import RefusedError
from engine_host.gateway.admission import Admission
from engine_host.gateway.prefixes import Prefixes
from engine_host.gateway.refusal import Refusal
from engine_host.gateway.seats import Capacity
from engine_host.gateway.ticket import Ticket
from engine_host.port.context import rendering_model, request_context
from engine_host.telemetry.hub import TelemetryHub

CUT_RETRY_S = 0.02
"""Pause between two tries to abort what an engine still works on: a request on its way into it can't be yet."""

SUBMIT_FIRST_S = 0.002
"""Before a request is set aside: the one that takes its place has to be in the engine by then, or the place goes to
one of those that wait there."""

ENGINE_DIED = "The engine ended while it worked on this request. Nothing is wrong with the request: send it again."
NOT_CARRIED = "The engine was changed while it worked on this request, which can't go on in another one. Send it again."
OTHER_MODEL = "Another model is served since this request came in. Send it again."
POISON = (
    "The engine died twice while it worked on this request, and it is not tried again. "
    "The log says what it died of; the other requests go on."
)


class PoisonRequestError(Exception):
    """A request that an engine does not survive."""


_OWN = (PoisonRequestError, RetryableRequestError)
"""Errors whose sentences are ours."""


class Gateway:
    """One engine at a time, with each request let in by `admission` and reported to the telemetry hub.

    It takes the place of vLLM's `EngineClient` by having its attributes: what isn't defined here is the engine's own.
    `clock` is `time.monotonic`, the clock of EngineCore's timestamps. `when_dead` is called whenever a request finds
    that the engine has died; `capacity` is what the engine holds; `book` is told of every end.
    """

    def __init__(
        self,
        hub: TelemetryHub,
        admission: Admission,
        capacity: Callable[[], Capacity | None],
        book: RequestBook,
        clock: Callable[[], float] = time.monotonic,
        when_dead: Callable[[], None] = lambda: None,
    ) -> None:
        self._hub = hub
        self._admission = admission
        self._capacity = capacity
        self._book = book
        self._prefixes = Prefixes()
        self._clock = clock
        self._when_dead = when_dead
        self._engine: Any = None
        self._latest: Any = None
        self._changed = asyncio.Event()
        self._no_engine: str | None = None
        self._carried: dict[Ticket, Carried] = {}
        self._in_engine: set[Carried] = set()
        self._quarantine = Quarantine(lambda: self._wake())
        self._working: set[asyncio.Task[None]] = set()
        admission.seats = self

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
        self._admission.engine_back()

    def detach(self) -> None:
        """No engine for now: whoever comes waits for the next."""
        self._engine = None
        self._admission.engine_gone()
        self._wake()

    def leave(self, engine: Any) -> None:
        """Use this engine no more, where it is the one in use."""
        if engine is self._engine:
            self.detach()

    def give_up(self, sentence: str) -> None:
        """No engine will come: whoever waits is told so."""
        self._engine, self._no_engine = None, sentence
        self._admission.engine_given_up(Refusal(503, sentence))
        self._wake()

    @property
    def requests(self) -> int:
        """Requests that haven't ended."""
        return len(self._carried)

    def unresumable(self) -> int:
        """Requests that another engine can't go on with as they stand."""
        return sum(not each.resumable for each in self._carried.values())

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

    # Where admission lets requests in.

    def capacity(self) -> Capacity | None:
        """What the engine can hold now; `None` while there is none."""
        return self._capacity() if self._engine is not None else None

    def resumable(self, ticket: Ticket) -> bool:
        """Whether the request can be set aside now and go on later with nothing lost."""
        carried = self._carried.get(ticket)
        return carried is not None and carried in self._in_engine and carried.resumable and not carried.deaths

    def take_off(self, ticket: Ticket) -> None:
        """Take a request off the engine, or end its wait for one; returns at once."""
        carried = self._carried.get(ticket)
        if carried is None:
            return
        if carried not in self._in_engine:
            self._wake()
            return
        task = asyncio.get_running_loop().create_task(self._take_off(carried, aside=ticket.refusal is None))
        self._working.add(task)
        task.add_done_callback(self._working.discard)

    async def _take_off(self, carried: Carried, *, aside: bool) -> None:
        engine, stay = self._engine, carried.submissions
        if aside:
            await asyncio.sleep(SUBMIT_FIRST_S)
        while engine is not None and engine is self._engine and stay == carried.submissions:
            if carried not in self._in_engine:
                return
            carried.cutting = True
            with suppress(EngineDeadError):
                await engine.abort([carried.request_id])
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
        if self._no_engine is not None:
            raise RetryableRequestError(self._no_engine)
        context = request_context.get()
        now = self._clock()
        arrived = context.arrived if context is not None else now
        sampling_params = self._capped(sampling_params)
        try:
            ticket = self._admission.open(
                request_id,
                caller=context.caller if context is not None else None,
                tier=context.tier if context is not None else None,
                prompt_tokens=_prompt_tokens(prompt),
                max_tokens=sampling_params.max_tokens or 0,
                sequences=sampling_params.n,
                arrived=arrived,
                began=context.began if context is not None else arrived,
            )
        except Refusal as refusal:
            raise self._refused(refusal) from None
        request_id, ticket.profile = ticket.request_id, self._book.profile
        if context is not None:
            ticket.client_id, ticket.path, ticket.traceparent = context.request_id, context.path, context.traceparent
        if (ids := _ids_of(prompt)) is not None:
            ticket.shared_prefix = self._prefixes.shared(ids)
        if self._admission.keeps_text():
            ticket.prompt_text, ticket.reply_text = self._text_of(prompt), []
        self._hub.arrived(
            request_id,
            prompt_tokens=ticket.prompt_tokens,
            max_tokens=sampling_params.max_tokens,
            at=arrived,
            tier=ticket.tier,
            key=ticket.caller.key_id,
            profile=ticket.profile,
        )
        only_final = sampling_params.output_kind == RequestOutputKind.FINAL_ONLY
        if only_final:
            sampling_params = sampling_params.clone()
            sampling_params.output_kind = RequestOutputKind.DELTA
        cumulative = sampling_params.output_kind == RequestOutputKind.CUMULATIVE
        whole: RequestOutput | None = None
        seen: dict[int, int] = {}
        reason, said = "abort", None
        carried = Carried(request_id, prompt, sampling_params, options, ticket)
        self._carried[ticket] = carried
        outputs = self._outputs(carried)
        try:
            headers = await self._admission.enter(ticket)
            if context is not None:
                context.reply_headers.update(headers)
            async for output in outputs:
                now = self._clock()
                if ticket.first_token is None:
                    ticket.scheduled = getattr(output.metrics, "scheduled_ts", None) or None
                    ticket.computed = getattr(output.metrics, "first_token_ts", None) or None
                for part in output.outputs:
                    count = len(part.token_ids)
                    if cumulative:
                        count, seen[part.index] = count - seen.get(part.index, 0), count
                    if count and ticket.first_token is None and context is not None and not only_final:
                        context.when_written.append(partial(self._hub.delivered, request_id))
                    self._hub.tokens(request_id, count, now, output.num_cached_tokens, part.index)
                    self._admission.produced(ticket, count, now)
                    if ticket.reply_text is not None and not cumulative:
                        ticket.reply_text.append(part.text)
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
        except Refusal as refusal:
            ticket.refusal, said = refusal, str(refusal)
            raise self._refused(refusal) from None
        except Exception as error:
            # What others say may hold a part of the prompt.
            reason, said = "error", str(error) if isinstance(error, _OWN) else type(error).__name__
            raise
        finally:
            del self._carried[ticket]
            try:
                await outputs.aclose()
            finally:
                self._admission.close(ticket, reason)
                counted = "refused" if ticket.refusal is not None else reason
                self._book.ended(ticket, reason, self._hub.finished(request_id, counted, self._clock()), said)

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
        ticket, admission = carried.ticket, self._admission
        while True:
            stream = None
            if admission.set_aside(ticket):
                await admission.again(ticket)
            try:
                engine = await self._next_engine(carried)
                self._in_engine.add(carried)
                admission.resumed(ticket)
                if rendered_for not in (None, engine.model_config.model):
                    raise RetryableRequestError(OTHER_MODEL)
                tokenizer = engine.renderer.tokenizer
                submission = carried.submission(tokenizer, engine.model_config.max_model_len)
                if submission is None:
                    yield carried.full()
                    return
                prompt, params, options = submission
                stream = engine.generate(
                    prompt, params, carried.request_id, priority=admission.priority(ticket), **options
                )
                async for output in stream:
                    if carried.deaths:
                        self._quarantine.survived(carried)
                    if carried.take(output, tokenizer):
                        yield output
                    if carried.stopped:
                        return
                if not carried.interrupted:
                    return
                if ticket.refusal is not None:
                    raise ticket.refusal
                if not carried.resumable:
                    raise RetryableRequestError(NOT_CARRIED)
                admission.held(ticket)
            except EngineDeadError as error:
                self.engine_died(engine)
                admission.held(ticket)
                if not carried.resumable:
                    raise RetryableRequestError(ENGINE_DIED) from error
                if carried.poison:
                    raise PoisonRequestError(POISON) from error
            finally:
                self._in_engine.discard(carried)
                self._quarantine.leave(carried)
                if stream is not None:
                    await stream.aclose()

    async def _next_engine(self, carried: Carried | None = None) -> Any:
        """Wait for an engine; with a request also until that one may go into it."""
        while True:
            if carried is not None and carried.ticket.refusal is not None:
                raise carried.ticket.refusal
            if self._engine is not None and (carried is None or self._quarantine.admits(carried)):
                return self._engine
            if self._no_engine is not None:
                raise RetryableRequestError(self._no_engine)
            await self._changed.wait()

    def _capped(self, params: SamplingParams) -> SamplingParams:
        """The parameters, with no longer a reply than the profile allows."""
        cap = self._admission.longest_reply()
        if cap is None or (params.max_tokens is not None and params.max_tokens <= cap):
            return params
        params = params.clone()
        params.max_tokens, params.min_tokens = cap, min(params.min_tokens, cap)
        return params

    def _text_of(self, prompt: Any) -> str | None:
        """The prompt's text: as it came, or made of its tokens again."""
        text = prompt.get("prompt") if isinstance(prompt, dict) else None
        ids = prompt.get("prompt_token_ids") if isinstance(prompt, dict) else None
        if text is None and ids is not None and self._latest is not None:
            # Ids that clients make up may be none of the vocabulary; the engine refuses them.
            with suppress(Exception):
                text = self._latest.renderer.tokenizer.decode(ids)
        return text

    def _refused(self, refusal: Refusal) -> RefusedError:
        if (context := request_context.get()) is not None:
            context.reply_headers.update(refusal.headers)
            context.refusals.append(refusal)
        return RefusedError(refusal)

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


def _prompt_tokens(prompt: Any) -> int:
    ids = _ids_of(prompt)
    return len(ids) if ids is not None else 0


def _ids_of(prompt: Any) -> Any:
    return prompt.get("prompt_token_ids") if isinstance(prompt, dict) else getattr(prompt, "prompt_token_ids", None)
