"""A host whose engine is changed and killed under load, against the same host left alone."""

import asyncio
import os
import shutil
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from openai import APIError, AsyncOpenAI

from engine_host.api.client import HostClient
from engine_host.api.flight import FlightReader
from engine_host.api.types import ApplyCommand, ChangeRecord, Snapshot
from tests.support import LiveHost, running_host

pytestmark = pytest.mark.engine

ENGINE = 'enforce_eager = true\nkv_cache_memory = "{memory}"\nblock_size = {block}\nmax_model_len = {context}\n'
PROFILES = {
    "first": f"[engine]\n{ENGINE.format(memory='512MiB', block=32, context=2048)}"
    "[scheduler]\ntoken_budget = 512\nmax_active = 8\n[recovery]\nmax_failures = 50\nback_off_s = 0\n",
    "wide": f"[engine]\n{ENGINE.format(memory='384MiB', block=64, context=1024)}"
    "[scheduler]\ntoken_budget = 256\nmax_active = 8\n[recovery]\nmax_failures = 50\nback_off_s = 0\n",
    "narrow": f"[engine]\n{ENGINE.format(memory='512MiB', block=32, context=2048)}"
    "[scheduler]\ntoken_budget = 64\nmax_active = 8\n[recovery]\nmax_failures = 50\nback_off_s = 0\n",
    "hasty": f"[engine]\n{ENGINE.format(memory='512MiB', block=32, context=2048)}"
    "[scheduler]\ntoken_budget = 512\nmax_active = 8\n[recovery]\nmax_failures = 50\nback_off_s = 0\nhang_s = 4\n",
    "huge": f"[engine]\n{ENGINE.format(memory='4MiB', block=32, context=2048)}"
    "[scheduler]\ntoken_budget = 256\nmax_active = 8\n",
    "broken": f"[engine]\n{ENGINE.format(memory='512MiB', block=32, context=2048)}"
    'quantization = "gptq"\n[scheduler]\ntoken_budget = 256\nmax_active = 8\n',
}
FLAGS = ("--dtype=float32", "--served-model-name=m", "--enable-auto-tool-choice", "--tool-call-parser=hermes")
TEXT = {"model": "m", "temperature": 0}
GRAMMAR = {"structured_outputs": {"regex": "(yes|no|maybe){30}"}}
TOOL = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
}

KINDS: dict[str, dict[str, Any]] = {
    "greedy": {"prompt": "Once upon a time", "max_tokens": 90},
    "emoji": {"prompt": "Emoji: 😀 😁 😂 🤣 😃 😄 😅 😆 😉 😊 😋 😎 😍", "max_tokens": 70},
    "stop": {"prompt": "1, 2, 3, 4, 5, 6, 7, 8,", "max_tokens": 120, "stop": [" 40,", "\n\n\n"]},
    "least": {"prompt": "The end.", "max_tokens": 80, "extra_body": {"min_tokens": 60}},
    "two": {"prompt": "Twice upon a time", "max_tokens": 40, "n": 2, "temperature": 0.7, "seed": 5},
    "logprobs": {"prompt": "The capital of France is", "max_tokens": 30, "logprobs": 2},
    "seed": {"prompt": "A poem:", "max_tokens": 40, "temperature": 0.8, "seed": 11},
    "penalty": {"prompt": "Say it again:", "max_tokens": 40, "presence_penalty": 0.5},
    "grammar": {"prompt": "Answer:", "max_tokens": 40, "extra_body": GRAMMAR},
    "sampled": {"prompt": "Whatever comes:", "max_tokens": 60, "temperature": 0.8},
}
UNTIL_THE_END = {"two", "logprobs", "seed", "penalty", "grammar"}
"""Those a rebuild waits for."""


@pytest.fixture(scope="module")
def changed_host() -> Iterator[LiveHost]:
    with running_host(*FLAGS, profiles=PROFILES, end=signal.SIGINT) as host:
        yield host


@pytest.fixture
async def host(changed_host: LiveHost) -> AsyncIterator[HostClient]:
    client = HostClient(str(changed_host.socket))
    await until(client, lambda s: s.state.name == "ready" and not s.requests)
    if (await client.snapshot()).profile != "first":
        await apply(client, "first")
    yield client
    await client.close()


@pytest.fixture
async def client(changed_host: LiveHost) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=f"{changed_host.url}/v1", api_key="none", max_retries=0, timeout=120) as client:
        yield client


async def until(host: HostClient, wanted: Callable[[Snapshot], bool]) -> Snapshot:
    """The first snapshot that `wanted` holds of."""
    while True:
        if wanted(snapshot := await host.snapshot()):
            return snapshot
        await asyncio.sleep(0.02)


async def apply(host: HostClient, profile: str, model: str | None = None) -> ChangeRecord:
    """Apply a profile, and wait until that has ended."""
    reply = await host.apply_profile(ApplyCommand(profile, model, "test", "for a test"))
    assert reply.ok, reply.message
    while True:
        record = (await host.changes())[-1]
        if record.outcome != "running":
            return record
        await asyncio.sleep(0.05)


class Reply:
    """A streamed completion, as it comes in."""

    def __init__(self, client: AsyncOpenAI, request: dict[str, Any]) -> None:
        self.texts: dict[int, str] = {}
        self.ends: dict[int, str] = {}
        self.heads: set[tuple[str, int]] = set()
        self.usage: Any = None
        self.begun = asyncio.Event()
        self.task = asyncio.create_task(self._read(client, TEXT | request))

    async def _read(self, client: AsyncOpenAI, request: dict[str, Any]) -> "Reply":
        stream = await client.completions.create(**request, stream=True, stream_options={"include_usage": True})
        async for chunk in stream:
            self.heads.add((chunk.id, chunk.created))
            self.usage = chunk.usage or self.usage
            for choice in chunk.choices:
                self.texts[choice.index] = self.texts.get(choice.index, "") + choice.text
                if choice.finish_reason:
                    assert choice.index not in self.ends
                    self.ends[choice.index] = choice.finish_reason
            self.begun.set()
        return self

    @property
    def said(self) -> tuple[Any, ...]:
        """All that must be as if nothing had happened."""
        return self.texts, self.ends, self.usage.completion_tokens, self.usage.prompt_tokens, len(self.heads)


async def start(client: AsyncOpenAI, *kinds: str) -> dict[str, Reply]:
    """Begin replies, and wait until each has had output."""
    replies = {kind: Reply(client, KINDS[kind]) for kind in kinds}
    for reply in replies.values():
        begun = asyncio.create_task(reply.begun.wait())
        await asyncio.wait({begun, reply.task}, return_when=asyncio.FIRST_COMPLETED)
        begun.cancel()
    return replies


async def said(replies: dict[str, Reply]) -> dict[str, tuple[Any, ...]]:
    """Wait for all to end, and what they said."""
    await asyncio.gather(*(reply.task for reply in replies.values()))
    return {kind: reply.said for kind, reply in replies.items()}


@pytest.fixture(scope="module")
def undisturbed(changed_host: LiveHost) -> dict[str, tuple[Any, ...]]:
    """What each kind says when nobody interferes."""

    async def all_kinds() -> dict[str, tuple[Any, ...]]:
        async with AsyncOpenAI(base_url=f"{changed_host.url}/v1", api_key="none", timeout=120) as client:
            return await said(await start(client, *KINDS))

    return asyncio.run(all_kinds())


def engine_pids(host: LiveHost) -> list[int]:
    """The engine's processes: what was forked from the host's forkserver."""
    found = psutil.Process(host.pid).children(recursive=True)
    return [each.pid for each in found if "EngineCore" in " ".join(each.cmdline())]


def kill_engine(host: LiveHost, number: int = signal.SIGKILL) -> None:
    pids = engine_pids(host)
    assert pids
    for pid in pids:
        os.kill(pid, number)


async def test_a_live_knob_holds_within_a_step_and_all_finish(host: HostClient, client: AsyncOpenAI) -> None:
    (file,) = (await host.snapshot()).flight
    reader = FlightReader(file.path)
    prompt = " ".join(str(number) for number in range(250))
    replies = [Reply(client, {"prompt": f"{number} {prompt}", "max_tokens": 60}) for number in range(6)]
    await until(host, lambda s: len(s.requests) == 6)
    for profile, budget in (("narrow", 64), ("first", 512)):
        before = reader.steps_made
        record = await apply(host, profile)
        assert (record.kind, record.outcome, record.why) == ("live", "done", "for a test")
        await until(host, lambda s, since=before: reader.steps_made > since + 3 or not s.requests)
        budgets = [int(row["budget"]) for row in reader.read_steps(before).rows]
        # The step that was being made when the knob was written may have had the old one.
        assert set(budgets[2:]) <= {budget}
    ended = await asyncio.gather(*(reply.task for reply in replies))
    assert [reply.usage.completion_tokens for reply in ended] == [60] * 6
    assert max(int(row["decode"] + row["prefill"]) for row in reader.read_steps().rows) <= 512


async def test_every_kind_of_request_outlives_a_rebuild(
    host: HostClient, client: AsyncOpenAI, undisturbed: dict[str, tuple[Any, ...]]
) -> None:
    replies = await start(client, *KINDS)
    record = await apply(host, "wide")
    assert (record.kind, record.old, record.new, record.outcome) == ("rebuild", "first", "wide", "done")
    ended = await said(replies)
    sampled = ended.pop("sampled")
    assert ended == {kind: undisturbed[kind] for kind in ended}
    assert (sampled[1], sampled[2], sampled[4]) == ({0: "length"}, 60, 1)
    shown = await until(host, lambda s: not s.requests and s.kv is not None and s.kv.used == 0)
    assert shown.kv is not None
    assert (shown.kv.page_tokens, shown.model.max_model_len, shown.profile) == (64, 1024, "wide")
    assert [mark.kind for mark in shown.marks][-1] == "rebuild"


async def test_tools_and_whole_replies_outlive_a_rebuild(host: HostClient, client: AsyncOpenAI) -> None:
    async def ask(**more: Any) -> Any:
        messages: Any = [{"role": "user", "content": "Tell me about the weather in Paris, at length."}]
        reply = await client.chat.completions.create(
            model="m",
            messages=messages,
            tools=[TOOL],
            temperature=0,
            max_tokens=60,
            **more,  # type: ignore[list-item]
        )
        return reply.choices[0].message.content, reply.choices[0].finish_reason, reply.usage.completion_tokens

    alone = await ask()
    asked = asyncio.create_task(ask())
    await until(host, lambda s: any(row.output_tokens > 5 for row in s.requests))
    await apply(host, "wide")
    assert await asked == alone


async def test_a_new_engine_that_fails_brings_the_old_one_back(
    host: HostClient, client: AsyncOpenAI, undisturbed: dict[str, tuple[Any, ...]]
) -> None:
    replies = await start(client, "greedy", "stop", "emoji", "least")
    record = await apply(host, "broken")
    assert record.outcome == "rolled-back"
    assert "gptq" in record.message.lower()
    assert await said(replies) == {kind: undisturbed[kind] for kind in replies}
    assert (await host.snapshot()).profile == "first"


async def test_a_profile_that_can_not_fit_is_refused_before_anything_is_touched(
    host: HostClient, client: AsyncOpenAI
) -> None:
    steps = [file.path for file in (await host.snapshot()).flight]
    change = await host.profile_change("huge")
    reply = await host.apply_profile(ApplyCommand("huge"))
    assert not reply.ok
    assert reply.message == change.refused
    assert "max_model_len" in reply.message
    assert [file.path for file in (await host.snapshot()).flight] == steps


async def test_a_second_change_is_refused_and_the_first_can_be_cancelled(
    host: HostClient, client: AsyncOpenAI, undisturbed: dict[str, tuple[Any, ...]]
) -> None:
    replies = await start(client, "two", "greedy")
    assert (await host.apply_profile(ApplyCommand("wide"))).ok
    draining = await until(host, lambda s: s.swap is not None and s.swap.stage == "draining")
    assert draining.swap is not None
    assert (draining.swap.target, draining.swap.cancellable, draining.state.name) == ("wide", True, "swapping")
    second = await host.apply_profile(ApplyCommand("narrow"))
    assert not second.ok
    assert "wide is being applied" in second.message
    assert (await host.cancel_change()).ok
    shown = await until(host, lambda s: s.swap is None)
    assert (shown.state.name, shown.profile) == ("ready", "first")
    assert (await host.changes())[-1].outcome == "cancelled"
    assert await said(replies) == {kind: undisturbed[kind] for kind in replies}


async def test_who_comes_during_a_rebuild_is_served_by_the_new_engine_and_who_leaves_is_not(
    host: HostClient, client: AsyncOpenAI, undisturbed: dict[str, tuple[Any, ...]]
) -> None:
    replies = await start(client, "greedy", "emoji")
    assert (await host.apply_profile(ApplyCommand("wide"))).ok
    await until(host, lambda s: s.swap is not None and s.swap.stage == "building")
    replies.pop("emoji").task.cancel()
    await until(host, lambda s: len(s.requests) == 1)
    reply = await client.completions.create(**TEXT, prompt="Hello", max_tokens=3)
    assert reply.usage is not None
    assert reply.usage.completion_tokens == 3
    assert (await host.snapshot()).profile == "wide"
    assert await said(replies) == {"greedy": undisturbed["greedy"]}
    await until(host, lambda s: not s.requests and s.kv is not None and s.kv.used == 0)


async def test_a_change_of_model_lets_what_runs_end_first(
    changed_host: LiveHost, host: HostClient, client: AsyncOpenAI, undisturbed: dict[str, tuple[Any, ...]]
) -> None:
    # Another folder is another model, whatever is in it.
    (old,) = {(await host.snapshot()).model.path}
    other = changed_host.runtime / "other-model"
    shutil.copytree(old, other, copy_function=os.symlink)
    replies = await start(client, "greedy", "seed")
    assert (await host.apply_profile(ApplyCommand("first", str(other)))).ok
    await until(host, lambda s: s.state.name == "swapping")
    later = await client.completions.create(**TEXT, prompt="Hello", max_tokens=3)
    assert later.usage is not None
    assert all(reply.task.done() for reply in replies.values())
    assert await said(replies) == {kind: undisturbed[kind] for kind in replies}
    assert Path((await host.snapshot()).model.path) == other
    assert (await apply(host, "first", old)).outcome == "done"


@pytest.mark.parametrize("moment", ["decode", "prefill"])
async def test_a_killed_engine_comes_back_and_streams_carry_on(
    changed_host: LiveHost,
    host: HostClient,
    client: AsyncOpenAI,
    undisturbed: dict[str, tuple[Any, ...]],
    moment: str,
) -> None:
    if moment == "prefill":
        replies = {"greedy": Reply(client, KINDS["greedy"]), "seed": Reply(client, KINDS["seed"])}
        await until(host, lambda s: len(s.requests) == 2)
    else:
        replies = await start(client, "greedy", "stop", "emoji", "least")
    kill_engine(changed_host)
    shown = await until(host, lambda s: s.state.name == "recovering")
    assert "ended unexpectedly" in (shown.state.reason or "")
    assert await said(replies) == {kind: undisturbed[kind] for kind in replies}
    shown = await until(host, lambda s: s.state.name == "ready")
    assert [mark.kind for mark in shown.marks][-1] == "recovery"
    assert (await host.changes())[-1].outcome == "done"


async def test_health_says_why_while_a_dead_engine_is_brought_back(
    changed_host: LiveHost, host: HostClient, client: AsyncOpenAI
) -> None:
    kill_engine(changed_host)
    await until(host, lambda s: s.state.name == "recovering")
    with pytest.raises(APIError) as caught:
        await client.get("../health", cast_to=object)
    assert "started again" in str(caught.value)
    assert getattr(caught.value, "status_code", None) == 503


async def test_an_engine_killed_during_a_rebuild_is_built_again(
    changed_host: LiveHost, host: HostClient, client: AsyncOpenAI, undisturbed: dict[str, tuple[Any, ...]]
) -> None:
    replies = await start(client, "greedy", "stop")
    assert (await host.apply_profile(ApplyCommand("wide"))).ok
    await until(host, lambda s: s.swap is not None and s.swap.stage == "building")
    async with asyncio.timeout(60):
        # It is forked from a process that tells nobody.
        while not engine_pids(changed_host):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    kill_engine(changed_host)
    assert await said(replies) == {kind: undisturbed[kind] for kind in replies}
    shown = await until(host, lambda s: s.state.name == "ready")
    assert shown.profile == "first"
    assert (await host.changes())[-1].outcome == "rolled-back"


async def test_a_hanging_engine_is_ended_and_its_requests_go_on(
    changed_host: LiveHost, host: HostClient, client: AsyncOpenAI, undisturbed: dict[str, tuple[Any, ...]]
) -> None:
    assert (await apply(host, "hasty")).kind == "live"
    replies = await start(client, "greedy")
    kill_engine(changed_host, signal.SIGSTOP)
    shown = await until(host, lambda s: s.state.name == "recovering")
    assert "no step for" in (shown.state.reason or "")
    assert await said(replies) == {"greedy": undisturbed["greedy"]}


async def test_nothing_is_left_of_engines_that_were_killed_again_and_again(
    changed_host: LiveHost, host: HostClient, client: AsyncOpenAI
) -> None:
    def left() -> tuple[int, set[str], int]:
        ours = [each for each in Path("/dev/shm").iterdir() if each.stat().st_uid == os.getuid()]
        files = {str(path) for path in (changed_host.runtime / "llmconsole").rglob("*") if "flight-" not in path.name}
        # What the living engine has made has random names: its number is what must not grow.
        return len(ours), {path.rpartition("/")[0] for path in files}, len(files)

    before, temp = left(), set(os.listdir("/tmp"))
    for _ in range(10):
        pids = engine_pids(changed_host)
        kill_engine(changed_host)
        await until(host, lambda s: s.state.name == "recovering")
        await until(host, lambda s: s.state.name == "ready")
        assert not any(psutil.pid_exists(pid) for pid in pids)
    after = left()
    # Other tests have shared memory too, and may give theirs back meanwhile.
    assert after[0] <= before[0]
    assert after[1:] == before[1:]
    assert {name for name in os.listdir("/tmp") if name.startswith(("vllm", "torch", "psm", "pymp"))} <= temp
    assert len(engine_pids(changed_host)) == 1


async def test_a_request_that_kills_engines_fails_alone(
    changed_host: LiveHost, host: HostClient, client: AsyncOpenAI, undisturbed: dict[str, tuple[Any, ...]]
) -> None:
    replies = await start(client, "greedy")
    poison = asyncio.create_task(
        client.completions.create(**TEXT, prompt="x " * 900, max_tokens=200, extra_headers={"X-Request-Id": "poison"})
    )
    stop = time.monotonic() + 110
    while not poison.done() and time.monotonic() < stop:
        snapshot = await host.snapshot()
        held = [row for row in snapshot.requests if "poison" in row.id and row.pages]
        if held and snapshot.state.name == "ready":
            with suppress(AssertionError):
                kill_engine(changed_host)
            await until(host, lambda s: s.state.name != "ready")
        await asyncio.sleep(0.02)
    with pytest.raises(APIError, match="died twice"):
        await poison
    assert await said(replies) == {"greedy": undisturbed["greedy"]}
    recoveries = [each for each in await host.changes() if each.kind == "recovery"]
    assert recoveries[-1].outcome in ("done", "running")
