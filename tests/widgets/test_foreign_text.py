"""Text from outside (replies, log lines, names, errors) is shown literally by every widget."""

from collections.abc import Callable
from typing import Any

import pytest
from textual.app import App
from textual.widget import Widget

from widgets import palette
from widgets.chat_message import AssistantMessage, ReplyStats, UserMessage
from widgets.demo import Demo
from widgets.log_view import LogLine, LogView
from widgets.marks import Event
from widgets.meter import Meter
from widgets.plot import LinePlot, Series
from widgets.prompt import PromptArea
from widgets.request_table import RequestLine, RequestTable
from widgets.stat import Stat
from widgets.status_bar import Segment, StatusBar

FOREIGN = '[/red] [1] {"b": [true]} [bold red]x [b'
CONTROL = "\x1b[31mred\x1b[0m\x00\x9b2J\u202e"


def show_stat(text: str) -> Widget:
    stat = Stat(text)
    stat.set(text, note=text)
    return stat


def show_meter(text: str) -> Widget:
    meter = Meter("m")
    meter.set(0.5, text, note=text)
    return meter


def show_status_bar(text: str) -> Widget:
    bar = StatusBar()
    bar.set_segments([Segment(text, text)], text)
    return bar


def show_log(text: str) -> Widget:
    view = LogView()
    view.call_later(view.extend, [LogLine(0.0, "error", text, text)])
    return view


def show_requests(text: str) -> Widget:
    table = RequestTable()
    table.set_requests([RequestLine(text, text, 1, 1, None, 0.0, None, None, None)])
    return table


def show_plot(text: str) -> Widget:
    plot = LinePlot()
    plot.set_series([Series(text, [1.0, 2.0], palette.series(0))], thresholds=[(1.0, text)], events=[Event(0, text)])
    return plot


def show_user(text: str) -> Widget:
    return UserMessage(text, role=text)


def show_reply(text: str) -> Widget:
    return AssistantMessage(text)


def show_prompt(text: str) -> Widget:
    prompt = PromptArea(placeholder=text)
    prompt.load_text(text)
    return prompt


SHOWN = [show_stat, show_meter, show_status_bar, show_log, show_requests, show_plot, show_user, show_reply, show_prompt]


@pytest.mark.parametrize("show", SHOWN)
async def test_brackets_and_controls_are_shown_as_they_are(
    show: Callable[[str], Widget], screen_text: Callable[[App[Any]], str]
) -> None:
    app = Demo()
    async with app.run_test(size=(200, 12)) as pilot:
        for text in (FOREIGN, CONTROL):
            widget = show(text)
            await app.mount(widget)
            if isinstance(widget, AssistantMessage):
                await widget.finish(ReplyStats(), "failed", text)
                await pilot.pause()
                assert screen_text(app).count(text[:6].translate({0x1B: "␛"})) == 2
                await widget.collapse()
            await pilot.pause()
            shown = screen_text(app)
            if text == FOREIGN and not isinstance(widget, RequestTable):
                assert FOREIGN in shown
            assert not set(shown) & {"\x1b", "\x00", "\x9b", "\u202e"}
            await widget.remove()
