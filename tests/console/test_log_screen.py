"""The log: every line once, filtered by level and text, shown literally."""

from harness import Console, screen_text, settle
from stub_host import NOON, StubHost

from engine_host.api.types import LogLevel, LogRecord
from widgets.log_view import LogView


def records(*lines: tuple[LogLevel, str]) -> list[LogRecord]:
    return [LogRecord(number, NOON, level, "engine", text) for number, (level, text) in enumerate(lines, 1)]


async def test_lines_arrive_once_and_literally(console: Console) -> None:
    host = StubHost()
    host.records = records(("info", 'first [/red] {"b": [true]} [b'), ("error", "second \x1b[31mred\x00"))
    async with console(host, "log") as (app, pilot):
        await app.poll()
        await settle(app, pilot)
        host.records = [*host.records, *[LogRecord(3, NOON, "info", "host", "third")]]
        await app.poll()
        await settle(app, pilot)
        text = screen_text(app.screen)
        assert [text.count(word) for word in ("first", "second", "third")] == [1, 1, 1]
        assert 'first [/red] {"b": [true]} [b' in text
        assert "\x1b" not in text


async def test_a_full_ring_arrives_in_pages(console: Console) -> None:
    host = StubHost()
    host.records = records(*[("info", f"line {number}") for number in range(5_000)])
    async with console(host, "log") as (app, _):
        assert len(app.screen.query_one(LogView).lines) == 5_000
        assert "line 4999" in screen_text(app.screen)


async def test_filter_by_level_and_text(console: Console) -> None:
    host = StubHost()
    host.records = records(("debug", "alpha"), ("info", "beta"), ("warning", "gamma"), ("error", "alpha two"))
    async with console(host, "log") as (app, pilot):

        def visible() -> list[str]:
            text = screen_text(app.screen)
            return [word for word in ("alpha", "beta", "gamma", "alpha two") if word in text]

        await pilot.press("l", "l")
        await pilot.pause()
        assert visible() == ["alpha", "gamma", "alpha two"]
        await pilot.press("slash", *"alpha", "enter")
        await pilot.pause()
        assert visible() == ["alpha", "alpha two"]
        await pilot.press("escape")
        await pilot.pause()
        assert visible() == ["alpha", "beta", "gamma", "alpha two"]
