"""The record of a real engine, against what the engine itself says."""

import asyncio
import gc
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from engine_host.api.flight import CACHED, FlightReader, PageMap
from tests.support import small_model

pytestmark = pytest.mark.engine

BLOCKS, PAGE_TOKENS = 64, 32
PROMPT = list(range(1000, 1100))
FULL_PAGES = len(PROMPT) // PAGE_TOKENS


class Engine:
    """A running engine, its flight record, and the iteration details vLLM logged."""

    def __init__(self, llm: Any, reader: FlightReader, details: list[tuple[int, int]]) -> None:
        self.llm, self.reader, self.details = llm, reader, details

    def start(self, name: str, prompt: list[int], max_tokens: int) -> "Stream":
        """Begin a request."""
        from vllm import SamplingParams

        params = SamplingParams(max_tokens=max_tokens, ignore_eos=True, temperature=0)
        return Stream(self.llm.generate({"prompt_token_ids": prompt}, params, name))

    async def truth(self) -> dict[str, Any]:
        """What vLLM believes now."""
        found: dict[str, Any] = await self.llm.engine_core.call_utility_async("flight_truth")
        return found

    async def pages(self, wanted: Callable[[PageMap], bool]) -> PageMap:
        """The first snapshot that is as wanted."""
        async with asyncio.timeout(30):
            # Another process writes the record: there is nothing to be woken by.
            while not wanted(pages := self.reader.read_pages()):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        return pages


class Stream:
    """Reads a request's outputs in the background."""

    def __init__(self, outputs: Any) -> None:
        self.first = asyncio.Event()
        self._outputs = outputs
        self._task = asyncio.create_task(self._read())

    async def _read(self) -> None:
        async for _ in self._outputs:
            self.first.set()

    async def end(self) -> None:
        """Wait for the last token."""
        await self._task

    async def abort(self) -> None:
        """Leave it, as a client does that goes away."""
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task


@pytest.fixture(scope="module")
async def engine(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Engine]:
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM
    from vllm.v1.metrics.loggers import StatLoggerBase

    details: list[tuple[int, int]] = []

    class Details(StatLoggerBase):  # type: ignore[misc]
        def __init__(self, *_: Any) -> None: ...

        def record(self, scheduler_stats: Any = None, *_: Any, **__: Any) -> None:
            found = scheduler_stats.iteration_details if scheduler_stats is not None else None
            if found is not None:
                details.append((found.num_ctx_tokens, found.num_generation_tokens))

        def log_engine_initialized(self) -> None: ...

    path = tmp_path_factory.mktemp("engine") / "flight"
    args = AsyncEngineArgs(
        model=str(small_model("float32")),
        dtype="float32",
        max_model_len=1024,
        max_num_seqs=4,
        max_num_batched_tokens=64,
        block_size=PAGE_TOKENS,
        num_gpu_blocks_override=BLOCKS,
        kv_cache_memory_bytes=1 << 27,
        enforce_eager=True,
        enable_logging_iteration_details=True,
        scheduler_cls="tests.flight.probed_scheduler.ProbedScheduler",
        additional_config={"llmconsole": {"flight_path": str(path), "engine_id": 0, "snapshot_hz": 10}},
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_WORKER_MULTIPROC_METHOD", "spawn")
        patch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
        llm = await asyncio.to_thread(AsyncLLM.from_engine_args, args, stat_loggers=[Details])
    engine = Engine(llm, FlightReader(path), details)
    try:
        yield engine
    finally:
        await asyncio.to_thread(llm.shutdown)
        # While the interpreter can still run its finalizer: later it complains.
        del engine.llm, llm
        gc.collect()


@pytest.fixture(autouse=True)
async def fresh_cache(engine: Engine) -> None:
    """No test finds what another left."""
    assert await engine.llm.reset_prefix_cache()
    await engine.pages(lambda pages: pages.used == pages.cached == 0)


async def assert_as_the_engine_says(engine: Engine, held: set[str]) -> PageMap:
    """Compare a snapshot with the engine's own tables, which must not move meanwhile."""
    truth = await engine.truth()
    owned = {name.rsplit("-", 1)[0]: blocks for name, blocks in truth["owned"].items()}
    pages = await engine.pages(
        lambda pages: {name: (pages.pages_of(name) + 1).tolist() for name in pages.owners} == owned
    )
    assert set(owned) == held
    assert pages.refs.tolist() == truth["refs"][1:]
    hashed = [page for page in truth["hashed"] if truth["refs"][page] == 0]
    assert [page + 1 for page in range(len(pages.state)) if pages.state[page] == CACHED] == hashed
    assert pages.used / len(pages.state) == pytest.approx(truth["usage"])
    return pages


async def test_the_header_describes_the_engine(engine: Engine) -> None:
    header = engine.reader.header
    assert (header.blocks, header.block_size) == (BLOCKS, PAGE_TOKENS)
    # 30 layers, keys and values, 3 heads of 64 float32 values.
    assert header.page_bytes == 30 * 2 * 3 * 64 * 4 * PAGE_TOKENS


async def test_running_requests_own_the_pages_vllm_says_and_share_a_prefix(engine: Engine) -> None:
    first = engine.start("first", PROMPT, 900)
    await first.first.wait()
    streams = [first, engine.start("second", PROMPT, 900), engine.start("other", PROMPT[::-1], 900)]
    for stream in streams:
        await stream.first.wait()
    await engine.llm.pause_generation(mode="keep", clear_cache=False)
    pages = await assert_as_the_engine_says(engine, {"first", "second", "other"})
    shared = [page for page in range(BLOCKS - 1) if pages.refs[page] > 1]
    assert shared == pages.pages_of("first")[:FULL_PAGES].tolist()
    assert all(pages.owners_of(page) == ("first", "second") for page in shared)
    await engine.llm.resume_generation()
    for stream in streams:
        await stream.abort()
    await engine.pages(lambda pages: pages.used == 0)


async def test_after_an_abort_the_pages_are_free_within_a_step(engine: Engine) -> None:
    stays, leaves = engine.start("stays", PROMPT, 900), engine.start("leaves", PROMPT[::-1], 900)
    for stream in (stays, leaves):
        await stream.first.wait()
    await engine.pages(lambda pages: "leaves" in pages.owners)
    await leaves.abort()
    pages = await engine.pages(lambda pages: "leaves" not in pages.owners)
    assert pages.owners == ("stays",)
    gone = [step for step in engine.reader.read_steps().rows if step["finished"]][-1]
    # The very step that ended it counts neither it nor its pages any more.
    assert gone["running"] == 1
    assert gone["used_blocks"] <= len(pages.pages_of("stays"))
    await stays.abort()


async def test_after_the_end_the_pages_are_cached(engine: Engine) -> None:
    await engine.start("done", PROMPT, 2).end()
    pages = await engine.pages(lambda pages: pages.cached > 0 and pages.used == 0)
    assert pages.cached == FULL_PAGES
    assert pages.owners == ()
    await assert_as_the_engine_says(engine, set())


async def test_tokens_of_each_step_are_those_of_vllm_s_iteration_details(engine: Engine) -> None:
    since, before = int(engine.reader.read_steps().number[-1]), len(engine.details)
    # Longer than the token budget: prefill comes in chunks, beside the decode of the others.
    streams = [engine.start(f"r{number}", [number * 300 + k for k in range(150)], 12) for number in range(5)]
    for stream in streams:
        await stream.end()
    steps = engine.reader.read_steps(since)
    expected = [tokens for tokens in engine.details[before:] if any(tokens)]
    assert list(zip(steps.prefill.tolist(), steps.decode.tolist(), strict=True)) == expected
    assert steps.prefill.sum() == 5 * 150
    assert any(prefill and decode for prefill, decode in expected)
    assert steps.finished.sum() == 5
