"""Any order of requests, departures, rebuilds, deaths and turns: every request ends once, its tokens in their order."""

import asyncio
from collections.abc import AsyncGenerator, Iterable
from types import SimpleNamespace
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from engine_host.gateway.seats import Capacity
from engine_host.port.context import RequestContext, request_context
from engine_host.telemetry.hub import TelemetryHub
from tests.gateway.parts import book, open_admission
from tests.host.scripted_engine import _output

LONG = 12
"""Tokens of a whole reply."""

SLOTS = 2

TIERS = ("premium", "standard", "best-effort")


class SteppedEngine:
    """Puts out one token of every request when told to; token k of request r is 1000 r + k."""

    def __init__(self) -> None:
        self.renderer = SimpleNamespace(tokenizer=None)
        self.model_config = SimpleNamespace(max_model_len=10_000, model="m")
        self.queues: dict[str, asyncio.Queue[str]] = {}

    async def generate(self, prompt: Any, params: Any, request_id: str, **_: Any) -> AsyncGenerator[Any, None]:
        """One request, as `AsyncLLM.generate` serves it."""
        from vllm.v1.engine.exceptions import EngineDeadError

        assert request_id not in self.queues, "one request twice in one engine"
        ids = prompt["prompt_token_ids"]
        queue = self.queues[request_id] = asyncio.Queue()
        done = len(ids) - 1
        assert ids == [ids[0], *(ids[0] * 1000 + k for k in range(done))]
        assert params.max_tokens == LONG - done
        try:
            while True:
                told = await queue.get()
                if told == "die":
                    raise EngineDeadError
                if told == "abort":
                    yield _output(request_id, ids, [], "", "abort")
                    return
                token, done = ids[0] * 1000 + done, done + 1
                yield _output(request_id, ids, [token], "", "length" if done == LONG else None)
                if done == LONG:
                    return
        finally:
            del self.queues[request_id]

    def tell(self, what: str, names: Iterable[str] | None = None) -> None:
        """Tell requests to "step", "abort" or "die"."""
        for name in self.queues if names is None else names:
            if name in self.queues:
                self.queues[name].put_nowait(what)

    async def abort(self, names: Iterable[str]) -> None:
        """As `AsyncLLM.abort`."""
        self.tell("abort", names)


class Gateways(RuleBasedStateMachine):
    """A gateway with one engine after another behind it."""

    @initialize()
    def begin(self) -> None:
        from engine_host.engine import gateway

        self.loop = asyncio.new_event_loop()
        self.hub = TelemetryHub()
        self.admission = open_admission()
        self.pauses = gateway.CUT_RETRY_S, gateway.SUBMIT_FIRST_S
        gateway.CUT_RETRY_S = gateway.SUBMIT_FIRST_S = 0.0
        self.gateway = gateway.Gateway(self.hub, self.admission, lambda: Capacity(SLOTS), book(self.hub))
        self.got: dict[int, list[int]] = {}
        self.tasks: dict[int, asyncio.Task[None]] = {}
        self.fragile: set[int] = set()
        self.left: set[int] = set()
        self.cancelled: set[int] = set()
        self.deaths: dict[int, int] = {}
        self.cuts: set[int] = set()
        self.engine: SteppedEngine | None = None
        self.new_engine()

    def settle(self) -> None:
        """Let everything that can go on do so."""

        async def turn() -> None:
            for _ in range(40):
                await asyncio.sleep(0)

        self.loop.run_until_complete(turn())

    @precondition(lambda self: self.engine is None)
    @rule()
    def new_engine(self) -> None:
        self.engine = SteppedEngine()

        async def attach() -> None:
            self.gateway.attach(self.engine)

        self.loop.run_until_complete(attach())
        self.settle()

    @rule(fragile=st.booleans(), tier=st.sampled_from(TIERS))
    def submit(self, fragile: bool, tier: str) -> None:
        from vllm.sampling_params import RequestOutputKind, SamplingParams

        number = len(self.got) + 1
        self.got[number] = []
        if fragile:
            self.fragile.add(number)
        params = SamplingParams(
            temperature=0,
            max_tokens=LONG,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
            logprobs=1 if fragile else None,
        )

        async def read() -> None:
            request_context.set(RequestContext("id", 0.0, "/", tier=tier))
            prompt = {"type": "token", "prompt_token_ids": [number]}
            async for output in self.gateway.generate(prompt, params, f"r{number}"):
                self.got[number].extend(output.outputs[0].token_ids)

        self.tasks[number] = self.loop.create_task(read())
        self.settle()

    @rule()
    def rush(self) -> None:
        """A full engine, and somebody who may have the place of another."""
        for tier in ["best-effort"] * (SLOTS + 1):
            self.submit(False, tier)
        if self.engine is not None:
            self.step(1)
        self.submit(False, "premium")

    @precondition(lambda self: self.engine is not None)
    @rule(steps=st.integers(1, 5))
    def step(self, steps: int) -> None:
        for _ in range(steps):
            self.engine.tell("step")
            self.settle()

    @precondition(lambda self: self.tasks)
    @rule(data=st.data())
    def leave(self, data: Any) -> None:
        number = data.draw(st.sampled_from(sorted(self.tasks)))
        if not self.tasks[number].done():
            self.left.add(number)
            self.tasks[number].cancel()
        self.settle()

    @precondition(lambda self: self.tasks)
    @rule(data=st.data())
    def cancel(self, data: Any) -> None:
        number = data.draw(st.sampled_from(sorted(self.tasks)))

        async def cancel() -> None:
            if self.admission.cancel(f"r{number}"):
                self.cancelled.add(number)

        self.loop.run_until_complete(cancel())
        self.settle()

    @precondition(lambda self: self.tasks)
    @rule(data=st.data(), tier=st.sampled_from(TIERS))
    def move(self, data: Any, tier: str) -> None:
        number = data.draw(st.sampled_from(sorted(self.tasks)))

        async def move() -> None:
            self.admission.move(f"r{number}", tier)

        self.loop.run_until_complete(move())
        self.settle()

    @precondition(lambda self: self.engine is not None)
    @rule()
    def swap(self) -> None:
        self.cuts |= {number for number in self.fragile if self.got[number]}
        self.loop.run_until_complete(self.gateway.cut())
        self.engine = None
        self.settle()

    @precondition(lambda self: self.engine is not None)
    @rule(half=st.booleans())
    def kill(self, half: bool) -> None:
        if half:
            # A step was on its way.
            self.engine.tell("step")
        for number in self.got:
            if f"r{number}" in self.engine.queues:
                self.deaths[number] = self.deaths.get(number, 0) + 1
        self.engine.tell("die")
        engine, self.engine = self.engine, None
        self.gateway.engine_died(engine)
        self.settle()

    @invariant()
    def tokens_are_in_order_and_none_is_lost_or_repeated(self) -> None:
        for number, tokens in self.got.items():
            assert tokens == [number * 1000 + k for k in range(len(tokens))]

    @invariant()
    def who_was_cancelled_is_gone(self) -> None:
        for number in self.cancelled:
            assert self.tasks[number].done(), f"request {number} goes on"

    @invariant()
    def the_engine_is_not_overfilled(self) -> None:
        if self.engine is not None:
            assert len(self.engine.queues) <= SLOTS + 1

    def teardown(self) -> None:
        from engine_host.engine import gateway

        if not hasattr(self, "loop"):
            return
        if self.engine is None:
            self.new_engine()
        for _ in range(LONG * (len(self.got) + 1)):
            self.step(1)
        for number, task in self.tasks.items():
            assert task.done(), f"request {number} never ended"
            if task.cancelled():
                assert number in self.left
            elif (error := task.exception()) is not None:
                may_fail = self.deaths.get(number, 0) > 1 or number in self.fragile or number in self.cancelled
                assert may_fail, f"request {number} was lost: {error!r}"
            else:
                assert len(self.got[number]) == LONG
        assert self.gateway.requests == self.admission.waiting == 0
        assert [each.active for each in self.admission.status({}, {}).tiers] == [0, 0, 0]
        assert sum(self.hub.totals.finished.values()) == len(self.got)
        self.loop.close()
        gateway.CUT_RETRY_S, gateway.SUBMIT_FIRST_S = self.pauses


TestGateways = Gateways.TestCase
TestGateways.settings = settings(max_examples=40, stateful_step_count=25)
