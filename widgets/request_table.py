"""The table of live requests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from textual.message import Message
from textual.widgets import DataTable


@dataclass(frozen=True, slots=True)
class RequestLine:
    """One row. Tokens are counts, `age`, `ttft` and `ttl_p99` seconds, `pages` KV pages; `None` is unknown."""

    id: str
    state: str
    prompt: int
    output: int
    max_tokens: int | None
    age: float
    ttft: float | None
    ttl_p99: float | None
    pages: int | None


class RequestTable(DataTable[str]):
    """Rows by request id; updates keep the cursor on its request and the scroll position."""

    class RequestSelected(Message):
        """The cursor moved to a request (`None`: the table is empty)."""

        def __init__(self, table: RequestTable, request_id: str | None) -> None:
            super().__init__()
            self.table = table
            self.request_id = request_id

        @property
        def control(self) -> RequestTable:
            """The sending table."""
            return self.table

    def set_requests(self, lines: Sequence[RequestLine]) -> None:
        """Show these requests, in this order."""
