"""Rules about requests: those that wait, those that fail, those whose clients don't read; and the engine as a whole."""

from collections import Counter

import numpy as np

from engine_host.api.figures import Finding
from engine_host.doctor.pages import too_little
from engine_host.doctor.record import Record
from engine_host.doctor.words import count, percent, seconds

QUEUE_WINDOW_S = 60.0
"""Seconds over which the queue is watched: a burst that the engine takes in within a minute is no trouble."""

QUEUE_POINTS = 15
"""Seconds with a reading that make a trend."""

QUEUE_GROWTH = 5.0
"""Requests by which the queue has grown in that time: fewer come and go."""

CLIENT_S = 5.0
"""A client that reads empties the buffers in a round trip; one that doesn't for this long is stuck or overloaded."""

ERROR_RATE = 0.05
"""Share of requests that ended with an error of the engine's: none should, and one in twenty is felt."""

ERRORS = 3
"""Errors that make a rate worth telling."""

FULL_POOL = 0.95
"""Share of pages in use from which the pool is what holds requests back."""


def engine_failed(record: Record) -> Finding | None:
    """There is no engine, and the host has given up to start one."""
    state = record.snapshot.state
    if state.name != "failed" or too_little(record) is not None:
        return None
    return Finding(
        rule="engine-failed",
        severity="problem",
        title="The engine has failed",
        evidence=(state.reason or "The log has the reason.",),
        remedy=state.hint or "See the log; then start it again, or with another model or profile.",
        time=state.since,
    )


def queue_growing(record: Record) -> Finding | None:
    """Requests come faster than they are taken in."""
    points = [each for each in record.past if each.time > record.time - QUEUE_WINDOW_S and each.span_s <= 1]
    if len(points) < QUEUE_POINTS:
        return None
    times, waiting = np.array([each.time for each in points]), np.array([float(each.waiting) for each in points])
    slope = float(np.polyfit(times - times[0], waiting, 1)[0])
    took = float(times[-1] - times[0])
    thirds = [float(part.mean()) for part in np.array_split(waiting, 3)]
    if slope * took < QUEUE_GROWTH or not thirds[0] < thirds[1] < thirds[2]:
        return None
    gateway, now = record.snapshot.gateway, int(waiting[-1])
    evidence = [f"The queue grew from {waiting[0]:.0f} to {now} requests in {seconds(took)}: {slope:.2g} a second."]
    drain = gateway.drain_rps if gateway is not None else None
    if drain:
        evidence.append(
            f"{drain:.2g} requests a second are let in and {drain + slope:.2g} come; the last of them will wait for "
            f"about {seconds(now / drain)}."
        )
    return Finding(
        rule="queue-growing",
        severity="problem",
        title="The queue grows faster than it drains",
        evidence=tuple(evidence),
        remedy=_make_room(record, drain),
        time=record.time,
    )


def client_stalled(record: Record) -> Finding | None:
    """A client does not read its reply; the engine works for nobody."""
    stalled = sorted((each for each in record.stalled if each.seconds >= CLIENT_S), key=lambda each: -each.seconds)
    if not stalled:
        return None
    limit = record.profile.gateway.clients.stall_s
    return Finding(
        rule="client-stalled",
        severity="warning",
        title="A client does not read its reply",
        evidence=(
            f"The client of request {stalled[0].request} has taken nothing for {seconds(stalled[0].seconds)}.",
            f"{count(len(stalled), 'client')} took nothing for {seconds(CLIENT_S)} and more; each is cut off after "
            f"{seconds(limit)}.",
        ),
        remedy=f"See to that client and its network. To free its place sooner set gateway.clients.stall_s = "
        f"{max(limit / 2, CLIENT_S):g} (now {limit:g}).",
        time=record.time - stalled[0].seconds,
        request=stalled[0].request,
    )


def request_errors(record: Record) -> Finding | None:
    """Requests end with errors."""
    failed = [each for each in record.lately if each.finish_reason == "error"]
    if len(failed) < ERRORS or len(failed) < ERROR_RATE * len(record.lately):
        return None
    (said, times) = Counter(each.error or "without a sentence" for each in failed).most_common(1)[0]
    last = max(failed, key=lambda each: each.time)
    return Finding(
        rule="request-errors",
        severity="problem",
        title="Requests end with errors",
        evidence=(
            f"{len(failed)} of the last {count(len(record.lately), 'request')} did: "
            f"{percent(len(failed) / len(record.lately))}.",
            f"{count(times, 'time')}: {said}",
        ),
        remedy="See the log at that time. A request that kills engines is set aside by itself after its second time.",
        time=last.time,
        request=last.id,
    )


def ledger_problem(record: Record) -> Finding | None:
    """Rows of the ledger are not written."""
    ledger = record.telemetry.ledger if record.telemetry is not None else None
    if ledger is None or ledger.problem is None:
        return None
    return Finding(
        rule="ledger",
        severity="warning",
        title="The ledger is not written",
        evidence=(ledger.problem, f"{count(ledger.waiting, 'row')} wait, and {ledger.lost:,} are lost."),
        remedy=f"Make room for {ledger.path} or unlock it; serving goes on without it.",
        time=record.time,
    )


def _make_room(record: Record, drain: float | None) -> str:
    """What holds the engine back, and else when to turn requests away."""
    kv, load, profile = record.snapshot.kv, record.snapshot.load, record.profile
    most, ceiling = profile.scheduler.max_active, profile.allocated_requests
    if kv is not None and kv.used >= FULL_POOL * kv.pages:
        return (
            f"The KV pool is full ({kv.used:,} of {kv.pages:,} pages): give it more memory (engine.kv_cache_memory), "
            "or add a host."
        )
    if load.running >= most and ceiling > most:
        return f"Set scheduler.max_active = {min(2 * most, ceiling)} (now {most}); the engine has room for {ceiling}."
    queued = max(int(10 * drain), 1) if drain else 100
    return (
        f"Add a host, or turn requests away that would wait too long: gateway.lanes.max_queued = {queued} "
        f"(now {profile.gateway.lanes.max_queued}) or gateway.breaker.queue_delay_s = 10."
    )
