"""What is counted beside latencies: by the second, by the minute, and the levels that hold in between."""

from dataclasses import dataclass, field

from engine_host.telemetry.sketch import Sketch

_COUNTS = ("budget", "decode", "output", "preempted", "prefill", "prefix_hits", "prefix_queries", "steps")


class Tally:
    """What was counted in some time: tokens computed by `steps`, their token `budget`s, tokens handed out (`output`),
    tokens looked up and found in the prefix cache, preemptions."""

    __slots__ = _COUNTS

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Count from 0."""
        self.prefill = self.decode = self.output = 0
        self.steps = self.budget = self.preempted = 0
        self.prefix_queries = self.prefix_hits = 0

    def merge(self, other: "Tally") -> None:
        """Add what another tally counted."""
        for name in _COUNTS:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def subtract(self, other: "Tally") -> None:
        """Take back a tally that was added before."""
        for name in _COUNTS:
            setattr(self, name, getattr(self, name) - getattr(other, name))

    @property
    def fill_rate(self) -> float | None:
        """Tokens of the steps over their budgets; `None` without a budget."""
        return (self.prefill + self.decode) / self.budget if self.budget else None


@dataclass(slots=True)
class Levels:
    """Values that hold until they are told anew; `None` where nobody knows.

    utilization, kv_used and attributed are shares (0 to 1), power in watts, memory_used in bytes.
    """

    running: int = 0
    waiting: int = 0
    kv_used: float | None = None
    utilization: float | None = None
    power: float | None = None
    memory_used: float | None = None
    usd_per_hour: float | None = None
    attributed: float | None = None


_MEANS = ("running", "waiting", "kv_used", "utilization", "power", "memory_used")


@dataclass(frozen=True)
class MinuteTally:
    """What was counted between two calls, as a minute's row of the ledger needs it.

    ttft and ttl hold its samples; prefill and decode are tokens computed by steps, output tokens handed out,
    `finished` requests by reason. The levels are means over the `seconds` that closed (those of them in which there was
    a value; running and waiting of none are what holds now); `fill_rate` is tokens over token budgets.
    """

    seconds: int
    ttft: Sketch
    ttl: Sketch
    prefill: int
    decode: int
    output: int
    prefix_queries: int
    prefix_hits: int
    steps: int
    preempted: int
    fill_rate: float | None
    finished: dict[str, int]
    running: float
    waiting: float
    kv_used: float | None
    utilization: float | None
    power: float | None
    memory_used: float | None


@dataclass
class Minute:
    """Gathers a `MinuteTally`."""

    tally: Tally = field(default_factory=Tally)
    ttft: Sketch = field(default_factory=Sketch)
    ttl: Sketch = field(default_factory=Sketch)
    finished: dict[str, int] = field(default_factory=dict)
    seconds: int = 0
    _sums: dict[str, tuple[float, int]] = field(default_factory=dict)

    def close(self, levels: Levels) -> None:
        """A second closed, in which these levels held at the end."""
        self.seconds += 1
        for name in _MEANS:
            value = getattr(levels, name)
            if value is not None:
                total, count = self._sums.get(name, (0.0, 0))
                self._sums[name] = total + value, count + 1

    def told(self, levels: Levels) -> MinuteTally:
        """What was gathered; `levels` are those that hold now."""
        means = {name: total / count for name, (total, count) in self._sums.items()}
        tally = self.tally
        return MinuteTally(
            seconds=self.seconds,
            ttft=self.ttft,
            ttl=self.ttl,
            prefill=tally.prefill,
            decode=tally.decode,
            output=tally.output,
            prefix_queries=tally.prefix_queries,
            prefix_hits=tally.prefix_hits,
            steps=tally.steps,
            preempted=tally.preempted,
            fill_rate=tally.fill_rate,
            finished=self.finished,
            running=means.get("running", float(levels.running)),
            waiting=means.get("waiting", float(levels.waiting)),
            kv_used=means.get("kv_used"),
            utilization=means.get("utilization"),
            power=means.get("power"),
            memory_used=means.get("memory_used"),
        )
