"""The devices' readings as Prometheus gauges: every reading of every device, by one rule."""

from collections.abc import Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from engine_host.api.types import Device, Reading

_LABELS = ("device", "gpu", "uuid", "measure", "source")
_OF_THE_DEVICE = _LABELS[:3]

_FIVE = {
    "utilization": ("utilization_ratio", "How busy the device is, 0 to 1; the label measure says what was measured."),
    "memory_used": ("memory_used_bytes", "Memory in use."),
    "memory_total": ("memory_bytes", "Memory there is."),
    "power": ("power_watts", "Power drawn."),
    "temperature": ("temperature_celsius", "Temperature."),
}

_SUFFIXES = {
    "fraction": "_ratio",
    "bytes": "_bytes",
    "watts": "_watts",
    "celsius": "_celsius",
    "bytes/s": "_bytes_per_second",
    "flop/s": "_flops_per_second",
    "hertz": "_hertz",
    "joules": "_joules",
    "count": "",
    "words": "_degraded",
}
"""What a reading of `Device.more` has behind its name, by its unit."""


def device_metrics(devices: tuple[Device, ...]) -> Iterator[Metric]:
    """Five readings, those beyond, whether the device can be read, and the driver's last event.

    `gpu` is the GPU's index, empty for a CPU; slices of one GPU share it and differ in `uuid`. `measure` and `source`
    are the reading's label and call. Unknown and stale readings have no sample. One in words is 1 where that is a
    problem and 0 where not, its words in `reason`.
    """
    for field, (name, text) in _FIVE.items():
        family = GaugeMetricFamily(f"llmconsole_device_{name}", text, labels=_LABELS)
        for device in devices:
            _add(family, device, getattr(device, field))
        yield family
    yield from _more(devices)
    problem = GaugeMetricFamily(
        "llmconsole_device_problem", "1 while the device can't be read as it should.", labels=_OF_THE_DEVICE
    )
    events = GaugeMetricFamily(
        "llmconsole_device_last_event_timestamp_seconds",
        "When the driver last reported something, such as an Xid error.",
        labels=_OF_THE_DEVICE,
    )
    for device in devices:
        problem.add_metric(_names(device), float(device.problem is not None))
        if device.events:
            events.add_metric(_names(device), max(event.time for event in device.events))
    yield problem
    yield events


def _more(devices: Iterable[Device]) -> Iterator[Metric]:
    families: dict[str, GaugeMetricFamily | CounterMetricFamily] = {}
    for device in devices:
        for name, reading in device.more.items():
            key = f"llmconsole_device_{name.removesuffix(_SUFFIXES[reading.unit])}{_SUFFIXES[reading.unit]}"
            if key not in families:
                labels = (*_LABELS, "reason") if reading.unit == "words" else _LABELS
                kind = CounterMetricFamily if reading.unit == "joules" else GaugeMetricFamily
                families[key] = kind(key, f"{reading.label}.", labels=labels)
            _add(families[key], device, reading)
    yield from families.values()


def _add(family: GaugeMetricFamily | CounterMetricFamily, device: Device, reading: Reading) -> None:
    if reading.value is None or reading.stale:
        return
    words = [reading.text] if reading.unit == "words" else []
    family.add_metric([*_names(device), reading.label, reading.source, *words], reading.value)


def _names(device: Device) -> list[str]:
    return [device.name, str(device.index) if device.kind == "gpu" else "", device.uuid]
