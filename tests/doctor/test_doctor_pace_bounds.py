"""From when on the rules about the pace of steps fire: steps of round numbers, in place of a recorded trace's."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest

from engine_host.api.flight import DECODE, PREFILL
from engine_host.doctor.record import Named, Processor, Record
from engine_host.flight.layout import SHARE, STEP
from tests.doctor.recorded import found, trace, with_knobs

BUDGET = 1000
DECODING = 3


class Step(NamedTuple):
    """Seconds, the tokens of each prompt in it, and the pause before it."""

    seconds: float
    prompts: tuple[int, ...] = ()
    pause: float = 0.0


PLAIN = Step(0.02)


def made_of(*steps: Step, ttl_ms: float | None = None, budget: int = BUDGET) -> Record:
    """A record of these steps, in each of which three requests decode; its prompts' requests are p1, p2, …"""
    rows, shares, clock = np.zeros(len(steps), STEP), [], 0.0
    names = {}
    for index, step in enumerate(steps):
        row, number = rows[index], index + 1
        clock += step.pause
        row["number"], row["time"], row["execute"] = number, clock, step.seconds
        row["prefill"], row["decode"], row["running"], row["budget"] = sum(step.prompts), DECODING, DECODING, budget
        shares += [(number, serial, DECODE, 1, 50) for serial in range(900, 900 + DECODING)]
        for tokens in step.prompts:
            serial = len(names) + 1
            names[serial] = Named(f"p{serial}", tokens)
            shares.append((number, serial, PREFILL, tokens, tokens))
        clock += step.seconds
    healthy = trace("healthy")
    record = replace(
        healthy, steps=rows, shares=np.array(shares, SHARE), names=names, offset=healthy.time - clock, telemetry=None
    )
    return with_knobs(record, targets__ttl_ms=ttl_ms, scheduler__long_prefill_threshold=0)


def rules(record: Record) -> set[str]:
    return set(found(record))


@pytest.mark.parametrize(("plain", "told"), [(7, False), (8, True)])
def test_eight_steps_without_a_prompt_make_a_median(plain: int, told: bool) -> None:
    assert ("long-prompt-stall" in rules(made_of(*[PLAIN] * plain, Step(0.5, (400,))))) == told


@pytest.mark.parametrize(("seconds", "told"), [(0.099, False), (0.101, True)])
def test_without_a_target_a_stall_is_what_a_reader_notices(seconds: float, told: bool) -> None:
    assert ("long-prompt-stall" in rules(made_of(*[PLAIN] * 9, Step(seconds, (400,))))) == told


@pytest.mark.parametrize(
    ("prompts", "told"),
    [((200, 200), "p1"), ((199, 101, 100), None), ((101, 200, 99), "p2"), ((64,), "p1"), ((63,), None)],
)
def test_it_is_one_long_prompt_that_is_blamed(prompts: tuple[int, ...], told: str | None) -> None:
    finding = found(made_of(*[PLAIN] * 9, Step(0.5, prompts))).get("long-prompt-stall")
    assert (finding.request if finding is not None else None) == told


@pytest.mark.parametrize(("usual", "told"), [(0.070, False), (0.074, True)])
def test_the_prompt_must_account_for_half_of_the_step(usual: float, told: bool) -> None:
    # All steps have as many prompt tokens, so the mean of them is what one should take: 78 or 82 ms, and one took 160.
    record = made_of(*[PLAIN] * 9, *[Step(usual, (100,))] * 10, Step(0.16, (100,)))
    assert ("long-prompt-stall" in rules(record)) == told


def test_the_remedy_keeps_a_step_within_the_limit() -> None:
    finding = found(made_of(*[PLAIN] * 9, Step(0.42, (400,))))["long-prompt-stall"]
    # A prompt token takes 1 ms, and 80 ms are left beside the 20 ms of decoding.
    assert "scheduler.long_prefill_threshold = 80 (now no limit)" in finding.remedy
    assert finding.step == 10
    assert "3 requests waited" in finding.evidence[1]


FULL = Step(0.5, (BUDGET - DECODING,))


@pytest.mark.parametrize(
    ("steps", "told"),
    [
        ([FULL] * 2, False),
        ([FULL] * 3, True),
        ([Step(0.5, (900 - DECODING,))] * 3, True),
        ([Step(0.5, (899 - DECODING,))] * 3, False),
    ],
)
def test_three_full_steps_make_a_median(steps: Sequence[Step], told: bool) -> None:
    assert ("token-budget" in rules(made_of(*[PLAIN] * 9, *steps, ttl_ms=200))) == told


def test_more_requests_than_the_budget_that_fits_are_told_too() -> None:
    record = made_of(*[PLAIN] * 9, *[FULL] * 3, ttl_ms=30)
    # (30 ms - 20 ms) / 0.481 ms, in sixteens, and the three that decode.
    assert found(record)["token-budget"].remedy == "Set scheduler.token_budget = 19 (now 1000)."
    many = with_knobs(record, scheduler__max_active=20)
    assert found(many)["token-budget"].remedy == (
        "Set scheduler.token_budget = 19 (now 1000), and scheduler.max_active to no more than that (now 20)."
    )


PAUSED = Step(0.02, pause=0.02)


@pytest.mark.parametrize(("count", "told"), [(19, False), (20, True)])
def test_twenty_steps_make_a_share_of_time(count: int, told: bool) -> None:
    assert ("host-starved" in rules(made_of(*[PAUSED] * count))) == told


@pytest.mark.parametrize(
    ("processor", "severity", "sentences"),
    [
        (Processor(), "warning", 1),
        (Processor(4, 4.0, 0.049), "warning", 2),
        (Processor(4, 4.1, 0.0), "problem", 2),
        (Processor(4, 1.0, 0.05), "problem", 3),
        (Processor(None, None, 0.05), "problem", 2),
        (Processor(4, None, None), "warning", 1),
    ],
)
def test_a_starved_host_is_a_problem_where_something_else_has_its_processors(
    processor: Processor, severity: str, sentences: int
) -> None:
    finding = found(replace(made_of(*[PAUSED] * 20), processor=processor))["host-starved"]
    assert (finding.severity, len(finding.evidence)) == (severity, sentences)
