"""Rules about the pace of steps: what makes one long, and what makes all of them slow."""

import numpy as np

from engine_host.api.figures import Finding
from engine_host.api.flight import DECODE
from engine_host.doctor.record import Record
from engine_host.doctor.steps import Recent, recent
from engine_host.doctor.words import count, percent, round_down, seconds

STEPS = 8
"""Steps without a prompt that make a median to compare with."""

STALL_FACTOR = 4.0
"""Times the median of steps that compute no prompt: a few of these are the noise of a machine that is shared."""

STALL_S = 0.1
"""A pause that readers of a stream see: the limit of what feels instantaneous (Nielsen, Usability Engineering, 1993).
Where the profile has a target for TTL, that counts instead."""

LONG_STALL_S = 1.0
"""The limit of an uninterrupted flow of thought (same source): from here on a stall is a problem."""

ONE_PROMPT = 0.5
"""Share of a step's prompt tokens of one request from which it is that prompt which makes the step long."""

LONG_TOKENS = 64
"""Prompt tokens of one request in a step from which its prompt is long: four of the smallest chunks suggested here."""

EXPLAINED = 0.5
"""Share of a step's time that its tokens must account for, at the usual time a token: what is beyond is a hiccup of the
machine, as other processes make them."""

FULL = 0.9
"""Share of the token budget from which a step counts as full."""

FULL_STEPS = 3
"""Full steps that make a median."""

GAP_SHARE = 0.2
"""Share of the time between steps while requests run. An engine that is well fed needs less than 5 %."""

GAP_STEPS = 20
"""Steps that make a share of time worth telling."""

STEAL = 0.05
"""Share of processor time that the hypervisor gives to others: above, the machine has less than it seems to have."""

_GRAIN = 16
"""Suggested numbers of tokens are multiples of it, as vLLM's own defaults are."""


def long_prompt_stall(record: Record) -> Finding | None:
    """One long prompt holds up the tokens of all others."""
    steps = recent(record)
    median, target = steps.decode_median(STEPS), ttl_target(record)
    if not median or not steps.mixed.any():
        return None
    limit = target[0] if target is not None else STALL_S
    slow = steps.mixed & (steps.seconds >= STALL_FACTOR * median) & (steps.seconds > limit)
    slow &= steps.rows["prefill"] > steps.rows["decode"]
    slow &= median + _prompt_token(steps, median) * steps.rows["prefill"] >= EXPLAINED * steps.seconds
    by_time = sorted(np.flatnonzero(slow).tolist(), key=lambda each: -steps.seconds[each])
    index = next((each for each in by_time if _one_prompt(steps, each)), None)
    found = steps.longest_prompt(index) if index is not None else None
    if index is None or found is None:
        return None
    row, took, (named, tokens) = steps.rows[index], float(steps.seconds[index]), found
    length = f" (prompt of {named.prompt_tokens:,} tokens)" if named.prompt_tokens is not None else ""
    waiting = int((steps.shares_of(index)["kind"] == DECODE).sum())
    evidence = (
        f"Step {row['number']} took {seconds(took)}, {took / median:.1f} times the {seconds(median)} of a step that "
        "computes no prompt (median).",
        f"It computed {row['prefill']:,} prompt tokens, {tokens:,} of them for request {named.id}{length}, while "
        f"{count(waiting, 'request')} waited for the next token.",
        f"{count(int(slow.sum()), 'step')} of the last minute took {STALL_FACTOR:.0f} times the median and more than "
        f"{seconds(limit)}.",
    )
    aim = max(limit, 2 * median)
    chunk = _tokens_in(aim - median, (took - median) / int(row["prefill"]))
    threshold = record.profile.scheduler.long_prefill_threshold
    if 0 < threshold <= chunk:
        knob = f"scheduler.token_budget = {chunk + int(row['decode'])} (now {row['budget']:,})"
    else:
        knob = f"scheduler.long_prefill_threshold = {chunk} (now {threshold or 'no limit'})"
    return Finding(
        rule="long-prompt-stall",
        severity="problem" if took >= LONG_STALL_S else "warning",
        title="A long prompt stalls decoding",
        evidence=evidence,
        remedy=f"Set {knob}: at the measured time a prompt token, such a step takes {seconds(aim)} at most.",
        time=steps.unix(index),
        step=int(row["number"]),
        request=named.id,
    )


def token_budget(record: Record) -> Finding | None:
    """Full steps take longer than a token may."""
    steps, target = recent(record), ttl_target(record)
    if target is None:
        return None
    rows = steps.rows
    full = steps.mixed & (rows["prefill"] + rows["decode"] >= FULL * rows["budget"])
    if full.sum() < FULL_STEPS:
        return None
    limit, knob = target
    times, prefill, decode = steps.seconds[full], rows["prefill"][full], rows["decode"][full]
    took, base = float(np.median(times)), steps.decode_median(FULL_STEPS) or 0.0
    if took <= limit:
        return None
    worst = int(np.flatnonzero(full)[np.argmax(times)])
    cost = float(np.median(np.maximum(times - base, 0.0) / prefill))
    evidence = [
        f"The target is {seconds(limit)} a token ({knob}); the {count(len(times), 'full step')} of the last minute "
        f"took {seconds(took)} (median), and step {rows['number'][worst]} {seconds(float(times.max()))}.",
        f"The budget is {rows['budget'][worst]:,} tokens a step; a prompt token took {seconds(cost)}.",
    ]
    if base:
        evidence.append(f"A step that computes no prompt took {seconds(base)} (median).")
    if base >= limit:
        remedy = (
            f"No budget meets this target: lower scheduler.max_active (now {record.profile.scheduler.max_active}), "
            "or raise the target."
        )
    else:
        fits = _tokens_in(limit - base, cost) + int(np.median(decode))
        remedy = f"Set scheduler.token_budget = {fits} (now {rows['budget'][worst]})"
        most = record.profile.scheduler.max_active
        remedy += f", and scheduler.max_active to no more than that (now {most})." if most > fits else "."
    return Finding(
        rule="token-budget",
        severity="problem",
        title="The token budget is too large for the TTL target",
        evidence=tuple(evidence),
        remedy=remedy,
        time=steps.unix(worst),
        step=int(rows["number"][worst]),
    )


def launch_bound(record: Record) -> Finding | None:
    """Decoding waits for kernels to be launched rather than for the device."""
    eager = record.profile.engine.enforce_eager
    decode = record.telemetry.roofline.decode if record.telemetry is not None else None
    if record.snapshot.device.kind != "gpu" or decode is None:
        return None
    if decode.verdict != "launch-bound" and not (eager and decode.verdict == "unknown"):
        return None
    steps = recent(record)
    median = steps.decode_median(1)
    evidence = [f"Decode is {decode.verdict}: {decode.why}".rstrip(".") + "."]
    if median is not None:
        size = float(np.median(steps.rows["decode"][steps.plain_decode]))
        evidence.append(f"A step of {count(size, 'token')} takes {seconds(median)} (median).")
    if eager:
        evidence.append("engine.enforce_eager is true: each kernel is launched by itself, without CUDA graphs.")
    remedy = (
        "Set engine.enforce_eager = false."
        if eager
        else "Let more requests run at once: raise scheduler.max_active "
        f"(now {record.profile.scheduler.max_active}), or share the device with another model."
    )
    return Finding(
        rule="launch-bound",
        severity="problem" if eager and decode.verdict == "launch-bound" else "warning",
        title="Decoding is bound by kernel launches",
        evidence=tuple(evidence),
        remedy=remedy,
        time=record.time,
    )


def host_starved(record: Record) -> Finding | None:
    """The engine waits for the host's processors between its steps."""
    steps = recent(record)
    gaps, took = float(steps.gaps.sum()), float(steps.seconds.sum())
    if len(steps.rows) < GAP_STEPS or gaps < GAP_SHARE * (gaps + took):
        return None
    worst, host = int(np.argmax(steps.gaps)), record.processor
    evidence = [
        f"Requests ran, and {percent(gaps / (gaps + took))} of the time of the last "
        f"{count(len(steps.rows), 'step')} lay between steps; the longest pause, {seconds(float(steps.gaps[worst]))}, "
        f"was before step {steps.rows['number'][worst]}."
    ]
    loaded = host.cores is not None and host.load is not None and host.load > host.cores
    stolen = host.steal is not None and host.steal >= STEAL
    if host.cores is not None and host.load is not None:
        evidence.append(f"The load is {host.load:.1f} on {count(host.cores, 'core')} (1 min).")
    if stolen and host.steal is not None:
        evidence.append(f"The hypervisor gave {percent(host.steal)} of the processor time to others.")
    threads = max((host.cores or 2) - 1, 1)
    remedy = "Give the host more cores, or end what else runs on it"
    if record.snapshot.device.kind == "cpu":
        remedy += f"; start it with OMP_NUM_THREADS={threads}, so that a core is left beside the engine"
    return Finding(
        rule="host-starved",
        severity="problem" if loaded or stolen else "warning",
        title="The host's processors are starved",
        evidence=tuple(evidence),
        remedy=f"{remedy}.",
        time=steps.unix(worst),
        step=int(steps.rows["number"][worst]),
    )


def ttl_target(record: Record) -> tuple[float, str] | None:
    """The strictest TTL target in seconds, of the tiers in use and of the profile, and the knob that sets it."""
    profile, gateway = record.profile, record.snapshot.gateway
    used = {each.name for each in gateway.tiers if each.active or each.finished} if gateway is not None else None
    targets = [
        (tier.ttl_target_ms, f"tiers.{name}.ttl_target_ms")
        for name, tier in profile.tiers.items()
        if tier.ttl_target_ms is not None and (used is None or name in used)
    ]
    if profile.targets.ttl_ms is not None:
        targets.append((profile.targets.ttl_ms, "targets.ttl_ms"))
    return (min(targets)[0] / 1000, min(targets)[1]) if targets else None


def _one_prompt(steps: Recent, index: int) -> bool:
    found = steps.longest_prompt(index)
    return found is not None and found[1] >= max(ONE_PROMPT * int(steps.rows["prefill"][index]), LONG_TOKENS)


def _prompt_token(steps: Recent, base: float) -> float:
    """Seconds that a prompt token adds to a step of `base` seconds, over all steps with prompts."""
    some = steps.rows["prefill"] > 0
    return float(np.maximum(steps.seconds[some] - base, 0.0).sum()) / float(steps.rows["prefill"][some].sum())


def _tokens_in(time: float, cost: float) -> int:
    """Prompt tokens that take `time` seconds at `cost` seconds each."""
    return max(round_down(time / cost, _GRAIN), _GRAIN)
