"""The official client against our port, on the real engine."""

import json
from collections.abc import AsyncIterator

import openai
import pytest

MODEL = "stub-model"
MESSAGES: list[openai.types.chat.ChatCompletionMessageParam] = [{"role": "user", "content": "Say hello."}]

pytestmark = pytest.mark.engine


@pytest.fixture
async def client(port_url: str) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{port_url}/v1", api_key="none", max_retries=0) as client:
        yield client


async def test_models(client: openai.AsyncOpenAI) -> None:
    assert [model.id async for model in client.models.list()] == [MODEL]


async def test_a_stream_says_what_the_whole_reply_says(client: openai.AsyncOpenAI) -> None:
    whole = await client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=24, temperature=0)
    stream = await client.chat.completions.create(
        model=MODEL,
        messages=MESSAGES,
        max_tokens=24,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = [chunk async for chunk in stream]
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert text
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-2].choices[0].finish_reason == whole.choices[0].finish_reason
    assert whole.usage is not None
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.model_dump() == whole.usage.model_dump()


async def test_completions(client: openai.AsyncOpenAI) -> None:
    reply = await client.completions.create(model=MODEL, prompt=["One, two,", "A, B,"], max_tokens=4, temperature=0)
    assert [choice.index for choice in reply.choices] == [0, 1]
    stream = await client.completions.create(model=MODEL, prompt="One, two,", max_tokens=4, temperature=0, stream=True)
    assert "".join([chunk.choices[0].text async for chunk in stream]) == reply.choices[0].text


async def test_logprobs(client: openai.AsyncOpenAI) -> None:
    reply = await client.chat.completions.create(
        model=MODEL, messages=MESSAGES, max_tokens=3, logprobs=True, top_logprobs=2
    )
    assert reply.choices[0].logprobs is not None
    assert reply.choices[0].logprobs.content is not None
    assert all(len(token.top_logprobs) == 2 for token in reply.choices[0].logprobs.content)


async def test_responses(client: openai.AsyncOpenAI) -> None:
    reply = await client.responses.create(model=MODEL, input="Say hello.", max_output_tokens=16, temperature=0)
    assert reply.output_text
    text = ""
    async with client.responses.stream(model=MODEL, input="Say hello.", max_output_tokens=16, temperature=0) as stream:
        async for event in stream:
            if event.type == "response.output_text.delta":
                text += event.delta
    assert text == reply.output_text


async def test_a_json_schema_is_kept_to(client: openai.AsyncOpenAI) -> None:
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
    reply = await client.chat.completions.create(
        model=MODEL,
        messages=MESSAGES,
        max_tokens=64,
        temperature=0,
        response_format={"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}},
    )
    assert isinstance(json.loads(reply.choices[0].message.content or "")["ok"], bool)


async def test_a_named_tool_is_called(client: openai.AsyncOpenAI) -> None:
    parameters: dict[str, object] = {
        "type": "object",
        "properties": {"n": {"type": "integer", "maximum": 9}},
        "required": ["n"],
    }
    parameters["additionalProperties"] = False
    reply = await client.chat.completions.create(
        model=MODEL,
        messages=MESSAGES,
        max_tokens=64,
        temperature=0,
        tools=[{"type": "function", "function": {"name": "count", "parameters": parameters, "strict": True}}],
        tool_choice={"type": "function", "function": {"name": "count"}},
    )
    (call,) = reply.choices[0].message.tool_calls or []
    assert call.type == "function"
    assert call.function.name == "count"
    assert isinstance(json.loads(call.function.arguments)["n"], int), call.function.arguments


async def test_errors_are_the_clients_own_types(client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.NotFoundError):
        await client.chat.completions.create(model="nope", messages=MESSAGES)
    with pytest.raises(openai.BadRequestError) as caught:
        await client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=-1, stream=True)
    assert caught.value.type


async def test_leaving_a_stream_frees_the_engine(client: openai.AsyncOpenAI, port_url: str) -> None:
    stream = await client.completions.create(model=MODEL, prompt="hi", max_tokens=1500, stream=True)
    await anext(aiter(stream))
    await stream.close()
    # A later request is served to its end: nothing is stuck.
    reply = await client.completions.create(model=MODEL, prompt="hi", max_tokens=2)
    assert reply.usage is not None
    assert reply.usage.completion_tokens == 2
