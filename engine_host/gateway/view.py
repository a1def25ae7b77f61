"""What screens and metrics are shown of the gateway."""

from collections.abc import Callable

import msgspec
import numpy as np

from engine_host.api.flight import FlightReader
from engine_host.api.types import GatewayStatus, KeyLine, RequestRow, Span, SpanName, UsageLine, Waterfall
from engine_host.gateway.accounts import key_account, tier_account
from engine_host.gateway.admission import Admission
from engine_host.gateway.keys import KeyStore
from engine_host.gateway.stores import Stores
from engine_host.gateway.ticket import Ticket
from engine_host.telemetry.hub import TelemetryHub
from profiles.schema import Profile


class GatewayView:
    """Reads the gateway's parts; changes nothing. `cost_so_far` tells what a live request is charged by now, in USD;
    `clock` is the admission's."""

    def __init__(
        self,
        admission: Admission,
        hub: TelemetryHub,
        stores: Stores,
        keys: KeyStore,
        rules: Callable[[], Profile],
        cost_so_far: Callable[[str], float | None],
        clock: Callable[[], float],
    ) -> None:
        self._admission = admission
        self._hub = hub
        self._stores = stores
        self._keys = keys
        self._rules = rules
        self._cost_so_far = cost_so_far
        self._clock = clock
        self._tier_usage: dict[str, tuple[UsageLine, ...]] = {}

    def status(self) -> GatewayStatus:
        """The queue, the tiers and the breaker, now."""
        status = self._admission.status(*self._hub.tier_latency())
        tiers = (msgspec.structs.replace(each, usage=self._tier_usage.get(each.name, ())) for each in status.tiers)
        return msgspec.structs.replace(status, tiers=tuple(tiers))

    def rows(self, rows: tuple[RequestRow, ...]) -> tuple[RequestRow, ...]:
        """Live requests with what the gateway knows of them, and what they are charged so far."""
        return tuple(self._row(row) for row in rows)

    def waterfall(self, request_id: str, flight: FlightReader | None) -> Waterfall | None:
        """Where a request's time went; `None` where there is none of that id, or not any more."""
        ticket = self._admission.ticket(request_id)
        return waterfall(ticket, self._clock(), flight) if ticket is not None else None

    async def keys(self) -> list[KeyLine]:
        """Every key, oldest first, with what it has used up. Raises `KeyStoreError`."""
        defaults, budgets = self._rules().keys, self._stores.budgets()
        return [
            record.line(await budgets.usage(key_account(record.id, record.limits, defaults)))
            for record in self._keys.list()
        ]

    async def refresh(self) -> None:
        """Ask the budgets what the tiers have used up; call it every few seconds."""
        budgets = self._stores.budgets()
        self._tier_usage = {
            name: await budgets.usage(tier_account(name, tier)) for name, tier in self._rules().tiers.items()
        }

    def _row(self, row: RequestRow) -> RequestRow:
        ticket = self._admission.ticket(row.id)
        if ticket is None:
            return row
        waiting = self._clock() - ticket.entered if ticket.turn is not None and ticket.entered is not None else 0.0
        state = row.state
        if ticket.is_held:
            state = "held"
        elif ticket.admitted is None:
            state = "queued"
        return msgspec.structs.replace(
            row,
            state=state,
            tier=ticket.tier,
            key=ticket.caller.name,
            lane=ticket.lane,
            waited_s=ticket.waited + waiting,
            cost_usd=self._cost_so_far(row.id),
        )


def waterfall(ticket: Ticket, now: float, flight: FlightReader | None) -> Waterfall:
    """The parts of a request's time, each ending where the next begins. Times from its first byte."""
    marks: tuple[tuple[SpanName, float | None], ...] = (
        ("received", ticket.began),
        ("validated", ticket.arrived),
        ("queued", ticket.queued),
        ("scheduled", ticket.first_admitted),
        ("prefill", ticket.scheduled),
        ("decode", ticket.first_token),
        ("done", ticket.ended),
    )
    reached = [(name, at - ticket.began) for name, at in marks if at is not None]
    ends = [*(at for _, at in reached[1:]), reached[-1][1] if ticket.ended is not None else None]
    tokens = {"prefill": ticket.prompt_tokens, "decode": ticket.output_tokens}
    why = str(ticket.refusal) if ticket.refusal is not None else ""
    spans = [
        Span(name, at, end, tokens.get(name), why if name == "done" else "")
        for (name, at), end in zip(reached, ends, strict=True)
    ]
    for begin, until in ticket.held:
        end = until - ticket.began if until is not None else None
        spans.append(Span("held", begin - ticket.began, end, note="set aside" if ticket.resumes else "rebuild"))
    return Waterfall(
        id=ticket.request_id,
        tier=ticket.tier,
        key=ticket.caller.name,
        lane=ticket.lane,
        prompt_tokens=ticket.prompt_tokens,
        output_tokens=ticket.output_tokens,
        finish_reason=ticket.finish_reason,
        spans=tuple(spans),
        chunks=_chunks(ticket, now, flight),
    )


def _chunks(ticket: Ticket, now: float, flight: FlightReader | None) -> tuple[float, ...]:
    """Beginnings of the steps that computed prompt tokens while this request was in prefill, its own or others'."""
    if flight is None or ticket.scheduled is None:
        return ()
    rows = flight.read_steps().rows
    # A step is stamped when it is scheduled; the one that scheduled the request is its first.
    until = ticket.first_token if ticket.first_token is not None else ticket.ended if ticket.ended is not None else now
    inside = (rows["time"] >= ticket.scheduled - 1e-3) & (rows["time"] < until) & (rows["prefill"] > 0)
    return tuple(float(each) - ticket.began for each in np.asarray(rows["time"][inside]))
