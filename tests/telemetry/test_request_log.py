"""The line of a request, as the screen, the file and `llmconsole serve` show it."""

import json
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from engine_host.api.records import RequestCost, RequestRecord
from engine_host.logs.ring import MAX_TEXT, LogRing
from engine_host.logs.sinks import file_sink, json_sink
from engine_host.telemetry.request_log import log_request, request_line

RECORD = RequestRecord(
    id="chatcmpl-req-7",
    request_id="req-7",
    time=1_700_000_000.25,
    model="smollm2",
    profile="balanced",
    tier="premium",
    key="k1",
    lane="short",
    path="/v1/chat/completions",
    prompt_tokens=100,
    cached_tokens=64,
    output_tokens=11,
    sequences=1,
    finish_reason="stop",
    error=None,
    guard_s=0.002,
    queue_s=0.010,
    prefill_s=0.030,
    first_decode_s=0.005,
    delivery_s=0.001,
    ttft_s=0.048,
    tpot_s=0.0052,
    ttl_p50_s=0.005,
    ttl_p99_s=0.0071234567,
    total_s=0.1,
    pages_peak=7,
    steps=12,
    first_step=40,
    last_step=51,
    cost=RequestCost(0.01, 0.02, 0.0, 1e-6, 2e-6, 0.0, 5e-7),
    prompt="the prompt nobody may read",
    reply="the reply nobody may read",
)


def told(record: RequestRecord, tmp_path: Path) -> tuple[LogRing, dict[str, Any], str]:
    """The ring, the one JSON line of `llmconsole serve` and the line of the file."""
    ring = LogRing(clock=lambda: 1_700_000_001.0)
    read_end, write_end = os.pipe()
    ring.sinks += [json_sink(write_end), file_sink(tmp_path, ring)]
    log_request(ring, record)
    os.close(write_end)
    with open(read_end) as pipe:
        (line,) = pipe.read().splitlines()
    return ring, json.loads(line), (tmp_path / "llmconsole.log").read_text()


def test_the_line_says_where_time_tokens_and_money_went() -> None:
    line = request_line(RECORD)
    assert (line["request_id"], line["id"]) == ("req-7", "chatcmpl-req-7")
    assert (line["tier"], line["key"], line["finish"]) == ("premium", "k1", "stop")
    assert (line["prompt_length"], line["cached_tokens"], line["output_tokens"], line["tokens"]) == (100, 64, 11, 111)
    assert (line["queue_ms"], line["prefill_time_ms"], line["ttft_ms"]) == (10.0, 35.0, 48.0)
    assert line["guard_ms"] + line["queue_ms"] + line["prefill_time_ms"] + line["delivery_ms"] == line["ttft_ms"]
    assert line["decode_ttl_ms"] == {"p50": 5.0, "p99": 7.123}
    assert (line["first_step"], line["last_step"], line["pages_peak"]) == (40, 51, 7)
    assert line["cost_usd"] == pytest.approx(3e-6)
    assert line["cost_estimated"] is True


def test_what_is_unknown_is_null() -> None:
    aborted = msgspec.structs.replace(
        RECORD, finish_reason="abort", first_decode_s=None, ttft_s=None, ttl_p50_s=None, ttl_p99_s=None, key="",
        cached_tokens=None, cost=RequestCost(0.01),
    )  # fmt: skip
    line = json.loads(msgspec.json.encode(request_line(aborted)))
    assert line["decode_ttl_ms"] == {"p50": None, "p99": None}
    unknown = ("prefill_time_ms", "ttft_ms", "cached_tokens", "key", "cost_usd", "cost_estimated")
    assert [line[name] for name in unknown] == [None] * len(unknown)


def test_serve_writes_the_fields_at_the_top_of_one_object(tmp_path: Path) -> None:
    _, served, _ = told(RECORD, tmp_path)
    assert served == request_line(RECORD) | {
        "time": "2023-11-14T22:13:21.000+00:00",
        "level": "info",
        "source": "request",
    }


def test_the_screen_and_the_file_show_compact_json(tmp_path: Path) -> None:
    ring, _, line = told(RECORD, tmp_path)
    (record,) = ring.tail(1)
    assert record.text.startswith('{"request_id":"req-7","id":"chatcmpl-req-7",')
    assert line == f"2023-11-14T22:13:21.000+00:00 info    request: {record.text}\n"


def test_no_word_of_prompt_or_reply_is_written(tmp_path: Path) -> None:
    ring, served, line = told(RECORD, tmp_path)
    assert "nobody may read" not in line + json.dumps(served) + ring.tail(1)[0].text


def test_a_long_error_still_makes_a_whole_line(tmp_path: Path) -> None:
    failed = msgspec.structs.replace(RECORD, finish_reason="error", error='"' * 3 * MAX_TEXT)
    _, served, _ = told(failed, tmp_path)
    assert (served["level"], served["request_id"], served["finish"]) == ("warning", "req-7", "error")


def test_another_text_from_that_source_is_passed_on_as_it_is() -> None:
    read_end, write_end = os.pipe()
    ring = LogRing()
    ring.sinks.append(json_sink(write_end))
    for text in ('{"cut off', "[1]"):
        ring.append("info", "request", text)
    os.close(write_end)
    with open(read_end) as pipe:
        assert [json.loads(line)["event"] for line in pipe] == ['{"cut off', "[1]"]
