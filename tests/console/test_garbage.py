"""The screen's full garbage collections: at quiet times, or when one is overdue."""

import gc
from collections.abc import Iterator

import pytest

from console.garbage import OVERDUE_S, IdleCollector


@pytest.fixture(autouse=True)
def thresholds() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


class Ring:
    """Garbage that only a collection finds."""

    alive = 0

    def __init__(self) -> None:
        Ring.alive += 1
        self.itself = self

    def __del__(self) -> None:
        Ring.alive -= 1


def old_garbage() -> None:
    ring = Ring()
    # Out of the young generations, and something behind it for the oldest to be due.
    gc.collect()
    gc.collect(1)
    del ring


def test_nothing_is_collected_while_a_reply_streams_and_all_is_once_it_has_ended() -> None:
    collector = IdleCollector(0.0)
    old_garbage()
    assert not collector.tick(20.0, busy=True)
    assert Ring.alive == 1
    assert collector.tick(40.0, busy=False)
    assert Ring.alive == 0


def test_an_overdue_collection_does_not_wait() -> None:
    collector = IdleCollector(0.0)
    old_garbage()
    assert collector.tick(OVERDUE_S, busy=True)
    assert Ring.alive == 0
    assert not collector.tick(OVERDUE_S + 20, busy=True)
