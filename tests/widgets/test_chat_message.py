"""Chat messages: nothing of a reply is lost, whatever it is made of and however it is cut into tokens."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from textual.app import App, ComposeResult
from textual.containers import VerticalScroll
from textual.widgets import Markdown
from textual.widgets.markdown import MarkdownBlock, MarkdownFence

from widgets.chat_message import LONG_BLOCK, AssistantMessage, Reason, ReplyStats, UserMessage
from widgets.open_block import OpenBlock

STATS = ReplyStats(ttft=0.082, ttl=0.031, tokens_per_second=31.2, tokens=412)
REPLY = "# Title\n\nSome **bold** text with [1] and `code`.\n\n- one\n- two\n\n```python\nprint('hi')\n```\n\nThe end."


class Chat(App[None]):
    def __init__(self) -> None:
        super().__init__()
        self.message = AssistantMessage()

    def compose(self) -> ComposeResult:
        with VerticalScroll():
            yield UserMessage("a [b]question[/b]")
            yield self.message


def blocks(message: AssistantMessage) -> list[str]:
    """The kinds of the top-level Markdown blocks."""
    return [type(child).__name__ for child in message.query_one(Markdown).children]


async def test_a_stream_ends_as_the_same_markdown_as_the_whole_text(screen_text: Callable[[App[Any]], str]) -> None:
    app = Chat()
    async with app.run_test(size=(60, 40)) as pilot:
        for character in REPLY:
            app.message.append(character)
        await app.message.finish(STATS)
        await pilot.pause()
        assert app.message.text == REPLY
        assert app.message.query_one(Markdown).source == REPLY
        assert blocks(app.message) == [
            "MarkdownH1",
            "MarkdownParagraph",
            "MarkdownBulletList",
            "MarkdownFence",
            "MarkdownParagraph",
        ]
        shown = screen_text(app)
        assert "Some bold text with [1] and code." in shown
        assert "TTFT 82 ms · TTL 31 ms · 31 tok/s · 412 tokens" in shown
        assert "cut off" not in shown
        assert "a [b]question[/b]" in shown


async def test_a_stream_is_shown_while_it_runs(screen_text: Callable[[App[Any]], str]) -> None:
    app = Chat()
    async with app.run_test(size=(60, 20)) as pilot:
        app.message.append("first ")
        await app.message._flush()
        await pilot.pause()
        assert "first" in screen_text(app)
        app.message.append("second")
        await app.message._flush()
        await pilot.pause()
        assert "first second" in screen_text(app)


@pytest.mark.parametrize(
    ("reason", "error", "expected"),
    [
        ("length", "", "cut off: length limit"),
        ("stopped", "", "stopped"),
        ("failed", "The engine stopped [b]; try again.", "The engine stopped [b]; try again."),
    ],
)
async def test_a_reply_says_why_it_ended(
    reason: Reason, error: str, expected: str, screen_text: Callable[[App[Any]], str]
) -> None:
    app = Chat()
    async with app.run_test(size=(60, 20)) as pilot:
        app.message.append("half a sen")
        await app.message.finish(ReplyStats(), reason, error)
        await pilot.pause()
        shown = screen_text(app)
        assert expected in shown
        assert "half a sen" in shown
        assert "TTFT n/a · TTL n/a · n/a · n/a tokens" in shown


async def test_a_half_open_fence_leaves_no_trace() -> None:
    app = Chat()
    async with app.run_test(size=(60, 20)):
        for piece in ("```py\nprint(1)\n", "``", "`\n\nafter *it*"):
            app.message.append(piece)
            await app.message._flush()
        await app.message.finish(STATS)
        assert blocks(app.message) == ["MarkdownFence", "MarkdownParagraph"]
        (fence,) = app.message.query(MarkdownFence)
        assert fence.code == "print(1)"


async def test_a_very_long_open_block_is_plain_until_it_closes() -> None:
    app = Chat()
    async with app.run_test(size=(60, 20)):
        message = app.message
        message.append("```\n")
        for number in range(LONG_BLOCK // 5):
            message.append(f"line {number}\n")
            if number % 100 == 0:
                await message._flush()
        await message._flush()
        tail = message.query_one(".message--tail")
        assert tail.display
        assert len(message.query_one(Markdown).source) <= LONG_BLOCK
        plain = "\n".join(str(part.render()) for part in tail.query("Static"))
        assert message.query_one(Markdown).source + plain.rstrip("\n") in (message.text, message.text.rstrip("\n"))
        message.append("```\n\nafter")
        await message._flush()
        assert not tail.display
        assert blocks(message) == ["MarkdownFence", "MarkdownParagraph"]
        await message.finish(STATS)
        assert message.query_one(Markdown).source == message.text


async def test_tags_and_odd_line_ends_are_text_not_lost() -> None:
    app = Chat()
    async with app.run_test(size=(60, 20)):
        text = "<think>why</think> a\r\nb\u2028c <b>d</b>\n\n<div>e</div>"
        for character in text:
            app.message.append(character)
            await app.message._flush()
        await app.message.finish(STATS)
        shown = "\n".join(block._content.plain for block in app.message.query(MarkdownBlock))
        assert "<think>why</think>" in shown
        assert "<b>d</b>" in shown
        assert "<div>e</div>" in shown


async def test_an_old_message_becomes_one_static_widget_with_the_same_text(
    screen_text: Callable[[App[Any]], str],
) -> None:
    app = Chat()
    async with app.run_test(size=(60, 40)) as pilot:
        app.message.append(REPLY + "\n\n<think>x</think> [/red]")
        await app.message.finish(STATS, "length")
        await app.message.collapse()
        await app.message.collapse()
        await pilot.pause()
        assert not app.message.query(Markdown)
        shown = screen_text(app)
        for text in ("Title", "Some bold text with [1] and code.", "print('hi')", "<think>x</think> [/red]", "cut off"):
            assert text in shown


async def test_tokens_after_the_end_and_before_the_mount_do_no_harm() -> None:
    app = Chat()
    app.message.append("early ")
    async with app.run_test(size=(60, 20)):
        app.message.append("bird")
        await app.message.finish(STATS)
        app.message.append("late")
        assert app.message.text == "early bird"
        assert app.message.query_one(Markdown).source == "early bird"


@given(
    st.lists(st.sampled_from(["- item\n", "\n", "text\n", "```\n", "  more\n", "~~~~\n", "a"]), max_size=30), st.data()
)
def test_the_open_block_does_not_depend_on_how_the_text_is_cut(pieces: list[str], data: st.DataObject) -> None:
    text = "".join(pieces)
    whole, cut = OpenBlock(), OpenBlock()
    whole.feed(text)
    at = 0
    while at < len(text):
        size = data.draw(st.integers(1, 7))
        cut.feed(text[at : at + size])
        at += size
    assert cut.start == whole.start
    assert whole.start == 0 or text[whole.start - 1] == "\n"


def test_lists_and_fences_stay_open_over_blank_lines() -> None:
    block = OpenBlock()
    block.feed("para\n\n- one\n\n- two\n\n  more\n")
    assert block.start == len("para\n\n")
    block.feed("\n```\ncode\n\ncode\n")
    fence = "para\n\n- one\n\n- two\n\n  more\n\n"
    assert block.start == len(fence)
    block.feed("```\nafter\n")
    assert block.start == len(fence) + len("```\ncode\n\ncode\n```\n")
