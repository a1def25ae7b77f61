"""`llmconsole` with nothing measured: no flight record, latencies, accounting, sampler, ledger or log of requests.

    python -m benchmarks.bare_host serve --model FOLDER --port 8001

What `benchmarks.telemetry` compares with. Whatever serves a request is the same program.
"""

from typing import Any

from console.__main__ import main
from engine_host.books import RequestBook
from engine_host.engine import process
from engine_host.ledger.ledger import Ledger
from engine_host.measuring import Measuring
from engine_host.telemetry.device import DeviceSampler
from engine_host.telemetry.hub import TelemetryHub


def _nothing(*args: Any, **kwargs: Any) -> None:
    """In the place of what measures."""


def _without_record(args: Any, additional_config: dict[str, object], stat_loggers: list[Any]) -> Any:
    args.disable_log_stats = True
    return _build(args, {}, [])


_build = process.build_engine

if __name__ == "__main__":
    from engine_host import building

    building.build_engine = _without_record
    for kind, names in (
        (TelemetryHub, ("arrived", "tokens", "delivered", "finished", "steps", "ttft_parts", "prefilled")),
        (Measuring, ("tick", "finish", "start", "close")),
        (RequestBook, ("ended",)),
        (DeviceSampler, ("start",)),
        (Ledger, ("start", "request", "minute", "event")),
    ):
        for name in names:
            setattr(kind, name, _nothing)
    main()
