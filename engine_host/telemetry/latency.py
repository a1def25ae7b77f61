"""TTFT, TTL and TPOT of all requests, of each tier, key and profile, over the four windows.

A sample goes into one leaf, that of its request's tier, key and profile; leaves are merged into the groups they are
part of when a second closes, or when somebody asks. Nothing is averaged: a percentile of a group or a window is read
from the merged samples.
"""

from collections.abc import Iterator

from engine_host.api.figures import WINDOWS, GroupKind, LatencyLine, WindowLatency
from engine_host.telemetry.latency_parts import quantiles
from engine_host.telemetry.sketch import Sketch
from engine_host.telemetry.timeline import Windows

MAX_GROUPS = 64
"""Keys (and tiers, and profiles) kept apart: those that were used last. The rest are one group, `OTHER`."""

OTHER = "other"

_KINDS: tuple[GroupKind, ...] = ("tier", "key", "profile")


class Samples:
    """Sketches of the three latencies."""

    __slots__ = ("tpot", "ttft", "ttl")

    def __init__(self) -> None:
        self.ttft = Sketch()
        self.ttl = Sketch()
        self.tpot = Sketch()

    def each(self) -> tuple[Sketch, Sketch, Sketch]:
        """TTFT, TTL, TPOT."""
        return self.ttft, self.ttl, self.tpot


class Group:
    """The latencies of one tier, key or profile, or of all."""

    __slots__ = ("_changed", "_line", "fresh", "kind", "name", "tpot", "ttft", "ttl")

    def __init__(self, kind: GroupKind, name: str) -> None:
        self.kind = kind
        self.name = name
        self.fresh = Samples()
        self.ttft = Windows(Sketch)
        self.ttl = Windows(Sketch)
        self.tpot = Windows(Sketch)
        self._changed = True
        self._line = LatencyLine(kind, name, ())

    def each(self) -> tuple[Windows[Sketch], Windows[Sketch], Windows[Sketch]]:
        """The windows of TTFT, TTL and TPOT."""
        return self.ttft, self.ttl, self.tpot

    def settle(self, second: int) -> None:
        """Put what is fresh into the windows; it fell in `second`."""
        for fresh, windows in zip(self.fresh.each(), self.each(), strict=True):
            if fresh.count:
                windows.take(second, fresh)
                fresh.clear()
        self._changed = True

    def expire(self, second: int) -> None:
        """Let go of what is too old in `second`."""
        for windows in self.each():
            self._changed |= windows.expire(second)

    def absorb(self, other: "Group") -> None:
        """Add everything that another group holds."""
        for windows, others in zip(self.each(), other.each(), strict=True):
            windows.absorb(others)
        self._changed = True

    def line(self) -> LatencyLine:
        """Percentiles of every window; computed anew only if something has changed."""
        if self._changed:
            windows = tuple(
                WindowLatency(name, *(quantiles(measure[name]) for measure in self.each())) for name in WINDOWS
            )
            self._line = LatencyLine(self.kind, self.name, windows)
            self._changed = False
        return self._line


class Leaf:
    """The samples of requests of one tier, key and profile that no group has yet. `live` requests feed it."""

    __slots__ = ("groups", "live", "name", "samples")

    def __init__(self, name: tuple[str, str, str], groups: list[Group]) -> None:
        self.name = name
        self.groups = groups
        self.samples = Samples()
        self.live = 0


class Latencies:
    """All groups and leaves. Memory is bounded by `MAX_GROUPS` of each kind and by the live requests."""

    def __init__(self) -> None:
        self.all = Group("all", "")
        self._groups: dict[GroupKind, dict[str, Group]] = {kind: {} for kind in _KINDS}
        self._index: dict[tuple[str, str, str], Leaf] = {}
        self._leaves: list[Leaf] = []

    def leaf(self, tier: str, key: str, profile: str) -> Leaf:
        """The leaf of a request that begins; an empty name is none, and in no group of that kind.

        `live` counts it until the caller takes it down.
        """
        name = tier, key, profile
        groups = [self._group(kind, each) for kind, each in zip(_KINDS, name, strict=True) if each]
        leaf = self._index.get(name)
        if leaf is None:
            leaf = self._index[name] = Leaf(name, [self.all, *groups])
            self._leaves.append(leaf)
        leaf.live += 1
        return leaf

    def settle(self, second: int) -> Samples | None:
        """Merge the leaves into the groups, and these into their windows; everything fell in `second`.

        Returns what was new of all requests, `None` if there was nothing; it is valid until the next call.
        """
        touched: dict[Group, None] = {}
        idle = False
        for leaf in self._leaves:
            idle = idle or not leaf.live
            for number, samples in enumerate(leaf.samples.each()):
                if samples.count:
                    for group in leaf.groups:
                        group.fresh.each()[number].merge(samples)
                        touched[group] = None
                    samples.clear()
        if idle:
            self._drop_idle()
        new = None
        if self.all in touched:
            new = Samples()
            for sketch, fresh in zip(new.each(), self.all.fresh.each(), strict=True):
                sketch.merge(fresh)
        for group in touched:
            group.settle(second)
        return new

    def expire(self, second: int) -> None:
        """Let go of what is too old in `second`, the one that is filling."""
        for group in self._each():
            group.expire(second)

    def lines(self) -> tuple[LatencyLine, ...]:
        """All requests, then tiers, keys and profiles, each in order of their names."""
        return tuple(group.line() for group in self._each())

    def tiers(self) -> Iterator[Group]:
        """The groups of the tiers."""
        yield from self._groups["tier"].values()

    def _each(self) -> Iterator[Group]:
        yield self.all
        for kind in _KINDS:
            groups = self._groups[kind]
            yield from (groups[name] for name in sorted(groups))

    def _group(self, kind: GroupKind, name: str) -> Group:
        groups = self._groups[kind]
        group = groups.pop(name, None)
        if group is None:
            if len(groups) - (OTHER in groups) >= MAX_GROUPS and name != OTHER:
                self._fold(kind, next(each for each in groups if each != OTHER))
            group = Group(kind, name)
        groups[name] = group  # The last one of the dictionary is the one used last.
        return group

    def _fold(self, kind: GroupKind, name: str) -> None:
        """Make a group part of the others, with its history; what still comes for it comes to them."""
        groups = self._groups[kind]
        old = groups.pop(name)
        other = groups.setdefault(OTHER, Group(kind, OTHER))
        other.absorb(old)
        for leaf in self._leaves:
            if old in leaf.groups:
                leaf.groups[leaf.groups.index(old)] = other
                if self._index.get(leaf.name) is leaf:
                    del self._index[leaf.name]

    def _drop_idle(self) -> None:
        for leaf in self._leaves:
            if not leaf.live and self._index.get(leaf.name) is leaf:
                del self._index[leaf.name]
        self._leaves = [leaf for leaf in self._leaves if leaf.live]
