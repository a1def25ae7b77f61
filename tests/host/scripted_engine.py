"""An engine whose replies are written down: what stands after a prompt depends on the prompt's tokens alone.

Its outputs are made by vLLM's own detokenizer, and its abort lets out what that holds back, as vLLM's does.
"""

import asyncio
from collections.abc import AsyncGenerator, Iterable
from types import SimpleNamespace
from typing import Any


class ScriptedEngine:
    """Goes on with `reply` after `prompt`, `at_once` tokens an output, wherever in it the prompt given ends.

    After `lasts` tokens it stands still until it is told to `abort` or `die`; `None` never does.
    """

    def __init__(
        self,
        tokenizer: Any,
        prompt: list[int],
        reply: list[int],
        lasts: int | None = None,
        longest: int = 4096,
        at_once: int = 1,
    ) -> None:
        self.renderer = SimpleNamespace(tokenizer=tokenizer)
        self.model_config = SimpleNamespace(max_model_len=longest, model="scripted")
        self.received: list[tuple[list[int], Any]] = []
        self.standing = asyncio.Event()
        self._tokenizer, self._prompt, self._reply, self._lasts = tokenizer, prompt, reply, lasts
        self._at_once = at_once
        self._told: dict[str, asyncio.Future[None]] = {}

    async def generate(self, prompt: Any, params: Any, request_id: str, **_: Any) -> AsyncGenerator[Any, None]:
        """One request, as `AsyncLLM.generate` serves it."""
        from vllm.v1.engine.detokenizer import IncrementalDetokenizer

        ids = list(prompt["prompt_token_ids"])
        self.received.append((ids, params))
        request = SimpleNamespace(
            request_id=request_id, sampling_params=params, prompt_token_ids=ids, prompt_embeds=None
        )
        detokenizer = IncrementalDetokenizer.from_new_request(self._tokenizer if params.detokenize else None, request)
        told = self._told[request_id] = asyncio.get_running_loop().create_future()
        rest = self._reply[len(ids) - len(self._prompt) :][: params.max_tokens]
        for given in range(0, len(rest), self._at_once):
            if self._lasts is not None and given >= self._lasts:
                self.standing.set()
                await told  # raises where the engine dies
                yield _output(request_id, ids, [], detokenizer.get_next_output_text(True, True), "abort")
                return
            new = rest[given : given + self._at_once]
            await asyncio.sleep(0)
            stopped = detokenizer.update(new, False)
            new = new[: detokenizer.num_output_tokens() - given]
            ended = "stop" if stopped is not None else "length" if given + len(new) == params.max_tokens else None
            text = detokenizer.get_next_output_text(ended is not None, True)
            yield _output(request_id, ids, new, text, ended, stopped)
            if ended:
                return

    async def abort(self, request_ids: Iterable[str]) -> None:
        """End requests as vLLM does: with an output that lets out what was held back."""
        for name in request_ids:
            if not self._told[name].done():
                self._told[name].set_result(None)

    def die(self) -> None:
        """Fail every request as vLLM does when EngineCore is gone."""
        from vllm.v1.engine.exceptions import EngineDeadError

        for each in self._told.values():
            if not each.done():
                each.set_exception(EngineDeadError())


def _output(
    request_id: str, prompt: list[int], ids: list[int], text: str, ended: str | None, stopped: str | None = None
) -> Any:
    from vllm.outputs import CompletionOutput, RequestOutput

    part = CompletionOutput(0, text, ids, None, None, finish_reason=ended, stop_reason=stopped)
    return RequestOutput(request_id, None, prompt, None, [part], ended is not None, num_cached_tokens=3)
