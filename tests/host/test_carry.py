"""A request that is moved from engine to engine, against the same request left alone."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine_host.telemetry.hub import TelemetryHub
from tests.gateway.parts import book, no_limit, open_admission
from tests.host.scripted_engine import ScriptedEngine
from tests.support import small_model

PROMPT = "Say something:"
TEXTS = ("a", "b", " the", "\n", "STOP", "ST", "é", "日本", "語。", "😀", "👩‍👩‍👧", '"', "{", " 12", "\u0301")


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(small_model("float32"))


def params(**fields: Any) -> Any:
    from vllm.sampling_params import RequestOutputKind, SamplingParams

    return SamplingParams(temperature=0, output_kind=RequestOutputKind.DELTA, **{"max_tokens": 4000} | fields)


class Run:
    """One request through a gateway, engine after engine; `parts` are its outputs."""

    def __init__(
        self,
        tokenizer: Any,
        reply: list[int],
        wanted: Any,
        lasts: list[int],
        longest: int = 4096,
        at_once: int = 1,
    ) -> None:
        from engine_host.engine.gateway import Gateway

        self.prompt = tokenizer(PROMPT)["input_ids"]
        self.engines = [
            ScriptedEngine(tokenizer, self.prompt, reply, last, longest if number else 4096, at_once)
            for number, last in enumerate([*lasts, None])
        ]
        self.hub = TelemetryHub()
        self.gateway = Gateway(self.hub, open_admission(), no_limit, book(self.hub))
        self.wanted = wanted
        self.outputs: list[Any] = []

    async def go(self, change: Callable[[Any, ScriptedEngine], Any]) -> "Run":
        """Take the engines in turn; `change` takes one away when it stands still."""
        self.gateway.attach(self.engines[0])
        task = asyncio.create_task(self._read())
        for old, new in zip(self.engines, self.engines[1:], strict=False):
            standing = asyncio.create_task(old.standing.wait())
            await asyncio.wait({standing, task}, return_when=asyncio.FIRST_COMPLETED)
            standing.cancel()
            if task.done():
                break
            await change(self.gateway, old)
            self.gateway.attach(new)
        await task
        return self

    async def _read(self) -> None:
        prompt = {"type": "token", "prompt_token_ids": self.prompt, "prompt": PROMPT}
        async for output in self.gateway.generate(prompt, self.wanted, "r1", prompt_text=PROMPT):
            self.outputs.append(output)

    @property
    def said(self) -> tuple[Any, ...]:
        """Text, tokens, end, prompt and cached tokens, as a client counts them."""
        last = self.outputs[-1].outputs[0]
        return (
            "".join(each.outputs[0].text for each in self.outputs),
            [token for each in self.outputs for token in each.outputs[0].token_ids],
            (last.finish_reason, last.stop_reason, self.outputs[-1].finished),
            {tuple(each.prompt_token_ids) for each in self.outputs},
            {each.num_cached_tokens for each in self.outputs},
        )


async def cut(gateway: Any, engine: ScriptedEngine) -> None:
    await gateway.cut()


async def kill(gateway: Any, engine: ScriptedEngine) -> None:
    engine.die()
    await asyncio.sleep(0)


@given(
    texts=st.lists(st.sampled_from(TEXTS), min_size=1, max_size=25),
    lasts=st.lists(st.integers(0, 12), min_size=1, max_size=4),
    stop=st.sampled_from([None, "STOP", "the a", "日本語", "😀", "\n\n"]),
    include=st.booleans(),
    min_tokens=st.integers(0, 8),
    max_tokens=st.integers(1, 60),
    dies=st.booleans(),
    at_once=st.integers(1, 3),
)
@settings(max_examples=150)
def test_a_reply_is_the_same_wherever_it_is_cut(
    tokenizer: Any,
    texts: list[str],
    lasts: list[int],
    stop: str | None,
    include: bool,
    min_tokens: int,
    max_tokens: int,
    dies: bool,
    at_once: int,
) -> None:
    reply = tokenizer("".join(texts))["input_ids"] + tokenizer(" and on" * 40)["input_ids"]
    fields = {
        "max_tokens": max_tokens,
        "min_tokens": min(min_tokens, max_tokens),
        "include_stop_str_in_output": include,
    }
    wanted = params(stop=[stop] if stop else None, **fields)
    # One request that meets death again and again is taken for the cause of it: another test's matter.
    lasts = lasts[:1] if dies else lasts
    whole = asyncio.run(Run(tokenizer, reply, wanted, []).go(cut))
    parts = asyncio.run(Run(tokenizer, reply, wanted, lasts, at_once=at_once).go(kill if dies else cut))
    assert parts.said == whole.said


async def test_only_what_is_missing_is_asked_of_the_next_engine(tokenizer: Any) -> None:
    reply = tokenizer("one two three four five six seven eight nine ten")["input_ids"]
    run = await Run(tokenizer, reply, params(max_tokens=8, min_tokens=6, stop=["zzz"]), [5]).go(cut)
    ids, asked = run.engines[1].received[0]
    assert ids == run.prompt + reply[:5]
    assert (asked.max_tokens, asked.min_tokens, asked.stop, asked.detokenize) == (3, 1, [], False)
    assert (run.wanted.max_tokens, run.wanted.min_tokens, run.wanted.stop) == (8, 6, ["zzz"])


async def test_a_request_without_output_begins_anew_with_all_it_asked_for(tokenizer: Any) -> None:
    reply = tokenizer("one two three")["input_ids"]
    wanted = params(max_tokens=2, logprobs=1, seed=3)
    run = await Run(tokenizer, reply, wanted, [0]).go(cut)
    ids, asked = run.engines[1].received[0]
    assert (ids, asked) == (run.prompt, wanted)
    assert run.said[2] == ("length", None, True)


async def test_one_cut_before_its_first_token_stops_where_it_should(tokenizer: Any) -> None:
    reply = tokenizer(" the and on")["input_ids"]
    whole = await Run(tokenizer, reply, params(stop=["the a"]), []).go(cut)
    parts = await Run(tokenizer, reply, params(stop=["the a"]), [0]).go(cut)
    assert parts.said == whole.said
    assert parts.said[0] == " "


async def test_one_that_does_not_fit_into_the_new_engine_ends_by_length(tokenizer: Any) -> None:
    reply = tokenizer(" word" * 30)["input_ids"]
    run = await Run(tokenizer, reply, params(), [10], longest=8).go(cut)
    assert run.said[1] == reply[:10]
    assert run.said[2] == ("length", None, True)
    assert run.hub.totals.finished["length"] == 1


@pytest.mark.parametrize(
    ("fields", "how"),
    [
        ({}, "exact"),
        ({"temperature": 0.7}, "continued"),
        ({"temperature": 0.7, "seed": 1}, "drained"),
        ({"seed": 1}, "exact"),
        ({"logprobs": 0}, "drained"),
        ({"logprobs": 3}, "drained"),
        ({"prompt_logprobs": 1}, "exact"),
        ({"presence_penalty": 0.1}, "drained"),
        ({"repetition_penalty": 1.1}, "drained"),
        ({"n": 2, "temperature": 1.0}, "drained"),
        ({"bad_words": ["x"]}, "drained"),
        ({"logit_bias": {1: 2.0}}, "exact"),
        ({"stop": ["x"], "min_tokens": 3}, "exact"),
    ],
)
def test_how_a_request_goes_on(fields: dict[str, Any], how: str) -> None:
    from engine_host.engine.carry import how_to_resume

    wanted = params()
    for name, value in fields.items():
        setattr(wanted, name, value)
    assert how_to_resume({"type": "token", "prompt_token_ids": [1]}, wanted, {}) == how


def test_images_and_adapters_are_drained() -> None:
    from engine_host.engine.carry import how_to_resume

    assert how_to_resume({"type": "multimodal", "prompt_token_ids": [1]}, params(), {}) == "drained"
    assert how_to_resume({"type": "token", "prompt_token_ids": [1]}, params(), {"lora_request": object()}) == "drained"


@pytest.mark.parametrize("change", [cut, kill])
async def test_one_that_can_not_go_on_is_told_to_try_again(tokenizer: Any, change: Any) -> None:
    from vllm.exceptions import RetryableRequestError

    run = Run(tokenizer, tokenizer("one two three four")["input_ids"], params(logprobs=1), [2])
    with pytest.raises(RetryableRequestError, match="end it again"):
        await run.go(change)
    assert len(run.outputs) == 2
    assert run.hub.totals.finished["error"] == 1


async def test_an_engine_that_dies_as_it_is_taken_away_loses_nothing(tokenizer: Any) -> None:
    async def die_in_the_cut(gateway: Any, engine: ScriptedEngine) -> None:
        gateway.engine_died(engine)
        cutting = asyncio.create_task(gateway.cut())
        await asyncio.sleep(0)
        engine.die()
        await cutting

    reply = tokenizer("one two three four five six")["input_ids"]
    run = await Run(tokenizer, reply, params(max_tokens=5), [2]).go(die_in_the_cut)
    assert run.said[1] == reply[:5]


async def test_what_was_held_back_is_let_out_where_a_dead_engine_s_request_has_no_room(tokenizer: Any) -> None:
    reply = tokenizer(" word" * 30)["input_ids"]
    run = await Run(tokenizer, reply, params(stop=["x" * 12]), [10], longest=8).go(kill)
    assert run.said[0] == tokenizer.decode(reply[:10])
    assert run.said[2] == ("length", None, True)


async def test_nothing_goes_on_in_another_model(tokenizer: Any) -> None:
    from vllm.exceptions import RetryableRequestError

    async def give_up(gateway: Any, _: ScriptedEngine) -> None:
        await gateway.cut(end=True)

    run = Run(tokenizer, tokenizer("one two three four")["input_ids"], params(), [2])
    with pytest.raises(RetryableRequestError, match="another one"):
        await run.go(give_up)


async def test_who_waits_for_an_engine_that_never_comes_is_told(tokenizer: Any) -> None:
    from vllm.exceptions import RetryableRequestError

    async def none_comes(gateway: Any, engine: ScriptedEngine) -> None:
        engine.die()
        await asyncio.sleep(0)
        gateway.give_up("There is no engine any more.")
        gateway.attach = lambda _: None

    run = Run(tokenizer, tokenizer("one two three four")["input_ids"], params(), [2])
    with pytest.raises(RetryableRequestError, match="no engine any more"):
        await run.go(none_comes)


async def test_a_client_that_leaves_while_it_waits_is_forgotten(tokenizer: Any) -> None:
    run = Run(tokenizer, tokenizer("one two three four")["input_ids"], params(), [2])
    run.gateway.attach(run.engines[0])
    stream = run.gateway.generate({"type": "token", "prompt_token_ids": run.prompt}, run.wanted, "left")
    reading = asyncio.create_task(anext(stream))
    await reading
    await anext(stream)
    waiting = asyncio.create_task(anext(stream))
    await run.engines[0].standing.wait()
    await run.gateway.cut()
    assert run.gateway.requests == 1
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert run.gateway.requests == 0
    assert run.hub.totals.finished["abort"] == 1
