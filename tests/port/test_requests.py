"""What the port lets through to the engine, and how it answers what it doesn't."""

import asyncio
import json
from typing import Any

import msgspec
import pytest
from vllm.exceptions import GenerationError, QueueOverflowError, VLLMValidationError
from vllm.v1.engine.exceptions import EngineDeadError

from engine_host.api.types import EngineState
from engine_host.engine.stub import Delta
from engine_host.port.context import RequestContext, request_context
from profiles.gateway import Clients

from .conftest import FakeHost, Port

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]}
JSON = {"Content-Type": "application/json"}


def check_openai_error(value: Any, status: int) -> str:
    assert set(value) == {"error"}
    assert set(value["error"]) == {"message", "type", "param", "code"}
    assert value["error"]["code"] == status
    assert "Traceback" not in value["error"]["message"]
    return str(value["error"]["message"])


@pytest.mark.parametrize("path", ["/v1/models", "/health", "/ping", "/version", "/load", "/nope"])
async def test_until_ready_everything_is_503(bare_port: Port, path: str) -> None:
    async with bare_port.client.get(path) as response:
        assert response.status == 503
        assert response.headers["Retry-After"] == "7"
        assert "starting (weights)" in check_openai_error(await response.json(), 503)


async def test_until_ready_requests_are_503(bare_port: Port) -> None:
    status, value = await bare_port.post("/v1/chat/completions", CHAT)
    assert status == 503
    check_openai_error(value, 503)


async def test_our_metrics_are_there_before_the_engine(bare_port: Port) -> None:
    async with bare_port.client.get("/metrics") as response:
        assert response.status == 200
        assert "llmconsole_up 1" in await response.text()


async def test_a_failed_start_is_explained(bare_port: Port) -> None:
    bare_port.host.state = EngineState("failed", 0.0, reason="The model does not fit.", hint="Choose a smaller one.")
    _, value = await bare_port.post("/v1/chat/completions", CHAT)
    assert "The model does not fit. Choose a smaller one." in check_openai_error(value, 503)


async def test_health_says_why(port: Port) -> None:
    async with port.client.get("/health") as response:
        assert response.status == 200
    port.host.health = "EngineCore has died."
    async with port.client.post("/ping") as response:
        assert response.status == 503
        assert check_openai_error(await response.json(), 503) == "EngineCore has died."


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/nope", 404), ("POST", "/v1/nope", 404), ("GET", "/v1/completions", 405), ("DELETE", "/tokenize", 405)],
)
async def test_unknown_routes(port: Port, method: str, path: str, status: int) -> None:
    async with port.client.request(method, path) as response:
        assert response.status == status
        assert path in check_openai_error(await response.json(), status)


BAD_BODIES = {
    "no JSON": (b'{"messages": [', 400),
    "empty": (b"", 400),
    "a list": (b"[1,2]", 400),
    "a string": (b'"hi"', 400),
    "NaN": (b'{"messages":[{"role":"user","content":"hi"}],"temperature":NaN}', 400),
    "Infinity": (b'{"messages":[{"role":"user","content":"hi"}],"temperature":Infinity}', 400),
    "too large a number": (b'{"messages":[{"role":"user","content":"hi"}],"temperature":1e999}', 400),
    "deep": (b'{"messages":' + b"[" * 100_000 + b"]" * 100_000 + b"}", 400),
    "no UTF-8": (b'{"messages":"\xff"}', 400),
    "wrong type": (b'{"messages": 3}', 400),
}


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/chat/completions/batch"])
@pytest.mark.parametrize("name", BAD_BODIES)
async def test_bad_bodies(port: Port, path: str, name: str) -> None:
    body, status = BAD_BODIES[name]
    async with port.client.post(path, data=body, headers=JSON) as response:
        assert response.status == status
        check_openai_error(await response.json(), status)
    assert port.engine.received == []


async def test_another_media_type(port: Port) -> None:
    async with port.client.post("/v1/completions", data=b"prompt=hi") as response:
        assert response.status == 415
        check_openai_error(await response.json(), 415)


async def test_a_body_over_the_limit(port: Port) -> None:
    headers = JSON | {"Content-Length": str(Clients().max_body + 1)}
    reader, writer = await asyncio.open_connection("127.0.0.1", port.site.port)
    lines = [f"{name}: {value}\r\n" for name, value in headers.items()]
    writer.write(("POST /v1/completions HTTP/1.1\r\nHost: x\r\n" + "".join(lines) + "\r\n{").encode())
    head = await reader.readuntil(b"\r\n\r\n")
    body = await reader.readuntil(b"}}")
    writer.close()
    assert head.startswith(b"HTTP/1.1 413 ")
    assert b"Connection: close" in head
    check_openai_error(json.loads(body), 413)


async def test_the_request_id_is_kept(port: Port) -> None:
    async with port.client.post("/v1/chat/completions", json=CHAT, headers={"X-Request-Id": "a-1"}) as response:
        assert response.headers["X-Request-Id"] == "a-1"
        assert (await response.json())["id"] == "chatcmpl-a-1"
    assert port.engine.received[0][0] == "chatcmpl-a-1"


@pytest.mark.parametrize("given", ["", "a b", "ü", "x" * 129, "[red]"])
async def test_an_unusable_request_id_is_replaced(port: Port, given: str) -> None:
    async with port.client.post("/v1/completions", json={"prompt": "hi"}, headers={"X-Request-Id": given}) as response:
        ours = response.headers["X-Request-Id"]
        assert ours
        assert ours != given
        assert (await response.json())["id"] == f"cmpl-{ours}"


async def test_an_id_in_use_is_replaced(port: Port, gate: Any) -> None:
    port.engine.pace = gate
    headers = {"X-Request-Id": "twice"}
    first = asyncio.create_task(port.post("/v1/completions", {"prompt": "hi"}, headers=headers))
    await gate.reached.wait()
    second = asyncio.create_task(port.post("/v1/completions", {"prompt": "hi"}, headers=headers))
    gate.reached.clear()
    await gate.reached.wait()
    assert len({request_id for request_id, _, _ in port.engine.received}) == 2
    for task in (first, second):
        task.cancel()
    await asyncio.gather(first, second, return_exceptions=True)


@pytest.mark.parametrize(("allowed", "origin", "header"), [({"*"}, "http://a", "http://a"), (set(), "http://a", None)])
async def test_browsers_are_let_in_only_where_asked_for(
    port: Port, monkeypatch: pytest.MonkeyPatch, allowed: set[str], origin: str, header: str | None
) -> None:
    monkeypatch.setattr(port.host.backend, "_origins", frozenset(allowed))
    async with port.client.post("/v1/completions", json={"prompt": "hi"}, headers={"Origin": origin}) as response:
        assert response.headers.get("Access-Control-Allow-Origin") == header


async def test_the_gateway_sees_id_path_and_arrival(port: Port) -> None:
    seen: list[RequestContext | None] = []

    async def pace() -> None:
        seen.append(request_context.get())

    port.engine.pace = pace
    await port.post("/v1/completions", {"prompt": "hi", "max_tokens": 1}, headers={"X-Request-Id": "a-2"})
    (context,) = seen
    assert context is not None
    assert (context.request_id, context.path) == ("a-2", "/v1/completions")
    assert request_context.get() is None


@pytest.mark.parametrize("path", ["/v1/completions", "/invocations"])
async def test_clients_do_not_set_their_priority(port: Port, path: str) -> None:
    await port.post(path, {"prompt": "hi", "priority": -5}, headers={"X-Vllm-Priority": "-9"})
    _, _, options = port.engine.received[0]
    assert options["priority"] == 0


STREAMS = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": {"prompt": "hi"},
    "/v1/responses": {"input": "hi"},
    "/v1/messages": {**CHAT, "max_tokens": 4, "model": "stub-model"},
}
FAILURES = [
    (VLLMValidationError("no such thing", parameter="thing"), 400),
    (GenerationError("an internal error"), 500),
    (RuntimeError("a surprise"), 500),
    (QueueOverflowError(), 503),
    (EngineDeadError(), 503),
]


@pytest.mark.parametrize("path", STREAMS)
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("failure", "status"), FAILURES, ids=lambda value: type(value).__name__)
async def test_a_failure_before_the_first_token_has_its_status(
    port: Port, path: str, stream: bool, failure: Exception, status: int
) -> None:
    port.engine.script = lambda prompt, params: [failure]
    got, value = await port.post(path, {**STREAMS[path], "stream": stream})
    assert got == status
    if path == "/v1/messages":
        assert value["type"] == "error"
    else:
        check_openai_error(value, status)


async def test_infinite_logprobs_are_valid_json(port: Port, monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.logprobs import Logprob

    from engine_host.engine import stub

    plain = stub._output

    def with_logprobs(*args: Any) -> Any:
        output = plain(*args)
        output.outputs[0].logprobs = [{1: Logprob(float("-inf"), 1, "a"), 2: Logprob(float("-inf"), 2, "b")}]
        output.prompt_logprobs = [None, {1: Logprob(float("-inf"), 1, "a")}]
        return output

    monkeypatch.setattr(stub, "_output", with_logprobs)
    port.engine.script = lambda prompt, params: [Delta("a", finish_reason="stop")]
    for path, body in STREAMS.items():
        if path in ("/v1/chat/completions", "/v1/completions"):
            logprobs = True if "chat" in path else 1
            async with port.client.post(path, json={**body, "logprobs": logprobs}) as response:
                assert response.status == 200
                msgspec.json.decode(await response.read())


async def test_the_key_guards_everything_but_health(port: Port, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(port.host.backend, "_api_keys", frozenset({"secret"}))
    for path in ("/v1/models", "/tokenize", "/invocations", "/metrics", "/load", "/docs"):
        async with port.client.get(path) as response:
            assert response.status == 401, path
            check_openai_error(await response.json(), 401)
    for path in ("/health", "/ping", "/version"):
        async with port.client.get(path) as response:
            assert response.status == 200
    for headers in ({"Authorization": "Bearer secret"}, {"x-api-key": "secret"}):
        async with port.client.get("/v1/models", headers=headers) as response:
            assert response.status == 200
    async with port.client.get("/v1/models", headers={"Authorization": "Bearer wrong"}) as response:
        assert response.status == 401


async def test_every_route_of_vllm_is_there(port: Port, stub_serving: Any) -> None:
    """Each of vLLM's own routes is answered, by us or by its application, and never as unknown."""
    app = stub_serving.asgi
    paths = {path for path in app.openapi()["paths"] if "{" not in path}
    assert {"/v1/models", "/v1/responses", "/tokenize", "/invocations"} <= paths
    for path in sorted(paths):
        method = next(iter(app.openapi()["paths"][path]))
        async with port.client.request(method, path, json={} if method == "post" else None) as response:
            assert response.status != 404, path
            assert "html" not in response.content_type


async def test_load_counts_requests_in_progress(port: Port, gate: Any) -> None:
    port.engine.pace = gate
    task = asyncio.create_task(port.post("/v1/completions", {"prompt": "hi"}))
    await gate.reached.wait()
    async with port.client.get("/load") as response:
        assert await response.json() == {"server_load": 1}
    task.cancel()
    await gate.left.wait()


async def test_an_unforeseen_fault_is_a_500_without_its_traceback(port: Port, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: FakeHost) -> None:
        raise ZeroDivisionError("deep inside")

    monkeypatch.setattr(FakeHost, "serving", broken)
    async with port.client.get("/v1/models") as response:
        assert response.status == 500
        assert "deep inside" not in check_openai_error(await response.json(), 500)
