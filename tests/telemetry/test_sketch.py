"""Sketches: the stated error, merging and taking back exactly, bytes that read back, and bytes that aren't ours."""

import math
import random
import zlib

import pytest
from ddsketch import DDSketch
from ddsketch.pb.proto import DDSketchProto
from hypothesis import given
from hypothesis import strategies as st

from engine_host.telemetry.sketch import LARGEST, MAX_BINS, RELATIVE_ERROR, SMALLEST, Sketch

durations = st.lists(st.floats(1e-6, 9e4, allow_subnormal=False) | st.just(0.0), max_size=60)
SHARES = (0.01, 0.5, 0.9, 0.99, 1.0)


def filled(values: list[float]) -> Sketch:
    sketch = Sketch()
    for value in values:
        sketch.add(value)
    return sketch


@given(durations.filter(bool))
def test_a_percentile_is_within_the_stated_error_of_the_true_sample(values: list[float]) -> None:
    ordered = sorted(values)
    true = [ordered[max(1, math.ceil(round(share * len(ordered), 6))) - 1] for share in SHARES]
    assert filled(values).quantiles(SHARES) == pytest.approx(true, rel=RELATIVE_ERROR * (1 + 1e-9), abs=0)


@given(durations, durations)
def test_merged_sketches_are_the_sketch_of_all_samples(some: list[float], more: list[float]) -> None:
    merged, of_all = filled(some), filled(some + more)
    merged.merge(filled(more))
    assert (merged.quantiles(SHARES), merged.count, len(merged)) == (
        of_all.quantiles(SHARES),
        of_all.count,
        len(of_all),
    )
    assert Sketch.from_bytes(merged.to_bytes()).quantiles(SHARES) == of_all.quantiles(SHARES)


@given(durations, durations)
def test_what_was_merged_can_be_taken_back(kept: list[float], passing: list[float]) -> None:
    sketch = filled(kept)
    sketch.merge(filled(passing))
    sketch.subtract(filled(passing))
    assert (sketch.quantiles(SHARES), sketch.count) == (filled(kept).quantiles(SHARES), len(kept))
    assert len(sketch) == len(filled(kept))
    assert Sketch.from_bytes(sketch.to_bytes()).count == len(kept)


def test_merging_leaves_the_other_sketch_as_it_was() -> None:
    merged, other = Sketch(), filled([1.0])
    merged.merge(other)
    merged.add(1.0)
    assert (merged.count, other.count) == (2, 1)


def test_a_gap_of_several_tokens_counts_by_weight() -> None:
    sketch = filled([1.0])
    sketch.add(2.0, 98)
    sketch.add(3.0)
    assert sketch.count == 100
    assert sketch.quantiles((0.01, 0.5, 0.99, 1.0)) == pytest.approx((1, 2, 2, 3), rel=RELATIVE_ERROR)


def test_what_no_clock_tells_apart_is_zero_and_what_is_too_long_is_the_longest() -> None:
    assert filled([0.0, -1.0, SMALLEST / 2]).quantiles((0.01, 1.0)) == (0.0, 0.0)
    assert filled([LARGEST * 100]).quantiles((0.5,)) == pytest.approx((LARGEST,), rel=RELATIVE_ERROR)
    assert filled([0.0, 1.0]).quantiles((0.5, 0.99)) == pytest.approx((0.0, 1.0), rel=RELATIVE_ERROR)


def test_nothing_has_no_percentile() -> None:
    assert Sketch().quantiles(SHARES) is None
    assert Sketch.from_bytes(Sketch().to_bytes()).count == 0


def test_memory_is_bounded_by_the_range_not_by_the_number_of_samples() -> None:
    rng = random.Random(7)
    sketch = filled([math.exp(rng.uniform(-20, 20)) for _ in range(60_000)])
    assert sketch.count == 60_000
    assert len(sketch) <= MAX_BINS < 3000
    assert Sketch.from_bytes(sketch.to_bytes()).count == 60_000


def test_a_minute_of_tokens_is_some_hundred_bytes() -> None:
    rng = random.Random(7)
    assert len(filled([rng.lognormvariate(-3.9, 0.4) for _ in range(6000)]).to_bytes()) < 1500


@pytest.mark.parametrize(
    ("raw", "told"),
    [
        (b"", "cut short"),
        (b"no sketch", "can't be decoded"),
        (zlib.compress(b"no sketch"), "can't be decoded"),
        (filled([1.0, 2.0]).to_bytes()[:-6], "cut short"),
        (zlib.compress(bytes(10_000_000)), "too long"),
        (zlib.compress(DDSketchProto.to_proto(DDSketch(0.01)).SerializeToString()), "another accuracy"),
    ],
)
def test_bytes_that_are_no_sketch_are_told_so(raw: bytes, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        Sketch.from_bytes(raw)
