"""When load is shed, and how it ends, on a clock that the test moves."""

from typing import Any

import pytest

from engine_host.gateway.breaker import CircuitBreaker
from engine_host.gateway.refusal import Refusal
from profiles.gateway import Breaker, Tier

BAD = "the engine is saturated."


class Scene:
    """A breaker of three tiers, which waits 5 s and holds for 4 s."""

    def __init__(self, **shed: int) -> None:
        shed = shed or {"premium": 0, "standard": 2, "best": 1}
        self.tiers = {name: Tier(shed=order) for name, order in shed.items()}
        self.rules = Breaker(after_s=5.0, hold_s=4.0)
        self.breaker = CircuitBreaker(lambda: self.rules, lambda: self.tiers, lambda: 1000.0)

    def bad(self, begin: int, end: int) -> None:
        for now in range(begin, end + 1):
            self.breaker.observe(BAD, float(now))

    def passes(self, tier: str, now: float, name: str = "r") -> bool:
        try:
            self.breaker.check(tier, name, now)
        except Refusal:
            return False
        return True

    def state(self, now: float) -> tuple[str, set[str]]:
        line = self.breaker.line(now)
        return line.state, set(line.shed)


def test_groups_are_shed_one_after_the_other_and_never_those_of_order_0() -> None:
    scene = Scene()
    scene.bad(0, 4)
    assert scene.state(4) == ("closed", set())
    scene.bad(5, 5)
    assert scene.state(5) == ("open", {"best"})
    scene.bad(6, 9)
    assert scene.state(8) == ("open", {"best"})
    scene.bad(10, 60)
    assert set(scene.breaker.shed) == {"best", "standard"}
    assert scene.passes("premium", 60.0)


def test_a_moment_without_trouble_begins_the_count_anew() -> None:
    scene = Scene()
    scene.bad(0, 4)
    scene.breaker.observe(None, 4.5)
    scene.bad(5, 9)
    assert scene.state(9) == ("closed", set())


def test_who_is_turned_away_is_told_why_and_when_to_come_again() -> None:
    scene = Scene()
    scene.bad(0, 5)
    with pytest.raises(Refusal, match="saturated") as refused:
        scene.breaker.check("best", "r", 6.0)
    assert (refused.value.status, refused.value.headers["Retry-After"]) == (503, "3")


def test_one_request_probes_and_a_good_one_takes_back_one_group() -> None:
    scene = Scene()
    scene.bad(0, 10)
    assert scene.state(11) == ("open", {"best", "standard"})
    assert scene.state(14) == ("half-open", {"best", "standard"})
    assert scene.passes("standard", 14.0, "probe")
    assert not scene.passes("standard", 14.0, "other")
    scene.breaker.probed("other", True, 14.5)
    assert scene.state(15) == ("half-open", {"best", "standard"}), "only the probe counts"
    scene.breaker.probed("probe", True, 15.0)
    assert scene.state(15) == ("open", {"best"})
    assert scene.passes("standard", 15.0)
    assert scene.passes("best", 19.0, "second")
    scene.breaker.probed("second", True, 19.0)
    assert scene.state(19) == ("closed", set())


def test_a_bad_probe_holds_the_group_once_more() -> None:
    scene = Scene()
    scene.bad(0, 5)
    assert scene.passes("best", 9.0, "probe")
    scene.breaker.probed("probe", False, 12.0)
    assert not scene.passes("best", 15.9)
    assert scene.passes("best", 16.0)


def test_a_probe_that_tells_nothing_makes_way_for_the_next() -> None:
    scene = Scene()
    scene.bad(0, 5)
    assert scene.passes("best", 9.0, "left")
    scene.breaker.probed("left", None, 9.1)
    assert scene.passes("best", 9.2, "next")
    assert scene.state(9.3) == ("half-open", {"best"})


def test_a_shed_tier_that_nobody_uses_keeps_no_other_out() -> None:
    scene = Scene()
    scene.bad(0, 10)
    assert scene.passes("best", 14.0, "first"), "no request of the tier standard will ever come"
    scene.breaker.probed("first", True, 14.0)
    assert scene.passes("best", 18.0, "second")
    scene.breaker.probed("second", True, 18.0)
    assert scene.state(18) == ("closed", set())


@pytest.mark.parametrize("left", [{}, {"best": 1}])
def test_groups_that_a_new_profile_does_not_have_are_shed_no_more(left: dict[str, Any]) -> None:
    scene = Scene()
    scene.bad(0, 10)
    scene.tiers = {"premium": Tier(shed=0), **{name: Tier(shed=order) for name, order in left.items()}}
    assert scene.state(14)[1] == set(left)
    if left:
        assert scene.passes("best", 14.0, "probe")
        scene.breaker.probed("probe", True, 14.0)
    assert scene.state(14) == ("closed", set())
    scene.bad(20, 25)
    assert scene.state(25)[1] == set(left)


def test_no_group_at_all_stays_closed() -> None:
    scene = Scene(premium=0)
    scene.bad(0, 60)
    assert scene.state(60) == ("closed", set())


def test_changed_times_are_in_force_at_once() -> None:
    scene = Scene()
    scene.bad(0, 5)
    scene.rules = Breaker(after_s=1.0, hold_s=1.0)
    assert scene.passes("best", 6.0)
    scene.bad(6, 6)
    assert scene.state(6) == ("open", {"best", "standard"})
