"""The engine client that every request passes through, whatever route it came by.

vLLM's serving classes are built on it as if it were the engine. It forwards to the live `AsyncLLM` and accounts for
each request on the way: when it arrived, when each of its tokens came out, and how it ended.
"""

import time
from collections.abc import AsyncGenerator, Callable
from typing import Any

from vllm.exceptions import RetryableRequestError
from vllm.outputs import PoolingRequestOutput, RequestOutput
from vllm.sampling_params import RequestOutputKind, SamplingParams
from vllm.v1.engine.exceptions import EngineDeadError

from engine_host.port.context import request_context
from engine_host.telemetry.hub import TelemetryHub

ENGINE_DIED = "The engine ended while it worked on this request. Nothing is wrong with the request: send it again."


class Gateway:
    """One live engine, with each request reported to the telemetry hub.

    It takes the place of vLLM's `EngineClient` by having its attributes: what isn't defined here is the engine's own.
    `clock` is `time.monotonic`, the clock of EngineCore's timestamps.
    """

    def __init__(self, engine: Any, hub: TelemetryHub, clock: Callable[[], float] = time.monotonic) -> None:
        self._engine = engine
        self._hub = hub
        self._clock = clock

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def generate(
        self, prompt: Any, sampling_params: SamplingParams, request_id: str, **options: Any
    ) -> AsyncGenerator[RequestOutput, None]:
        """Forward to the engine, token by token, and account for what comes out.

        A caller that wants the final output only is given just that; the engine still tells every token, since their
        times can't be known otherwise. The order of the queue is the host's to decide: `priority` is dropped.
        """
        options.pop("priority", None)
        context = request_context.get()
        self._hub.arrived(
            request_id,
            prompt_tokens=_prompt_tokens(prompt),
            max_tokens=sampling_params.max_tokens,
            at=context.arrived if context is not None else self._clock(),
        )
        only_final = sampling_params.output_kind == RequestOutputKind.FINAL_ONLY
        if only_final:
            sampling_params = sampling_params.clone()
            sampling_params.output_kind = RequestOutputKind.DELTA
        cumulative = sampling_params.output_kind == RequestOutputKind.CUMULATIVE
        whole: RequestOutput | None = None
        seen: dict[int, int] = {}
        reason = "abort"
        stream = self._engine.generate(prompt, sampling_params, request_id, **options)
        try:
            async for output in stream:
                now = self._clock()
                for part in output.outputs:
                    count = len(part.token_ids)
                    if cumulative:
                        count, seen[part.index] = count - seen.get(part.index, 0), count
                    self._hub.tokens(request_id, count, now, output.num_cached_tokens, part.index)
                if output.finished:
                    reason = next((part.finish_reason for part in output.outputs if part.finish_reason), "stop")
                if not only_final:
                    yield output
                elif whole is None:
                    whole = output
                else:
                    whole.add(output, aggregate=True)
            if whole is not None:
                whole.outputs.sort(key=lambda part: part.index)
                yield whole
        except EngineDeadError as error:
            reason = "error"
            raise RetryableRequestError(ENGINE_DIED) from error
        except Exception:
            reason = "error"
            raise
        finally:
            await stream.aclose()
            self._hub.finished(request_id, reason, self._clock())

    def encode(self, *args: Any, **kwargs: Any) -> AsyncGenerator[PoolingRequestOutput, None]:
        """Forward an embedding or pooling request; it has no tokens to account for."""
        kwargs.pop("priority", None)
        stream: AsyncGenerator[PoolingRequestOutput, None] = self._engine.encode(*args, **kwargs)
        return stream


def _prompt_tokens(prompt: Any) -> int:
    ids = prompt.get("prompt_token_ids") if isinstance(prompt, dict) else getattr(prompt, "prompt_token_ids", None)
    return len(ids) if ids is not None else 0
