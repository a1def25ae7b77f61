"""When the port asks for a key, and where it may listen. Light to import: the command uses it too."""

import argparse
import contextlib
import ipaddress
import os
import socket
from collections.abc import Mapping, Sequence
from typing import Literal

Required = Literal["auto", "always", "never"]


def asks_for_key(required: Required, any_key: bool) -> bool:
    """Whether requests need a key: `auto` asks once there is one."""
    return required == "always" or (required == "auto" and any_key)


def given_keys(serve_args: Sequence[str], environment: Mapping[str, str] = os.environ) -> frozenset[str]:
    """The keys of vLLM's `--api-key` or else `VLLM_API_KEY`, before vLLM's own parser is there to read them."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--api-key", "--api_key", nargs="*", dest="api_key")
    # Whatever is wrong with the options, vLLM's parser says it better, and before anything is served.
    with contextlib.suppress(argparse.ArgumentError, SystemExit):
        given = parser.parse_known_args([*serve_args])[0].api_key
        return frozenset(key for key in (given or [environment.get("VLLM_API_KEY", "")]) if key)
    return frozenset()


def is_loopback(host: str) -> bool:
    """Whether every address that `host` stands for is this machine's own. May ask a name server: call it in a thread.

    A name that can't be resolved is: nothing can listen there either.
    """
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError):
        return True
    return all(is_loopback_address(str(address[0])) for *_, address in found)


def is_loopback_address(address: str) -> bool:
    """Whether a numeric address, also an IPv4 one mapped into IPv6, can be reached from this machine only."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    mapped = parsed.ipv4_mapped if isinstance(parsed, ipaddress.IPv6Address) else None
    return (mapped or parsed).is_loopback


def exposure(host: str, required: Required) -> str:
    """Why the port doesn't listen on `host`: requests without a key would be served. Says what to do."""
    if required == "never":
        why, remedy = 'the profile asks for no key (keys.required = "never")', "Set keys.required in the profile"
    else:
        why, remedy = "there is no key yet", "Make one with: llmconsole key create NAME"
    return (
        f"The port isn't opened on {host}, where others than this machine could use the engine: {why}. "
        f"{remedy}; or start with --allow-without-key if that is meant."
    )
