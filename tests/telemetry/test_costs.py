"""What ended requests have cost, by group; and where the price comes from."""

import pytest

from engine_host.api.figures import CostLine, GroupKind
from engine_host.api.records import RequestCost, RequestRecord
from engine_host.telemetry.cost import cost, rate_of
from engine_host.telemetry.costs import MAX_HOURS, MAX_KEYS, OTHER, CostBook
from engine_host.telemetry.meter import Rate
from profiles.schema import Cost


def record(prompt: int, cached: int, output: int, cost: RequestCost | None, **given: object) -> RequestRecord:
    fields: dict[str, object] = {
        "id": "r", "time": 7200.0, "model": "m", "profile": "p", "tier": "standard", "key": "k1", "lane": "short",
        "path": "/v1/completions", "prompt_tokens": prompt, "cached_tokens": cached, "output_tokens": output,
        "sequences": 1, "finish_reason": "stop", "error": None, "guard_s": None, "queue_s": None, "prefill_s": None,
        "first_decode_s": None, "delivery_s": None, "ttft_s": 0.1, "tpot_s": None, "ttl_p50_s": None,
        "ttl_p99_s": None, "total_s": 1.0, "cost": cost,
    }  # fmt: skip
    return RequestRecord(**{**fields, **given})  # type: ignore[arg-type]


def usd(prefill: float, decode: float, memory: float, saved: float | None = None) -> RequestCost:
    return RequestCost(1.0, 1.0, 1.0, prefill, decode, memory, saved)


def line(book: CostBook, kind: GroupKind, name: str = "") -> CostLine:
    (found,) = [each for each in book.lines() if (each.kind, each.name) == (kind, name)]
    return found


def test_money_is_split_over_computed_cached_and_produced_tokens_and_adds_up() -> None:
    book = CostBook()
    # 40 tokens computed, 10 found in the cache, 50 produced: the memory's 0.10 is spread over all 100.
    book.add(record(50, 10, 50, usd(0.4, 1.0, 0.1, saved=0.09)))
    found = line(book, "all")
    assert (found.input_tokens, found.cached_tokens, found.output_tokens) == (40, 10, 50)
    assert found.usd_per_million_input == pytest.approx(0.44 / 40 * 1e6)
    assert found.usd_per_million_cached == pytest.approx(0.01 / 10 * 1e6)
    assert found.usd_per_million_output == pytest.approx(1.05 / 50 * 1e6)
    assert (found.usd, found.usd_per_thousand_requests, found.saved_usd) == (pytest.approx(1.5), 1500.0, 0.09)


def test_each_group_has_its_own_sum() -> None:
    book = CostBook()
    book.add(record(10, 0, 1, usd(1.0, 0.0, 0.0)))
    book.add(record(10, 0, 1, usd(2.0, 0.0, 0.0), tier="premium", key="k2", model="n", profile="q", time=10_801.0))
    groups: tuple[tuple[GroupKind, str, str], ...] = (
        ("tier", "standard", "premium"),
        ("key", "k1", "k2"),
        ("model", "m", "n"),
        ("profile", "p", "q"),
        ("hour", "7200", "10800"),
    )
    for kind, first, second in groups:
        assert (line(book, kind, first).usd, line(book, kind, second).usd) == (1.0, 2.0)
    assert (line(book, "all").usd, line(book, "all").usd_per_thousand_requests) == (3.0, 1500.0)
    assert line(book, "all").saved_usd is None, "nobody could say what was saved"


def test_one_request_of_unknown_cost_makes_the_sum_unknown_and_not_less() -> None:
    book = CostBook()
    assert line(book, "all").usd is None, "nothing has been added up yet"
    book.add(record(10, 0, 1, usd(1.0, 0.0, 0.0)))
    book.add(record(10, 0, 1, RequestCost(1.0, 1.0, 1.0)))
    found = line(book, "all")
    assert (found.requests, found.usd, found.usd_per_million_input, found.saved_usd) == (2, None, None, None)


def test_what_was_never_computed_has_no_input_tokens() -> None:
    book = CostBook()
    book.add(record(900, 0, 0, usd(0.0, 0.0, 0.0), ttft_s=None, finish_reason="refused"))
    assert (line(book, "all").input_tokens, line(book, "all").usd_per_million_input) == (0, None)


def test_keys_and_hours_are_bounded_and_no_money_is_lost() -> None:
    book = CostBook()
    for number in range(MAX_KEYS + 10):
        book.add(record(1, 0, 1, usd(1.0, 0.0, 0.0), key=f"k{number}", time=3600.0 * number))
    keys = [each for each in book.lines() if each.kind == "key"]
    assert len(keys) == MAX_KEYS + 1
    assert sum(each.usd or 0.0 for each in keys) == MAX_KEYS + 10
    assert line(book, "key", OTHER).usd == 10.0
    hours = [each.name for each in book.lines() if each.kind == "hour"]
    assert hours == [str(3600 * number) for number in range(MAX_KEYS + 10)][-MAX_HOURS:]


def test_a_key_that_is_used_on_is_kept_and_an_hour_that_comes_late_is_an_old_one() -> None:
    book = CostBook()
    for number in range(MAX_KEYS + 10):
        book.add(record(1, 0, 1, usd(1.0, 0.0, 0.0), key="often"))
        book.add(record(1, 0, 1, usd(1.0, 0.0, 0.0), key=f"k{number}"))
    assert line(book, "key", "often").usd == MAX_KEYS + 10
    for hour in (*range(MAX_HOURS), 30, 0):
        book.add(record(1, 0, 1, usd(1.0, 0.0, 0.0), time=3600.0 * (100 + hour)))
    hours = [int(each.name) // 3600 - 100 for each in book.lines() if each.kind == "hour"]
    assert sorted(hours) == [*range(1, MAX_HOURS), 30]


def test_the_price_is_the_profile_s_else_the_table_s_and_says_which() -> None:
    own = rate_of(Cost(usd_per_hour=2.0), "night", "NVIDIA H200", 4, None)
    assert (own.usd_per_device_hour, own.source, own.estimated) == (2.0, "profile night", False)
    assert own.usd_per_s == pytest.approx(8 / 3600)
    listed = rate_of(Cost(), "night", "NVIDIA H200", 1, None)
    assert listed.estimated
    assert listed.usd_per_device_hour is not None
    nobody = rate_of(Cost(), "night", "Some CPU, 2 cores", 1, None)
    assert (nobody.usd_per_s, nobody.source) == (None, "no price set")


def test_energy_is_paid_for_where_it_is_priced_and_known() -> None:
    assert rate_of(Cost(usd_per_hour=0, usd_per_kwh=0.5), "p", "x", 1, 1000.0).usd_per_s == pytest.approx(0.5 / 3600)
    assert rate_of(Cost(usd_per_hour=0, usd_per_kwh=0.5), "p", "x", 1, None).usd_per_s == 0.0


def test_the_price_of_the_window_over_its_tokens() -> None:
    found = cost(Rate(2, 1.8, "list", True), output_tokens=1000, window_s=10.0)
    assert (found.usd_per_hour, found.price_source) == (3.6, "list (est.)")
    assert found.usd_per_million_output == pytest.approx(10.0)
    assert cost(Rate(), 1000, 10.0).usd_per_million_output is None
    assert cost(Rate(1, 1.0), 0, 10.0).usd_per_million_output is None
