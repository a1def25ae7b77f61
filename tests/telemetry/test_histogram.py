"""Percentiles keep their stated error, and memory stays bounded."""

import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_host.telemetry.histogram import (
    LARGEST,
    MAX_BUCKETS,
    RELATIVE_ERROR,
    SMALLEST,
    BoundedHistogram,
    LogHistogram,
    bucket,
)

durations = st.lists(st.floats(min_value=SMALLEST, max_value=LARGEST), min_size=1, max_size=300)
SHARES = (0.01, 0.5, 0.9, 0.99, 1.0)


def filled(values: list[float]) -> LogHistogram:
    histogram = LogHistogram()
    for value in values:
        histogram.record(bucket(value))
    return histogram


@given(durations)
def test_percentiles_are_within_the_stated_error_of_numpy(values: list[float]) -> None:
    exact = np.percentile(values, [share * 100 for share in SHARES], method="inverted_cdf")
    found = filled(values).percentiles(SHARES)
    assert found is not None
    np.testing.assert_allclose(found, exact, rtol=RELATIVE_ERROR * (1 + 1e-6))


@given(durations, durations)
def test_taking_back_what_was_added_leaves_no_trace(kept: list[float], passing: list[float]) -> None:
    histogram, other = filled(kept), filled(passing)
    histogram.add(other)
    histogram.subtract(other)
    assert histogram.percentiles(SHARES) == filled(kept).percentiles(SHARES)
    assert (histogram.count, len(histogram)) == (len(kept), len(filled(kept)))


def test_a_bucket_recorded_many_times_counts_as_many_samples() -> None:
    histogram = filled([1.0])
    histogram.record(bucket(2.0), 98)
    histogram.record(bucket(3.0))
    assert histogram.percentiles((0.01, 0.5, 0.99, 1.0)) == pytest.approx((1, 2, 2, 3), rel=RELATIVE_ERROR)


def test_no_sample_has_no_percentile() -> None:
    assert LogHistogram().percentiles((0.5,)) is None


@pytest.mark.parametrize(("value", "shown"), [(0.0, 0.0), (SMALLEST / 2, 0.0), (math.inf, LARGEST), (1e9, LARGEST)])
def test_values_out_of_range_are_counted_at_its_ends(value: float, shown: float) -> None:
    assert filled([value]).percentiles((1.0,)) == pytest.approx((shown,), rel=RELATIVE_ERROR)


def test_a_million_samples_take_no_more_buckets_than_the_range_has() -> None:
    rng = random.Random(7)
    histogram = LogHistogram()
    for _ in range(1_000_000):
        histogram.record(bucket(math.exp(rng.uniform(-20, 20))))
    assert histogram.count == 1_000_000
    assert len(histogram) <= MAX_BUCKETS < 3000


def test_prometheus_buckets_are_cumulative_and_exact_at_the_bounds() -> None:
    histogram = BoundedHistogram((0.1, 1.0))
    histogram.observe(0.1)
    histogram.observe(0.5, 3)
    histogram.observe(7.0)
    assert histogram.cumulative() == [("0.1", 1), ("1.0", 4), ("+Inf", 5)]
    assert histogram.total == pytest.approx(8.6)
