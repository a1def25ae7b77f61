"""vLLM's serving classes behind the port: what streams is called directly, the rest is vLLM's own application."""

import argparse
import asyncio
import copy
import logging
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pydantic
from fastapi.exceptions import RequestValidationError
from vllm import envs
from vllm.entrypoints.anthropic.api_router import translate_error_response
from vllm.entrypoints.anthropic.protocol import AnthropicMessagesRequest
from vllm.entrypoints.launchers.api_server.app_state import init_app_state
from vllm.entrypoints.launchers.app import build_app
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.entrypoints.openai.responses.api_router import _convert_stream_to_sse_events
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
from vllm.entrypoints.serve.engine.protocol import ErrorResponse
from vllm.entrypoints.serve.exception_handling.handlers.validation import validation_exception_handler
from vllm.entrypoints.serve.utils.orca_metrics import metrics_header
from vllm.entrypoints.serve.utils.sse_keep_alive import with_sse_keep_alive
from vllm.exceptions import VLLMError, VLLMValidationError
from vllm.parser import ParserManager

from engine_host.engine import counting, fast_lane
from engine_host.engine.streams import (
    RequestFailedError,
    ServedStream,
    checked_first,
    error_response,
    generation_error_event,
    opened,
    raise_generation_error,
)
from engine_host.gateway.prompts import TemplateCost, measure_template, texts_of
from engine_host.port import faults
from engine_host.port.backend import AsgiApp, JsonReply, StreamReply
from engine_host.port.context import rendering_model

log = logging.getLogger(__name__)

_LOAD_FORMAT_HEADER = "endpoint-load-metrics-format"
_CHAT = "/v1/chat/completions"
_RESPONSES_PREAMBLE = ("event: response.created\n", "event: response.in_progress\n")


@dataclass(frozen=True)
class RawRequest:
    """The three things vLLM's serving classes use of a Starlette request."""

    headers: Mapping[str, str]
    app: Any
    state: SimpleNamespace = field(default_factory=SimpleNamespace)


@dataclass(frozen=True)
class _Endpoint:
    """One route.

    `create` is vLLM's serving method; `events` turns the generator it returns into server-sent events; `dump` says how
    a whole reply is written; `preamble` are the events that vLLM sends before it asks the engine.
    """

    request_type: Any
    create: Callable[[Any, RawRequest], Awaitable[Any]]
    events: Callable[[Any], Any]
    dump: Mapping[str, Any] = field(default_factory=dict)
    preamble: tuple[str, ...] = ()
    anthropic: bool = False


class VllmServing:
    """The serving classes over one engine; see `engine_host.port.backend.Serving`."""

    def __init__(self, app: Any, args: argparse.Namespace, endpoints: Mapping[str, _Endpoint]) -> None:
        self._app = app
        self._model = str(args.model)
        self._endpoints = endpoints
        self._template_cost: list[TemplateCost | None] = []
        self._tokenizer: Any = None
        self._counting = threading.Lock()
        self._origins = frozenset(args.allowed_origins)
        self._credentials = {"Access-Control-Allow-Credentials": "true"} if args.allow_credentials else {}
        self._api_keys = frozenset(key for key in (args.api_key or [envs.VLLM_API_KEY]) if key)

    @property
    def api_keys(self) -> frozenset[str]:
        """Keys of which a client must send one; empty: the port is open."""
        return self._api_keys

    @property
    def streaming_paths(self) -> frozenset[str]:
        """Paths that `call` serves."""
        return frozenset(self._endpoints)

    @property
    def asgi(self) -> AsgiApp:
        """vLLM's FastAPI application on the same serving objects."""
        app: AsgiApp = self._app
        return app

    @property
    def state(self) -> Any:
        """The namespace that vLLM's `init_app_state` has filled."""
        return self._app.state

    def cors_headers(self, origin: str | None) -> dict[str, str]:
        """See `engine_host.port.backend.Serving`; `--allowed-origins` says which origins are let in."""
        if origin is None or not self._origins & {origin, "*"}:
            return {}
        return {"Access-Control-Allow-Origin": origin, "Vary": "Origin", **self._credentials}

    @property
    def longest_token_chars(self) -> int | None:
        """Characters of the longest entry of the vocabulary; `None` where vLLM runs without a tokenizer."""
        tokenizer = self._app.state.openai_serving_chat.renderer.tokenizer
        return None if tokenizer is None else int(tokenizer.max_chars_per_token)

    @property
    def context_length(self) -> int:
        """Most tokens of a prompt and its reply."""
        return int(self._app.state.openai_serving_chat.model_config.max_model_len)

    async def template_cost(self) -> TemplateCost | None:
        """What the chat template adds to a prompt, measured once; `None` where there is none."""
        if not self._template_cost:
            self._template_cost.append(await measure_template(lambda body: self.count_tokens(_CHAT, body)))
        return self._template_cost[0]

    def message_tokens(self, message: Mapping[str, Any]) -> int:
        """About the tokens of one chat message, without what the template adds. May be called from any thread."""
        with self._counting:
            # A tokenizer of its own: vLLM's is in use by its threads, and a tokenizer is for one at a time.
            if self._tokenizer is None:
                self._tokenizer = copy.deepcopy(self._app.state.openai_serving_chat.renderer.tokenizer)
            texts = list(texts_of({"messages": [message]}))
            return sum(len(self._tokenizer.encode(each, add_special_tokens=False)) for each in texts)

    async def count_tokens(self, path: str, body: Mapping[str, Any]) -> int | None:
        """See `engine_host.engine.counting.count_tokens`; `path` is one of `streaming_paths`."""
        rendering_model.set(self._model)
        return await counting.count_tokens(self._app.state, path, body, self.context_length)

    async def call(self, path: str, body: dict[str, Any], headers: Mapping[str, str]) -> JsonReply | StreamReply:
        """Serve one request on a path of `streaming_paths`.

        A stream is returned once the engine has sent its first output: until then a failure has its own status.
        """
        rendering_model.set(self._model)
        endpoint = self._endpoints[path]
        raw = RawRequest(headers, self._app)
        try:
            result = await endpoint.create(_validated(endpoint, body), raw)
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                # vLLM's non-streaming methods answer a cancellation instead of passing it on.
                raise asyncio.CancelledError
            if isinstance(result, ErrorResponse):
                raise RequestFailedError(result)
            if isinstance(result, pydantic.BaseModel):
                load = metrics_header(headers.get(_LOAD_FORMAT_HEADER, "")) or {}
                return JsonReply(200, result.model_dump_json(**endpoint.dump).encode(), load)
            events = endpoint.events(result)
            return ServedStream(await opened(events, endpoint.preamble), events, result)
        except RequestValidationError as error:
            reply = await validation_exception_handler(raw, error)
            return JsonReply(reply.status_code, reply.body)
        except Exception as error:
            return _failed(endpoint, error)


async def build_serving(engine_client: Any, args: argparse.Namespace) -> VllmServing:
    """Build vLLM's serving objects over `engine_client`, an `EngineClient` or what has its attributes.

    `args` come from `parse_serve_args`. Raises what vLLM raises, as for a chat template that can't be read.
    """
    tasks = await engine_client.get_supported_tasks()
    if args.auto_parsers:
        _drop_unfit_parsers(engine_client, args)
    app = build_app(args, tasks, engine_client.model_config)
    await init_app_state(engine_client, app.state, args, tasks)
    return VllmServing(app, args, _endpoints(app.state, args) if "generate" in tasks else {})


def _drop_unfit_parsers(engine_client: Any, args: argparse.Namespace) -> None:
    """Go on without the parsers that were chosen for the model, should its tokenizer lack what they look for."""
    try:
        ParserManager.get_parser(
            tool_parser_name=args.tool_call_parser,
            reasoning_parser_name=args.reasoning_parser,
            enable_auto_tools=args.enable_auto_tool_choice,
            model_name=args.model,
            tokenizer=engine_client.renderer.tokenizer,
        )
    except Exception as error:
        log.warning("the parsers chosen for this model don't fit it, so that its tool calls stay text: %s", error)
        args.tool_call_parser, args.reasoning_parser, args.enable_auto_tool_choice = None, "", False
        args.structured_outputs_config.reasoning_parser = ""


def _endpoints(state: Any, args: argparse.Namespace) -> dict[str, _Endpoint]:
    chat, completion = state.openai_serving_chat, state.openai_serving_completion
    anthropic = state.anthropic_serving_messages
    fast_lane.install(chat, completion)
    convert = anthropic.message_stream_converter
    # vLLM's converter doesn't know the chat stream's errors: they are raised before it meets one.
    anthropic.message_stream_converter = lambda stream: convert_checked(convert, stream)

    for each in (chat, completion, anthropic):
        each._convert_generation_error_to_streaming_response = generation_error_event

    responses = state.openai_serving_responses
    responses._convert_generation_error_to_streaming_response = raise_generation_error

    def kept_alive(stream: Any) -> Any:
        return with_sse_keep_alive(stream, float(args.sse_keep_alive_interval))

    def unchanged(stream: Any) -> Any:
        return stream

    return {
        _CHAT: _Endpoint(ChatCompletionRequest, chat.create_chat_completion, kept_alive),
        "/v1/completions": _Endpoint(CompletionRequest, completion.create_completion, kept_alive),
        "/v1/responses": _Endpoint(
            ResponsesRequest,
            responses.create_responses,
            _convert_stream_to_sse_events,
            {"by_alias": True},
            _RESPONSES_PREAMBLE,
        ),
        "/v1/messages": _Endpoint(
            AnthropicMessagesRequest, anthropic.create_messages, unchanged, {"exclude_none": True}, anthropic=True
        ),
    }


async def convert_checked(
    convert: Callable[[AsyncGenerator[str, None]], AsyncGenerator[str, None]], stream: AsyncGenerator[str, None]
) -> AsyncGenerator[str, None]:
    """Convert a stream whose first chunk isn't an error, and an error later on, which the converter doesn't know.

    Raises `RequestFailedError` where the first chunk is one.
    """
    checked = checked_first(stream)
    first = await anext(checked)
    failed: list[str] = []

    async def whole() -> AsyncGenerator[str, None]:
        yield first
        async for chunk in checked:
            if chunk.startswith('data: {"error":'):
                failed.append(chunk.removeprefix("data: "))
                return
            yield chunk

    async for event in convert(whole()):
        yield event
    if failed:
        error = translate_error_response(ErrorResponse.model_validate_json(failed[0]))
        yield f"event: error\ndata: {error.body.decode()}\n\n"


def _validated(endpoint: _Endpoint, body: dict[str, Any]) -> Any:
    try:
        return endpoint.request_type.model_validate(body)
    except pydantic.ValidationError as error:
        errors = [{**each, "loc": ("body", *each["loc"])} for each in error.errors(include_url=False)]
        raise RequestValidationError(errors) from None
    except (VLLMError, ValueError, NotImplementedError):
        raise
    except Exception as error:
        # Validators of vLLM's look into fields before their types are checked.
        raise VLLMValidationError(f"A field of the request has the wrong type: {error}.") from error


def _failed(endpoint: _Endpoint, error: Exception) -> JsonReply:
    if faults.is_of_request(error):
        error = VLLMValidationError(faults.MESSAGE)
    response = error_response(error)
    if endpoint.anthropic:
        reply = translate_error_response(response)
        return JsonReply(reply.status_code, reply.body)
    return JsonReply(response.error.code, response.model_dump_json().encode())
