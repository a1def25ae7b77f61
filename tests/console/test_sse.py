import itertools

from hypothesis import given
from hypothesis import strategies as st

from engine_host.api.sse import SseEvent, SseParser

STREAM = (
    ": keep-alive\r\n\r\n"
    'data: {"text": "héllo 🙂"}\n\n'
    "event: error\r\ndata: one\r\ndata:two\r\n\r\n"
    "data\r\r"
    "id: 7\ndata: [DONE]\n\n"
    "data: never finished"
).encode()

EVENTS = [
    SseEvent("message", '{"text": "héllo 🙂"}'),
    SseEvent("error", "one\ntwo"),
    SseEvent("message", ""),
    SseEvent("message", "[DONE]"),
]


def parse(pieces: list[bytes]) -> list[SseEvent]:
    parser = SseParser()
    return [event for piece in pieces for event in parser.feed(piece)]


def test_whole_stream() -> None:
    assert parse([STREAM]) == EVENTS


@given(st.sets(st.integers(1, len(STREAM) - 1)))
def test_any_split_gives_the_same_events(cuts: set[int]) -> None:
    bounds = [0, *sorted(cuts), len(STREAM)]
    assert parse([STREAM[a:b] for a, b in itertools.pairwise(bounds)]) == EVENTS


def test_invalid_utf8_is_replaced_not_raised() -> None:
    assert parse([b"data: a\xff\n\n"]) == [SseEvent("message", "a\ufffd")]
