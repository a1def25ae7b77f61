"""Chat messages: nothing of a reply is lost, whatever it is made of and however it is cut into tokens."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.markdown import Markdown as StaticMarkdown
from textual.app import App, ComposeResult
from textual.containers import VerticalScroll
from textual.widgets import Markdown, Static
from textual.widgets.markdown import MarkdownBlock, MarkdownFence

from widgets.chat_message import AssistantMessage, Reason, ReplyStats, UserMessage
from widgets.open_block import OpenBlock
from widgets.reply_body import LONG_BLOCK, LONGEST_MARKDOWN

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
    return [type(child).__name__ for markdown in message.query(Markdown) for child in markdown.children]


def sources(message: AssistantMessage) -> list[str]:
    """The source of each Markdown section, live or already drawn for good."""
    found = []
    for part in message.query("Markdown, Static"):
        if isinstance(part, Markdown):
            found.append(part.source)
        elif isinstance(part, Static) and isinstance(part.content, StaticMarkdown):
            found.append(part.content.markup)
    return found


async def test_a_stream_ends_as_the_same_markdown_as_the_whole_text(screen_text: Callable[[App[Any]], str]) -> None:
    app = Chat()
    async with app.run_test(size=(60, 40)) as pilot:
        for character in REPLY:
            app.message.append(character)
        await app.message.finish(STATS)
        await pilot.pause()
        assert app.message.text == REPLY
        assert sources(app.message) == [REPLY]
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


@pytest.mark.parametrize("length", [LONG_BLOCK * 2, LONGEST_MARKDOWN * 2])
async def test_a_very_long_block_is_plain_while_open_and_a_huge_one_stays_so(length: int) -> None:
    app = Chat()
    async with app.run_test(size=(60, 20)):
        message = app.message
        code = "".join(f"line {number}\n" for number in range(length // 10))
        for at in range(0, len(code), 500):
            message.append(("before\n\n```\n" if at == 0 else "") + code[at : at + 500])
            await message._flush()
        plain = [str(part.render()) for part in message.query(".reply--plain").results(Static)]
        assert "\n".join(plain).strip() == "```\n" + code.strip()
        assert sources(message) == ["before\n\n"]
        message.append("```\n\nafter *it*")
        await message.finish(STATS)
        if len(code) < LONGEST_MARKDOWN:
            assert any(source.strip() == "```\n" + code + "```" for source in sources(message))
            assert not message.query(".reply--plain")
        else:
            assert not any(code in source for source in sources(message))
            plain = [str(part.render()) for part in message.query(".reply--plain").results(Static)]
            assert "\n".join(plain).strip() == "```\n" + code + "```"
        assert sources(message)[-1].strip() == "after *it*"


@given(text=st.text(st.sampled_from("ab \n`-#*|1."), max_size=400), size=st.integers(1, 50))
@settings(max_examples=8, deadline=None)
async def test_no_token_is_lost_however_the_text_is_made_and_cut(text: str, size: int) -> None:
    app = Chat()
    async with app.run_test(size=(60, 20)):
        for at in range(0, len(text), size):
            app.message.append(text[at : at + size])
            await app.message._flush()
        await app.message.finish(STATS)
        assert app.message.text == text
        assert "".join(sources(app.message)) == text


async def test_a_long_reply_is_drawn_in_sections_that_add_up_to_it() -> None:
    app = Chat()
    async with app.run_test(size=(60, 20)):
        text = "".join(f"Paragraph *{number}* of many words.\n\n" for number in range(600))
        app.message.append(text)
        await app.message.finish(STATS)
        found = sources(app.message)
        assert len(found) > 2
        assert "".join(found) == text
        assert max(map(len, found)) < LONGEST_MARKDOWN * 2
        # Live sections are laid out again with each piece of the reply.
        assert len(app.message.query(Markdown)) <= 2


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
        assert sources(app.message) == ["early bird"]


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
