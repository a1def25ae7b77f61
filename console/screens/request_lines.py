"""The host's rows as the table shows them: which, and in what order."""

from collections.abc import Callable, Sequence

from engine_host.api.types import RequestRow
from widgets.request_table import RequestLine


def to_line(row: RequestRow) -> RequestLine:
    """The row as the table takes it."""
    return RequestLine(
        row.id,
        row.state,
        row.prompt_tokens,
        row.output_tokens,
        row.max_tokens,
        row.age_s,
        row.ttft_s,
        row.ttl_p99_s,
        row.pages,
        row.tier,
        row.key,
        row.lane,
        row.waited_s,
        row.cost_usd,
    )


def matching(rows: Sequence[RequestRow], text: str) -> list[RequestRow]:
    """The rows in whose id, tier, key, lane and state every word of `text` occurs, in any case."""
    words = text.casefold().split()
    if not words:
        return list(rows)

    def has_all(row: RequestRow) -> bool:
        said = "\n".join((row.id, row.tier, row.key, row.lane, row.state)).casefold()
        return all(word in said for word in words)

    return [row for row in rows if has_all(row)]


def _most(value: Callable[[RequestRow], float | None]) -> Callable[[RequestRow], float]:
    """Sorts the largest first and the unknown last."""

    def key(row: RequestRow) -> float:
        known = value(row)
        return float("inf") if known is None else -known

    return key


ORDERS: dict[str, Callable[[RequestRow], float | str]] = {
    "arrival": lambda row: 0.0,
    "tier": lambda row: row.tier,
    "key": lambda row: row.key,
    "waited": _most(lambda row: row.waited_s),
    "TTL p99": _most(lambda row: row.ttl_p99_s),
    "pages": _most(lambda row: row.pages),
    "est. cost": _most(lambda row: row.cost_usd),
}
"""What the rows can be sorted by."""


def ordered(rows: Sequence[RequestRow], by: str) -> list[RequestRow]:
    """The rows in one of `ORDERS`; equal ones in order of arrival, so that none swap places without a reason."""
    value = ORDERS[by]
    return sorted(rows, key=lambda row: (value(row), -row.age_s, row.id))
