"""What we ship for Prometheus and Grafana, in the real Prometheus, over our own metrics."""

import importlib.util
import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from engine_host.api.figures import LedgerStatus
from engine_host.api.types import BreakerLine, GatewayStatus, LaneLine, Reading, TierLine
from engine_host.telemetry.hub import EngineStats
from engine_host.telemetry.metrics import Metrics, render

from .prometheus_server import DEPLOY, PROMETHEUS, PROMTOOL, Page, Prometheus, running
from .test_metrics import TELEMETRY, Bench

pytestmark = pytest.mark.skipif(
    PROMTOOL is None or PROMETHEUS is None, reason="Prometheus is not installed (Debian: apt-get install prometheus)"
)

RULES = DEPLOY / "prometheus"
TESTS = sorted((RULES / "tests").glob("*.yml"))
DASHBOARD = json.loads((DEPLOY / "grafana" / "llmconsole.json").read_text())

MORE = {
    "pcie_tx": Reading("PCIe sent", "bytes/s", 1e9, "nvml"),
    "pcie_link": Reading("PCIe link", "words", 0.0, "nvml", text="Gen 5 x16"),
    "nvlink_rx": Reading("NVLink received", "bytes/s", 1e9, "nvml"),
    "nvlink_tx": Reading("NVLink sent", "bytes/s", 1e9, "nvml"),
    "ecc_uncorrected": Reading("ECC errors", "count", 0.0, "nvml"),
}


class Host(Bench):
    """Everything that can be exported of a host with two GPUs, for Prometheus."""

    def __init__(self) -> None:
        super().__init__()
        tier = TierLine("premium", 2, 1, 0, 5, 1, 0, 0.9, 0.04, 0.5, 0.05, False)
        self.gateway = GatewayStatus((LaneLine("short", 4, 2.5, 100),), (tier,), BreakerLine("closed", 0.0), None)
        self.telemetry = msgspec.structs.replace(
            TELEMETRY,
            steps=msgspec.structs.replace(TELEMETRY.steps, step_p99_s=0.02, effective_window=0.4),
            ledger=LedgerStatus("/l", 7, 0, 0),
            devices=tuple(
                msgspec.structs.replace(
                    device,
                    power=Reading("power", "watts", 300.0, "nvml"),
                    temperature=Reading("temperature", "celsius", 60.0, "nvml"),
                    more=device.more | MORE,
                )
                for device in TELEMETRY.devices
            ),
        )
        self.metrics = Metrics(
            self.hub,
            self.sampler,
            lambda: msgspec.structs.replace(self.snapshot(), gateway=self.gateway),
            lambda: self.telemetry,
        )

    def serve(self) -> None:
        """98 of 100 prompts are prefilled within 50 ms, the other 2 within 500; 980 of 1000 gaps are of 8 ms, the
        other 20 of 25; 3 of 4 tokens looked up are found."""
        for number in range(100):
            self.hub.prefilled(100, 0.03 if number < 98 else 0.3, 0.0)
        self.hub.ttft_parts((0.001, 0.01, 0.03, 0.005, 0.001), 0.0)
        self.hub.arrived("a", prompt_tokens=100, max_tokens=None, at=0.0, tier="premium")
        self.hub.tokens("a", 1, 1.0)
        self.hub.tokens("a", 980, 1.0 + 980 * 0.008)
        self.hub.tokens("a", 20, 1.0 + 980 * 0.008 + 20 * 0.025)
        self.now = 10.0
        self.sampler.sample()
        self.hub.finished("a", "stop", 10.0)
        self.hub.engine_stats(EngineStats(running=2, waiting=7, prefix_queries=400, prefix_hits=300))
        self.hub.steps(100, 1000, 10.0)
        later = self.telemetry
        bill = msgspec.structs.replace(
            later.bill,
            seconds={part: 2 * seconds for part, seconds in later.bill.seconds.items()},
            usd={part: 2 * usd for part, usd in (later.bill.usd or {}).items()},
        )
        (tier, *_) = later.costs
        devices = tuple(
            msgspec.structs.replace(device, more=device.more | {"energy": Reading("energy", "joules", 6e6, "nvml")})
            for device in later.devices
        )
        self.telemetry = msgspec.structs.replace(
            later, bill=bill, devices=devices, costs=(msgspec.structs.replace(tier, usd=0.008, saved_usd=0.002),)
        )


class Scraped(NamedTuple):
    """A server that has scraped a host before and after it served."""

    prometheus: Prometheus
    text: str


@pytest.fixture(scope="module")
def scraped() -> Iterator[Scraped]:
    host, page = Host(), Page()
    try:
        page.text = render(host.metrics.collect())
        with running(page) as prometheus:
            # A counter grows from what was scraped before, so that it has been has to be known.
            prometheus.until("Nothing was scraped", lambda: bool(prometheus.vector("llmconsole_output_tokens_total")))
            host.serve()
            page.text = render(host.metrics.collect())
            yield Scraped(prometheus, page.text.decode())
    finally:
        page.close()


def tool(*arguments: str | Path, text: str | None = None) -> str:
    """What promtool says; it must find nothing wrong."""
    command = [str(PROMTOOL), *map(str, arguments)]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_configuration_and_its_rules_are_valid() -> None:
    assert "2 rule files found" in tool("check", "config", RULES / "prometheus.yml")


def test_rules_and_alerts_do_what_their_tests_say() -> None:
    assert tool("test", "rules", *TESTS).count("SUCCESS") == len(TESTS)


def test_every_alert_is_tested_and_says_what_to_do() -> None:
    alerts = (RULES / "alerts.yml").read_text()
    names = re.findall(r"- alert: (\w+)", alerts)
    tested = {name for each in TESTS for name in re.findall(r"alertname: (\w+)", each.read_text())}
    assert set(names) == tested
    assert alerts.count("summary:") == alerts.count("action:") == alerts.count("severity:") == len(names)


def test_our_metrics_are_named_as_prometheus_wants_them() -> None:
    assert tool("check", "metrics", text=render(Host().metrics.collect()).decode()) == ""


@pytest.mark.parametrize(
    ("rule", "value"),
    [
        # The 99th of 100 is half way into the bucket from 0.25 to 0.5; the 990th of 1000 into that from 0.02 to 0.03.
        ("prefill_latency_p99", 0.375),
        ("decode_ttl_p99", 0.025),
        ("gpu_sm_utilization_avg", 0.8),
        ("gpu_memory_used_percent", 30.0),
        ("kv_cache_page_hit_ratio", 0.75),
        ("instance_engine:llmconsole_kv_pages_used:ratio", 0.5),
    ],
)
def test_a_rule_records_what_the_trace_says(scraped: Scraped, rule: str, value: float) -> None:
    def recorded() -> list[float]:
        return list(scraped.prometheus.vector(rule).values())

    scraped.prometheus.until(f"{rule} isn't {value}", lambda: recorded() != [] and recorded() == pytest.approx(
        [value] * len(recorded())
    ))  # fmt: skip


def test_a_target_that_is_missed_is_an_alert(scraped: Scraped) -> None:
    def pending() -> list[dict[str, str]]:
        return [alert["labels"] for alert in scraped.prometheus.get("alerts")["alerts"]]

    def missed() -> bool:
        return any(
            (alert["alertname"], alert.get("tier"), alert.get("latency"))
            == ("LlmconsoleLatencyOverTarget", "premium", "ttft")
            for alert in pending()
        )

    scraped.prometheus.until("No alert of the target", missed)
    assert not [alert for alert in pending() if alert.get("latency") == "ttl"]


def panels() -> list[dict[str, Any]]:
    return [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


def expressions() -> list[tuple[str, str]]:
    """Title and query of every target, variables filled in as Grafana does."""
    return [
        (panel["title"], target["expr"].replace("$instance", ".*").replace("$__rate_interval", "1m"))
        for panel in panels()
        for target in panel["targets"]
    ]


def test_every_query_of_the_dashboard_finds_something(scraped: Scraped) -> None:
    """A metric that isn't exported, a label that doesn't exist: each finds nothing. vLLM's own metrics come from a
    running engine; here their expressions are parsed."""
    for title, expression in expressions():
        if "vllm:" in expression:
            scraped.prometheus.vector(expression)
        else:
            scraped.prometheus.until(
                f"{title}: {expression}", lambda expression=expression: bool(scraped.prometheus.vector(expression))
            )


def test_every_name_in_dashboard_and_rules_is_exported(scraped: Scraped) -> None:
    source = Path(str(importlib.util.find_spec("vllm").origin)).parent / "v1" / "metrics" / "loggers.py"  # type: ignore[union-attr]
    exported = set(re.findall(r"^# TYPE (\S+)", scraped.text, re.MULTILINE))
    exported |= set(re.findall(r'name="(vllm:\w+)"', source.read_text()))
    files = [RULES / "rules.yml", RULES / "alerts.yml"]
    text = "\n".join([*(expression for _, expression in expressions()), *(each.read_text() for each in files)])
    recorded = set(re.findall(r"- record: (\S+)", text))
    used = set(re.findall(r"(?<![\w:])(?:llmconsole_|vllm:)\w+", text))
    known = exported | {f"{name}{suffix}" for name in exported for suffix in ("_bucket", "_count", "_total")}
    groups = set(re.findall(r"- name: (\S+)", text))
    assert used - known - recorded - groups == set()


def test_the_dashboard_can_be_imported_anywhere() -> None:
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(ids) == len(set(ids))
    assert {panel["datasource"]["uid"] for panel in panels()} == {"${datasource}"}
    assert all(panel["fieldConfig"]["defaults"].get("unit") or panel["type"] == "heatmap" for panel in panels())
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, panel["title"]
        assert at["x"] + at["w"] <= 24
        taken |= cells
