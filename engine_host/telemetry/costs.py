"""What ended requests have cost, added up by tier, key, model, profile and hour."""

from collections import OrderedDict
from dataclasses import dataclass

from engine_host.api.figures import CostLine, GroupKind
from engine_host.api.records import RequestCost, RequestRecord

MAX_KEYS = 64
"""Keys kept apart; those that have been quiet for longest are added up as `OTHER`."""

MAX_HOURS = 24

OTHER = "other"


@dataclass(slots=True)
class _Sum:
    """Money is split over a request's tokens: prefill to those computed for its prompt, decode to those produced,
    memory to all three kinds alike."""

    requests: int = 0
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    priced: int = 0
    usd: float = 0.0
    input_usd: float = 0.0
    cached_usd: float = 0.0
    output_usd: float = 0.0
    saved_usd: float = 0.0
    saved_known: bool = False

    def add(self, record: RequestRecord) -> None:
        """Add a request."""
        cached = record.cached_tokens or 0
        computed = max(0, record.prompt_tokens - cached) if record.ttft_s is not None else 0
        self.requests += 1
        self.input_tokens += computed
        self.cached_tokens += cached
        self.output_tokens += record.output_tokens
        cost = record.cost
        if cost is None or cost.usd is None:
            return
        self.priced += 1
        self.usd += cost.usd
        self._split(cost, computed, cached, record.output_tokens)
        if cost.saved_usd is not None:
            self.saved_usd += cost.saved_usd
            self.saved_known = True

    def merge(self, other: "_Sum") -> None:
        """Add another sum."""
        self.requests += other.requests
        self.input_tokens += other.input_tokens
        self.cached_tokens += other.cached_tokens
        self.output_tokens += other.output_tokens
        self.priced += other.priced
        self.usd += other.usd
        self.input_usd += other.input_usd
        self.cached_usd += other.cached_usd
        self.output_usd += other.output_usd
        self.saved_usd += other.saved_usd
        self.saved_known = self.saved_known or other.saved_known

    def _split(self, cost: RequestCost, computed: int, cached: int, output: int) -> None:
        tokens = computed + cached + output
        each = (cost.memory_usd or 0.0) / tokens if tokens else 0.0
        self.input_usd += (cost.prefill_usd or 0.0) + each * computed
        self.cached_usd += each * cached
        self.output_usd += (cost.decode_usd or 0.0) + each * output

    def line(self, kind: GroupKind, name: str) -> CostLine:
        """The sum as it is shown; money is unknown where some request's is."""
        known = self.requests > 0 and self.priced == self.requests

        def per_million(usd: float, tokens: int) -> float | None:
            return usd / tokens * 1e6 if known and tokens else None

        return CostLine(
            kind=kind,
            name=name,
            requests=self.requests,
            input_tokens=self.input_tokens,
            cached_tokens=self.cached_tokens,
            output_tokens=self.output_tokens,
            usd=self.usd if known else None,
            usd_per_thousand_requests=self.usd / self.requests * 1000 if known else None,
            usd_per_million_input=per_million(self.input_usd, self.input_tokens),
            usd_per_million_cached=per_million(self.cached_usd, self.cached_tokens),
            usd_per_million_output=per_million(self.output_usd, self.output_tokens),
            saved_usd=self.saved_usd if known and self.saved_known else None,
        )


class CostBook:
    """Sums since the host started."""

    def __init__(self) -> None:
        self._groups: dict[GroupKind, OrderedDict[str, _Sum]] = {
            kind: OrderedDict() for kind in ("all", "tier", "key", "model", "profile", "hour")
        }

    def add(self, record: RequestRecord) -> None:
        """Add a request that has ended."""
        hour, one = str(int(record.time // 3600 * 3600)), _Sum()
        one.add(record)
        names: dict[GroupKind, str] = {
            "all": "", "tier": record.tier, "key": record.key, "model": record.model, "profile": record.profile,
            "hour": hour,
        }  # fmt: skip
        for kind, name in names.items():
            group = self._groups[kind]
            group.setdefault(name, _Sum()).merge(one)
            group.move_to_end(name)
        self._bound(self._groups["key"])
        hours = self._groups["hour"]
        while len(hours) > MAX_HOURS:
            del hours[min(hours, key=int)]

    def lines(self) -> tuple[CostLine, ...]:
        """All groups; that of all requests first, which is there from the start."""
        self._groups["all"].setdefault("", _Sum())
        return tuple(each.line(kind, name) for kind, group in self._groups.items() for name, each in group.items())

    def _bound(self, keys: OrderedDict[str, _Sum]) -> None:
        while len(keys) > MAX_KEYS + 1:
            oldest = next(name for name in keys if name != OTHER)
            keys.setdefault(OTHER, _Sum()).merge(keys.pop(oldest))
