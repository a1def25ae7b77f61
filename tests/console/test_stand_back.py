"""The screen's share of the processor: idle time while there is some, a little where there is none."""

from types import SimpleNamespace

import pytest

from console import lifeline


def test_a_screen_that_gets_no_idle_time_takes_a_share_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    now, chosen = [0.0], []
    # Seconds waited when asked: calm, calm, starved; calm again after the share; then the kernel says no more.
    waited = iter([0.0, 0.1, 0.2, 0.6, 5.0, 5.1, None])

    def sleep(seconds: float) -> None:
        now[0] += seconds

    def schedule(*, idle: bool) -> None:
        chosen.append((round(now[0], 1), idle))

    monkeypatch.setattr(lifeline, "time", SimpleNamespace(sleep=sleep, monotonic=lambda: now[0]))
    monkeypatch.setattr(lifeline, "_waited_s", lambda: next(waited))
    monkeypatch.setattr(lifeline, "_schedule", schedule)
    lifeline._stand_back()
    starved_at = 3 * lifeline.STANDING_BACK_CHECK_S
    assert chosen == [(0.0, True), (starved_at, False), (starved_at + lifeline.SHARE_FOR_S, True)]
