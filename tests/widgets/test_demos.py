"""Each widget's demo starts and runs."""

import runpy

import pytest

from widgets.demo import Demo

WIDGETS = [
    "chat_message",
    "core_bars",
    "facts",
    "log_view",
    "meter",
    "page_map",
    "plot",
    "prompt",
    "request_table",
    "split_bar",
    "split_line",
    "stat",
    "status_bar",
    "steps",
    "table",
    "usage_bar",
    "waterfall",
]


@pytest.mark.filterwarnings("ignore:.*found in sys.modules:RuntimeWarning")
@pytest.mark.parametrize("name", WIDGETS)
async def test_a_demo_runs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Demo] = []
    monkeypatch.setattr(Demo, "run", lambda demo: started.append(demo))
    runpy.run_module(f"widgets.{name}", run_name="__main__", alter_sys=True)
    (demo,) = started
    async with demo.run_test(size=(80, 24)) as pilot:
        demo._advance()
        await pilot.pause()
        assert demo.is_running
