"""Streams against an OpenAI port, with the time each token arrived. Kept light: it shares the machine."""

import asyncio
import itertools
import json
import time
from dataclasses import dataclass


@dataclass(frozen=True)
class StreamTimes:
    """One stream: when it was sent, and when each of its content chunks arrived, with its text (monotonic seconds)."""

    sent: float
    tokens: tuple[tuple[float, str], ...]

    @property
    def gaps(self) -> list[float]:
        """Seconds between a token and the one before."""
        times = [at for at, _ in self.tokens]
        return [b - a for a, b in itertools.pairwise(times)]


def percentile(values: list[float], fraction: float) -> float:
    """The nearest-rank percentile of `values` (not empty)."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(fraction * len(ordered)))]


async def stream(port: int, prompt: str, max_tokens: int) -> StreamTimes:
    """One streamed chat completion of exactly `max_tokens` tokens."""
    body = json.dumps(
        {
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": max_tokens,
            "ignore_eos": True,
            "temperature": 0,
            "stream": True,
        }
    ).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    sent = time.monotonic()
    writer.write(head.encode() + body)
    tokens: list[tuple[float, str]] = []
    partial = b""
    while data := await reader.read(65_536):
        now = time.monotonic()
        *events, partial = (partial + data).split(b"\n\n")
        for event in events:
            start = event.find(b"data: {")
            if start < 0:
                continue
            choices = json.loads(event[start + 6 :]).get("choices")
            if choices and (text := choices[0]["delta"].get("content")):
                tokens.append((now, text))
    writer.close()
    return StreamTimes(sent, tuple(tokens))


async def run_streams(port: int, count: int, max_tokens: int) -> list[StreamTimes]:
    """`count` streams at once, each with a prompt of its own."""
    prompts = [f"Story {number}: write about the number {number}." for number in range(count)]
    return list(await asyncio.gather(*(stream(port, prompt, max_tokens) for prompt in prompts)))
