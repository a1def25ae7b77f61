"""Who may use which route: the decision alone, from what a request shows of itself."""

import hmac
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from urllib.parse import unquote

from engine_host.gateway.access import asks_for_key, exposure, is_loopback_address
from engine_host.gateway.caller import ANONYMOUS, CONSOLE, Caller
from engine_host.gateway.key_text import digest, parse_key
from engine_host.gateway.keys import KeyStore, unauthorized
from engine_host.gateway.refusal import Refusal
from profiles.gateway import KeysSection, Rule
from profiles.schema import Profile

OPEN_PATHS = frozenset({"/health", "/ping", "/version"})
"""Answered without a key, for load balancers."""

DOC_PATHS = frozenset({"/docs", "/redoc", "/openapi.json"})

API_KEY = Caller("api-key", "--api-key")
"""Who sends a key that was given with `--api-key` or `VLLM_API_KEY`."""

ADMIN = Caller("admin-key", "LLMCONSOLE_ADMIN_KEY", admin=True)

HOW_TO_SEND = "This server needs a key: send it as 'Authorization: Bearer KEY' or 'x-api-key: KEY'."

_DEFAULTS = KeysSection()


@dataclass(frozen=True, slots=True)
class RequestFacts:
    """What is known of a request before its body is read.

    `path` is as it came, percent signs and all, without the query; the headers are all lines of their name; `address`
    is the numeric address of ours that the client connected to, `None` for a Unix socket. `trusted` is who may do
    everything.
    """

    method: str
    path: str
    authorization: Sequence[str] = ()
    x_api_key: Sequence[str] = ()
    address: str | None = None
    trusted: bool = False


class Authenticator:
    """Decides for each request who asks.

    `store` holds the keys; `rules` gives the profile's `[keys]`, `None` before a profile is loaded; `given_keys` those
    of `--api-key`; `admin_key` opens everything. Requests without a key that come from outside this machine are
    refused whatever the profile says, unless `allow_without_key`: a profile is changed more lightly than a port is
    opened to the world.
    """

    def __init__(
        self,
        store: KeyStore | None,
        rules: Callable[[], KeysSection | None],
        given_keys: Callable[[], frozenset[str]],
        admin_key: str | None = None,
        allow_without_key: bool = False,
    ) -> None:
        self._store = store
        self._rules = rules
        self._given_keys = given_keys
        self._admin_key = admin_key or None
        self._allow_without_key = allow_without_key

    def asks_for_key(self) -> bool:
        """Whether a request on this machine needs a key."""
        return asks_for_key(self._section().required, self._any_key())

    def exposure(self, host: str) -> str | None:
        """Why the port may not listen on `host`, an address that others reach; `None` where it may."""
        if self._allow_without_key or self.asks_for_key():
            return None
        return exposure(host, self._section().required)

    def caller(self, facts: RequestFacts) -> Caller:
        """Who asks. Raises `Refusal`: 401 without a usable key where one is needed, 403 for one that may not."""
        if facts.trusted:
            return CONSOLE
        # A browser asks with OPTIONS which origins are let in, before it sends the key.
        if facts.method == "OPTIONS" or facts.path in OPEN_PATHS:
            return ANONYMOUS
        rule = _rule(facts.path, self._section())
        if rule == "open":
            return ANONYMOUS
        try:
            caller = self._holder(facts)
        except Refusal:
            # OpenAI's clients always send some key. Where none is asked for, what can't be one of ours means nothing.
            if self._needs_key(facts) or (self._any_key() and _looks_like_ours(facts)):
                raise
            caller = None
        if caller is None:
            if self._needs_key(facts):
                raise unauthorized(HOW_TO_SEND)
            return ANONYMOUS
        if rule == "admin" and not caller.admin and self._needs_key(facts):
            raise Refusal(403, f'The key "{caller.name}" has no admin rights, which {facts.method} {facts.path} needs.')
        return caller

    def _section(self) -> KeysSection:
        return self._rules() or _DEFAULTS

    def _needs_key(self, facts: RequestFacts) -> bool:
        if _is_admin(facts.path) or self.asks_for_key():
            return True
        return not (self._allow_without_key or facts.address is None or is_loopback_address(facts.address))

    def _any_key(self) -> bool:
        return bool(self._given_keys()) or (self._store is not None and self._store.any_key())

    def _holder(self, facts: RequestFacts) -> Caller | None:
        """Whose key the request carries, `None` if it carries none."""
        key = _sent_key(facts)
        if key is None:
            return None
        if self._admin_key is not None and _equal(key, self._admin_key):
            return ADMIN
        if any(_equal(key, given) for given in self._given_keys()):
            return API_KEY
        if self._store is None:
            raise unauthorized("This server doesn't know this key.")
        return self._store.lookup(key)


def check_model(caller: Caller, model: object) -> None:
    """Raise `Refusal` 403 where the caller's key is for other models than the one named."""
    if caller.models is None or (isinstance(model, str) and model in caller.models):
        return
    named = f"not for {model}" if isinstance(model, str) else 'name one of them in "model"'
    allowed = ", ".join(sorted(caller.models))
    raise Refusal(403, f'The key "{caller.name}" is for {allowed}; {named}.', param="model")


def tier_of(caller: Caller, profile: Profile) -> str:
    """The caller's tier, `keys.tier` where its key names none. Raises `Refusal` 403 where the profile lacks it."""
    tier = caller.tier or profile.keys.tier
    if tier not in profile.tiers:
        raise Refusal(
            403,
            f'The key "{caller.name}" has the tier "{tier}", which the profile {profile.name} does not have; '
            f"it has {', '.join(profile.tiers)}.",
        )
    return tier


def _rule(path: str, rules: KeysSection) -> Rule:
    """What `path` needs where keys are asked for. Written in another way than ours it is never the more open for it."""
    if path == "/metrics":
        return rules.metrics
    if path in DOC_PATHS:
        return rules.docs
    first = _first_part(path)
    strict = first == "metrics" and rules.metrics == "admin"
    strict = strict or (f"/{first}" in DOC_PATHS and rules.docs == "admin")
    return "admin" if strict or first == "admin" else "key"


def _is_admin(path: str) -> bool:
    return _first_part(path) == "admin"


def _first_part(path: str) -> str:
    return next((part for part in unquote(path).lower().split("/") if part), "")


def _sent_key(facts: RequestFacts) -> str | None:
    sent = set()
    malformed = False
    for line in facts.authorization:
        scheme, _, token = line.strip().partition(" ")
        if scheme.lower() == "bearer" and token.strip():
            sent.add(token.strip())
        else:
            # It may be meant for a proxy on the way.
            malformed = True
    sent |= {line.strip() for line in facts.x_api_key if line.strip()}
    if len(sent) > 1:
        raise unauthorized("The request carries two keys that differ; send one.")
    if not sent and (malformed or facts.x_api_key):
        raise unauthorized("The key can't be read: send it as 'Authorization: Bearer KEY' or 'x-api-key: KEY'.")
    return next(iter(sent), None)


def _looks_like_ours(facts: RequestFacts) -> bool:
    """Whether the request carries a key that this server could have made."""
    try:
        key = _sent_key(facts)
    except Refusal:
        return False
    return key is not None and parse_key(key) is not None


def _equal(key: str, other: str) -> bool:
    # Digests are of one length: how long the key is doesn't show in the time.
    return hmac.compare_digest(digest(key), digest(other))
