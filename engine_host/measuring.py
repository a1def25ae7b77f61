"""What the host measures and keeps: puts together the accounting, the books, the ledger, the traces and the log."""

import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from engine_host.api.figures import BillPart, Telemetry
from engine_host.api.records import EventRecord, MinuteRecord, RequestRecord
from engine_host.api.types import ChangeRecord, Cost, Device
from engine_host.books import RequestBook, Served
from engine_host.gateway.ticket import Ticket
from engine_host.ledger.file import LEDGER_FILE
from engine_host.ledger.ledger import Ledger
from engine_host.logs.ring import LogRing
from engine_host.telemetry.accounting import Accounting, EngineFacts
from engine_host.telemetry.cost import cost, rate_of
from engine_host.telemetry.costs import CostBook
from engine_host.telemetry.device import DeviceSampler
from engine_host.telemetry.hub import TelemetryHub
from engine_host.telemetry.meter import Rate
from engine_host.telemetry.request_log import log_request
from engine_host.telemetry.traces import Traces
from engine_host.version import own_version
from profiles.schema import Profile

LATELY = 500
"""Ended requests kept for the doctor."""

MINUTE_S = 60


class Measuring:
    """Everything that is measured in one run of the host. `tick` it a few times a second on the event loop.

    `rules` is the profile in force, `served` what is served under which name, `facts` what is known of the engine.
    """

    def __init__(
        self,
        hub: TelemetryHub,
        sampler: DeviceSampler,
        ring: LogRing,
        data_dir: Path,
        rules: Callable[[], Profile],
        served: Callable[[], Served],
        facts: Callable[[], EngineFacts],
    ) -> None:
        self._hub = hub
        self._sampler = sampler
        self._ring = ring
        self._rules = rules
        self._served = served
        self._facts = facts
        self.accounting = Accounting(hub, self._rate, lambda: rules().cost.memory_share)
        self.costs = CostBook()
        self.lately: deque[RequestRecord] = deque(maxlen=LATELY)
        self.ledger = Ledger(data_dir / LEDGER_FILE, lambda: rules().ledger, self._tell)
        self._traces = Traces(lambda: rules().log.otlp_endpoint, own_version())
        self.book = RequestBook(self.accounting.meter, hub, served, time.monotonic, time.time, (self._ended,))
        self._minute = int(time.time() // MINUTE_S)
        self._bill = self.accounting.bill()
        self._energy: float | None = None

    def start(self) -> None:
        """Open the ledger."""
        self.ledger.start()

    def tick(self) -> None:
        """Take in what the engine and the devices did since the last call."""
        devices = self._sampler.readings()
        self._hub.device_levels(
            _mean([each.utilization.value for each in devices]),
            _sum([each.power.value for each in devices]),
            _sum([each.memory_used.value for each in devices]),
        )
        try:
            self.accounting.tick(self._facts())
        finally:
            self.book.tick()
        if (minute := int(time.time() // MINUTE_S)) != self._minute:
            self.ledger.minute(self._minute_record(devices))
            self._minute = minute

    def close(self) -> None:
        """Write down what is left; call it from a thread once no request can come any more, after `finish`."""
        self.ledger.close()
        self._traces.close()

    def finish(self) -> None:
        """Close the books, on the event loop."""
        try:
            self.accounting.tick(self._facts())
        finally:
            # Budgets wait for it, and the host for them.
            self.book.close()
        self.ledger.minute(self._minute_record(self._sampler.readings()))

    def event(self, change: ChangeRecord) -> None:
        """Keep a change or a recovery that has ended."""
        self.ledger.event(
            EventRecord(
                change.time,
                change.kind,
                change.old,
                change.new,
                change.who,
                change.why,
                change.outcome,
                change.message,
                change.stalled_s,
            )
        )

    def cost(self) -> Cost:
        """What running costs now."""
        return cost(self.accounting.meter.rate, *self._hub.produced())

    def usd_per_token(self) -> float | None:
        """Estimate: the price of the devices over the tokens that they compute now."""
        rate = self.accounting.meter.rate.usd_per_s
        return self._hub.usd_per_token(rate * 3600 if rate is not None else None)

    def telemetry(self) -> Telemetry:
        """Everything measured, now."""
        return Telemetry(
            time=time.time(),
            latencies=self._hub.latencies(),
            parts=self._hub.parts(),
            prefill_by_length=self._hub.prefill_by_length(),
            steps=self.accounting.step_figures(),
            roofline=self.accounting.roofline(),
            bill=self.accounting.bill(),
            costs=self.costs.lines(),
            devices=self._sampler.readings(),
            sampler_cost=self._sampler.cost(),
            ledger=self.ledger.status(),
        )

    def _ended(self, record: RequestRecord, ticket: Ticket) -> None:
        """A request's books are closed: tell everybody."""
        self.costs.add(record)
        self.lately.append(msgspec.structs.replace(record, prompt=None, reply=None))
        self.ledger.request(record)
        self._traces.request(record, ticket.traceparent)
        if self._rules().log.requests:
            log_request(self._ring, record)

    def _tell(self, sentence: str) -> None:
        self._ring.append("warning", "host", sentence)

    def _rate(self, devices: int) -> Rate:
        rules, device = self._rules(), self._sampler.reading()
        return rate_of(rules.cost, self._served().profile, device.name, devices, self._sampler.watts(devices))

    def _minute_record(self, devices: Sequence[Device]) -> MinuteRecord:
        tally, served = self._hub.minute(), self._served()
        before, self._bill = self._bill, self.accounting.bill()
        energy = _sum([each.more["energy"].value if "energy" in each.more else None for each in devices])
        used = energy - self._energy if energy is not None and self._energy is not None else None
        self._energy = energy
        ttft, ttl = tally.ttft.quantiles((0.5, 0.99)), tally.ttl.quantiles((0.5, 0.99))
        ended = tally.finished
        temperatures = [each.temperature.value for each in devices if each.temperature.value is not None]
        return MinuteRecord(
            time=float(self._minute * MINUTE_S),
            model=served.model,
            profile=served.profile,
            finished=ended.get("stop", 0) + ended.get("length", 0),
            failed=ended.get("error", 0),
            aborted=ended.get("abort", 0),
            refused=ended.get("refused", 0),
            prefill_tokens=tally.prefill,
            decode_tokens=tally.decode,
            output_tokens=tally.output,
            cached_tokens=tally.prefix_hits,
            queried_tokens=tally.prefix_queries,
            running=tally.running,
            waiting=tally.waiting,
            ttft_p50=ttft[0] if ttft else None,
            ttft_p99=ttft[1] if ttft else None,
            ttl_p50=ttl[0] if ttl else None,
            ttl_p99=ttl[1] if ttl else None,
            ttft=tally.ttft.to_bytes(),
            ttl=tally.ttl.to_bytes(),
            kv_used=tally.kv_used,
            utilization=tally.utilization,
            utilization_label=devices[0].utilization.label if devices else "",
            memory_used=tally.memory_used,
            power_w=tally.power,
            energy_j=used,
            temperature_c=max(temperatures, default=None),
            steps=tally.steps,
            preemptions=tally.preempted,
            fill_rate=tally.fill_rate,
            seconds=_since(before.seconds, self._bill.seconds),
            usd=_since(before.usd or {}, self._bill.usd) if self._bill.usd is not None else None,
            price_estimated=self._bill.estimated,
        )


def _since(before: dict[BillPart, float], now: dict[BillPart, float]) -> dict[str, float]:
    return {part: value - before.get(part, 0.0) for part, value in now.items()}


def _sum(values: list[float | None]) -> float | None:
    known = [each for each in values if each is not None]
    return sum(known) if known and len(known) == len(values) else None


def _mean(values: list[float | None]) -> float | None:
    total = _sum(values)
    return total / len(values) if total is not None else None
