"""Conversations: what is sent, what is kept, for whom and how long; over both stores."""

import asyncio
import itertools
import json
import os
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_host.gateway import budget_store
from engine_host.gateway.refusal import Refusal
from engine_host.gateway.session_reply import ReplyCollector
from engine_host.gateway.session_turns import Conversation, Message, decode, encode, merge, remember, split, trim
from engine_host.gateway.sessions import open_sessions
from profiles.gateway import Sessions as Rules
from tests.gateway.redis_server import redis_server


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def assistant(text: str) -> Message:
    return {"role": "assistant", "content": text}


def system(text: str) -> Message:
    return {"role": "system", "content": text}


def tool_call(name: str) -> Message:
    function = {"name": name, "arguments": "{}"}
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": name, "type": "function", "function": function}],
    }


def tool_result(name: str, text: str) -> Message:
    return {"role": "tool", "tool_call_id": name, "content": text}


# Merging and trimming.

texts = st.text("ab é", max_size=6)
turns = st.builds(
    lambda asked, tools, reply: (user(asked), *itertools.chain.from_iterable(tools), assistant(reply)),
    texts,
    st.lists(texts.map(lambda text: (tool_call("look"), tool_result("look", text))), max_size=2),
    texts,
)
systems = st.lists(texts.map(system), max_size=2).map(tuple)
conversations = st.builds(Conversation, systems, st.lists(turns, max_size=6).map(tuple))


def length(message: Message) -> int:
    return 1 + len(message["content"] or "")


def total(messages: list[Message]) -> int:
    return sum(map(length, messages))


@given(conversations, texts.map(user))
def test_a_new_turn_continues_what_is_kept(kept: Conversation, new: Message) -> None:
    assert merge(kept, [new]) == [*kept.messages, new]


@given(conversations, texts.map(user))
def test_a_whole_history_is_not_doubled(kept: Conversation, new: Message) -> None:
    history = [*kept.messages, new]
    assert merge(kept, history) == history
    assert merge(kept, kept.messages) == kept.messages


@given(conversations, st.integers(0, 5), texts.map(user))
def test_a_history_edited_or_answered_anew_is_the_clients(kept: Conversation, index: int, new: Message) -> None:
    history = [*kept.system, *itertools.chain.from_iterable(kept.turns[: index + 1]), new]
    if kept.turns:
        assert merge(kept, history) == history


def test_a_history_from_some_turn_on_is_put_behind_the_earlier_ones() -> None:
    kept = split(
        [user("1"), assistant("one"), user("2"), tool_call("look"), tool_result("look", "x"), assistant("two")]
    )
    history = [*kept.turns[1], user("3")]
    assert merge(kept, history) == [*kept.messages, user("3")]


def test_a_history_longer_than_what_is_kept_is_the_clients() -> None:
    kept = split([user("2"), assistant("two")])
    history = [user("1"), assistant("one"), *kept.messages, user("3")]
    assert merge(kept, history) == history


def test_clients_may_write_a_message_back_in_their_own_way() -> None:
    kept = split([user("1"), tool_call("look"), tool_result("look", "x"), assistant("one")])
    history: list[Message] = [
        {"role": "user", "content": [{"type": "text", "text": "1"}]},
        {**tool_call("look"), "refusal": None, "content": ""},
        tool_result("look", "x"),
        {**assistant("one"), "tool_calls": None, "audio": None},
        user("2"),
    ]
    assert merge(kept, history) == history


def test_a_tool_result_continues_the_turn() -> None:
    kept = split([user("1"), tool_call("look")])
    merged = merge(kept, [tool_result("look", "x")])
    assert split(merged).turns == ((user("1"), tool_call("look"), tool_result("look", "x")),)


def test_the_beginning_of_a_reply_to_be_gone_on_with_is_new() -> None:
    kept = split([user("1"), assistant("one")])
    new = [user("2"), assistant("It is")]
    assert merge(kept, new) == [*kept.messages, *new]


def test_the_clients_system_message_replaces_the_kept_one() -> None:
    kept = split([system("old"), user("1"), assistant("one")])
    assert merge(kept, [system("new"), user("2")]) == [system("new"), user("1"), assistant("one"), user("2")]


@given(st.lists(st.sampled_from(["system", "developer", "user", "assistant", "tool"]), max_size=12))
def test_splitting_keeps_every_message_in_order(roles: list[str]) -> None:
    messages = [{"role": role, "content": str(place)} for place, role in enumerate(roles)]
    whole = split(messages)
    assert whole.messages == messages
    assert all(turn[0]["role"] == "user" for turn in whole.turns[1:])
    assert not any(message["role"] == "user" for turn in whole.turns for message in turn[1:])
    assert all(message["role"] in ("system", "developer") for message in whole.system)


@given(conversations, texts.map(user), st.integers(0, 80))
def test_trimming_drops_the_oldest_whole_turns_and_no_more_than_needed(
    kept: Conversation, new: Message, budget: int
) -> None:
    whole = Conversation(kept.system, (*kept.turns, (new,)))
    trimmed = split(trim(whole.messages, budget, length))
    dropped = len(whole.turns) - len(trimmed.turns)
    assert trimmed == Conversation(whole.system, whole.turns[dropped:])
    assert total(trimmed.messages) <= budget or len(trimmed.turns) == 1
    if dropped:
        assert total(Conversation(whole.system, whole.turns[dropped - 1 :]).messages) > budget
    assert trim(trimmed.messages, budget, length) == trimmed.messages


def test_trimming_counts_no_more_than_it_has_to() -> None:
    counted: list[Message] = []
    messages = [message for turn in range(100) for message in (user(str(turn)), assistant("x" * 10))]
    trim([*messages, user("new")], 30, lambda message: counted.append(message) or length(message))
    assert len(counted) < 10


@given(conversations, texts.map(user), st.integers(40, 400))
def test_what_is_remembered_fits_and_is_the_newest(kept: Conversation, new: Message, max_bytes: int) -> None:
    messages, reply = [*kept.messages, new], assistant("reply")
    remembered = remember(messages, reply, max_bytes)
    if remembered is None:
        assert len(encode(Conversation(kept.system, ((new, reply),)))) > max_bytes - 10
        return
    assert len(encode(remembered)) <= max_bytes
    assert remembered.system == kept.system
    whole = (*kept.turns, (new, reply))
    assert remembered.turns == whole[len(whole) - len(remembered.turns) :]


def test_whatever_json_can_say_is_kept_as_it_is() -> None:
    kept = split([user("\ud800 é"), {**assistant("one"), "extra": {"n": 10**40, "deep": [[None, 1.5]]}}])
    assert decode(encode(kept)) == kept


# The reply.


def event(delta: dict[str, Any], finish: str | None = None, index: int = 0) -> bytes:
    choice = {"index": index, "delta": delta, "finish_reason": finish}
    return b"data: " + json.dumps({"id": "x", "choices": [choice]}).encode() + b"\n\n"


def call_delta(index: int, arguments: str, **first: str) -> dict[str, Any]:
    name = {"name": first["name"]} if first else {}
    call = {"index": index, **({"id": first["id"]} if first else {}), "function": {**name, "arguments": arguments}}
    return {"tool_calls": [call]}


STREAM = b"".join(
    [
        event({"role": "assistant", "content": ""}),
        event({"reasoning_content": "thinking", "reasoning": "thinking"}),
        b": still here\n\n",
        event({"content": "Hé"}),
        event({"content": "other choice"}, index=1),
        event({"content": "llo"}),
        event(call_delta(0, '{"a":', id="c0", name="look")),
        event(call_delta(1, "{}", id="c1", name="see")),
        event(call_delta(0, " 1}")),
        event({}, "tool_calls"),
        b'data: {"id": "x", "choices": [], "usage": {"total_tokens": 3}}\n\n',
        b"data: [DONE]\n\n",
    ]
)
GATHERED = {
    "role": "assistant",
    "content": "Héllo",
    "tool_calls": [
        {"id": "c0", "type": "function", "function": {"name": "look", "arguments": '{"a": 1}'}},
        {"id": "c1", "type": "function", "function": {"name": "see", "arguments": "{}"}},
    ],
}


@given(st.lists(st.integers(0, len(STREAM)), max_size=8).map(sorted))
def test_a_stream_is_gathered_however_it_is_cut(cuts: list[int]) -> None:
    collector = ReplyCollector(10_000)
    for begin, end in itertools.pairwise([0, *cuts, len(STREAM)]):
        collector.feed(STREAM[begin:end])
    assert collector.message() == GATHERED


def test_a_whole_reply_is_gathered() -> None:
    collector = ReplyCollector(10_000)
    message = {**GATHERED, "reasoning_content": "thinking", "refusal": None}
    collector.feed_json(json.dumps({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}).encode())
    assert collector.message() == GATHERED


def test_a_reply_cut_short_is_what_was_delivered_without_half_a_tool_call() -> None:
    collector = ReplyCollector(10_000)
    collector.feed(event({"content": "Half a"}) + event(call_delta(0, '{"a":', id="c0", name="look")))
    collector.feed(b'data: {"error": {"message": "The engine is gone."}}\n\ndata: [DONE]\n\n')
    assert collector.message() == assistant("Half a")


@pytest.mark.parametrize(
    ("chunks", "message"),
    [
        ([event({"role": "assistant", "content": ""})], None),
        ([event({"reasoning_content": "thinking"})], None),
        ([b'data: {"error": {"message": "no"}}\n\n'], None),
        ([event({"role": "assistant", "content": ""}), event({}, "stop")], assistant("")),
        ([event({"content": "text"}), b"data: {broken\n\n"], None),
    ],
    ids=["nothing yet", "only reasoning", "an error", "a finished empty reply", "unreadable"],
)
def test_replies_with_nothing_in_them(chunks: list[bytes], message: Message | None) -> None:
    collector = ReplyCollector(10_000)
    for chunk in chunks:
        collector.feed(chunk)
    assert collector.message() == message


def test_a_reply_longer_than_allowed_is_let_go_of() -> None:
    many, endless = ReplyCollector(100), ReplyCollector(100)
    for _ in range(60):
        many.feed(event({"content": "ab"}))
        endless.feed(b"x" * 2000)
    assert many.message() is None
    assert endless.message() is None
    assert len(endless._tail) == 0


# The book, over both stores.

fresh = itertools.count()


class Host:
    """One book with what it is told of the profile."""

    def __init__(self, store_url: str | None, folder: Path, **rules: Any) -> None:
        self.rules = Rules(enabled=True, **rules)
        self.now = 1_800_000_000.0
        self.owner = f"key-{next(fresh)}"
        self.book = open_sessions(store_url, folder, lambda: self.rules, lambda: 1000, length, lambda: self.now)

    async def ask(self, session: str, text: str, reply: str | None = "ok", owner: str | None = None) -> list[Message]:
        """One request from beginning to end; the messages that were sent."""
        body = {"messages": [user(text)], "model": "m"}
        sent, ticket = await self.book.begin(owner or self.owner, session, body)
        assert {**sent, "messages": body["messages"]} == body
        await self.book.end(ticket, None if reply is None else assistant(reply))
        return sent["messages"]


@pytest.fixture(scope="module", params=["sqlite", "redis"])
def shared_store(request: pytest.FixtureRequest) -> Iterator[str | None]:
    if request.param == "sqlite":
        yield None
        return
    with redis_server() as url:
        yield url


Starter = Callable[..., Host]


@pytest.fixture
async def start(shared_store: str | None, tmp_path: Path) -> AsyncIterator[Starter]:
    """Starts hosts with rules of their own, all on one store."""
    hosts: list[Host] = []

    def start_one(store_url: str | None = shared_store, **rules: Any) -> Host:
        hosts.append(Host(store_url, tmp_path, **rules))
        return hosts[-1]

    yield start_one
    for host in hosts:
        await host.book.close()


@pytest.fixture
async def lone(tmp_path: Path) -> AsyncIterator[Host]:
    """A host with the embedded store."""
    host = Host(None, tmp_path, ttl_s=100.0)
    yield host
    await host.book.close()


async def test_a_thin_clients_conversation_goes_on(start: Starter) -> None:
    host = start()
    await host.ask("s", "1", "one")
    await host.ask("s", "2", "two")
    assert await host.ask("s", "3") == [user("1"), assistant("one"), user("2"), assistant("two"), user("3")]
    assert await host.ask("other", "1") == [user("1")]
    assert await host.ask("s", "mine", owner="another key") == [user("mine")]


async def test_kept_when_opened_again_and_shared_by_hosts(start: Starter) -> None:
    first, second = start(), start()
    await first.ask("s", "1", "one")
    assert await second.ask("s", "2", owner=first.owner) == [user("1"), assistant("one"), user("2")]
    await first.book.close()
    assert len(await first.ask("s", "3")) == 5


async def test_a_request_that_failed_leaves_the_conversation_as_it_was(start: Starter) -> None:
    host = start()
    await host.ask("s", "1", "one")
    await host.ask("s", "2", None)
    assert await host.ask("s", "3") == [user("1"), assistant("one"), user("3")]


async def test_only_what_fits_the_window_is_sent_but_all_is_kept(start: Starter) -> None:
    host = start(window=12)
    for turn in "123":
        await host.ask("s", turn)  # A turn is five long, and the last one two.
    assert await host.ask("s", "4") == [user("2"), assistant("ok"), user("3"), assistant("ok"), user("4")]
    host.rules = Rules(enabled=True)
    assert len(await host.ask("s", "5")) == 9


async def test_the_oldest_turns_go_where_a_conversation_is_too_large(start: Starter) -> None:
    host = start(max_bytes=1024, window=10_000)
    for turn in range(5):
        await host.ask("s", "x" * 300, str(turn))
    sent = await host.ask("s", "new")
    assert [message["content"] for message in sent if message["role"] == "assistant"] == ["3", "4"]
    await host.ask("s", "x" * 2000, "too large to be kept")
    assert (await host.ask("s", "newer"))[-3:] == [user("new"), assistant("ok"), user("newer")]


async def test_deleted_unused_too_long_or_one_too_many_it_is_gone(start: Starter) -> None:
    host = start(ttl_s=100.0, max_sessions=2)
    await host.ask("s", "1")
    host.now += 99
    assert len(await host.ask("s", "2")) == 3
    host.now += 99
    assert len(await host.ask("s", "3")) == 5
    host.now += 100
    assert len(await host.ask("s", "4")) == 1

    assert await host.book.delete(host.owner, "s")
    assert not await host.book.delete(host.owner, "s")
    assert len(await host.ask("s", "5")) == 1

    for name in ("t", "s", "u"):  # "t" is the one that was unused longest when "u" is new.
        host.now += 1
        await host.ask(name, "1")
    assert [len(await host.ask(name, "2", None)) for name in ("s", "t", "u")] == [5, 1, 3]


async def test_one_request_of_a_session_at_a_time(start: Starter) -> None:
    host = start()
    body = {"messages": [user("1")]}
    _, first = await host.book.begin(host.owner, "s", body)
    with pytest.raises(Refusal, match="still running") as refusal:
        await host.book.begin(host.owner, "s", body, patience_s=0)
    assert refusal.value.status == 409
    await host.ask("other", "at the same time")

    second = asyncio.create_task(host.book.begin(host.owner, "s", {"messages": [user("2")]}, patience_s=60))
    await asyncio.sleep(0)
    await host.book.end(first, assistant("one"))
    sent, ticket = await second
    assert sent["messages"] == [user("1"), assistant("one"), user("2")]
    await host.book.end(ticket, None)


async def test_a_lost_ticket_does_not_hold_its_session(start: Starter) -> None:
    host = start()
    await host.book.begin(host.owner, "s", {"messages": [user("1")]})
    assert await host.ask("s", "2") == [user("2")]


async def test_deleted_while_a_request_runs_it_stays_deleted(start: Starter) -> None:
    host = start()
    _, ticket = await host.book.begin(host.owner, "s", {"messages": [user("1")]})
    assert await host.book.delete(host.owner, "s")
    await host.book.end(ticket, assistant("one"))
    assert await host.ask("s", "2") == [user("2")]


@pytest.mark.parametrize("begun_with", ["nothing", "a conversation"])
async def test_of_two_hosts_requests_at_once_the_first_to_end_is_kept(start: Starter, begun_with: str) -> None:
    first, second = start(), start()
    if begun_with == "a conversation":
        await first.ask("s", "0")
    _, one = await first.book.begin(first.owner, "s", {"messages": [user("1")]})
    _, two = await second.book.begin(first.owner, "s", {"messages": [user("2")]})
    await second.book.end(two, assistant("two"))
    await first.book.end(one, assistant("one"))
    assert (await first.ask("s", "3"))[-3:] == [user("2"), assistant("two"), user("3")]


async def test_a_turn_is_kept_though_its_request_is_cancelled_at_the_end(start: Starter) -> None:
    host = start()
    _, ticket = await host.book.begin(host.owner, "s", {"messages": [user("1")]})
    ending = asyncio.create_task(host.book.end(ticket, assistant("one")))
    await asyncio.sleep(0)
    ending.cancel()
    await host.book.close()
    assert await host.ask("s", "2") == [user("1"), assistant("one"), user("2")]


async def test_sweeping_deletes_what_no_request_asks_for_any_more(lone: Host, tmp_path: Path) -> None:
    await lone.ask("s", "a secret of a client's")
    lone.now += 101
    await lone.book.sweep()
    await lone.book.close()
    left = b"".join((tmp_path / name).read_bytes() for name in os.listdir(tmp_path))
    assert left.startswith(b"SQLite format 3")
    assert b"a secret" not in left


async def test_the_file_is_its_owners_alone(lone: Host, tmp_path: Path) -> None:
    await lone.ask("s", "1")
    modes = {entry.name: entry.stat().st_mode & 0o777 for entry in os.scandir(tmp_path)}
    assert modes == dict.fromkeys(["sessions.db", "sessions.db-wal", "sessions.db-shm"], 0o600)


async def test_switched_off_nothing_is_added_or_written(lone: Host, tmp_path: Path) -> None:
    lone.rules = Rules()
    body = {"messages": [user("1")]}
    assert await lone.book.begin(lone.owner, "s", body) == (body, None)
    await lone.book.end(None, assistant("one"))
    await lone.book.sweep()
    assert not await lone.book.delete(lone.owner, "s")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("session", ["", "a" * 129, "a/b", "a b", "é", "a\n"])
async def test_a_bad_session_id_is_refused(lone: Host, session: str) -> None:
    with pytest.raises(Refusal, match="1 to 128 characters") as refusal:
        await lone.ask(session, "1")
    assert refusal.value.status == 400


@pytest.mark.parametrize("messages", [None, "text", [], ["text"], [user("1"), 2]])
async def test_messages_that_are_none_are_left_to_validation(lone: Host, messages: Any) -> None:
    body = {"messages": messages}
    assert await lone.book.begin("key", "s", body) == (body, None)


async def test_a_broken_store_refuses_and_frees_the_session(
    start: Starter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(budget_store, "PATIENCE_S", 0.05)
    host = start(f"unix://{tmp_path}/nobody")
    for _ in range(2):
        with pytest.raises(Refusal, match="can't be reached") as refusal:
            await host.ask("s", "1")
        assert (refusal.value.status, refusal.value.headers["Retry-After"]) == (503, "5")
    assert len([record for record in caplog.records if record.name == budget_store.__name__]) == 1
