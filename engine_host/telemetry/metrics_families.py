"""Makes one family of Prometheus samples: the prefix, the label of the engine, and no sample for what is unknown."""

from collections.abc import Iterable, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from engine_host.telemetry.histogram import BoundedHistogram

Values = Mapping[str, float | None]
"""Values by the label's value; by the empty text where there is no label."""


class Families:
    """Families with the label `engine`, the engine's number."""

    def __init__(self, engine: str) -> None:
        self._engine = engine

    def gauge(self, name: str, text: str, label: str | None, values: Values) -> Metric:
        """What is so now, by at most one label."""
        return self._fill(GaugeMetricFamily(f"llmconsole_{name}", text, labels=self._labels(label)), label, values)

    def counter(self, name: str, text: str, label: str | None, values: Values) -> Metric:
        """What only grows, by at most one label; `_total` is added to the name."""
        return self._fill(CounterMetricFamily(f"llmconsole_{name}", text, labels=self._labels(label)), label, values)

    def histogram(self, name: str, text: str, histogram: BoundedHistogram) -> Metric:
        """Durations in seconds."""
        return self.histograms(name, text, None, {"": histogram})

    def histograms(self, name: str, text: str, label: str | None, each: Mapping[str, BoundedHistogram]) -> Metric:
        """Durations in seconds, by at most one label."""
        family = HistogramMetricFamily(f"llmconsole_{name}", text, labels=self._labels(label))
        for key, histogram in each.items():
            family.add_metric(self._key(label, key), histogram.cumulative(), histogram.total)
        return family

    def gauges(self, name: str, text: str, labels: tuple[str, ...], rows: Iterable[tuple[str | float, ...]]) -> Metric:
        """What is so now, by several labels: rows of their values, the sample's value last."""
        family = GaugeMetricFamily(f"llmconsole_{name}", text, labels=["engine", *labels])
        for *key, value in rows:
            family.add_metric([self._engine, *map(str, key)], float(value))
        return family

    def _fill(self, family: GaugeMetricFamily | CounterMetricFamily, label: str | None, values: Values) -> Metric:
        for key, value in values.items():
            if value is not None:
                family.add_metric(self._key(label, key), value)
        return family

    def _labels(self, label: str | None) -> list[str]:
        return ["engine"] if label is None else ["engine", label]

    def _key(self, label: str | None, key: str) -> list[str]:
        return [self._engine] if label is None else [self._engine, key]
