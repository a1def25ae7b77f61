"""All rules, and what they find in a record."""

from collections.abc import Callable, Sequence

from engine_host.api.figures import Finding
from engine_host.doctor import hardware, pace, pages, traffic
from engine_host.doctor.record import Record

Rule = Callable[[Record], Finding | None]

RULES: tuple[Rule, ...] = (
    traffic.engine_failed,
    hardware.gpu_errors,
    pages.context_memory,
    pages.kv_preempting,
    traffic.queue_growing,
    traffic.request_errors,
    pace.token_budget,
    pace.long_prompt_stall,
    hardware.throttle_heat,
    pace.host_starved,
    pace.launch_bound,
    hardware.throttle_power,
    hardware.pcie_link,
    traffic.client_stalled,
    pages.context_length,
    pages.prefix_block,
    pages.prefix_cache_off,
    traffic.ledger_problem,
    hardware.device_unread,
)
"""The gravest first, among those of one severity."""


def diagnose(record: Record, rules: Sequence[Rule] = RULES) -> list[Finding]:
    """What is wrong, problems before warnings. A rule that fails is a finding too, and hides none of the others."""
    found = [finding for rule in rules if (finding := _asked(rule, record)) is not None]
    return sorted(found, key=lambda each: each.severity != "problem")


def _asked(rule: Rule, record: Record) -> Finding | None:
    try:
        return rule(record)
    except Exception as error:
        return Finding(
            rule=rule.__name__.replace("_", "-"),
            severity="warning",
            title=f"The rule {rule.__name__} failed",
            evidence=(f"{type(error).__name__}: {error}",),
            remedy="Save the record with llmconsole doctor --save FILE, and report it with that.",
            time=record.time,
        )
