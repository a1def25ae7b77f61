"""An engine client without an engine: vLLM's real configuration, tokenizer and renderer, and scripted outputs.

For tests and benchmarks of what stands in front of the engine.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any

from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.logprobs import Logprob
from vllm.outputs import CompletionOutput, RequestOutput
from vllm.renderers import renderer_from_config
from vllm.sampling_params import RequestOutputKind, SamplingParams
from vllm.v1.engine.input_processor import InputProcessor

_TOKEN = 1
"""The id of every token that comes out; its text is the script's."""


@dataclass(frozen=True)
class Delta:
    """What one engine output adds: `text` of `tokens` tokens, and how it ends, if it does."""

    text: str
    tokens: int = 1
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    index: int = 0


Script = Callable[[list[int], SamplingParams], Iterable[Delta | Exception]]
"""From prompt token ids and sampling parameters to what comes out; an exception is raised in its place."""


async def _at_once() -> None:
    return None


def counting(prompt: list[int], params: SamplingParams) -> Iterable[Delta]:
    """`max_tokens` words, one a token, ended by the length."""
    count = params.max_tokens or 16
    for number in range(count - 1):
        yield Delta(f" {number}")
    yield Delta(f" {count - 1}", finish_reason="length")


class StubEngine:
    """Takes the place of an `EngineClient`.

    `args` are parsed serve arguments; `pace` is awaited before each output. `running` and `aborted` hold request ids.
    """

    def __init__(self, args: Any, script: Script = counting, pace: Callable[[], Awaitable[None]] = _at_once) -> None:
        self.vllm_config = AsyncEngineArgs.from_cli_args(args).create_engine_config()
        self.model_config = self.vllm_config.model_config
        self.renderer = renderer_from_config(self.vllm_config)
        self.input_processor = InputProcessor(self.vllm_config, self.renderer)
        self.script = script
        self.pace = pace
        self.running: set[str] = set()
        self.aborted: list[str] = []
        self.received: list[tuple[str, SamplingParams, dict[str, Any]]] = []
        self.errored = False
        self.is_running = True
        self.is_stopped = False
        self.dead_error = RuntimeError("the stub engine is dead")

    async def get_supported_tasks(self) -> tuple[str, ...]:
        """What SmolLM2 supports in a real engine."""
        return ("generate", "render")

    def check_admission(self, n: int = 1, request_id: str | None = None) -> None:
        """Admit everything."""

    async def check_health(self) -> None:
        """Raise if `errored`."""
        if self.errored:
            raise self.dead_error

    async def abort(self, request_id: str | Iterable[str]) -> None:
        """Note the ids."""
        self.aborted.extend([request_id] if isinstance(request_id, str) else request_id)

    async def generate(
        self, prompt: Any, sampling_params: SamplingParams, request_id: str, **options: Any
    ) -> AsyncGenerator[RequestOutput, None]:
        """Play the script, in deltas or, where the caller wants the final output only, as one."""
        self.received.append((request_id, sampling_params, options))
        self.running.add(request_id)
        sampling_params.verify(
            self.model_config,
            self.vllm_config.speculative_config,
            self.vllm_config.structured_outputs_config,
            self.renderer.tokenizer,
        )
        ids = list(prompt["prompt_token_ids"])
        whole: RequestOutput | None = None
        try:
            for delta in self.script(ids, sampling_params):
                await self.pace()
                if isinstance(delta, Exception):
                    raise delta
                output = _output(request_id, prompt, ids, delta, sampling_params)
                if sampling_params.output_kind == RequestOutputKind.DELTA:
                    yield output
                elif whole is None:
                    whole = output
                else:
                    whole.add(output, aggregate=True)
            if whole is not None:
                yield whole
        except (GeneratorExit, BaseException) as error:
            if not isinstance(error, Exception):
                self.aborted.append(request_id)
            raise
        finally:
            self.running.discard(request_id)


def _output(request_id: str, prompt: Any, ids: list[int], delta: Delta, params: SamplingParams) -> RequestOutput:
    part = CompletionOutput(
        index=delta.index,
        text=delta.text,
        token_ids=[_TOKEN] * delta.tokens,
        cumulative_logprob=None,
        logprobs=None if params.logprobs is None else [{_TOKEN: Logprob(-0.5, 1, delta.text)}] * delta.tokens,
        finish_reason=delta.finish_reason,
        stop_reason=delta.stop_reason,
    )
    return RequestOutput(
        request_id=request_id,
        prompt=prompt.get("prompt"),
        prompt_token_ids=ids,
        prompt_logprobs=None if params.prompt_logprobs is None else [None, *({i: Logprob(-0.5, 1)} for i in ids[1:])],
        outputs=[part],
        finished=delta.finish_reason is not None,
        num_cached_tokens=0,
    )
