"""What vLLM's own scheduler does, whatever happens to its requests, is charged to them to the last second."""

import math
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from engine_host.api.flight import FlightReader
from engine_host.telemetry.accounting import Accounting, EngineFacts
from engine_host.telemetry.hub import TelemetryHub
from engine_host.telemetry.meter import Rate
from tests.flight.clock import Clock

Make = Callable[..., tuple[Any, FlightReader]]


def add(scheduler: Any, name: str, tokens: int, seed: int, max_tokens: int) -> None:
    from benchmarks.bare_scheduler import prompt, request

    scheduler.add_request(request(f"{name}-0123abcd", prompt(tokens, seed), max_tokens))


def abort(scheduler: Any, request_id: str) -> None:
    from vllm.v1.request import RequestStatus

    scheduler.finish_requests(request_id, RequestStatus.FINISHED_ABORTED)


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("seed", range(4))
def test_requests_and_what_is_nobody_s_are_all_of_the_time(
    recorded: Make, clock: Clock, monkeypatch: pytest.MonkeyPatch, asynchronous: bool, seed: int
) -> None:
    from benchmarks.bare_scheduler import produce
    from engine_host.engine import scheduler as module

    monkeypatch.setattr(module, "time", clock)
    chance = random.Random(seed)
    began = clock.now
    hub = TelemetryHub(clock=lambda: clock.now, wall=lambda: clock.now)
    accounting = Accounting(
        hub,
        lambda devices: Rate(devices, chance.choice([None, 1.0, 36.0])),
        lambda: 0.3,
        lambda: clock.now,
        lambda: 0.0,
    )
    accounting.tick(EngineFacts(None, devices=2))
    scheduled: Counter[str] = Counter()
    preempted: Counter[str] = Counter()
    added = 0

    def look(flight: FlightReader | None) -> None:
        if chance.random() < 0.3:
            accounting.tick(EngineFacts(flight, devices=2))

    for engine in range(2):
        scheduler, reader = recorded(
            asynchronous=asynchronous, blocks=25, max_num_batched_tokens=128, max_num_seqs=8, max_model_len=512
        )
        scheduler.use_v2_model_runner = chance.random() < 0.5
        until, under_way = added + 15, []
        while added < until or scheduler.has_requests():
            if added < until and chance.random() < 0.5:
                add(scheduler, f"r{added}", chance.randrange(1, 400), chance.randrange(6), chance.randrange(1, 90))
                added += 1
            if chance.random() < 0.03 and scheduler.requests:
                abort(scheduler, chance.choice(sorted(scheduler.requests)))
            if engine == 0 and added == until and chance.random() < 0.05:
                break  # It dies.
            clock.now += chance.random() / 10
            look(reader)
            output = scheduler.schedule()
            preempted.update(name.removesuffix("-0123abcd") for name in output.preempted_req_ids or ())
            scheduled.update(name.removesuffix("-0123abcd") for name in output.num_scheduled_tokens)
            under_way.append((output, produce(scheduler, output)))
            clock.now += chance.random() / 10
            look(reader)
            if len(under_way) > asynchronous:
                scheduler.update_from_output(*under_way.pop(0))
                look(reader)
        else:
            while under_way:
                scheduler.update_from_output(*under_way.pop(0))
        for output, _ in under_way:
            scheduled.subtract(name.removesuffix("-0123abcd") for name in output.num_scheduled_tokens)
        look(reader)
        clock.now += 1.0
        accounting.tick(EngineFacts(None, devices=2))
    meter, bill = accounting.meter, accounting.bill()
    accounts = {name: account for number in range(added) if (account := meter.account(name := f"r{number}"))}
    assert {name: account.steps for name, account in accounts.items() if account.steps} == +scheduled
    assert sum(account.preemptions for account in accounts.values()) == preempted.total() > 0
    assert bill.device_s == pytest.approx(2 * (clock.now - began))
    charged = [math.fsum(account.seconds[part] for account in accounts.values()) for part in range(3)]
    assert charged == pytest.approx([bill.seconds["prefill"], bill.seconds["decode"], bill.seconds["memory"]])
    assert math.fsum(bill.seconds.values()) == pytest.approx(bill.device_s)
    usd = bill.usd or {}
    paid = [math.fsum(account.usd[part] for account in accounts.values()) for part in range(3)]
    assert paid == pytest.approx([usd["prefill"], usd["decode"], usd["memory"]])
    assert all(meter.settled(name) for name in accounts)
    assert not meter._serials
    assert not meter._pages
