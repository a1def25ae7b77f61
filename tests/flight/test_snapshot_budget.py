"""Snapshots stay within their share of a core, and none has to wait longer than that takes."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_host.flight.budget import BURST_S, SHARE, SnapshotBudget

costs = st.floats(1e-5, 0.2)
pauses = st.floats(0.0, 5.0)


@given(st.lists(st.tuples(pauses, costs), min_size=1, max_size=200))
def test_events_never_take_more_than_the_share(events: list[tuple[float, float]]) -> None:
    budget, now, spent = SnapshotBudget(10, 0.0), 0.0, 0.0
    for pause, cost in events:
        now += pause
        if budget.wait(now) == 0:
            budget.charge(now, now + cost)
            now, spent = now + cost, spent + cost
    # What one snapshot costs is known only afterwards: that much, and no more, can be borrowed.
    assert spent <= SHARE * now + max(cost for _, cost in events) + 1e-9


@given(st.lists(costs, min_size=2, max_size=100), st.floats(0.1, 50))
def test_periodic_snapshots_keep_the_rate_and_the_share(spent: list[float], hz: float) -> None:
    budget, now = SnapshotBudget(hz, 0.0), 0.0
    starts = []
    for cost in spent:
        now = max(now, budget.next)
        starts.append(now)
        budget.charge(now, now + cost)
        now += cost
    gaps = [later - earlier for earlier, later in itertools.pairwise(starts)]
    assert min(gaps) >= 1 / min(hz, 10) - 1e-9
    assert sum(spent[:-1]) <= SHARE * starts[-1] + max(spent) + 1e-9


@given(costs)
def test_a_snapshot_is_allowed_again_once_its_cost_is_earned(cost: float) -> None:
    budget = SnapshotBudget(10, 0.0)
    budget.charge(0.0, cost)
    wait = budget.wait(cost)
    assert 0 < wait <= 2 * cost / SHARE
    assert budget.wait(cost + wait * 1.000001) == 0


def test_saved_time_is_capped() -> None:
    budget = SnapshotBudget(10, 0.0)
    budget.charge(0.0, 0.005)
    taken, now = 0, 3600.0
    while budget.wait(now) == 0:
        budget.charge(now, now + 0.005)
        now, taken = now + 0.005, taken + 1
    assert taken == pytest.approx(BURST_S / 0.005)
