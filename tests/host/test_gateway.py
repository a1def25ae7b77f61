"""What the gateway passes on, drops and accounts for, on a stub engine."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from engine_host.gateway.refusal import Refusal
from engine_host.port.context import RequestContext, request_context
from engine_host.telemetry.hub import TelemetryHub
from tests.gateway.parts import book, no_limit, open_admission, profile
from tests.support import small_model


@pytest.fixture(scope="module")
def engine() -> Any:
    from engine_host.engine.serve_args import parse_serve_args
    from engine_host.engine.stub import StubEngine

    return StubEngine(parse_serve_args(str(small_model("float32")), [], {"max_model_len": 256}))


class Clock:
    """Moves on by a tenth of a second each time it is asked."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        self.now += 0.1
        return self.now


@pytest.fixture
def hub() -> TelemetryHub:
    return TelemetryHub(clock=lambda: 110.0, wall=lambda: 0.0)


def words(*texts: str) -> Any:
    from engine_host.engine.stub import Delta

    def script(*_: Any) -> Iterator[Any]:
        for number, text in enumerate(texts):
            yield Delta(text, finish_reason="stop" if number + 1 == len(texts) else None)

    return script


def behind(engine: Any, hub: TelemetryHub, *clock: Any) -> Any:
    from engine_host.engine.gateway import Gateway

    gateway = Gateway(hub, open_admission(), no_limit, book(hub), *clock)
    gateway.attach(engine)
    return gateway


async def collect(engine: Any, hub: TelemetryHub, kind: str, **options: Any) -> list[Any]:
    from vllm.sampling_params import RequestOutputKind, SamplingParams

    params = SamplingParams(max_tokens=8, output_kind=RequestOutputKind[kind])
    stream = behind(engine, hub, Clock()).generate({"prompt_token_ids": [1, 2, 3]}, params, "r1", **options)
    return [output async for output in stream]


async def test_a_caller_of_the_final_output_gets_one_and_each_token_is_timed(engine: Any, hub: TelemetryHub) -> None:
    engine.script = words("a", "b", "c")
    (output,) = await collect(engine, hub, "FINAL_ONLY")
    assert (output.outputs[0].text, len(output.outputs[0].token_ids), output.finished) == ("abc", 3, True)
    latency = hub.latency()
    assert latency.ttft is not None
    assert latency.ttl is not None
    assert (latency.ttft.count, latency.ttl.count) == (1, 2)
    assert hub.totals.finished["stop"] == 1


async def test_a_stream_passes_through_unchanged(engine: Any, hub: TelemetryHub) -> None:
    engine.script = words("a", "b")
    assert [output.outputs[0].text for output in await collect(engine, hub, "DELTA")] == ["a", "b"]


async def test_the_callers_parameters_are_not_touched(engine: Any, hub: TelemetryHub) -> None:
    from vllm.sampling_params import RequestOutputKind, SamplingParams

    engine.script = words("a")
    params = SamplingParams(max_tokens=8, output_kind=RequestOutputKind.FINAL_ONLY)
    async for _ in behind(engine, hub).generate({"prompt_token_ids": [1]}, params, "r1"):
        pass
    assert params.output_kind == RequestOutputKind.FINAL_ONLY


async def test_the_engine_gets_the_tiers_priority_never_the_clients(engine: Any, hub: TelemetryHub) -> None:
    engine.script = words("a")
    await collect(engine, hub, "DELTA", priority=-5)
    assert engine.received[-1][2]["priority"] == 0


async def test_a_stream_that_is_left_is_aborted_and_counted_so(engine: Any, hub: TelemetryHub) -> None:
    from vllm.sampling_params import RequestOutputKind, SamplingParams

    engine.script = words("a", "b", "c")
    params = SamplingParams(max_tokens=8, output_kind=RequestOutputKind.DELTA)
    stream = behind(engine, hub).generate({"prompt_token_ids": [1]}, params, "left")
    await anext(stream)
    assert [row.id for row in hub.requests(None)] == ["left"]
    await stream.aclose()
    assert "left" in engine.aborted
    assert hub.requests(None) == ()
    assert hub.totals.finished["abort"] == 1


async def test_an_engine_that_dies_is_a_sentence_and_may_be_tried_again(engine: Any, hub: TelemetryHub) -> None:
    from vllm.exceptions import RetryableRequestError
    from vllm.v1.engine.exceptions import EngineDeadError

    engine.script = lambda *_: iter([*[*words("a", "b")()][:1], EngineDeadError()])
    with pytest.raises(RetryableRequestError, match="send it again"):
        await collect(engine, hub, "DELTA")
    assert hub.totals.finished["error"] == 1


async def test_a_prompt_whose_text_can_t_be_told_is_served_all_the_same(engine: Any, hub: TelemetryHub) -> None:
    from vllm.sampling_params import SamplingParams

    from engine_host.engine.gateway import Gateway

    rules = profile(ledger={"store_text": True})
    gateway = Gateway(hub, open_admission(rules), no_limit, book(hub), Clock())
    gateway.attach(engine)
    engine.script = words("fine")
    stream = gateway.generate({"prompt_token_ids": [-1]}, SamplingParams(max_tokens=8), "r1")
    assert [output.outputs[0].text async for output in stream][-1] == "fine"


class Told:
    """A gateway whose books only keep what they were told."""

    def __init__(self, engine: Any, hub: TelemetryHub, store_text: bool = False) -> None:
        from engine_host.engine.gateway import Gateway

        self.ends: list[tuple[Any, ...]] = []
        books = book(hub)
        books.ended = lambda *given: self.ends.append(given)  # type: ignore[method-assign]
        self.admission = open_admission(profile(ledger={"store_text": store_text}))
        self.gateway = Gateway(hub, self.admission, no_limit, books, Clock())
        self.gateway.attach(engine)
        self.context = RequestContext("x-9", 100.0, "/v1/completions", traceparent="00-1-2-01")

    async def serve(self, kind: str = "DELTA") -> list[Any]:
        from vllm.sampling_params import RequestOutputKind, SamplingParams

        params = SamplingParams(max_tokens=8, output_kind=RequestOutputKind[kind])
        token = request_context.set(self.context)
        try:
            prompt = {"prompt_token_ids": [1, 2], "prompt": "Why?"}
            return [output async for output in self.gateway.generate(prompt, params, "r1")]
        finally:
            request_context.reset(token)


async def test_the_books_are_told_whose_request_has_ended_and_how(engine: Any, hub: TelemetryHub) -> None:
    told = Told(engine, hub, store_text=True)
    engine.script = words("Be", "cause")
    await told.serve()
    ((ticket, reason, ended, error),) = told.ends
    assert (reason, error, ended.output_tokens) == ("stop", None, 2)
    assert (ticket.client_id, ticket.path, ticket.traceparent) == ("x-9", "/v1/completions", "00-1-2-01")
    assert (ticket.profile, ticket.prompt_text, ticket.reply_text) == ("profile", "Why?", ["Be", "cause"])
    assert ticket.ended is not None


async def test_texts_are_kept_only_where_the_profile_says_so(engine: Any, hub: TelemetryHub) -> None:
    told = Told(engine, hub)
    engine.script = words("Be", "cause")
    await told.serve()
    assert (told.ends[0][0].prompt_text, told.ends[0][0].reply_text) == (None, None)


async def test_delivery_is_told_by_the_first_bytes_of_a_stream_only(engine: Any, hub: TelemetryHub) -> None:
    engine.script = words("a", "b")
    stream, whole = Told(engine, hub), Told(engine, hub)
    await stream.serve()
    await whole.serve("FINAL_ONLY")
    assert (len(stream.context.when_written), len(whole.context.when_written)) == (1, 0)
    stream.context.written(101.0)
    assert stream.context.when_written == [], "the bytes after them tell nothing more"


async def test_what_a_fault_says_may_be_of_the_prompt_and_is_not_told(engine: Any, hub: TelemetryHub) -> None:
    told = Told(engine, hub)
    engine.script = lambda *_: iter([ValueError("Why?")])
    with pytest.raises(ValueError, match="Why"):
        await told.serve()
    assert told.ends[0][1:2] + told.ends[0][3:] == ("error", "ValueError")


async def test_who_is_refused_is_counted_so_and_the_books_have_the_sentence(engine: Any, hub: TelemetryHub) -> None:
    told = Told(engine, hub)
    engine.script = words("a", "b")
    refusal = Refusal(408, "Too late.")

    async def enter(ticket: Any) -> Any:
        raise refusal

    told.admission.enter = enter  # type: ignore[method-assign]
    with pytest.raises(Exception, match="Too late"):
        await told.serve()
    ((ticket, _, _, error),) = told.ends
    assert (ticket.refusal, error) == (refusal, "Too late.")
    assert (hub.totals.finished["refused"], hub.totals.finished["abort"]) == (1, 0)


async def test_when_the_engine_had_the_first_token_is_kept_and_not_of_a_later_engine(
    engine: Any, hub: TelemetryHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    told, stamps = Told(engine, hub), iter([(1.0, 2.0), (3.0, 4.0)])
    inner = engine.generate

    async def stamped(*args: Any, **options: Any) -> Any:
        async for output in inner(*args, **options):
            scheduled, first = next(stamps)
            output.metrics = SimpleNamespace(scheduled_ts=scheduled, first_token_ts=first)
            yield output

    monkeypatch.setattr(engine, "generate", stamped)
    engine.script = words("a", "b")
    await told.serve()
    assert (told.ends[0][0].scheduled, told.ends[0][0].computed) == (1.0, 2.0)
