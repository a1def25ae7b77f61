import asyncio

import pytest
from stub_host import StubHost, reply

from console.chat_session import ChatSession, Conversation, Turn
from engine_host.api.contract import ChatChunk, ChatMessage, HostError, HostUnreachable


class Shown:
    """A reply view that remembers."""

    def __init__(self) -> None:
        self.text = ""
        self.notices: list[str] = []

    def waiting(self, sentence: str) -> None:
        self.notices.append(sentence)

    def append(self, text: str) -> None:
        self.text += text


class Clock:
    """A clock that moves when told, and a sleep that only moves it."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds


LOADING = HostError(503, "The model is still loading.", retry_after=2.0)


@pytest.fixture
def host() -> StubHost:
    return StubHost()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def session(host: StubHost, clock: Clock) -> ChatSession:
    return ChatSession(host, lambda: "smollm2", clock=clock, sleep=clock.sleep)


async def ask(session: ChatSession, question: str) -> tuple[Turn, Shown]:
    turn, shown = session.conversation.ask(question), Shown()
    await session.answer(turn, shown)
    return turn, shown


def said(messages: list[ChatMessage]) -> list[str]:
    return [f"{message.role}: {message.content}" for message in messages]


async def test_a_reply_is_shown_and_remembered(session: ChatSession, host: StubHost) -> None:
    host.script = [reply("Hel", "lo"), reply("again")]
    turn, shown = await ask(session, "hi")
    assert (shown.text, turn.answer, turn.state, turn.cut_off) == ("Hello", "Hello", "done", False)
    await ask(session, "more")
    assert said(host.asked[1]) == ["user: hi", "assistant: Hello", "user: more"]


async def test_figures_are_per_token_not_per_chunk(session: ChatSession, host: StubHost, clock: Clock) -> None:
    chunks = reply("a", "b c d", tokens=5)

    async def timed(model: str, messages: object):  # type: ignore[no-untyped-def]
        for step, chunk in enumerate(chunks):
            clock.now += 0.5 if step == 0 else 0.2 if step == 1 else 0.0
            yield chunk

    host.chat = timed  # type: ignore[method-assign]
    turn, _ = await ask(session, "hi")
    assert turn.figures.ttft == pytest.approx(0.5)
    assert turn.figures.ttl == pytest.approx(0.2 / 4)
    assert turn.figures.tokens_per_second == pytest.approx(5 / 0.7)
    assert turn.figures.tokens == 5


async def test_a_reply_cut_by_length_is_known(session: ChatSession, host: StubHost) -> None:
    host.script = [reply("half a sen", finish="length")]
    turn, _ = await ask(session, "hi")
    assert turn.cut_off


async def test_while_the_engine_loads_the_question_waits(session: ChatSession, host: StubHost, clock: Clock) -> None:
    host.script = [[LOADING], [HostUnreachable("Nobody.", gone=False)], reply("ready")]
    turn, shown = await ask(session, "hi")
    assert shown.notices == ["The model is still loading.", "Nobody."]
    assert (turn.answer, turn.state) == ("ready", "done")
    assert clock.now == pytest.approx(103.0)
    assert turn.figures.ttft == pytest.approx(0.0)


async def test_a_refusal_is_a_sentence(session: ChatSession, host: StubHost) -> None:
    host.script = [[HostError(400, "The prompt has 9000 tokens, the limit is 8192.")], reply("fine")]
    turn, _ = await ask(session, "long")
    assert (turn.state, turn.error) == ("failed", "The prompt has 9000 tokens, the limit is 8192.")
    await ask(session, "short")
    assert said(host.asked[1]) == ["user: short"]


async def test_a_stream_that_breaks_keeps_its_text(session: ChatSession, host: StubHost) -> None:
    host.script = [[ChatChunk(text="begun"), HostError(503, "The engine died.", retry_after=1.0)]]
    turn, shown = await ask(session, "hi")
    assert (turn.state, turn.error, turn.answer, shown.text) == ("failed", "The engine died.", "begun", "begun")


@pytest.mark.parametrize(
    ("script", "kept"),
    [
        pytest.param([LOADING], "", id="while loading"),
        pytest.param([asyncio.Event()], "", id="while queued"),
        pytest.param([ChatChunk(text="one "), ChatChunk(text="two"), asyncio.Event()], "one two", id="in mid-reply"),
    ],
)
@pytest.mark.parametrize("presses", [1, 2])
async def test_stop(host: StubHost, script: list[object], kept: str, presses: int) -> None:
    never = asyncio.Event()

    async def forever(seconds: float) -> None:
        host.reached.set()
        await never.wait()

    session = ChatSession(host, lambda: "smollm2", sleep=forever)
    host.script = [script, reply("next")]  # type: ignore[list-item]
    turn, shown = session.conversation.ask("hi"), Shown()
    answering = asyncio.create_task(session.answer(turn, shown))
    await host.reached.wait()
    assert shown.text == kept
    for _ in range(presses):
        session.stop()
    await answering
    assert (turn.state, turn.answer, session.busy) == ("stopped", kept, False)
    assert host.aborted == (0 if script == [LOADING] else 1)
    session.stop()
    await ask(session, "then")
    assert said(host.asked[-1]) == (["user: hi", f"assistant: {kept}"] if kept else []) + ["user: then"]


def conversation() -> Conversation:
    chat = Conversation("Be brief.")
    for number in range(1, 4):
        turn = chat.ask(f"q{number}")
        turn.answer, turn.state = f"a{number}", "done"
    return chat


def test_regenerate_asks_the_last_question_again() -> None:
    chat = conversation()
    turn = chat.regenerate()
    assert turn is not None
    assert said(chat.request_for(turn)) == [
        "system: Be brief.", "user: q1", "assistant: a1", "user: q2", "assistant: a2", "user: q3"
    ]  # fmt: skip
    assert [turn.question for turn in chat.turns] == ["q1", "q2", "q3"]
    assert Conversation().regenerate() is None


def test_editing_a_question_forgets_what_came_after() -> None:
    chat = conversation()
    turn = chat.edit(1, "other")
    assert said(chat.request_for(turn)) == ["system: Be brief.", "user: q1", "assistant: a1", "user: other"]
    assert [turn.question for turn in chat.turns] == ["q1", "other"]


def test_a_new_chat_keeps_the_system_prompt() -> None:
    chat = conversation()
    chat.clear()
    assert said(chat.request_for(chat.ask("hi"))) == ["system: Be brief.", "user: hi"]


async def test_thoughts_are_quoted_and_not_sent_back(session: ChatSession, host: StubHost) -> None:
    thoughts = [ChatChunk(reasoning="hm\n"), ChatChunk(reasoning="so"), ChatChunk(text="Yes"), ChatChunk(text="!")]
    host.script = [thoughts, reply("ok")]
    turn, shown = await ask(session, "really?")
    assert shown.text == "> hm\n> so\n\nYes!"
    assert turn.answer == "Yes!"
    await ask(session, "sure?")
    assert said(host.asked[1])[1] == "assistant: Yes!"
