"""The gateway between its admission and its engine: who is ended, set aside, or told that no engine comes."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from engine_host.gateway.admission import Admission
from engine_host.gateway.caller import Caller
from engine_host.gateway.seats import Capacity
from engine_host.port.context import RequestContext, request_context
from engine_host.telemetry.hub import TelemetryHub
from tests.gateway.parts import book, open_admission
from tests.host.test_gateway_machine import LONG, SteppedEngine


class Scene:
    """A gateway over an engine of some slots, and requests that are read to their ends."""

    def __init__(self, slots: int = 9) -> None:
        from engine_host.engine.gateway import Gateway

        self.admission: Admission = open_admission()
        self.gateway = Gateway(hub := TelemetryHub(), self.admission, lambda: Capacity(slots), book(hub))
        self.engine = SteppedEngine()
        self.gateway.attach(self.engine)
        self.got: list[list[int]] = []

    async def comes(self, name: str, tier: str = "standard", logprobs: int | None = None) -> "asyncio.Task[None]":
        from vllm.sampling_params import RequestOutputKind, SamplingParams

        wanted = SamplingParams(
            temperature=0,
            max_tokens=LONG,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
            logprobs=logprobs,
        )
        number = len(self.got) + 1
        tokens: list[int] = []
        self.got.append(tokens)

        async def read() -> None:
            request_context.set(RequestContext("id", 0.0, "/", caller=Caller("k", "k"), tier=tier))
            async for output in self.gateway.generate({"type": "token", "prompt_token_ids": [number]}, wanted, name):
                tokens.extend(output.outputs[0].token_ids)

        task = asyncio.create_task(read())
        await settled()
        return task

    async def steps(self, count: int) -> None:
        for _ in range(count):
            self.engine.tell("step")
            await settled()

    def dies(self) -> None:
        self.engine.tell("die")
        self.gateway.engine_died(self.engine)
        self.engine = SteppedEngine()


async def settled() -> None:
    for _ in range(40):
        await asyncio.sleep(0)


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not true():  # noqa: ASYNC110 - what is waited for tells nobody
            await asyncio.sleep(0)


def said(task: "asyncio.Task[None]") -> str:
    assert task.done()
    return str(task.exception())


async def test_two_requests_under_one_id_do_not_end_each_other() -> None:
    scene = Scene()
    first, second = await scene.comes("same"), await scene.comes("same")
    await scene.steps(2)
    assert scene.admission.cancel("same")
    await until(first.done)
    await scene.steps(LONG)
    assert "operator" in said(first)
    assert second.exception() is None
    assert scene.got[1] == [2000 + k for k in range(LONG)]
    assert scene.gateway.requests == 0


async def test_who_is_ended_between_its_turn_and_the_engine_never_goes_in() -> None:
    scene = Scene(slots=1)
    running = [await scene.comes(f"r{number}") for number in range(2)]
    waiting = await scene.comes("waiting")
    ticket = scene.admission.ticket("r0")
    assert ticket is not None
    scene.admission.close(ticket, "abort")
    assert scene.admission.waiting == 0, "it has its turn, and does not know yet"
    assert scene.admission.cancel("waiting")
    await settled()
    assert "operator" in said(waiting)
    assert "waiting" not in scene.engine.queues
    for each in running:
        each.cancel()


async def test_a_suspect_that_waits_for_its_trial_can_be_cancelled() -> None:
    scene = Scene()
    tasks = [await scene.comes(f"r{number}") for number in range(3)]
    await scene.steps(1)
    scene.dies()
    await settled()
    scene.gateway.attach(scene.engine)
    await settled()
    (on_trial,) = scene.engine.queues
    other = next(f"r{number}" for number in range(3) if f"r{number}" != on_trial)
    assert scene.admission.cancel(other)
    await settled()
    assert "operator" in said(tasks[int(other[1:])])
    await scene.steps(LONG)
    assert [task.exception() is None for task in tasks].count(True) == 2


async def test_who_waits_for_a_turn_is_told_when_no_engine_comes() -> None:
    scene = Scene(slots=1)
    tasks = [await scene.comes(f"r{number}") for number in range(4)]
    scene.dies()
    scene.gateway.give_up("There is no engine any more.")
    await settled()
    assert ["no engine any more" in said(task) for task in tasks] == [True] * 4
    assert "no engine any more" in said(await scene.comes("late"))
    assert scene.gateway.requests == 0


@pytest.mark.parametrize("rebuilt", [False, True])
async def test_who_is_set_aside_goes_on_with_nothing_lost(rebuilt: bool) -> None:
    scene = Scene(slots=1)
    low = await scene.comes("low", "best-effort")
    await scene.steps(3)
    ahead = await scene.comes("ahead", "best-effort")
    high = await scene.comes("high", "premium")
    await until(lambda: "low" not in scene.engine.queues)
    if rebuilt:
        await scene.gateway.cut()
        scene.engine = SteppedEngine()
        scene.gateway.attach(scene.engine)
        await settled()
    await scene.steps(3 * LONG)
    await until(lambda: low.done() and high.done() and ahead.done())
    assert [len(tokens) for tokens in scene.got] == [LONG] * 3
    assert scene.got[0] == [1000 + k for k in range(LONG)]


async def test_being_set_aside_ends_nothing_that_has_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    from engine_host.engine import gateway

    monkeypatch.setattr(gateway, "CUT_RETRY_S", 0.0)
    scene = Scene(slots=1)
    low = await scene.comes("low", "best-effort")
    await scene.steps(3)
    ticket = scene.admission.ticket("low")
    assert ticket is not None
    aborted: list[Any] = []
    abort = scene.engine.abort

    async def counted(names: Any) -> None:
        aborted.extend(names)
        await abort(names)

    scene.engine.abort = counted  # type: ignore[method-assign]
    ticket.resumes += 1
    scene.admission._aside.add(ticket)
    scene.gateway.take_off(ticket)
    await until(lambda: bool(aborted) and "low" in scene.engine.queues)
    await settled()
    await scene.steps(LONG)
    await until(low.done)
    assert low.exception() is None
    assert aborted == ["low"]


async def test_who_is_ended_is_told_why_also_where_no_other_engine_could_go_on() -> None:
    scene = Scene()
    task = await scene.comes("r", logprobs=1)
    await scene.steps(2)
    assert scene.admission.cancel("r")
    await until(task.done)
    assert "operator" in said(task)


async def test_who_waits_for_a_turn_is_held_while_there_is_no_engine() -> None:
    scene = Scene(slots=1)
    tasks = [await scene.comes(f"r{number}") for number in range(3)]
    waiting = scene.admission.ticket("r2")
    assert waiting is not None
    await scene.gateway.cut()
    assert waiting.is_held
    scene.gateway.attach(SteppedEngine())
    await settled()
    assert not waiting.is_held
    for task in tasks:
        task.cancel()
