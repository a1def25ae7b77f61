"""The circuit breaker: when the engine can't keep up, load is shed tier by tier instead of everybody waiting longer.

closed ── too long saturated ──► open(first group) ── still saturated ──► open(first and second group) …
   ▲                                   │ hold_s
   └── the probe went well ── half-open: one request of a shed tier is let in to try

A good probe takes back the group that was shed last, until all are.
"""

from collections.abc import Callable, Mapping

from engine_host.api.types import BreakerLine
from engine_host.gateway.refusal import Refusal
from profiles.gateway import Breaker as Rules
from profiles.gateway import Tier


class CircuitBreaker:
    """Pure: time is handed in, in seconds of one monotonic clock; `wall` is Unix time, for what is shown.

    Tiers are shed in groups by their `shed` order, 1 first; those with 0 never are.
    """

    def __init__(
        self, rules: Callable[[], Rules], tiers: Callable[[], Mapping[str, Tier]], wall: Callable[[], float]
    ) -> None:
        self._rules = rules
        self._tiers = tiers
        self._wall = wall
        self._since_wall = wall()
        self._groups = 0
        self._bad_since: float | None = None
        self._changed = 0.0
        self._probe: str | None = None
        self._reason = ""

    def observe(self, problem: str | None, now: float) -> None:
        """Tell what is wrong at `now`, `None` if nothing is; call it a few times a second."""
        if problem is None:
            self._bad_since = None
            return
        if self._bad_since is None:
            self._bad_since = now
        since = max(self._bad_since, self._changed)
        if now - since >= self._rules().after_s and self._shed_groups < len(self._orders()):
            self._set(self._shed_groups + 1, problem, now)

    def close(self, now: float) -> None:
        """Let all in: the profile has no breaker any more."""
        self._bad_since = None
        if self._groups:
            self._set(0, "", now)

    def check(self, tier: str, request_id: str, now: float) -> None:
        """Let a request pass, as a probe where one is due; raises `Refusal` 503 while its tier is shed."""
        if not self._groups or tier not in self.shed:
            return
        hold = self._rules().hold_s
        due = self._changed + hold
        if self._probe is None and now >= due:
            self._probe = request_id
            return
        raise Refusal(
            503,
            f"Load is shed: {self._reason} Requests of the tier {tier} are turned away until it has caught up.",
            retry_after_s=max(due - now, 1.0),
        )

    def probed(self, request_id: str, good: bool | None, now: float) -> None:
        """How a request fared; only the probe's counts. A good one ends the shedding of the last group.

        `None`: it tells nothing, and the next one is the probe.
        """
        if request_id != self._probe:
            return
        self._probe = None
        if good:
            self._set(self._shed_groups - 1, self._reason, now)
        elif good is not None:
            self._changed = now

    @property
    def shed(self) -> frozenset[str]:
        """The tiers that are turned away."""
        gone = self._shed_orders
        return frozenset(name for name, tier in self._tiers().items() if tier.shed in gone)

    def line(self, now: float) -> BreakerLine:
        """What a screen shows."""
        if not self._shed_groups:
            return BreakerLine("closed", self._since_wall)
        probing = self._probe is not None or now >= self._changed + self._rules().hold_s
        return BreakerLine("half-open" if probing else "open", self._since_wall, tuple(sorted(self.shed)), self._reason)

    def _orders(self) -> list[int]:
        return sorted({tier.shed for tier in self._tiers().values() if tier.shed})

    @property
    def _shed_orders(self) -> list[int]:
        return self._orders()[: self._groups]

    @property
    def _shed_groups(self) -> int:
        """Groups that are shed: no more than the profile still has."""
        return len(self._shed_orders)

    def _set(self, groups: int, reason: str, now: float) -> None:
        self._groups, self._reason, self._changed = max(groups, 0), reason, now
        self._since_wall = self._wall()
        self._probe = None
