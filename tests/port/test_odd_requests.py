"""Odd values in any field are the client's fault, never the server's."""

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine_host.engine.stub import Delta, counting
from engine_host.gateway.refusal import Refusal

from .conftest import Port

FIELDS = (  # noqa: SIM905 - a name a line would be a page
    "add_generation_prompt allowed_token_ids bad_words best_of cache_salt chat_template_kwargs documents echo "
    "frequency_penalty ignore_eos include_stop_str_in_output kv_transfer_params length_penalty logit_bias "
    "logits_processors logprob_token_ids logprobs max_completion_tokens max_tokens min_p min_tokens "
    "mm_processor_kwargs model n parallel_tool_calls presence_penalty prompt_logprobs reasoning_effort "
    "repetition_penalty request_id response_format return_token_ids seed session_id skip_special_tokens stop "
    "stop_token_ids stream stream_options structured_outputs suffix temperature thinking_token_budget tool_choice "
    "tools top_k top_logprobs top_p truncate_prompt_tokens use_beam_search user vllm_xargs"
).split()

ODD = st.sampled_from(
    [
        None, True, -1, 0, 1, 2**31, 2**63, 10**30, -(2**40), 0.5, -0.0, 1e-300, 1e300, "", "x", "\x00", "🧑‍🚀" * 40,
        [], [""], ["x", "y"], [0], [-1], [10**9], [[1]], {}, {"x": 1}, {"0": 1e9}, {"-1": 1}, {"regex": "(["},
        {"json": "{"}, {"grammar": "root ::= missing"}, {"choice": []}, {"structural_tag": "{"},
        {"type": "json_schema"}, {"type": "json_schema", "json_schema": {"name": "x", "schema": {"$ref": "#/x"}}},
        {"type": "function", "function": {"name": "x"}}, [{"type": "function", "function": {"name": "x"}}],
        {"include_usage": "maybe"}, "required", "auto",
    ]
)  # fmt: skip
PATHS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}]},
    "/v1/completions": {"prompt": "hi"},
    "/v1/responses": {"input": "hi"},
    "/v1/messages": {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4},
    "/tokenize": {"prompt": "hi"},
}


def few(prompt: list[int], params: Any) -> list[Delta]:
    """As many words as were asked for, but not a billion."""
    params.max_tokens = min(params.max_tokens or 4, 4)
    return list(counting(prompt, params))


@pytest.mark.parametrize("path", PATHS)
@settings(max_examples=80, derandomize=True, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(fields=st.dictionaries(st.sampled_from(FIELDS), ODD, min_size=1, max_size=3))
async def test_no_field_brings_a_500(port: Port, path: str, fields: dict[str, Any]) -> None:
    port.engine.script = few
    async with port.client.post(path, json={**PATHS[path], **fields}) as response:
        body = await response.text()
        assert response.status < 500, body
        if response.status != 200:
            assert response.content_type == "application/json"


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"])
async def test_a_request_ended_in_mid_stream_is_told_why(port: Port, path: str) -> None:
    from engine_host.engine.refused import RefusedError

    late = RefusedError(Refusal(408, "The next token did not come."))
    port.engine.script = lambda *_: iter([Delta("a"), Delta("b"), Delta("c"), late])
    chat = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 9, "model": "stub-model"}
    asked = {"/v1/completions": {"prompt": "Hi"}, "/v1/responses": {"input": "Hi"}}.get(path, chat)
    async with port.client.post(path, json={**asked, "stream": True}) as reply:
        assert reply.status == 200
        end = (await reply.text())[-400:]
    assert "The next token did not come." in end
    assert "TimeoutError" in end
    assert ("[DONE]" in end) == (path in ("/v1/chat/completions", "/v1/completions"))
    status, whole = await port.post(path, asked)
    assert status == 408
    assert whole["error"]["message"] == "The next token did not come."


async def test_refusals_of_the_port_itself_have_the_shape_of_their_api(port: Port) -> None:
    async with port.client.post("/v1/messages", data=b"[1, 2]", headers={"Content-Type": "application/json"}) as raw:
        reply = await raw.json()
    assert reply["type"] == "error"
    assert reply["error"]["type"] == "BadRequestError"
    assert "object" in reply["error"]["message"]
