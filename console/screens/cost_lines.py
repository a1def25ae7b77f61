"""The bill and the costs of groups as lines to show."""

from collections.abc import Callable, Sequence
from datetime import datetime
from itertools import accumulate, pairwise

from engine_host.api.figures import BILL_PARTS, Bill, BillPart, CostLine, GroupKind, LedgerStatus
from widgets import palette, units
from widgets.split_bar import SplitPart
from widgets.status_bar import Segment
from widgets.table import Column, beginning
from widgets.text import one_line

GROUPS: tuple[GroupKind, ...] = ("tier", "key", "model", "profile", "hour")
"""What costs are grouped by; all requests together stand above each."""

ALL = "all requests"

PART_COLORS: dict[BillPart, str] = {
    "prefill": palette.series(1),
    "decode": palette.series(0),
    "memory": palette.series(2),
    "scheduling": palette.series(3),
    "io": palette.series(4),
    "idle": palette.DIM_PAGE,
    "down": palette.series(5),
}
"""Prefill and decode have the colours they have among the steps."""
_NAMES: dict[BillPart, str] = {"io": "I/O"}
_LETTERS: dict[BillPart, str] = {
    "prefill": "P",
    "decode": "D",
    "memory": "M",
    "scheduling": "S",
    "io": "I",
    "idle": "·",
    "down": "x",
}
_KINDS: tuple[tuple[str, tuple[BillPart, ...]], ...] = (
    ("fixed", ("idle", "down")),
    ("compute", ("prefill", "decode")),
    ("memory", ("memory",)),
    ("scheduling", ("scheduling",)),
    ("I/O", ("io",)),
)

_SMALL_BILL = 100.0
"""USD under which a bill is shown to a hundredth of a cent."""

_ROUNDED_S = 0.05
"""Seconds that are not seen in a time shown to a tenth."""


def seconds_text(seconds: float) -> str:
    """Seconds to a tenth, so that the parts can be added up: `1 508.0 s`."""
    return f"{seconds:,.1f} s".replace(",", units.THIN_SPACE)


def adding_up(values: Sequence[float], digits: int) -> list[float]:
    """The values rounded so that they add up to the rounded sum: each is off by less than the last digit."""
    sums = [0.0, *accumulate(values)]
    return [round(after, digits) - round(before, digits) for before, after in pairwise(sums)]


def _dollars(amount: float, digits: int) -> str:
    return f"${amount:,.{digits}f}".replace(",", units.THIN_SPACE).replace("$-0.", "$0.")


def _digits(bill: Bill) -> int:
    """Cents, of a small bill hundredths of them."""
    return 2 if bill.total_usd is None or bill.total_usd >= _SMALL_BILL else 4


def bill_parts(bill: Bill) -> list[SplitPart]:
    """Each part with its seconds, its money and its share; as shown they add up."""
    seconds = [bill.seconds.get(part, 0.0) for part in BILL_PARTS]
    shown = adding_up(seconds, 1)
    digits, paid = _digits(bill), bill.usd
    money = adding_up([paid.get(part, 0.0) for part in BILL_PARTS], digits) if paid is not None else []
    return [
        SplitPart(
            _NAMES.get(part, part),
            seconds[at],
            PART_COLORS[part],
            _LETTERS[part],
            (
                seconds_text(shown[at]),
                *((_dollars(money[at], digits),) if money else ()),
                units.percent(seconds[at] / bill.device_s if bill.device_s else None),
            ),
        )
        for at, part in enumerate(BILL_PARTS)
    ]


def total_segments(bill: Bill) -> list[Segment]:
    """The sum, so that it can be checked: devices, time, price, energy.

    Where the price was another for a while, or there was none, time × price is not the sum: then what it is for.
    """
    devices = f" of {units.count(bill.devices)} device{'' if bill.devices == 1 else 's'}"
    total = units.NOT_AVAILABLE if bill.total_usd is None else _est(bill) + _dollars(bill.total_usd, _digits(bill))
    price = units.usd(bill.usd_per_device_hour) + ("" if bill.usd_per_device_hour is None else "/h")
    time = seconds_text(bill.device_s)
    energy = f" + {units.usd(bill.energy_usd)} energy" if bill.energy_usd is not None else ""
    if _adds_up(bill):
        return [
            Segment(f"{total} = {time}{devices} × {price}{energy}", f"{total} = {time} × {price}{energy}", priority=9)
        ]
    priced = seconds_text(bill.priced_s)
    why = (
        "at prices that changed"
        if abs(bill.priced_s - bill.device_s) < _ROUNDED_S
        else f"of {time}: the rest had no price"
    )
    return [Segment(f"{total} for {priced}{devices} {why}", f"{total} for {priced}", priority=9)]


def _adds_up(bill: Bill) -> bool:
    """Whether all of the time had the price of now."""
    if bill.total_usd is None:
        return True
    if bill.usd_per_device_hour is None:
        return False
    expected = bill.device_s / 3_600 * bill.usd_per_device_hour + (bill.energy_usd or 0.0)
    return abs(expected - bill.total_usd) < 10.0 ** -_digits(bill)


def price_text(bill: Bill) -> str:
    """Where the price comes from."""
    if bill.usd_per_device_hour is None:
        return f"Price n/a: {one_line(bill.price_source)}"
    return f"Price {_est(bill)}{units.usd(bill.usd_per_device_hour)} per device-hour: {one_line(bill.price_source)}"


def _est(bill: Bill) -> str:
    return "est. " if bill.estimated else ""


def kind_segments(bill: Bill) -> list[Segment]:
    """The bill by what it pays for: fixed, compute, memory, scheduling, I/O."""
    if not bill.device_s:
        return [Segment("shares n/a", color=palette.MUTED)]
    return [
        Segment(
            f"{name} {units.percent(sum(bill.seconds.get(part, 0.0) for part in parts) / bill.device_s)}",
            priority=len(_KINDS) - rank,
        )
        for rank, (name, parts) in enumerate(_KINDS)
    ]


def idle_text(bill: Bill, time: float) -> str:
    """What it costs that the engine has nothing to do, as a sum and by the hour since `bill.since`."""
    if bill.usd is None or time <= bill.since:
        return units.NOT_AVAILABLE
    idle = bill.usd.get("idle", 0.0)
    return f"{units.usd(idle)}, {units.usd(idle / (time - bill.since) * 3_600)} an hour"


def ledger_segments(ledger: LedgerStatus | None) -> list[Segment]:
    """What keeps the ledger from being whole; nothing while it is."""
    if ledger is None:
        return []
    lost = f"▲ the ledger lost {units.count(ledger.lost)} rows" if ledger.lost else ""
    problem = f"▲ ledger: {one_line(ledger.problem)}" if ledger.problem else ""
    return [Segment(problem, priority=4, color=palette.BAD), Segment(lost, priority=3, color=palette.BAD)]


def group_name(line: CostLine) -> str:
    """The group's name; an hour as its local time."""
    if line.kind == "all":
        return ALL
    if line.kind == "hour":
        try:
            return f"{datetime.fromtimestamp(float(line.name)):%Y-%m-%d %H:%M}"
        except (ValueError, OverflowError, OSError):
            return one_line(line.name)
    return one_line(line.name) or units.NOT_AVAILABLE


def _money(value: Callable[[CostLine], float | None]) -> Callable[[CostLine, int], str]:
    return lambda line, width: units.usd(value(line), width)


def _tokens(value: Callable[[CostLine], int]) -> Callable[[CostLine, int], str]:
    return lambda line, width: units.count(value(line), width)


COLUMNS: tuple[Column[CostLine], ...] = (
    Column("group", 14, 12, lambda line, width: beginning(group_name(line), width), True, widest=32),
    Column("spent", 8, 11, _money(lambda line: line.usd)),
    Column("requests", 10, 6, _tokens(lambda line: line.requests)),
    Column("$/1k req", 10, 7, _money(lambda line: line.usd_per_thousand_requests)),
    Column("$/1M in", 9, 9, _money(lambda line: line.usd_per_million_input)),
    Column("$/1M cached", 11, 8, _money(lambda line: line.usd_per_million_cached)),
    Column("$/1M out", 10, 10, _money(lambda line: line.usd_per_million_output)),
    Column("input", 7, 3, _tokens(lambda line: line.input_tokens), widest=9),
    Column("cached", 7, 1, _tokens(lambda line: line.cached_tokens), widest=9),
    Column("output", 7, 2, _tokens(lambda line: line.output_tokens), widest=9),
    Column("est. saved", 12, 4, _money(lambda line: line.saved_usd)),
)

ORDERS: dict[str, tuple[str, Callable[[CostLine], float | None]]] = {
    "spent": ("spent", lambda line: line.usd),
    "requests": ("requests", lambda line: line.requests),
    "$/1k requests": ("$/1k req", lambda line: line.usd_per_thousand_requests),
    "$/1M output": ("$/1M out", lambda line: line.usd_per_million_output),
    "saved": ("est. saved", lambda line: line.saved_usd),
}
"""By what the rows can be sorted, most first, the column that shows it; and `name`."""
BY_NAME = "name"


def grouped(lines: Sequence[CostLine], kind: GroupKind, order: str) -> list[CostLine]:
    """All requests first, then the groups of one kind in this order; what isn't known comes last."""
    groups = [line for line in lines if line.kind == kind]
    if order == BY_NAME:
        groups.sort(key=lambda line: line.name.casefold())
    else:
        value = ORDERS[order][1]
        groups.sort(key=lambda line: (value(line) is None, -(value(line) or 0.0)))
    return [*(line for line in lines if line.kind == "all"), *groups]
