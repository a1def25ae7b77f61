"""The fast lane: the plain tokens in the middle of a stream, without building a chunk for each.

vLLM's own generator still makes a stream's first chunks, its last ones, and every unusual one. In between, the chunks
of a plain stream differ in nothing but their text. So the first text is handed to vLLM's generator as a marker, the
chunk it makes of that is split at the marker, and each later token is `prefix + json(text) + suffix`.
"""

import copy
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Any

import msgspec

from engine_host.port.backend import Outlet

_MARK = f"mark-{uuid.uuid4().hex}"
_QUOTED_MARK = f'"{_MARK}"'
_encode = msgspec.json.Encoder().encode
"""Escapes as pydantic's `model_dump_json` does (a test compares them over all of Unicode), at a third of the cost."""


class SplicedStream:
    """One stream of vLLM's, cut open in the middle.

    Iterating it gives vLLM's chunks. With an `outlet` set, plain tokens go straight there instead, in their place
    among the chunks. `render` makes vLLM's generator from the outputs it is to read; `position` is where the
    `RequestOutput` is in them (completions number them), `None` where they are it; `empty_is_chunk` says whether a
    token without text makes a chunk.
    """

    def __init__(
        self,
        outputs: AsyncIterator[Any],
        render: Callable[[AsyncIterator[Any]], AsyncGenerator[str, None]],
        position: int | None,
        empty_is_chunk: bool,
    ) -> None:
        self.outlet: Outlet | None = None
        self._outputs = outputs
        self._position = position
        self._empty_is_chunk = empty_is_chunk
        self._marked: str | None = None
        self._template: tuple[bytes, bytes] | None = None
        self._hidden_tokens = 0
        self._chunks = render(self._relay())

    def __aiter__(self) -> "SplicedStream":
        return self

    async def __anext__(self) -> str:
        chunk = await anext(self._chunks)
        if self._marked is None or _QUOTED_MARK not in chunk:
            return chunk
        before, _, after = chunk.partition(_QUOTED_MARK)
        self._template = (before.encode(), after.encode())
        text, self._marked = self._marked, None
        return f"{before}{_encode(text).decode()}{after}"

    async def aclose(self) -> None:
        """Abort what is left, as closing vLLM's generator does."""
        await self._chunks.aclose()
        if isinstance(self._outputs, AsyncGenerator):
            await self._outputs.aclose()

    async def _relay(self) -> AsyncGenerator[Any, None]:
        """The outputs that vLLM's generator must see: until there is a template, and where one isn't plain, all."""
        position, empty_is_chunk = self._position, self._empty_is_chunk
        async for item in self._outputs:
            result = item if position is None else item[position]
            outlet, template = self.outlet, self._template
            if outlet is not None and template is not None and not result.finished and len(result.outputs) == 1:
                part = result.outputs[0]
                text = part.text
                if part.finish_reason is None and (text or empty_is_chunk):
                    before, after = template
                    self._hidden_tokens += len(part.token_ids)
                    outlet.put(before + _encode(text) + after)
                    if outlet.full:
                        await outlet.drain()
                    continue
            yield self._for_vllm(item, result)

    def _for_vllm(self, item: Any, result: Any) -> Any:
        """The output as vLLM's generator is to see it: with the marker, and with the tokens it has missed."""
        marks = self._template is None and len(result.outputs) == 1 and result.outputs[0].text and not _finishes(result)
        if not marks and not self._hidden_tokens:
            return item
        result = copy.copy(result)
        part = copy.copy(result.outputs[0])
        result.outputs = [part, *result.outputs[1:]]
        if marks:
            self._marked, part.text = part.text, _MARK
        if self._hidden_tokens:
            # Only their number counts in this lane; which they were has gone to the client as text.
            part.token_ids = [0] * self._hidden_tokens + list(part.token_ids)
            self._hidden_tokens = 0
        if self._position is None:
            return result
        return (*item[: self._position], result, *item[self._position + 1 :])


def _finishes(result: Any) -> bool:
    return result.outputs[0].finish_reason is not None


def install(chat: Any, completion: Any) -> None:
    """Put the fast lane into vLLM's serving objects; what isn't a plain stream keeps vLLM's own lane."""
    chat_lane, completion_lane = chat.chat_completion_stream_generator, completion.completion_stream_generator

    def chat_stream(request: Any, outputs: AsyncIterator[Any], *args: Any, **kwargs: Any) -> Any:
        if not plain_chat(chat, request):
            return chat_lane(request, outputs, *args, **kwargs)
        return SplicedStream(
            outputs,
            lambda relay: chat_lane(request, relay, *args, **kwargs),
            position=None,
            empty_is_chunk=chat.parser_cls is None,
        )

    def completion_stream(
        request: Any, inputs: Any, outputs: AsyncIterator[Any], *args: Any, num_prompts: int, **kwargs: Any
    ) -> Any:
        if num_prompts != 1 or not plain_completion(completion, request):
            return completion_lane(request, inputs, outputs, *args, num_prompts=num_prompts, **kwargs)
        return SplicedStream(
            outputs,
            lambda relay: completion_lane(request, inputs, relay, *args, num_prompts=num_prompts, **kwargs),
            position=1,
            empty_is_chunk=True,
        )

    chat.chat_completion_stream_generator = chat_stream
    completion.completion_stream_generator = completion_stream


def plain_chat(chat: Any, request: Any) -> bool:
    """Whether nothing but the text varies between the middle chunks of this chat stream."""
    return (
        _plain(chat, request)
        and not request.logprobs
        and not request.return_prompt_text
        and not chat.enable_log_outputs
        and (chat.parser_cls is None or _passes_text_through(chat.parser_cls, request))
    )


def plain_completion(completion: Any, request: Any) -> bool:
    """Whether nothing but the text varies between the middle chunks of this completion stream."""
    return _plain(completion, request) and request.logprobs is None


def _plain(serving: Any, request: Any) -> bool:
    options = request.stream_options
    return (
        (request.n or 1) == 1
        and not request.echo
        and not request.return_token_ids
        and not request.use_beam_search
        and not serving.enable_force_include_usage
        and not (options and options.include_usage and options.continuous_usage_stats)
    )


def _passes_text_through(parser: Any, request: Any) -> bool:
    """Whether vLLM's parser leaves every delta as it is: a tool parser does when the request allows no tools."""
    from vllm.parser.abstract_parser import DelegatingParser

    return (
        issubclass(parser, DelegatingParser)
        and parser.parse_delta is DelegatingParser.parse_delta
        and parser.reasoning_parser_cls is None
        and parser.tool_parser_cls is not None
        and not parser.tool_parser_cls.engine_based_streaming
        and request.tool_choice == "none"
    )
