"""Sliding windows: what is told late, and what a window takes over from another."""

from engine_host.telemetry.tally import Tally
from engine_host.telemetry.timeline import Sliding, Windows


def counted(tokens: int) -> Tally:
    tally = Tally()
    tally.output = tokens
    return tally


def window(*taken: tuple[int, int], slots: int = 10, slot_s: int = 1) -> Sliding[Tally]:
    sliding = Sliding(Tally, slots, slot_s)
    for second, tokens in taken:
        sliding.take(second, counted(tokens))
    return sliding


def test_a_second_stays_for_so_many_whole_seconds_after_it() -> None:
    sliding = window((5, 1), (6, 2))
    assert (sliding.expire(15), sliding.sum.output) == (False, 3)
    assert (sliding.expire(16), sliding.sum.output) == (True, 2)
    assert (sliding.expire(1000), sliding.sum.output) == (True, 0)


def test_what_is_told_late_leaves_in_its_turn() -> None:
    sliding = window((5, 1), (3, 2), (5, 4))
    assert sliding.slot(5) is not None
    sliding.expire(14)
    assert sliding.sum.output == 5
    assert sliding.slot(3) is None


def test_a_window_takes_over_another_slot_by_slot() -> None:
    sliding, other = window((12, 1), (31, 2), slots=3, slot_s=10), window((19, 4), (25, 8), slots=3, slot_s=10)
    sliding.absorb(other)
    assert (sliding.sum.output, other.sum.output) == (15, 12)
    sliding.expire(50)
    assert sliding.sum.output == 10
    sliding.expire(60)
    assert sliding.sum.output == 2


def test_windows_let_go_of_what_is_too_old_for_each_of_them() -> None:
    windows = Windows(Tally)
    for second, tokens in ((1000, 1), (1050, 2)):
        windows.take(second, counted(tokens))
        windows.expire(second)
    assert windows.expire(1061)
    assert [windows[name].output for name in ("10s", "1m", "10m", "start")] == [0, 2, 3, 3]
    assert not windows.expire(1061)
