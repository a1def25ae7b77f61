"""Finding the request that engines die of, among those that were in them."""

import asyncio
import itertools
from typing import Any

import pytest

from engine_host.telemetry.hub import TelemetryHub
from tests.gateway.parts import book, no_limit, open_admission, opened
from tests.host.scripted_engine import ScriptedEngine
from tests.host.test_carry import params, tokenizer

__all__ = ["tokenizer"]

PROMPT = [1, 2, 3]
REPLY = list(range(100, 140))


class Engine(ScriptedEngine):
    """Dies with all that is in it when it has put out `fatal` tokens of the request `poison`."""

    def __init__(self, tokenizer: Any, poison: str | None, fatal: int = 0) -> None:
        super().__init__(tokenizer, PROMPT, REPLY)
        self._poison, self._fatal = poison, fatal
        self.together: list[set[str]] = []
        self._inside: set[str] = set()
        self.dead = False

    async def generate(self, prompt: Any, params: Any, request_id: str, **options: Any) -> Any:
        from vllm.v1.engine.exceptions import EngineDeadError

        self._inside.add(request_id)
        count = len(prompt["prompt_token_ids"]) - len(PROMPT)
        try:
            while True:
                await asyncio.sleep(0)
                if request_id == self._poison and count >= self._fatal:
                    self.dead = True
                if self.dead:
                    raise EngineDeadError
                self.together.append(set(self._inside))
                if count == len(REPLY):
                    return
                yield _one(request_id, prompt["prompt_token_ids"], REPLY[count], count + 1 == len(REPLY))
                count += 1
        finally:
            self._inside.discard(request_id)


def _one(request_id: str, prompt: list[int], token: int, last: bool) -> Any:
    from tests.host.scripted_engine import _output

    return _output(request_id, prompt, [token], "x", "length" if last else None)


async def serve(tokenizer: Any, names: list[str], poison: str | None, fatal: int, engines: int) -> tuple[Any, Any]:
    """Run requests through engines that die, each followed by a new one; what became of each request."""
    from engine_host.engine.gateway import Gateway

    made: list[Engine] = []

    def next_engine() -> None:
        if len(made) < engines:
            made.append(Engine(tokenizer, poison, fatal))
            asyncio.get_running_loop().call_soon(gateway.attach, made[-1])

    gateway = Gateway(hub := TelemetryHub(), open_admission(), no_limit, book(hub), when_dead=next_engine)

    async def one(name: str) -> int:
        wanted = params(max_tokens=len(REPLY), detokenize=False)
        stream = gateway.generate({"type": "token", "prompt_token_ids": PROMPT}, wanted, name)
        return sum([len(output.outputs[0].token_ids) async for output in stream])

    next_engine()
    async with asyncio.timeout(20):
        results = await asyncio.gather(*(one(name) for name in names), return_exceptions=True)
    return dict(zip(names, results, strict=True)), made


@pytest.mark.parametrize("fatal", [0, 1, 7])
async def test_a_request_that_kills_two_engines_fails_alone(tokenizer: Any, fatal: int) -> None:
    from engine_host.engine.gateway import PoisonRequestError

    names = ["a", "b", "poison", "c", "d"]
    results, engines = await serve(tokenizer, names, "poison", fatal, 9)
    assert isinstance(results.pop("poison"), PoisonRequestError)
    assert results == dict.fromkeys("abcd", len(REPLY))
    # Two died of it, and the third served the others.
    assert len(engines) == 3


async def test_suspects_go_in_one_at_a_time(tokenizer: Any) -> None:
    _, engines = await serve(tokenizer, ["a", "poison", "b", "c"], "poison", 2, 9)
    sizes = [len(inside) for inside in engines[-1].together]
    assert sizes[0] == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(sizes))
    assert set.union(*engines[-1].together) == set("abc")


async def test_who_outlives_an_engine_s_death_is_no_suspect_any_more(tokenizer: Any) -> None:
    from engine_host.engine.carry import CLEARED_AFTER_TOKENS, Carried
    from tests.host.scripted_engine import _output

    carried = Carried(
        "r", {"type": "token", "prompt_token_ids": PROMPT}, params(detokenize=False), {}, opened(open_admission(), "r")
    )
    for death in range(3):
        carried.died()
        assert carried.deaths == 1, death
        for token in range(CLEARED_AFTER_TOKENS):
            assert carried.deaths == 1
            carried.take(_output("r", PROMPT, [token], "", None), tokenizer)
        assert carried.deaths == 0
