"""The OpenAPI document of the port, and requests made up from it: none may be answered with a server's error."""

import asyncio
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import Case

from engine_host.port.faults import is_of_request

from .conftest import Port

NOT_IN_THIS_BUILD = 501
"""The one server's error that is an answer: a route of vLLM's that this model or build doesn't have."""

EXAMPLES = settings(
    max_examples=3,
    derandomize=True,
    database=None,
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


async def test_the_document_is_served(port: Port) -> None:
    async with port.client.get("/openapi.json") as response:
        assert response.status == 200
        paths = (await response.json())["paths"]
    assert {"/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/tokenize"} <= set(paths)


async def test_no_request_is_a_server_error(port: Port, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(port.engine, "get_kv_event_sources", dict, raising=False)
    async with port.client.get("/openapi.json") as response:
        document = await response.json()
    failed: list[str] = []

    def send_all() -> None:
        schema: Any = schemathesis.openapi.from_dict(document)
        for each in schema.get_all_operations():
            operation = each.ok()

            @EXAMPLES
            @given(case=operation.as_strategy())
            def send(case: Case) -> None:
                reply = case.call(base_url=port.url, timeout=20)
                if reply.status_code >= 500 and reply.status_code != NOT_IN_THIS_BUILD:
                    failed.append(f"{case.as_curl_command()}\n{reply.status_code} {reply.text[:500]}")

            send()

    await asyncio.to_thread(send_all)
    assert not failed, f"{len(failed)}:\n" + "\n\n".join(failed[:10])


NO_CALL_ID = {"type": "function_call_output", "id": "x", "output": [{"type": "input_file", "detail": None}]}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/responses", {"input": [NO_CALL_ID | {"status": "completed"}]}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": [["text"]]}]}),
        ("/tokenize", {"messages": [{"role": "user", "content": [["text"]]}]}),
    ],
)
async def test_messages_of_the_wrong_shape_are_the_request_s_fault(port: Port, path: str, body: Any) -> None:
    status, reply = await port.post(path, body)
    assert status == 400, reply
    assert reply["error"]["message"]
    assert port.engine.received == []


def test_an_error_elsewhere_stays_the_server_s() -> None:
    with pytest.raises(KeyError) as caught:
        {}["missing"]
    assert not is_of_request(caught.value)
