"""The map of a KV cache: one half-block a page, coloured by the request that holds it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from textual.message import Message
from textual.scroll_view import ScrollView

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

FREE = 0
USED = 1
CACHED = 2


class PageMap(ScrollView, can_focus=True):
    """Shows every page of a KV cache; overview zoom when the pool is larger than the widget."""

    class PageSelected(Message):
        """A page was pointed at. `owners` are the request ids holding it that are known (none when free or cached)."""

        def __init__(self, page_map: PageMap, page: int, state: int, refs: int, owners: tuple[str, ...]) -> None:
            super().__init__()
            self.page_map = page_map
            self.page = page
            self.state = state
            self.refs = refs
            self.owners = owners

        @property
        def control(self) -> PageMap:
            """The sending map."""
            return self.page_map

    def set_pages(
        self, state: NDArray[np.uint8], owner: NDArray[np.int32], refs: NDArray[np.integer], owners: Sequence[str]
    ) -> None:
        """Show a snapshot.

        Arrays have one entry a page: `state` is FREE, USED or CACHED; `owner` an index into `owners`, or -1; `refs` how
        many requests hold the page.
        """

    def highlight(self, request_id: str | None) -> None:
        """Show one request's pages in full colour and dim the others'; `None` ends it."""

    def owner_color(self, request_id: str) -> str:
        """The colour (CSS hex) in which a request's pages are drawn now, for a legend."""
        return "#808080"
