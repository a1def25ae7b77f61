"""What stands above the requests: the lanes of the queue, the circuit breaker, and the tiers."""

from collections.abc import Sequence

from rich.cells import cell_len
from textual.content import Content
from textual.widget import Widget

from engine_host.api.types import BreakerLine, GatewayStatus, LaneLine, TierLine
from widgets import palette, units
from widgets.status_bar import Segment, fit
from widgets.text import elide, one_line

_BREAKERS = {"closed": ("●", palette.GOOD), "half-open": ("◑", palette.WARN), "open": ("✖", palette.BAD)}
_NAME_WIDTH = 12
_SMALLEST = 4
"""Lines of the strip on the lowest terminal; on others a quarter of the screen."""


class GatewayStrip(Widget):
    """A line for the lanes, one for the breaker, and one a tier; whole parts of a line leave when it's narrow."""

    DEFAULT_CSS = """
    GatewayStrip { height: auto; width: 1fr; padding: 0 1; background: $surface; }
    """

    def __init__(self, *, id: str) -> None:
        super().__init__(id=id)
        self._status: GatewayStatus | None = None
        self._time = 0.0

    def show(self, status: GatewayStatus | None, time: float) -> None:
        """Show the gateway at this Unix time; `None` where the host tells nothing of it."""
        if (status, time) != (self._status, self._time):
            self._status, self._time = status, time
            self.refresh(layout=True)

    def render(self) -> Content:
        """The lines."""
        width = max(1, self.content_size.width)
        status = self._status
        if status is None:
            return Content.styled(
                elide("lanes, tiers and breaker n/a: the host tells nothing of them", width), palette.MUTED
            )
        lines = [
            _line("lanes", [*map(_lane, status.lanes), _drained(status.drain_rps)], width),
            _line("breaker", _breaker(status.breaker, self._time, width - _NAME_WIDTH - 1), width),
        ]
        room = max(_SMALLEST, self.screen.size.height // 4) - len(lines)
        shown = status.tiers if len(status.tiers) <= room else status.tiers[: room - 1]
        lines += [_line(tier.name, _tier(tier), width) for tier in shown]
        if left := len(status.tiers) - len(shown):
            lines.append(_line("", [Segment(f"and {left} more tiers", color=palette.MUTED)], width))
        return Content("\n").join(lines)


def _line(name: str, segments: Sequence[Segment], width: int) -> Content:
    """The name in its column, then what fits."""
    label = elide(one_line(name), _NAME_WIDTH)
    gap = " " * (_NAME_WIDTH + 1 - cell_len(label))
    parts = Content(" · ").join(Content.styled(*part) for part in fit(segments, max(1, width - _NAME_WIDTH - 1)))
    return Content.assemble((label, "bold"), gap, parts)


def _lane(lane: LaneLine) -> Segment:
    waiting = f"{lane.name} {units.count(lane.waiting)}"
    if not lane.waiting:
        return Segment(waiting, priority=2)
    oldest = units.milliseconds(lane.oldest_s)
    return Segment(f"{waiting} waiting, oldest {oldest}", f"{waiting}, {oldest}", priority=5)


def _drained(per_second: float | None) -> Segment:
    return Segment(f"admits {units.rate(per_second, 'req')}", priority=1, color=palette.MUTED)


def _breaker(breaker: BreakerLine, time: float, width: int) -> list[Segment]:
    """The state and its reason; a reason too long for the line ends in `…`."""
    mark, color = _BREAKERS[breaker.state]
    state = f"{mark} {breaker.state}"
    since = units.duration(max(0.0, time - breaker.since))
    return [
        Segment(state, priority=9, color=color),
        Segment(f"turns away {', '.join(breaker.shed)}" if breaker.shed else "", priority=2),
        Segment(f"for {since}", priority=1),
        Segment(elide(one_line(breaker.reason), width - len(state) - len(" · ")), priority=8),
    ]


def _tier(tier: TierLine) -> list[Segment]:
    segments = [
        Segment("✖ shed" if tier.shed else "", priority=9, color=palette.BAD),
        Segment(f"{units.count(tier.active)} active", priority=8),
        Segment(f"{units.count(tier.waiting)} waiting", priority=7),
        Segment(f"{units.count(tier.held)} held", priority=6),
        _against("TTFT", tier.ttft_p99_s, tier.ttft_target_s, 5),
        _against("TTL", tier.ttl_p99_s, tier.ttl_target_s, 4),
    ]
    if tier.refused:
        segments.append(Segment(f"{units.count(tier.refused)} refused", priority=2))
    if tier.checkpointed:
        segments.append(Segment(f"{units.count(tier.checkpointed)} set aside", priority=1))
    return segments


def _against(name: str, p99: float | None, target: float | None, priority: int) -> Segment:
    """`TTFT p99 82 ms ≤ 100 ms`: the latency, and the target where the tier has one."""
    value = units.milliseconds(p99)
    if target is None:
        return Segment(f"{name} p99 {value}", f"{name} {value}", priority)
    aim = units.milliseconds(target)
    if p99 is None:
        return Segment(f"{name} p99 {value}, target {aim}", f"{name} {value}", priority)
    over = p99 > target
    text = f"{value} {'>' if over else '≤'} {aim}"
    return Segment(f"{name} p99 {text}", f"{name} {text}", priority, palette.BAD if over else "")
