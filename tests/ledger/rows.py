"""Records for the tests of the ledger."""

from typing import Any

from engine_host.api.figures import BILL_PARTS
from engine_host.api.records import EventRecord, MinuteRecord, RequestCost, RequestRecord
from engine_host.ledger.ledger import Ledger
from profiles.schema import Ledger as Rules

NOON = 1_790_000_000.0 - 1_790_000_000.0 % 86_400 + 43_200
"""12:00 UTC of some day."""


def request(**changed: Any) -> RequestRecord:
    """A request that cost 0.003 USD, found 40 of its 100 tokens in the cache, and produced 50."""
    given: dict[str, Any] = {
        "id": "req-1",
        "time": NOON,
        "model": "model",
        "profile": "default",
        "tier": "standard",
        "key": "",
        "lane": "interactive",
        "path": "/v1/chat/completions",
        "prompt_tokens": 100,
        "cached_tokens": 40,
        "output_tokens": 50,
        "sequences": 1,
        "finish_reason": "stop",
        "error": None,
        "guard_s": 0.01,
        "queue_s": 0.02,
        "prefill_s": 0.03,
        "first_decode_s": 0.04,
        "delivery_s": 0.05,
        "ttft_s": 0.15,
        "tpot_s": 0.01,
        "ttl_p50_s": 0.01,
        "ttl_p99_s": 0.02,
        "total_s": 0.65,
        "steps": 51,
        "first_step": 7,
        "last_step": 58,
        "cost": RequestCost(0.1, 0.2, 0.05, 0.001, 0.0015, 0.0005, 0.0002),
        "prompt": "a secret question",
        "reply": "a secret answer",
    }
    return RequestRecord(**{**given, **changed})


def minute(**changed: Any) -> MinuteRecord:
    """A minute of one device at 3.60 USD an hour: 0.001 USD a second."""
    seconds = dict(zip(BILL_PARTS, (12.0, 18.0, 6.0, 1.0, 2.0, 21.0, 0.0), strict=True))
    given: dict[str, Any] = {
        "time": NOON,
        "model": "model",
        "profile": "default",
        "finished": 3,
        "failed": 1,
        "aborted": 0,
        "refused": 2,
        "prefill_tokens": 600,
        "decode_tokens": 1200,
        "output_tokens": 1203,
        "cached_tokens": 400,
        "queried_tokens": 1000,
        "running": 1.6,
        "waiting": 0.2,
        "ttft_p50": 0.1,
        "ttft_p99": 0.2,
        "ttl_p50": 0.01,
        "ttl_p99": 0.02,
        "ttft": b"",
        "ttl": b"",
        "kv_used": 0.5,
        "utilization": 0.75,
        "utilization_label": "SM active",
        "memory_used": 2.0**30,
        "power_w": 300.0,
        "energy_j": 18_000.0,
        "temperature_c": 60.0,
        "steps": 1200,
        "preemptions": 1,
        "fill_rate": 0.25,
        "seconds": seconds,
        "usd": {part: each * 0.001 for part, each in seconds.items()},
    }
    return MinuteRecord(**{**given, **changed})


def event(**changed: Any) -> EventRecord:
    """A rebuild that went well."""
    given: dict[str, Any] = {
        "time": NOON,
        "kind": "rebuild",
        "old": "default",
        "new": "throughput",
        "who": "console",
        "why": "asked for",
        "outcome": "done",
        "message": "",
        "stalled_s": 4.5,
    }
    return EventRecord(**{**given, **changed})


def fill(ledger: Ledger, *records: RequestRecord | MinuteRecord | EventRecord) -> None:
    """Put records into a ledger."""
    for record in records:
        if isinstance(record, RequestRecord):
            ledger.request(record)
        elif isinstance(record, MinuteRecord):
            ledger.minute(record)
        else:
            ledger.event(record)


KEEPS = Rules()
KEEPS_TEXT = Rules(store_text=True)
