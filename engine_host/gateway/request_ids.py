"""The id of a request in the engine: its client's, as far as that can be told from all others and found again."""

import itertools
import re
from collections.abc import Callable

MAX_BYTES = 137
"""Of an id, before what is appended to tell it from others: the flight record keeps 160 with what vLLM adds. The port's
longest `X-Request-Id` fits, with vLLM's prefix."""

_SEQUENCE = re.compile(r"\d+_")


class RequestIds:
    """`taken` tells whether a request of an id is here, or was a moment ago, so that its cost is still made up."""

    def __init__(self, taken: Callable[[str], bool]) -> None:
        self._taken = taken
        self._numbers = itertools.count(2)

    def own(self, given: str) -> str:
        """An id that is no other request's."""
        name = given.encode(errors="replace")[:MAX_BYTES].decode(errors="ignore")
        if _SEQUENCE.match(name):
            # Before a request's id this means one of its sequences in the engine.
            name = f"_{name}"
        own = name
        while self._taken(own):
            own = f"{name}~{next(self._numbers)}"
        return own
