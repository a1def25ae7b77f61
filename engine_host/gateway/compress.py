"""Shortening a prompt by leaving out sentences, those that say least of the subject first.

Kept whole: system and developer messages, the last user turn, code blocks, JSON, tool calls, images, and in a
`/v1/completions` prompt its last paragraph. Every message and part stays in its place; what is left out of a text is
marked `[…]`. Longer and older texts lose more. The same input gives the same output.
"""

import asyncio
import heapq
import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator
from copy import copy
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import msgspec

from engine_host.gateway.prompts import texts_of
from engine_host.gateway.sentences import least_telling_first, prose, split

Path = tuple[str | int, ...]
Count = Callable[[dict[str, Any]], Awaitable[int | None]]

MARK = "[…]"

WHY_NOT = (
    "It can't be compressed: the system prompt, the last user turn, code and JSON are kept whole, and there is nothing "
    "else to shorten."
)

_SHORT_TEXT = 40
"""Characters up to which a text is kept whole: leaving sentences out of it saves next to nothing."""

_OLDEST_WEIGHT = 2.0
"""How much longer the oldest text is taken to be than the newest, when it is decided which loses the next sentence."""

_COUNTS = 6
"""Most times that a prompt is counted on the way to the target; each takes the tokenizer's time."""

_NEAR = 0.95
"""Share of the target from which a result is near enough."""

_TEXT_PARTS = frozenset({"text", "input_text", "output_text"})
_WHOLE_ROLES = frozenset({"system", "developer"})


@dataclass(frozen=True, slots=True)
class Compressed:
    """The shortened body, and its prompt's tokens before and after, as counted; `after` may be over the target."""

    body: dict[str, Any]
    before: int
    after: int

    @property
    def header(self) -> str:
        """The value of `X-LLMConsole-Prompt`."""
        return f"compressed {self.before}->{self.after}"


async def compress(body: dict[str, Any], before: int, target: int, count: Count) -> Compressed | None:
    """Leave out as few sentences as bring the prompt to `target` tokens, or all that may be where that isn't enough.

    `before` is the prompt's length, `count` counts that of a changed body. `None` where nothing may be left out
    (`WHY_NOT`), or leaving out makes it no shorter. Works in a thread but for the counting; `body` is not changed.
    """
    plan = await asyncio.to_thread(_Plan, body)
    if before <= target or not plan.saved:
        return None
    low, high = 0, len(plan.saved)
    best: Compressed | None = None
    steps = plan.steps_to_save((before - target) / before * plan.chars)
    for _ in range(_COUNTS):
        shorter = plan.body_after(steps)
        after = await count(shorter)
        if after is None:
            return None
        if after <= target:
            best, high = Compressed(shorter, before, after), steps
        else:
            low = steps
        if high - low <= (1 if best else 0) or _NEAR * target <= after <= target:
            break
        needed = plan.saved[steps - 1] * (before - target) / max(1, before - after)
        steps = min(max(plan.steps_to_save(needed), low + 1), high - 1 if best else high)
    if best is None:
        shortest = plan.body_after(len(plan.saved))
        after = await count(shortest)
        best = None if after is None or after >= before else Compressed(shortest, before, after)
    return best


class _Plan:
    """Which sentence goes at each step.

    `saved` are the characters gone after each step, the marks not counted; `chars` those of the whole prompt.
    """

    def __init__(self, body: dict[str, Any]) -> None:
        self.chars = sum(map(len, texts_of(body)))
        self._body = body
        self._texts = [text for text in (_Text(*each) for each in _shortenable(body)) if text.order]
        self._losers: list[int] = []
        self.saved: list[int] = []
        newest = max(1, len(self._texts) - 1)
        weights = [_OLDEST_WEIGHT - (_OLDEST_WEIGHT - 1) * n / newest for n in range(len(self._texts))]
        left = [sum(text.sizes) for text in self._texts]
        heap = [(-left[n] * weights[n], n, 0) for n in range(len(self._texts))]
        heapq.heapify(heap)
        total = 0
        while heap:
            _, n, dropped = heapq.heappop(heap)
            text = self._texts[n]
            size = text.sizes[text.order[dropped]]
            left[n] -= size
            total += size
            self._losers.append(n)
            self.saved.append(total)
            if dropped + 1 < len(text.order):
                heapq.heappush(heap, (-left[n] * weights[n], n, dropped + 1))

    def steps_to_save(self, chars: float) -> int:
        """The least steps that save so many characters; all where that isn't enough."""
        return min(bisect_left(self.saved, chars) + 1, len(self.saved))

    def body_after(self, steps: int) -> dict[str, Any]:
        """The body with the sentences of the first steps left out."""
        dropped = Counter(self._losers[:steps])
        changes = [(self._texts[n].path, self._texts[n].without(gone)) for n, gone in sorted(dropped.items())]
        changed: dict[str, Any] = _replaced(self._body, changes)
        return changed


class _Text:
    """One text: its sentences, their sizes in characters, and `order`, in which they go."""

    def __init__(self, path: Path, text: str, end: int) -> None:
        self.path = path
        self._text = text
        stretches = [] if end <= _SHORT_TEXT or _is_json(text) else list(prose(text, end))
        self._spans = [span for start, stop in stretches for span in split(text, start, stop)]
        self.sizes = [stop - start for start, stop in self._spans]
        self.order = least_telling_first([text[start:stop] for start, stop in self._spans])

    def without(self, gone: int) -> str:
        """The text with the first `gone` of `order` left out; as it is where the marks would make it no shorter."""
        dropped = frozenset(self.order[:gone])
        out, position = [], 0
        runs = groupby(enumerate(self._spans), lambda each: each[0] in dropped)
        for is_dropped, run in runs:
            if not is_dropped:
                continue
            for start, stop in _joined([span for _, span in run]):
                left_out = self._text[start:stop]
                out += [self._text[position:start], MARK, left_out[len(left_out.rstrip()) :]]
                position = stop
        shorter = "".join([*out, self._text[position:]])
        return shorter if len(shorter) < len(self._text) else self._text


def _shortenable(body: dict[str, Any]) -> Iterator[tuple[Path, str, int]]:
    """Where a text may be shortened, the text, and up to which character; oldest first."""
    prompt = body.get("prompt")
    if isinstance(prompt, str):
        yield ("prompt",), prompt, _last_paragraph(prompt)
    elif isinstance(prompt, list):
        yield from ((("prompt", n), each, _last_paragraph(each)) for n, each in enumerate(prompt) if _is_text(each))
    for field in ("messages", "input"):
        messages = body.get(field)
        if not isinstance(messages, list) or not all(isinstance(each, dict) for each in messages):
            continue
        whole = {len(messages) - 1} if messages and messages[-1].get("role") == "assistant" else set()
        whole.add(max((n for n, each in enumerate(messages) if _is_user_turn(each)), default=-1))
        for n, message in enumerate(messages):
            if n in whole or message.get("role") in _WHOLE_ROLES:
                continue
            name = "output" if message.get("type") == "function_call_output" else "content"
            for path, text in _part_texts(message.get(name)):
                yield (field, n, name, *path), text, len(text)


def _part_texts(content: Any) -> Iterator[tuple[Path, str]]:
    if isinstance(content, str):
        yield (), content
    elif isinstance(content, list):
        for n, part in enumerate(content):
            if not isinstance(part, dict):
                continue
            if part.get("type") in _TEXT_PARTS and isinstance(part.get("text"), str):
                yield (n, "text"), part["text"]
            elif part.get("type") == "tool_result":
                for path, text in _part_texts(part.get("content")):
                    yield (n, "content", *path), text


def _is_user_turn(message: dict[str, Any]) -> bool:
    """Whether the user speaks: Anthropic's API has tool results come as messages of the user too."""
    content = message.get("content")
    if isinstance(content, list):
        content = [part for part in content if not isinstance(part, dict) or part.get("type") != "tool_result"]
    return message.get("role") == "user" and bool(content)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_json(text: str) -> bool:
    if not text.lstrip().startswith(("{", "[")):
        return False
    try:
        msgspec.json.decode(text.strip())
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
        return False
    return True


def _last_paragraph(text: str) -> int:
    """Where the last paragraph begins; 0 where there is one only."""
    breaks = list(re.finditer(r"\n[ \t]*\n\s*", text.rstrip()))
    return breaks[-1].end() if breaks else 0


def _joined(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Neighbouring spans as one; what a code block parts stays parted."""
    joined: list[tuple[int, int]] = []
    for start, stop in spans:
        if joined and joined[-1][1] == start:
            joined[-1] = (joined[-1][0], stop)
        else:
            joined.append((start, stop))
    return joined


def _replaced(value: Any, changes: list[tuple[Path, str]]) -> Any:
    """`value` with other texts at the paths; only what lies on them is copied. The paths come in order."""
    if changes[:1] and not changes[0][0]:
        return changes[0][1]
    changed = copy(value)
    for key, group in groupby(changes, lambda change: change[0][0]):
        changed[key] = _replaced(value[key], [(path[1:], text) for path, text in group])
    return changed
