"""One line of the log for each request: where its time, its tokens and its money went. No prompt and no reply."""

from typing import Any

import msgspec

from engine_host.api.records import RequestRecord
from engine_host.api.types import LogLevel
from engine_host.logs.ring import LogRing
from engine_host.logs.sinks import REQUEST

_MAX_ERROR = 1_000
"""Characters kept of an error's sentence: some quote a parameter of the client, however long, and a line has to fit in
a record of the ring."""


def request_line(record: RequestRecord) -> dict[str, Any]:
    """The fields of a request's line, in their order; `None` is unknown. docs/observability.md has each with its unit.

    Milliseconds are rounded to microseconds. `prefill_time_ms` is from being scheduled to the first token, so that
    guard, queue, prefill and delivery add up to `ttft_ms`. What a request cost is an estimate whatever the price is:
    the work of a step is split over its requests by estimates.
    """
    cost = record.cost.usd if record.cost is not None else None
    return {
        "request_id": record.request_id or record.id,
        "id": record.id,
        "arrived": record.time,
        "engine": record.engine_id,
        "model": record.model,
        "profile": record.profile,
        "tier": record.tier,
        "lane": record.lane,
        "key": record.key or None,
        "path": record.path,
        "prompt_length": record.prompt_tokens,
        "cached_tokens": record.cached_tokens,
        "output_tokens": record.output_tokens,
        "tokens": record.prompt_tokens + record.output_tokens,
        "sequences": record.sequences,
        "guard_ms": _ms(record.guard_s),
        "queue_ms": _ms(record.queue_s),
        "prefill_time_ms": _ms(prefill_latency(record)),
        "delivery_ms": _ms(record.delivery_s),
        "ttft_ms": _ms(record.ttft_s),
        "decode_ttl_ms": {"p50": _ms(record.ttl_p50_s), "p99": _ms(record.ttl_p99_s)},
        "tpot_ms": _ms(record.tpot_s),
        "total_ms": _ms(record.total_s),
        "held_ms": _ms(record.held_s),
        "set_aside": record.set_aside,
        "preemptions": record.preemptions,
        "pages_peak": record.pages_peak,
        "steps": record.steps,
        "first_step": record.first_step,
        "last_step": record.last_step,
        "cost_usd": cost,
        "cost_estimated": None if cost is None else True,
        "finish": record.finish_reason,
        "error": record.error if record.error is None else record.error[:_MAX_ERROR],
    }


def log_request(ring: LogRing, record: RequestRecord) -> None:
    """Put the line of a request into the log, as compact JSON: a warning where it ended with an error."""
    level: LogLevel = "warning" if record.finish_reason == "error" else "info"
    ring.append(level, REQUEST, msgspec.json.encode(request_line(record)).decode())


def prefill_latency(record: RequestRecord) -> float | None:
    """Seconds from being scheduled to the first token; `None` where the request didn't come so far."""
    if record.prefill_s is None or record.first_decode_s is None:
        return None
    return record.prefill_s + record.first_decode_s


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 3)
