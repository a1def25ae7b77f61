"""Who is let in where: the decision, and the port that asks it."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aiohttp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from yarl import URL

from engine_host.api.types import EngineState
from engine_host.gateway.caller import ANONYMOUS, CONSOLE, Caller
from engine_host.gateway.key_text import key_text, new_secret
from engine_host.gateway.keys import KeyStore
from engine_host.gateway.refusal import Refusal
from engine_host.port.app import make_app
from engine_host.port.auth import (
    ADMIN,
    API_KEY,
    DOC_PATHS,
    OPEN_PATHS,
    Authenticator,
    RequestFacts,
    check_model,
    tier_of,
)
from engine_host.port.context import CALLER
from engine_host.port.server import start_site
from profiles.gateway import KeysSection
from profiles.schema import Profile

OUTSIDE = "192.168.0.7"


@pytest.fixture
def store(tmp_path: Path) -> KeyStore:
    return KeyStore(tmp_path / "keys.sqlite")


def authenticator(
    store: KeyStore, rules: KeysSection | None = None, given: Sequence[str] = (), admin: str | None = None
) -> Authenticator:
    return Authenticator(store, lambda: rules, lambda: frozenset(given), admin)


def ask(key: str | None = None, path: str = "/v1/models", method: str = "GET", address: str = "::1") -> RequestFacts:
    return RequestFacts(method, path, () if key is None else (f"Bearer {key}",), address=address)


def status(auth: Authenticator, facts: RequestFacts) -> int | Caller:
    """Who is let in, or the status of the refusal."""
    try:
        return auth.caller(facts)
    except Refusal as refusal:
        told_how = refusal.headers.get("WWW-Authenticate") == 'Bearer realm="llmconsole"'
        return refusal.status if told_how == (refusal.status == 401) else -1


UNUSUAL_PATHS = [
    "/", "", "*", "/v1/models", "/v1%2Fmodels", "//health", "/health/", "/HEALTH", "/%68ealth", "/health;x",
    "/health%00", "/./health", "/x/../health", "http://host/health", "/health/../v1/models", "//metrics", "/metrics/",
    "/Metrics", "/docs/", "/docs/oauth2-redirect", "/load", "/invocations", "/tokenize", "/no/such/route",
]  # fmt: skip


@pytest.mark.parametrize("path", UNUSUAL_PATHS)
def test_a_path_that_is_not_on_the_list_needs_a_key(store: KeyStore, path: str) -> None:
    record, key = store.create("alice")
    auth = authenticator(store, KeysSection(metrics="open", docs="open"))
    for method in ("GET", "HEAD", "POST", "DELETE", "PROPFIND"):
        assert status(auth, ask(None, path, method)) == 401
        assert status(auth, ask("wrong", path, method)) == 401
        assert status(auth, ask(key, path, method)) == record.caller()


@settings(max_examples=40, deadline=None)
@given(st.text(max_size=20), st.sampled_from(["/", "/health", "/metrics", "/docs"]))
def test_no_spelling_of_a_path_is_open_but_those_on_the_list(extra: str, beginning: str) -> None:
    listed = OPEN_PATHS | DOC_PATHS | {"/metrics"}
    auth = Authenticator(None, lambda: KeysSection(required="always", metrics="open", docs="open"), frozenset)
    for path in (beginning + extra, extra + beginning, quote(beginning + extra, safe=""), (beginning + extra).upper()):
        assert status(auth, ask(None, path)) == (ANONYMOUS if path in listed else 401)


@pytest.mark.parametrize("path", ["/health", "/ping", "/version"])
def test_health_and_version_are_open_whatever_is_sent(store: KeyStore, path: str) -> None:
    auth = authenticator(store, KeysSection(required="always"))
    assert status(auth, ask(None, path)) is ANONYMOUS
    assert status(auth, ask("wrong", path, address=OUTSIDE)) is ANONYMOUS


def test_a_browser_may_ask_before_it_sends_the_key(store: KeyStore) -> None:
    assert status(authenticator(store, KeysSection(required="always")), ask(None, method="OPTIONS")) is ANONYMOUS


@pytest.mark.parametrize(
    ("required", "there_are_keys", "none", "placeholder", "wrong"),
    [
        ("auto", False, ANONYMOUS, ANONYMOUS, ANONYMOUS),
        ("auto", True, 401, 401, 401),
        ("never", False, ANONYMOUS, ANONYMOUS, ANONYMOUS),
        ("never", True, ANONYMOUS, ANONYMOUS, 401),
        ("always", False, 401, 401, 401),
        ("always", True, 401, 401, 401),
    ],
)
def test_when_a_key_is_needed(
    store: KeyStore,
    required: str,
    there_are_keys: bool,
    none: int | Caller,
    placeholder: int | Caller,
    wrong: int | Caller,
) -> None:
    auth = authenticator(store, KeysSection.model_validate({"required": required}))
    if there_are_keys:
        record, key = store.create("alice")
        assert status(auth, ask(key)) == record.caller()
    assert status(auth, ask()) == none
    assert status(auth, ask("sk-placeholder")) == placeholder
    assert status(auth, ask(key_text("aaaa1111", new_secret()))) == wrong


def test_the_keys_of_vllm_go_on_working(store: KeyStore) -> None:
    auth = authenticator(store, None, ["one", "two"])
    assert status(auth, ask()) == 401
    assert status(auth, ask("two")) is API_KEY
    assert status(auth, ask("tw")) == 401
    assert status(auth, ask("two\udc80")) == 401


@pytest.mark.parametrize(
    ("authorization", "x_api_key", "expected"),
    [
        (["Bearer KEY"], [], API_KEY),
        (["bearer  KEY "], [], API_KEY),
        ([], ["KEY"], API_KEY),
        (["Bearer KEY"], ["KEY"], API_KEY),
        (["Basic dXNlcg=="], ["KEY"], API_KEY),
        (["Bearer KEY"], ["other"], 401),
        (["Bearer KEY", "Bearer other"], [], 401),
        (["KEY"], [], 401),
        (["Bearer"], [], 401),
        (["Basic KEY"], [], 401),
        ([], [""], 401),
    ],
)
def test_how_a_key_is_sent(
    store: KeyStore, authorization: list[str], x_api_key: list[str], expected: int | Caller
) -> None:
    auth = authenticator(store, None, ["KEY"])
    assert status(auth, RequestFacts("GET", "/v1/models", authorization, x_api_key)) == expected


@pytest.mark.parametrize("address", ["", OUTSIDE, "2001:db8::1", "::ffff:192.168.0.7", "fe80::1%eth0"])
def test_from_outside_nobody_is_served_without_a_key(store: KeyStore, address: str) -> None:
    never = KeysSection(required="never")
    assert status(authenticator(store, never), ask(address=address)) == 401
    assert status(authenticator(store, never), ask(None, "/metrics", address=address)) == 401
    allowed = Authenticator(store, lambda: never, frozenset, None, allow_without_key=True)
    assert status(allowed, ask(address=address)) is ANONYMOUS
    for inside in ("127.0.0.1", "::1", "::ffff:127.0.0.1"):
        assert status(authenticator(store, never), ask(address=inside)) is ANONYMOUS


@pytest.mark.parametrize("path", ["/admin/profile", "/admin", "//admin/profile", "/ADMIN/x", "/%61dmin/profile"])
def test_commands_need_an_admin_key_always(store: KeyStore, path: str) -> None:
    open_port = authenticator(store, KeysSection(required="never"), admin="secret")
    assert status(open_port, ask(None, path)) == 401
    assert status(open_port, ask("sk-placeholder", path)) == 401
    assert status(open_port, ask("secret", path)) is ADMIN
    _, plain = store.create("alice")
    operator, key = store.create("operator", admin=True)
    assert status(open_port, ask(plain, path)) == 403
    assert status(open_port, ask(key, path)) == operator.caller()
    assert status(authenticator(store), ask("", path)) == 401


@pytest.mark.parametrize(
    ("rule", "none", "plain", "admin"), [("open", 200, 200, 200), ("key", 401, 200, 200), ("admin", 401, 403, 200)]
)
@pytest.mark.parametrize("path", ["/metrics", "/docs", "/redoc", "/openapi.json"])
def test_metrics_and_docs_have_rules_of_their_own(
    store: KeyStore, rule: str, none: int, plain: int, admin: int, path: str
) -> None:
    of_metrics = path == "/metrics"
    rules = KeysSection.model_validate({"metrics" if of_metrics else "docs": rule})
    _, plain_key = store.create("alice")
    _, admin_key = store.create("operator", admin=True)
    auth = authenticator(store, rules)
    for key, expected in ((None, none), (plain_key, plain), (admin_key, admin)):
        got = status(auth, ask(key, path))
        assert (200 if isinstance(got, Caller) else got) == expected


@pytest.mark.parametrize(
    "path", ["/metrics/", "//metrics", "/%6detrics/x", "/METRICS", "/docs/", "/Redoc", "/docs/oauth2"]
)
def test_another_spelling_is_no_way_around_a_rule(store: KeyStore, path: str) -> None:
    _, key = store.create("alice")
    assert status(authenticator(store, KeysSection(metrics="admin", docs="admin")), ask(key, path)) == 403


def test_the_rules_bind_nobody_where_no_key_is_asked_for(store: KeyStore) -> None:
    assert status(authenticator(store, KeysSection(metrics="admin", docs="admin")), ask(None, "/metrics")) is ANONYMOUS


def test_why_the_port_may_not_be_opened_to_others(store: KeyStore) -> None:
    assert "key create" in (authenticator(store).exposure("0.0.0.0") or "")
    assert 'required = "never"' in (authenticator(store, KeysSection(required="never")).exposure("::") or "")
    assert authenticator(store, KeysSection(required="always")).exposure("0.0.0.0") is None
    assert authenticator(store, None, ["given"]).exposure("0.0.0.0") is None
    store.create("alice")
    assert authenticator(store).exposure("0.0.0.0") is None


def test_the_unix_socket_is_trusted(store: KeyStore) -> None:
    auth = authenticator(store, KeysSection(required="always"))
    assert status(auth, RequestFacts("POST", "/admin/quit", trusted=True)) is CONSOLE


def test_a_key_may_be_for_some_models_only() -> None:
    limited = Caller("id", "alice", models=frozenset({"b", "a"}))
    check_model(limited, "a")
    check_model(ANONYMOUS, "c")
    for model in ("c", None, 5, ["a"]):
        with pytest.raises(Refusal, match="is for a, b") as caught:
            check_model(limited, model)
        assert caught.value.status == 403


def test_a_tier_that_the_profile_lacks_is_told() -> None:
    profile = Profile.model_validate({"name": "p", "keys": {"tier": "best-effort"}})
    assert tier_of(Caller("id", "alice", "premium"), profile) == "premium"
    assert tier_of(ANONYMOUS, profile) == "best-effort"
    with pytest.raises(Refusal, match='"gold"') as caught:
        tier_of(Caller("id", "alice", "gold"), profile)
    assert caught.value.status == 403


class Starting:
    """A host whose engine is not there yet, and which must not be waited for."""

    state = EngineState("starting", 0.0)

    async def admission(self) -> None:
        await asyncio.Event().wait()

    def engine_state(self) -> EngineState:
        return self.state

    def serving(self) -> None:
        return None

    def retry_after_s(self) -> int:
        return 7

    async def metrics_text(self) -> bytes:
        return b""

    async def check_health(self) -> str | None:
        return "The engine is starting."


async def test_the_port_tells_a_wrong_key_while_the_engine_starts(store: KeyStore) -> None:
    record, key = store.create("alice", admin=True)

    async def who(request: aiohttp.web.Request) -> aiohttp.web.Response:
        return aiohttp.web.json_response(request[CALLER].key_id)

    host: Any = Starting()
    app = make_app(host, auth=authenticator(store), extra_routes=[aiohttp.web.get("/admin/who", who)])
    site = await start_site(app, "127.0.0.1", 0)
    async with aiohttp.ClientSession(f"http://127.0.0.1:{site.port}") as client:
        for path in (
            "/v1/models",
            "/metrics",
            "/load",
            "/docs",
            "/no/such/route",
            "/admin/who",
            "/%68ealth",
            "/health/",
        ):
            for method in ("GET", "HEAD", "POST"):
                url = URL(path, encoded=True)
                async with client.request(method, url, headers={"x-api-key": "wrong"}) as response:
                    assert response.status == 401, (method, path)
                    assert response.headers["WWW-Authenticate"] == 'Bearer realm="llmconsole"'
                    if method != "HEAD":
                        error = (await response.json())["error"]
                        assert (error["type"], error["code"]) == ("AuthenticationError", 401)
        async with client.get("/health") as response:
            assert response.status == 503
        async with client.get("/admin/who", headers={"Authorization": f"Bearer {key}"}) as response:
            assert await response.json() == record.id
    await site.close()
