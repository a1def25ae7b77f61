"""The one place that reads vLLM's statistics classes, which it declares unstable."""

from collections.abc import Callable
from typing import Any

from vllm.v1.metrics.loggers import StatLoggerBase

from engine_host.telemetry.hub import EngineStats, TelemetryHub


def stat_logger_factory(hub: TelemetryHub) -> Callable[..., StatLoggerBase]:
    """A factory as `AsyncLLM(stat_loggers=[…])` takes it, whose loggers report to `hub`."""

    class HubLogger(StatLoggerBase):
        def __init__(self, vllm_config: Any, engine_index: int = 0) -> None:
            pass

        def record(self, scheduler_stats: Any, iteration_stats: Any, *args: Any, **kwargs: Any) -> None:
            if scheduler_stats is None:
                return
            prefix = scheduler_stats.prefix_cache_stats
            hub.engine_stats(
                EngineStats(
                    running=scheduler_stats.num_running_reqs,
                    waiting=scheduler_stats.num_waiting_reqs + scheduler_stats.num_skipped_waiting_reqs,
                    prefix_queries=prefix.queries,
                    prefix_hits=prefix.hits,
                    kv_usage=scheduler_stats.kv_cache_usage,
                )
            )

        def log_engine_initialized(self) -> None:
            pass

    return HubLogger
