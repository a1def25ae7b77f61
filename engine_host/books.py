"""Closes the books on each request: when the last step that worked for it is accounted for, its record is complete."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from engine_host.api.records import FinishReason, RequestCost, RequestRecord
from engine_host.gateway.ticket import Ticket
from engine_host.telemetry.accounts import Account
from engine_host.telemetry.hub import TelemetryHub
from engine_host.telemetry.latency_requests import Ended
from engine_host.telemetry.meter import CostMeter

OVERDUE_S = 10.0
"""A request whose engine doesn't say that it has left is closed once so much time is accounted for after its end, with
what is known by then. An abort takes effect when the step under way ends, and until then nothing is accounted for."""

_REASONS: dict[str, FinishReason] = {"stop": "stop", "length": "length", "abort": "abort", "repetition": "stop"}

Sink = Callable[[RequestRecord, Ticket], None]


@dataclass
class _Open:
    ticket: Ticket
    reason: str
    ended: Ended | None
    error: str | None
    at: float
    ticks: int = 0


@dataclass(frozen=True)
class Served:
    """What was served by what while a request was here."""

    model: str
    profile: str


class RequestBook:
    """Makes the record of each request that has ended, and hands it to the `sinks`.

    `served` tells the model and the profile in force; `clock` is `time.monotonic`, `wall` Unix time.
    """

    def __init__(
        self,
        meter: CostMeter,
        hub: TelemetryHub,
        served: Callable[[], Served],
        clock: Callable[[], float],
        wall: Callable[[], float],
        sinks: Sequence[Sink] = (),
    ) -> None:
        self._meter = meter
        self._hub = hub
        self._served = served
        self._clock = clock
        self._offset = wall() - clock()
        self._sinks = tuple(sinks)
        self._open: dict[Ticket, _Open] = {}
        self._asked: dict[Ticket, asyncio.Future[float | None]] = {}
        self._over = False

    @property
    def profile(self) -> str:
        """The profile in force."""
        return self._served().profile

    def cost_so_far(self, request_id: str) -> float | None:
        """USD that a live request is charged by now; `None` if it isn't known, or without a price."""
        account = self._meter.account(request_id)
        return account.cost().usd if account is not None else None

    async def cost_of(self, ticket: Ticket) -> float | None:
        """Wait for a request to be closed; what it has cost in USD, `None` without a price, or once all is closed."""
        if self._over:
            return None
        future = self._asked.setdefault(ticket, asyncio.get_running_loop().create_future())
        return await future

    def ended(self, ticket: Ticket, reason: str, ended: Ended | None, error: str | None) -> None:
        """A request has ended; `error` is the sentence its client got. It is closed by one of the next ticks; at once,
        where there are no more of them."""
        self._open[ticket] = each = _Open(ticket, reason, ended, error, self._clock())
        if self._over:
            self._close(each)

    def tick(self) -> None:
        """Close what can be closed; call it each time after the meter was fed."""
        for each in tuple(self._open.values()):
            each.ticks += 1
            # What was in the engine in its last moment has been fed by the second tick after.
            settled = each.ticks > 1 and self._meter.settled(each.ticket.request_id)
            if settled or self._meter.until - each.at > OVERDUE_S:
                self._close(each)

    def close(self) -> None:
        """Close all that is open, with what is known: the host ends."""
        self._over = True
        try:
            for each in tuple(self._open.values()):
                self._close(each)
        finally:
            for future in self._asked.values():
                if not future.done():
                    future.set_result(None)
            self._asked.clear()

    def _close(self, each: _Open) -> None:
        del self._open[each.ticket]
        account = self._meter.close(each.ticket.request_id) or Account()
        record = self._record(each, account)
        future = self._asked.pop(each.ticket, None)
        if future is not None and not future.done():
            future.set_result(record.cost.usd if record.cost is not None else None)
        self._tell_hub(record, each.ticket)
        for sink in self._sinks:
            sink(record, each.ticket)
        # The gateway remembers the ticket for a while, and needs no texts for that.
        each.ticket.prompt_text = each.ticket.reply_text = None

    def _record(self, each: _Open, account: Account) -> RequestRecord:
        ticket, ended, served = each.ticket, each.ended, self._served()
        cached = ended.cached_tokens if ended is not None else None
        parts = ttft_parts(ticket, ended, account.prompt_step_began)
        return RequestRecord(
            id=ticket.request_id,
            request_id=ticket.client_id,
            time=ticket.arrived + self._offset,
            model=served.model,
            profile=ticket.profile or served.profile,
            tier=ticket.tier,
            key=ticket.caller.key_id,
            lane=ticket.lane,
            path=ticket.path,
            prompt_tokens=ticket.prompt_tokens,
            cached_tokens=cached,
            output_tokens=ticket.output_tokens,
            sequences=ticket.sequences,
            finish_reason="refused" if ticket.refusal is not None else _REASONS.get(each.reason, "error"),
            error=each.error,
            guard_s=parts[0],
            queue_s=parts[1],
            prefill_s=parts[2],
            first_decode_s=parts[3],
            delivery_s=parts[4],
            ttft_s=ended.ttft_s if ended is not None else None,
            tpot_s=ended.tpot_s if ended is not None else None,
            ttl_p50_s=ended.ttl_p50_s if ended is not None else None,
            ttl_p99_s=ended.ttl_p99_s if ended is not None else None,
            total_s=max(0.0, (ticket.ended if ticket.ended is not None else each.at) - ticket.arrived),
            held_s=ticket.held_since(ticket.arrived, each.at),
            set_aside=ticket.resumes,
            preemptions=account.preemptions,
            pages_peak=account.pages_peak or None,
            steps=account.steps,
            first_step=account.first_step,
            last_step=account.last_step,
            cost=self._cost(account, cached or 0),
            prompt=ticket.prompt_text,
            shared_prefix=ticket.shared_prefix,
            reply="".join(ticket.reply_text) if ticket.reply_text is not None else None,
        )

    def _cost(self, account: Account, cached: int) -> RequestCost | None:
        cost = account.cost(self._meter.saved_usd(cached) if cached else 0.0)
        if not account.steps and self._meter.rate.usd_per_s is None:
            return RequestCost()  # Nothing was spent on it, but nobody knows of how much.
        return cost

    def _tell_hub(self, record: RequestRecord, ticket: Ticket) -> None:
        parts = (record.guard_s, record.queue_s, record.prefill_s, record.first_decode_s, record.delivery_s)
        known = [each for each in parts if each is not None]
        now = self._clock()
        if len(known) == len(parts):
            self._hub.ttft_parts(known, now)
        if record.prefill_s is not None:
            self._hub.prefilled(ticket.prompt_tokens, record.prefill_s + (record.first_decode_s or 0.0), now)


def ttft_parts(ticket: Ticket, ended: Ended | None, prompt_step_began: float | None) -> tuple[float | None, ...]:
    """Guard, queue, prefill, first decode and delivery in seconds; `None` from the first that isn't known on.

    All that are there add up to the time from arrival to the last of them, which is TTFT where all are.
    """
    marks: list[float | None] = [ticket.arrived, ticket.queued, ticket.scheduled, prompt_step_began, ticket.computed]
    if ended is not None and ended.ttft_s is not None:
        marks.append(ticket.arrived + ended.ttft_s)
    else:
        marks[3:] = [None, None]
        marks.append(None)
    parts: list[float | None] = []
    at: float = ticket.arrived
    end = marks[-1]
    for mark in marks[1:]:
        if mark is None or (parts and parts[-1] is None):
            parts.append(None)
            continue
        # Clocks of two processes, and steps that overlap: none goes back, none beyond the end.
        mark = max(at, mark if end is None else min(mark, end))
        parts.append(mark - at)
        at = mark
    return tuple(parts)
