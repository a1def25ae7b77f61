"""How many tokens a request's prompt has: rendered and tokenized by vLLM as it would be for the engine."""

from collections.abc import Iterable, Mapping
from typing import Any

from vllm.entrypoints.anthropic.protocol import AnthropicCountTokensRequest
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
from vllm.entrypoints.serve.engine.protocol import ErrorResponse
from vllm.exceptions import VLLMValidationError

_LENGTH_PARAMETER = "input_tokens"
"""What vLLM's length check names in its error, whose `value` is the number of tokens."""


async def count_tokens(state: Any, path: str, body: Mapping[str, Any], context: int) -> int | None:
    """Tokens of the longest prompt of `body`, with the chat template, as a request on `path`.

    `state` is what vLLM's `init_app_state` has filled. A prompt longer than the context length counts as at least
    `context` + 1: vLLM stops tokenizing there. `None` where vLLM can't render the request, and will say why when it is
    called. The tokenizer runs in vLLM's threads.
    """
    try:
        return await _count(state, path, dict(body), context)
    except VLLMValidationError as error:
        return _over(error, context)
    except Exception:
        return None


async def _count(state: Any, path: str, body: dict[str, Any], context: int) -> int | None:
    rendered: Any
    if path == "/v1/chat/completions":
        chat = ChatCompletionRequest.model_validate(body)
        rendered = await state.openai_serving_chat.online_renderer.render_chat(chat, skip_mm_cache=True)
        return None if isinstance(rendered, ErrorResponse) else _longest(rendered[1])
    if path == "/v1/completions":
        completion = CompletionRequest.model_validate(body)
        rendered = await state.openai_serving_completion.online_renderer.render_completion(
            completion, skip_mm_cache=True
        )
        return None if isinstance(rendered, ErrorResponse) else _longest(rendered)
    if path == "/v1/responses":
        request, serving = ResponsesRequest.model_validate(body), state.openai_serving_responses
        earlier = serving.response_store.get(request.previous_response_id)
        rendered = await serving._render_resolved_response_inputs(request, earlier, skip_mm_cache=True)
        return None if isinstance(rendered, ErrorResponse) else _longest([rendered.engine_input])
    if path == "/v1/messages":
        messages = AnthropicCountTokensRequest.model_validate(body)
        rendered = await state.anthropic_serving_messages.count_tokens(messages)
        return None if isinstance(rendered, ErrorResponse) else int(rendered.input_tokens)
    return None


def _longest(inputs: Iterable[Any]) -> int | None:
    return max((len(each["prompt_token_ids"]) for each in inputs if "prompt_token_ids" in each), default=None)


def _over(error: VLLMValidationError, context: int) -> int | None:
    """What vLLM says of a prompt it won't take for its length: the tokens, or too many characters to count them."""
    if error.parameter == _LENGTH_PARAMETER and isinstance(error.value, int):
        return max(error.value, context + 1)
    return context + 1 if error.parameter == "input_text" else None
