"""Where the last, still growing top-level block of a streamed Markdown text begins."""

import re

_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})(.*)")
_LIST_ITEM = re.compile(r" {0,3}(?:[-*+]|\d{1,9}[.)])(?:\s|$)")


class OpenBlock:
    """Reads a text as it streams in; `start` is the offset in characters of the block that is still open.

    Only what bounds the cost of parsing again matters here: fences, lists (a blank line does not end one, a line at the
    margin after it does) and blank lines.
    """

    def __init__(self) -> None:
        self.start = 0
        self._position = 0
        self._line = ""
        self._fence = ""
        self._after_blank = True
        self._in_list = False

    def feed(self, text: str) -> None:
        """Read the next piece of the text."""
        *complete, self._line = (self._line + text).split("\n")
        for line in complete:
            self._read_line(line)
            self._position += len(line) + 1

    def _read_line(self, line: str) -> None:
        fence = _FENCE.match(line)
        if self._fence:
            if fence and fence[1].startswith(self._fence) and not fence[2].strip():
                self._fence = ""
                self._in_list = False
                self.start = self._position + len(line) + 1
            return
        if not line.strip():
            self._after_blank = True
            if not self._in_list:
                self.start = self._position + len(line) + 1
            return
        item = _LIST_ITEM.match(line) is not None
        continues = self._in_list and (item or line[0] in " \t")
        if (self._after_blank and not continues) or fence:
            self.start = self._position
            self._in_list = item
        self._after_blank = False
        if fence:
            self._fence = fence[1]
