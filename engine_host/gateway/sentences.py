"""Splitting text into sentences, and ranking these, for any language and without data of one.

The ranking is Luhn's of the library sumy: how densely a sentence is filled with words that its neighbourhood repeats.
Of sumy's it put sentences beside the subject last, and is the fastest.
"""

import re
from collections.abc import Iterator
from typing import Any

_WINDOW = 64
"""Sentences that make up a neighbourhood. Each keeps its own best, so that what is left is spread over a long text, and
the time grows with the length of the text, not its square."""

_LONG_SENTENCE = 400
"""Characters after which a text without full stops is cut: at a space in the next as many, or else there."""

_FENCE = re.compile(r"`{3,}|~{3,}")
_SENTENCE_END = re.compile(r"""(?<![.!?…])[.!?…]++["'”’)\]]*+\s++|[。！？]+["”’」』）]*\s*|\n\s*""")
_SPACE_AFTER = re.compile(r"\s+")
_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_WORD = re.compile(rf"([{_UNSPACED}]+)|[^\W{_UNSPACED}]+")
"""A word, or (the group) a run of a script without spaces: Thai, Lao, Burmese, Khmer, Chinese, Japanese."""


def prose(text: str, end: int) -> Iterator[tuple[int, int]]:
    """The stretches before `end` that are in no code block; one that is never closed goes to the end of the text."""
    begin, closing = 0, ""
    for fence in _FENCE.finditer(text):
        if not closing:
            closing = fence[0]
            if begin < min(fence.start(), end):
                yield begin, min(fence.start(), end)
        elif fence[0].startswith(closing):
            begin, closing = fence.end() + text.startswith("\n", fence.end()), ""
    if not closing and begin < end:
        yield begin, end


def split(text: str, start: int, stop: int) -> Iterator[tuple[int, int]]:
    """The sentences and lines of a stretch, with the space behind each."""
    ends = [each.end() for each in _SENTENCE_END.finditer(text, start, stop)]
    for end in [*ends, stop]:
        while end - start > 2 * _LONG_SENTENCE:
            space = _SPACE_AFTER.search(text, start + _LONG_SENTENCE, start + 2 * _LONG_SENTENCE)
            cut = space.end() if space else start + _LONG_SENTENCE
            yield start, cut
            start = cut
        if text[start:end].strip():
            yield start, end
        start = end


class _Words:
    """sumy's tokenizer: no language, no data. Scripts without spaces are taken in pairs of characters."""

    def to_words(self, text: str) -> tuple[str, ...]:
        words: list[str] = []
        for match in _WORD.finditer(text):
            run = match[1]
            words += [match[0]] if run is None else [run[n : n + 2] for n in range(max(1, len(run) - 1))]
        return tuple(words)


def least_telling_first(sentences: list[str]) -> list[int]:
    """Numbers of the sentences: first those said before, then what says least of the subject."""
    first: dict[str, int] = {}
    for number, sentence in enumerate(sentences):
        first.setdefault(sentence.strip(), number)
    distinct = list(first.values())
    again = sorted(set(range(len(sentences))).difference(distinct), reverse=True)
    return again + [distinct[number] for number in _by_luhn([sentences[number] for number in distinct])]


def _by_luhn(sentences: list[str]) -> list[int]:
    if not sentences:
        return []
    # Imported late: sumy brings nltk, 0.9 s, and most hosts never compress.
    from sumy.models.dom import ObjectDocumentModel, Paragraph, Sentence
    from sumy.summarizers.luhn import LuhnSummarizer

    ranked: list[tuple[float, int]] = []
    for begin in range(0, len(sentences), _WINDOW):
        window = sentences[begin : begin + _WINDOW]
        document = ObjectDocumentModel([Paragraph([Sentence(each, _Words()) for each in window])])
        best_first: list[int] = []

        def take(infos: list[Any], best_first: list[int] = best_first) -> list[Any]:
            best_first.extend(info.order for info in infos)
            return infos

        LuhnSummarizer()(document, take)
        ranked += [(1 - place / len(window), begin + order) for place, order in enumerate(best_first)]
    return [number for _, number in sorted(ranked)]
