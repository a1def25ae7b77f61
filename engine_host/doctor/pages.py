"""Rules about KV pages: too few of them, too large ones, and none kept for reuse."""

import math
import re

import numpy as np

from engine_host.api.figures import Finding
from engine_host.api.flight import PREEMPTED, RECOMPUTE
from engine_host.doctor.record import Record
from engine_host.doctor.steps import Recent, recent
from engine_host.doctor.words import count, percent, round_down

PREEMPTIONS = 3
"""In the last minute. One or two happen at the edge of a well-used pool; more say that it is too small for its load."""

RECOMPUTED = 0.05
"""Share of the tokens of the last minute that were computed again: from here on it costs throughput, not only the
latency of the few that were preempted."""

HIT_RATIO = 0.01
"""Below it the prefix cache finds nothing worth the name: a page of 16 tokens in a prompt of 1 600."""

SHORT_PROMPTS = 0.5
"""Share of prompts that don't fill a page: most can't be found whatever they begin with."""

REQUESTS = 20
"""Requests that must have ended before a share of them is judged: below, one more or less is 5 % and above."""

SMALLEST_BLOCK = {"gpu": 16, "cpu": 32}
"""Tokens a page: the smallest that vLLM's attention backends of CUDA and of the CPU take in general."""

CUT_REQUESTS = 3
"""Requests that met the end of the context: one may be a client's slip."""

PREFILL_SHARE = 0.3
"""Share of the steps' time for prompts from which it is worth to ask whether they need to be computed."""

# As engine_host.startup says it.
_TOO_LITTLE = re.compile(
    r"a context of (?P<asked>\d+) tokens needs (?P<need>[\d.]+) (?P<need_unit>\w+), "
    r"and (?P<have>[\d.]+) (?P<have_unit>\w+) is left"
)
_BYTES = {"GiB": 2**30, "MiB": 2**20}


def kv_preempting(record: Record) -> Finding | None:
    """The pool is full, and requests lose their pages to others and are computed again."""
    steps = recent(record)
    preempted, kv = int(steps.rows["preempted"].sum()), record.snapshot.kv
    if preempted < PREEMPTIONS or kv is None:
        return None
    worst = int(np.argmax(steps.rows["preempted"]))
    row = steps.rows[worst]
    again, scheduled = _recomputed(steps), int((steps.rows["prefill"] + steps.rows["decode"]).sum())
    fits = int(steps.rows["running"][steps.rows["preempted"] > 0].min())
    evidence = [
        f"{count(preempted, 'preemption')} in the last minute; step {row['number']} made {row['preempted']} of them.",
        f"The pool was at {row['used_blocks']:,} of {kv.pages:,} pages after it, with {row['running']} requests "
        f"running and {row['waiting']} waiting.",
    ]
    if again and scheduled:
        evidence.append(f"{count(again, 'token')} were computed again: {percent(again / scheduled)} of all.")
    lost = _preempted_by(steps, worst)
    if lost is not None:
        evidence.append(f"It took the pages of request {lost}.")
    memory = record.profile.engine.kv_cache_memory
    now = f"now {memory / 2**20:,.0f} MiB" if memory else f"now {kv.pages:,} pages"
    return Finding(
        rule="kv-preempting",
        severity="problem" if again >= RECOMPUTED * scheduled else "warning",
        title="The KV pool is full, and requests are preempted",
        evidence=tuple(evidence),
        remedy=f"Set scheduler.max_active = {max(fits, 1)}, as many as the pool held when it was full; or give it more "
        f"memory with engine.kv_cache_memory ({now}).",
        time=steps.unix(worst),
        step=int(row["number"]),
        request=lost,
    )


def prefix_block(record: Record) -> Finding | None:
    """The prefix cache is asked and finds nothing, since only whole pages can be found and prefixes are shorter."""
    kv, prompts = record.snapshot.kv, [each.prompt_tokens for each in record.lately if each.prompt_tokens]
    if kv is None or kv.hit_ratio is None or kv.hit_ratio >= HIT_RATIO or len(prompts) < REQUESTS:
        return None
    page, shared = kv.page_tokens, record.shared_prefix
    # The last token of a prompt is always computed, so one that just fills a page is not found either.
    short = sum(each <= page for each in prompts) / len(prompts)
    prefix = shared if shared else int(np.median(prompts))
    smaller = _smaller_block(prefix, page, record)
    if smaller is None or not (short >= SHORT_PROMPTS or (shared is not None and 0 < shared < page)):
        return None
    evidence = [
        f"Of the prompt tokens looked up in the last {kv.hit_window_s:.0f} s, {percent(kv.hit_ratio)} were found.",
        f"A page has {page} tokens and only whole pages are found; {percent(short)} of the last {len(prompts)} prompts "
        f"have no more than that (median {np.median(prompts):.0f} tokens).",
    ]
    if shared:
        evidence.append(f"Prompts begin with {shared} tokens (median) that one just before began with.")
    return Finding(
        rule="prefix-block",
        severity="warning",
        title="The prefix cache finds nothing: prefixes are shorter than a page",
        evidence=tuple(evidence),
        remedy=f"Set engine.block_size = {smaller} (now {page}), so that a common prefix fills pages.",
        time=record.time,
    )


def prefix_cache_off(record: Record) -> Finding | None:
    """Prompts take much of the time, and what they have in common is computed each time."""
    share = record.telemetry.steps.prefill_share if record.telemetry is not None else None
    if record.profile.engine.enable_prefix_caching or share is None or share < PREFILL_SHARE:
        return None
    evidence = [f"Prompts take {percent(share)} of the steps' time, and engine.enable_prefix_caching is false."]
    if record.shared_prefix:
        evidence.append(f"Prompts begin with {record.shared_prefix} tokens (median) that one just before began with.")
    return Finding(
        rule="prefix-cache-off",
        severity="warning",
        title="Prompts are computed whole each time",
        evidence=tuple(evidence),
        remedy="Set engine.enable_prefix_caching = true: pages of prompts that begin alike are then computed once.",
        time=record.time,
    )


def context_memory(record: Record) -> Finding | None:
    """The KV cache doesn't hold one sequence of the longest context: mostly the engine doesn't start then."""
    failed = too_little(record)
    if failed is not None:
        asked = int(failed["asked"])
        # Both are rounded to hundredths: it must fit wherever they were rounded from.
        need = (float(failed["need"]) + 0.005) * _BYTES.get(failed["need_unit"], 1)
        have = (float(failed["have"]) - 0.005) * _BYTES.get(failed["have_unit"], 1)
        return Finding(
            rule="context-memory",
            severity="problem",
            title="Memory is not enough for the context asked for",
            evidence=(
                f"The engine did not start: a context of {asked:,} tokens takes {failed['need']} "
                f"{failed['need_unit']}, and there are {failed['have']} {failed['have_unit']}.",
            ),
            remedy=f"Set engine.max_model_len = {round_down(asked * have / need, 16)}, or give the KV cache "
            f"{math.ceil(need / 2**20):,} MiB (engine.kv_cache_memory).",
            time=record.snapshot.state.since,
        )
    kv, longest = record.snapshot.kv, record.snapshot.model.max_model_len
    if kv is None or longest is None:
        return None
    needed = math.ceil(longest / kv.page_tokens)
    if needed <= kv.pages:
        return None
    size = f" ({needed * kv.page_bytes / 2**20:,.0f} MiB)" if kv.page_bytes is not None else ""
    return Finding(
        rule="context-memory",
        severity="warning",
        title="Memory is not enough for the context asked for",
        evidence=(
            f"A context of {longest:,} tokens takes {needed:,} pages of {kv.page_tokens} tokens; the pool has "
            f"{kv.pages:,}: {kv.pages / needed:.2f} of one such request.",
        ),
        remedy=f"Set engine.max_model_len = {kv.pages * kv.page_tokens}, or engine.kv_cache_memory so that the pool "
        f"has {needed:,} pages{size}.",
        time=record.time,
    )


def too_little(record: Record) -> re.Match[str] | None:
    """The numbers of the sentence with which an engine failed whose KV cache was too small for the context."""
    state = record.snapshot.state
    return _TOO_LITTLE.search(state.reason or "") if state.name == "failed" else None


def context_length(record: Record) -> Finding | None:
    """Requests are refused for their length, or their replies are cut off at the end of the context."""
    longest, kv = record.snapshot.model.max_model_len, record.snapshot.kv
    if longest is None:
        return None
    refused = [each for each in record.lately if each.finish_reason == "refused" and each.prompt_tokens > longest]
    cut = [
        each
        for each in record.lately
        if each.finish_reason == "length"
        and each.prompt_tokens + each.output_tokens / max(each.sequences, 1) >= longest
    ]
    if len(refused) + len(cut) < CUT_REQUESTS:
        return None
    last = max((*refused, *cut), key=lambda each: each.time)
    wanted = max(each.prompt_tokens for each in refused) if refused else longest
    better = 1024 * math.ceil((wanted + 1) * 1.25 / 1024)
    evidence = [
        f"Of the last {count(len(record.lately), 'request')}, {len(refused)} had prompts of more than the "
        f"{longest:,} tokens of the context, and {len(cut)} ended because prompt and reply filled it."
    ]
    if kv is not None:
        pages = math.ceil(better / kv.page_tokens)
        evidence.append(f"The pool of {kv.pages:,} pages holds {kv.pages / pages:.1f} requests of {better:,} tokens.")
    return Finding(
        rule="context-length",
        severity="warning",
        title="Requests do not fit into the context",
        evidence=tuple(evidence),
        remedy=f"Set engine.max_model_len = {better} if the model was made for it and the pool holds that, or have "
        'clients send shorter prompts (gateway.prompts.over_soft = "compress").',
        time=last.time,
        request=last.id,
    )


def _recomputed(steps: Recent) -> int:
    shares = steps.record.shares
    first = int(steps.rows["number"][0]) & 0xFFFFFFFF
    return int(shares["tokens"][(shares["kind"] == RECOMPUTE) & (shares["step"] >= first)].sum())


def _preempted_by(steps: Recent, index: int) -> str | None:
    """A request that the step at `index` preempted; it is noted with the step before."""
    shares, before = steps.record.shares, int(steps.rows["number"][index]) - 1
    lost = shares["serial"][(shares["kind"] == PREEMPTED) & (shares["step"] == np.uint32(before & 0xFFFFFFFF))]
    named = steps.record.names.get(int(lost[0])) if len(lost) else None
    return named.id if named is not None else None


def _smaller_block(prefix: int, page: int, record: Record) -> int | None:
    """Pages of which the prefix fills two at least, else one; `None` where there are none smaller than now."""
    least = SMALLEST_BLOCK[record.snapshot.device.kind]
    block = least
    while block * 2 <= prefix // 2:
        block *= 2
    return block if block < page and prefix > block else None
