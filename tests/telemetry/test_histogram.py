"""Histograms for Prometheus: exact counts between their bounds."""

import pytest

from engine_host.telemetry.histogram import BoundedHistogram


def test_a_sample_on_a_bound_is_below_it_as_prometheus_counts() -> None:
    histogram = BoundedHistogram((0.1, 1.0))
    histogram.observe(0.1)
    histogram.observe(0.5, 3)
    histogram.observe(7.0)
    assert histogram.cumulative() == [("0.1", 1), ("1.0", 4), ("+Inf", 5)]
    assert histogram.total == pytest.approx(8.6)
