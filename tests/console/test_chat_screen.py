"""The chat on screen: streaming, stopping, regenerating, editing, and text that must never be markup."""

import asyncio

import pytest
from harness import Console, screen_text, settle
from stub_host import StubHost, reply
from textual.pilot import Pilot

from console.app import ConsoleApp
from console.screens.chat import ChatScreen
from console.screens.turn_view import TurnView
from console.settings import Settings
from engine_host.api.contract import ChatChunk, HostError
from widgets.chat_message import AssistantMessage
from widgets.prompt import PromptArea

NASTY = 'a [/red] [1] {"b": [true]} [b \x1b[31m \x00 end'


async def ask(app: ConsoleApp, pilot: Pilot[None], question: str, *, finished: bool = True) -> None:
    """Type a question and send it; wait for the whole reply unless it's held back."""
    prompt = app.screen.query_one(PromptArea)
    prompt.focus()
    prompt.text = question
    await pilot.press("enter")
    await (answered if finished else settle)(app, pilot)


async def answered(app: ConsoleApp, pilot: Pilot[None]) -> None:
    """Wait until no reply is coming."""
    await pilot.pause()
    await app.workers.wait_for_complete()
    await pilot.pause()


def replies(app: ConsoleApp) -> list[str]:
    return [message.text for message in app.screen.query(AssistantMessage)]


def questions(app: ConsoleApp) -> list[str]:
    return [view.turn.question for view in app.screen.query(TurnView)]


async def test_a_reply_shows_with_its_figures(console: Console) -> None:
    host = StubHost()
    host.script = [reply("Hello **there**", tokens=7)]
    async with console(host, "chat") as (app, pilot):
        await ask(app, pilot, "hi")
        text = screen_text(app.screen)
        assert "Hello there" in text
        assert "TTFT" in text
        assert "7 tokens" in text
        assert app.screen.query_one(PromptArea).has_focus


async def test_a_reply_cut_by_length_is_marked(console: Console) -> None:
    host = StubHost()
    host.script = [reply("half a sen", finish="length")]
    async with console(host, "chat") as (app, pilot):
        await ask(app, pilot, "hi")
        assert "cut off" in screen_text(app.screen)


@pytest.mark.parametrize("script", [reply(NASTY), [HostError(400, NASTY)]], ids=["reply", "error"])
async def test_replies_and_errors_are_shown_literally(console: Console, script: list[ChatChunk]) -> None:
    host = StubHost()
    host.script = [script]
    async with console(host, "chat") as (app, pilot):
        await ask(app, pilot, NASTY)
        text = screen_text(app.screen)
        assert text.count('[/red] [1] {"b": [true]} [b ␛[31m ␀ end') == 2
        assert "\x1b" not in text


@pytest.mark.parametrize(
    ("step", "kept"),
    [
        pytest.param(HostError(503, "The model is still loading.", retry_after=3600.0), "", id="loading"),
        pytest.param(asyncio.Event(), "", id="queued"),
        pytest.param(ChatChunk(text="begun"), "begun", id="in mid-reply"),
    ],
)
async def test_escape_stops(console: Console, step: ChatChunk | HostError | asyncio.Event, kept: str) -> None:
    host = StubHost()
    async with console(host, "chat") as (app, pilot):
        for presses in (1, 2):
            host.script = [[step, asyncio.Event()], reply("next")]
            await pilot.press("ctrl+n")
            await ask(app, pilot, "hi", finished=False)
            if isinstance(step, HostError):
                assert "The model is still loading." in screen_text(app.screen)
            await pilot.press(*["escape"] * presses)
            await answered(app, pilot)
            assert replies(app) == [kept]
            assert "stopped" in screen_text(app.screen)
            assert host.aborted == (0 if isinstance(step, HostError) else presses)
            await ask(app, pilot, "then")
            sent = [message.content for message in host.asked[-1]]
            assert sent == (["hi", kept, "then"] if kept else ["then"])


async def test_a_question_while_a_reply_comes_is_kept_in_the_input(console: Console) -> None:
    host = StubHost()
    host.script = [[asyncio.Event()]]
    async with console(host, "chat") as (app, pilot):
        await ask(app, pilot, "one", finished=False)
        await ask(app, pilot, "two", finished=False)
        assert (len(host.asked), app.screen.query_one(PromptArea).text) == (1, "two")


async def test_regenerate_replaces_the_last_reply(console: Console) -> None:
    host = StubHost()
    host.script = [reply("a1"), reply("a2"), reply("other")]
    async with console(host, "chat") as (app, pilot):
        await ask(app, pilot, "q1")
        await ask(app, pilot, "q2")
        await pilot.press("ctrl+r")
        await answered(app, pilot)
        assert (questions(app), replies(app)) == (["q1", "q2"], ["a1", "other"])
        assert [message.content for message in host.asked[-1]] == ["q1", "a1", "q2"]


async def test_editing_an_earlier_question_forgets_what_came_after(console: Console) -> None:
    host = StubHost()
    host.script = [reply(f"a{number}") for number in range(1, 5)] + [reply("anew")]
    async with console(host, "chat") as (app, pilot):
        for number in range(1, 5):
            await ask(app, pilot, f"q{number}")
        await pilot.press("escape", "k", "k", "e")
        await pilot.pause()
        prompt = app.screen.query_one(PromptArea)
        assert (prompt.text, prompt.has_focus) == ("q2", True)
        await pilot.press("escape")
        assert (prompt.text, len(questions(app))) == ("", 4)
        await pilot.press("escape", "k", "k", "e", "!", "enter")
        await answered(app, pilot)
        assert (questions(app), replies(app)) == (["q1", "q2!"], ["a1", "anew"])
        assert [message.content for message in host.asked[-1]] == ["q1", "a1", "q2!"]


async def test_a_new_chat_forgets_all_even_in_mid_reply(console: Console) -> None:
    host = StubHost()
    host.script = [[ChatChunk(text="begun"), asyncio.Event()], reply("fresh")]
    async with console(host, "chat") as (app, pilot):
        await ask(app, pilot, "old", finished=False)
        await pilot.press("ctrl+n")
        await answered(app, pilot)
        assert (questions(app), host.aborted) == ([], 1)
        await ask(app, pilot, "new")
        assert [message.content for message in host.asked[-1]] == ["new"]


async def test_the_system_prompt_is_sent(console: Console) -> None:
    host = StubHost()
    host.script = [reply("ok"), reply("ok"), reply("ok")]
    async with console(host, "chat", settings=Settings(system_prompt="Be kind.")) as (app, pilot):
        await ask(app, pilot, "one")
        await pilot.press("ctrl+o", "ctrl+a")
        await pilot.press(*"Brief.", "ctrl+s")
        await settle(app, pilot)
        await ask(app, pilot, "two")
        await pilot.press("ctrl+o", *"never", "escape")
        await ask(app, pilot, "three")
        systems = [messages[0].content for messages in host.asked]
        assert systems[0] == "Be kind."
        assert systems[1].startswith("Brief.")
        assert systems[2] == systems[1]


async def test_a_multi_line_question(console: Console) -> None:
    host = StubHost()
    host.script = [reply("ok")]
    async with console(host, "chat") as (app, pilot):
        await pilot.press("a", "ctrl+j", "b", "enter")
        await answered(app, pilot)
        assert host.asked[0][-1].content == "a\nb"


async def test_resizing_while_a_reply_streams_loses_nothing(console: Console) -> None:
    words = [f"word{number} " for number in range(60)]
    gates = [asyncio.Event() for _ in range(4)]
    steps: list[ChatChunk | Exception | asyncio.Event] = []
    for number, gate in enumerate(gates):
        steps += [*reply(*words[number * 15 : number * 15 + 15])[:15], gate]
    host = StubHost()
    host.script = [[*steps, *reply(tokens=60)]]
    async with console(host, "chat") as (app, pilot):
        await ask(app, pilot, "count", finished=False)
        for gate, size in zip(gates, ((40, 10), (250, 70), (61, 17), (120, 40)), strict=True):
            await pilot.resize_terminal(*size)
            gate.set()
            await settle(app, pilot)
        await answered(app, pilot)
        assert replies(app) == ["".join(words)]
        drawn = screen_text(app.screen)
        assert all(word.strip() in drawn for word in words)


async def test_a_long_reply_arrives_whole_while_keys_are_answered(console: Console) -> None:
    """Twenty thousand tokens, a key pressed between every thousand: each key is in the input before the next thousand
    arrives, and at the end no token is missing."""
    words = [f"t{number}{'. ' if number % 50 else '. - '}" for number in range(20_000)]
    gates = [asyncio.Event() for _ in range(20)]
    steps: list[ChatChunk | Exception | asyncio.Event] = []
    for number, gate in enumerate(gates):
        steps += [*[ChatChunk(text=word) for word in words[number * 1_000 : number * 1_000 + 1_000]], gate]
    host = StubHost()
    host.script = [[*steps, *reply(tokens=20_000)]]
    async with console(host, "chat", size=(80, 24)) as (app, pilot):
        await ask(app, pilot, "count", finished=False)
        prompt = app.screen.query_one(PromptArea)
        for number, gate in enumerate(gates):
            await pilot.press("x")
            assert len(prompt.text) == number + 1
            gate.set()
        await answered(app, pilot)
        assert replies(app) == ["".join(words)]
        assert "20\u202f000 tokens" in screen_text(app.screen)
        assert isinstance(app.screen, ChatScreen)
