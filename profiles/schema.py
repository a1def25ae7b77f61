"""What a tuning profile may say: every knob with its type, unit, bounds, default, and when a change takes effect.

A knob is *live* (in force at the next scheduler step, nothing is dropped) or needs a *rebuild* of the engine. That and
the description stand here only: the engine's arguments, the documentation and the diff of two profiles read them.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from pydantic import BaseModel, Field, field_validator, model_validator

from profiles.gateway import BUILT_IN_TIERS, GatewaySection, KeysSection, Tier
from profiles.section import MAX_TOKENS, Bytes, Section, When, knob

Device = Literal["cpu", "cuda"]
Policy = Literal["fcfs", "priority"]

ANY_TIER = "NAME"
"""Stands for a tier's name in the path of a knob that every tier has."""

# The Recorder never takes page-map snapshots more often than this.
MAX_SNAPSHOT_HZ = 10.0


class Speculative(Section):
    """Speculative decoding. `ngram` needs no draft model, every other method does."""

    method: Literal["ngram", "draft_model", "eagle", "eagle3"] = knob(
        "ngram", "rebuild", None, "How draft tokens are proposed"
    )
    num_speculative_tokens: int = knob(4, "rebuild", "tokens", "Draft tokens per step", ge=1, le=32)
    prompt_lookup_min: int = knob(2, "rebuild", "tokens", "Shortest n-gram looked up (ngram)", ge=1)
    prompt_lookup_max: int = knob(4, "rebuild", "tokens", "Longest n-gram looked up (ngram)", ge=1)
    model: str | None = knob(None, "rebuild", None, "Draft model (all methods but ngram)")

    @model_validator(mode="after")
    def _method_has_what_it_needs(self) -> "Speculative":
        if self.prompt_lookup_min > self.prompt_lookup_max:
            raise ValueError("prompt_lookup_min must not be above prompt_lookup_max")
        if (self.method == "ngram") == (self.model is not None):
            raise ValueError(f'method "{self.method}" {"takes no" if self.model else "needs a draft"} model')
        return self

    def engine_config(self) -> dict[str, object]:
        """vLLM's `speculative_config`."""
        common: dict[str, object] = {"method": self.method, "num_speculative_tokens": self.num_speculative_tokens}
        if self.method == "ngram":
            return common | {"prompt_lookup_min": self.prompt_lookup_min, "prompt_lookup_max": self.prompt_lookup_max}
        return common | {"model": self.model}


class Engine(Section):
    """What the engine is built with. A change of any of these rebuilds it."""

    model: str | None = knob(None, "rebuild", None, "Model to serve; the one on the command line goes first")
    dtype: Literal["auto", "bfloat16", "float16", "float32"] = knob(
        "auto", "rebuild", None, "Data type of weights and activations; auto takes the model's own"
    )
    quantization: str | None = knob(
        None, "rebuild", None, "Weight quantization method as vLLM names it; unset takes what the model says"
    )
    kv_cache_dtype: str = knob("auto", "rebuild", None, 'Data type of the KV cache as vLLM names it ("auto", "fp8")')
    block_size: int | None = knob(
        None, "rebuild", "tokens", "Tokens per KV page; unset takes vLLM's choice", ge=1, le=1024
    )
    max_model_len: int | None = knob(
        None, "rebuild", "tokens", "Longest context, prompt and reply; unset takes the model's own", ge=1, le=MAX_TOKENS
    )
    gpu_memory_utilization: float = knob(
        0.9, "rebuild", "fraction", "Share of device memory the engine may use, weights included", gt=0, le=1
    )
    kv_cache_memory: Bytes | None = knob(
        None, "rebuild", "bytes", 'Memory for the KV cache, as bytes or text like "512MiB"', gt=0
    )
    tensor_parallel_size: int = knob(1, "rebuild", "devices", "Devices each layer is split over", ge=1)
    pipeline_parallel_size: int = knob(1, "rebuild", "devices", "Stages the layers are split into", ge=1)
    enable_prefix_caching: bool = knob(True, "rebuild", None, "Keep KV pages of finished prompts for reuse")
    enforce_eager: bool = knob(False, "rebuild", None, "No CUDA graphs: faster start, slower decode; always so on CPU")
    speculative: Speculative | None = knob(None, "rebuild", None, "Speculative decoding; unset is off")


class Scheduler(Section):
    """How steps are composed. All live, up to the ceilings of `Headroom`."""

    token_budget: int = knob(
        4096, "live", "tokens", "Most tokens, prefill and decode, in one step", ge=1, le=MAX_TOKENS
    )
    max_active: int = knob(256, "live", "requests", "Most requests running at once", ge=1, le=MAX_TOKENS)
    chunked_prefill: bool = knob(True, "live", None, "Split long prompts over several steps")
    long_prefill_threshold: int = knob(
        0,
        "live",
        "tokens",
        "Most prefill tokens one request gets in a step beside others; 0 is no limit",
        ge=0,
        le=MAX_TOKENS,
    )
    policy: Policy = knob(
        "priority", "live", None, "Order of vLLM's queue: first come first served, or by the tiers' priority"
    )
    watermark: float = knob(
        0.0, "live", "fraction", "Share of KV pages kept free when requests are admitted", ge=0, lt=1
    )


class Headroom(Section):
    """Ceilings allocated at start, as a factor on the running value: room to raise it later without a rebuild."""

    token_budget: float = knob(2.0, "rebuild", "factor", "Allocated token budget over the running one", ge=1, le=16)
    max_active: float = knob(2.0, "rebuild", "factor", "Allocated request slots over the running ones", ge=1, le=16)


class Flight(Section):
    """The flight record."""

    snapshot_hz: float = knob(10.0, "live", "Hz", "Page-map snapshots a second, at most", gt=0, le=MAX_SNAPSHOT_HZ)


class Cost(Section):
    """What the devices cost."""

    usd_per_hour: float | None = knob(
        None,
        "live",
        "USD/h",
        "Price of one device per hour; unset takes the built-in table's (est.), where it is in",
        ge=0,
    )
    usd_per_kwh: float | None = knob(
        None, "live", "USD/kWh", "Price of energy, on top of the hour's; unset is none", ge=0
    )
    memory_share: float = knob(
        0.2,
        "live",
        "fraction",
        "Share of a step's cost that is charged by the pages held, not by the work; a convention, not a measurement",
        ge=0,
        le=1,
    )


class Peaks(Section):
    """What the device can do at most, for the roofline."""

    tflops: float | None = knob(
        None,
        "live",
        "TFLOP/s",
        "Peak of dense arithmetic in the model's data type; unset takes table or calibration",
        gt=0,
    )
    gb_per_s: float | None = knob(
        None, "live", "GB/s", "Peak of memory bandwidth (10⁹ bytes); unset takes table or calibration", gt=0
    )


class Ledger(Section):
    """What is kept of requests, minutes and changes."""

    enabled: bool = knob(True, "live", None, "Keep one row a request, a minute, a change")
    retention_days: float = knob(30.0, "live", "days", "Rows older than this are removed", gt=0)
    store_text: bool = knob(False, "live", None, "Keep prompts and replies too: personal data in most places")


class Log(Section):
    """What is told outside."""

    requests: bool = knob(True, "live", None, "One JSON line a request in the log")
    otlp_endpoint: str | None = knob(
        None,
        "live",
        None,
        "OpenTelemetry collector (OTLP over HTTP) that gets a trace of each request; unset takes the environment's",
    )


class Targets(Section):
    """Latency targets, drawn beside what is measured."""

    ttft_ms: float | None = knob(None, "live", "ms", "Target for the time to first token", gt=0)
    ttl_ms: float | None = knob(None, "live", "ms", "Target for the token-to-token latency", gt=0)


class Recovery(Section):
    """What becomes of requests when the engine is rebuilt, or dies."""

    drain_s: float = knob(
        30.0, "live", "s", "Longest wait for requests that can't go on in a rebuilt engine; after it they end", ge=0
    )
    hang_s: float = knob(
        60.0, "live", "s", "An engine that makes no step for this long while requests run is ended and rebuilt", gt=0
    )
    back_off_s: float = knob(
        1.0, "live", "s", "Pause before a second try in a row to bring the engine back; it doubles up to 30 s", ge=0
    )
    max_failures: int = knob(
        5, "live", "failures", "Failures in a row after which the engine is not started again", ge=1, le=1000
    )


@dataclass(frozen=True)
class LiveKnobs:
    """The values in force from the next step on. Tokens, requests, fraction of pages, snapshots a second."""

    token_budget: int
    max_active: int
    chunked_prefill: bool
    long_prefill_threshold: int
    policy: Policy
    watermark: float
    snapshot_hz: float


class Profile(Section):
    """One tuning profile. `name` is the name of its file."""

    name: str = Field(min_length=1, description="The profile's name: that of its file, without .toml")
    description: str = Field("", description="One line for the profile list")
    engine: Engine = Engine()
    scheduler: Scheduler = Scheduler()
    headroom: Headroom = Headroom()
    flight: Flight = Flight()
    cost: Cost = Cost()
    peaks: Peaks = Peaks()
    ledger: Ledger = Ledger()
    log: Log = Log()
    targets: Targets = Targets()
    recovery: Recovery = Recovery()
    gateway: GatewaySection = GatewaySection()
    keys: KeysSection = KeysSection()
    tiers: dict[str, Tier] = Field(
        default_factory=lambda: {name: Tier(**values) for name, values in BUILT_IN_TIERS.items()},
        description="Service levels",
    )

    @field_validator("tiers", mode="before")
    @classmethod
    def _tiers_over_the_built_in_ones(cls, given: object) -> object:
        return _with_built_in_tiers(given) if isinstance(given, dict) else given

    @model_validator(mode="after")
    def _tiers_that_exist(self) -> "Profile":
        if self.keys.tier not in self.tiers:
            raise ValueError(f'keys.tier = "{self.keys.tier}" is no tier; there are {", ".join(self.tiers)}')
        return self

    @model_validator(mode="after")
    def _steps_can_hold_their_requests(self) -> "Profile":
        scheduler, max_len = self.scheduler, self.engine.max_model_len
        if scheduler.max_active > scheduler.token_budget:
            raise ValueError(
                f"scheduler.max_active ({scheduler.max_active}) must not be above scheduler.token_budget "
                f"({scheduler.token_budget}): each running request needs a token in the step"
            )
        if self.allocated_requests > self.allocated_tokens:
            raise ValueError(
                f"headroom.max_active allocates {self.allocated_requests} requests, more than the "
                f"{self.allocated_tokens} tokens of headroom.token_budget"
            )
        # Without chunks a prompt is scheduled whole or never.
        if not scheduler.chunked_prefill and (max_len is None or scheduler.token_budget < max_len):
            raise ValueError(
                "scheduler.chunked_prefill = false needs engine.max_model_len, and a scheduler.token_budget "
                "of at least that: a longer prompt would never be scheduled"
            )
        if max_len is not None and scheduler.long_prefill_threshold > max_len:
            raise ValueError(
                f"scheduler.long_prefill_threshold ({scheduler.long_prefill_threshold}) must not be above "
                f"engine.max_model_len ({max_len})"
            )
        return self

    @property
    def allocated_tokens(self) -> int:
        """Ceiling of `token_budget` in tokens, allocated when the engine is built."""
        return math.ceil(self.scheduler.token_budget * self.headroom.token_budget)

    @property
    def allocated_requests(self) -> int:
        """Ceiling of `max_active` in requests, allocated when the engine is built."""
        return math.ceil(self.scheduler.max_active * self.headroom.max_active)

    def engine_arguments(self, device: Device) -> dict[str, object]:
        """Keyword arguments for vLLM's `AsyncEngineArgs`; what is unset here is left out, for vLLM to decide.

        `max_num_batched_tokens` and `max_num_seqs` are the allocated ceilings; the running values are in
        `live_values()`. On the CPU the engine is always eager, and `gpu_memory_utilization` (there a share of the
        *system's* memory) is left out when the KV cache's size is given.
        """
        engine, scheduler = self.engine, self.scheduler
        wanted: dict[str, object] = {
            "model": engine.model,
            "dtype": engine.dtype,
            "quantization": engine.quantization,
            "kv_cache_dtype": engine.kv_cache_dtype,
            "block_size": engine.block_size,
            "max_model_len": engine.max_model_len,
            "gpu_memory_utilization": engine.gpu_memory_utilization,
            "kv_cache_memory_bytes": engine.kv_cache_memory,
            "tensor_parallel_size": engine.tensor_parallel_size,
            "pipeline_parallel_size": engine.pipeline_parallel_size,
            "enable_prefix_caching": engine.enable_prefix_caching,
            "enforce_eager": engine.enforce_eager or device == "cpu",
            "speculative_config": engine.speculative.engine_config() if engine.speculative else None,
            "max_num_batched_tokens": self.allocated_tokens,
            "max_num_seqs": self.allocated_requests,
            "enable_chunked_prefill": scheduler.chunked_prefill,
            "long_prefill_token_threshold": scheduler.long_prefill_threshold,
            "scheduling_policy": scheduler.policy,
            "watermark": scheduler.watermark,
        }
        if device == "cpu" and engine.kv_cache_memory is not None:
            del wanted["gpu_memory_utilization"]
        return {name: value for name, value in wanted.items() if value is not None}

    def live_values(self) -> LiveKnobs:
        """The running values of the live knobs."""
        scheduler = self.scheduler
        return LiveKnobs(
            token_budget=scheduler.token_budget,
            max_active=scheduler.max_active,
            chunked_prefill=scheduler.chunked_prefill,
            long_prefill_threshold=scheduler.long_prefill_threshold,
            policy=scheduler.policy,
            watermark=scheduler.watermark,
            snapshot_hz=self.flight.snapshot_hz,
        )


@dataclass(frozen=True)
class Knob:
    """One line of the schema: `path` such as ("scheduler", "token_budget"), and what it means."""

    path: tuple[str, ...]
    when: When
    unit: str | None
    default: object
    description: str


def knobs(tiers: Iterable[str] = ()) -> tuple[Knob, ...]:
    """Every knob of a profile, in the order of the schema.

    Those of a tier stand there once for each name in `tiers`; without any, once for all with `ANY_TIER` as the name.
    """
    found = list(_knobs_of(Profile, ()))
    general = [each for each in found if each.path[0] == "tiers"]
    names = tuple(dict.fromkeys(tiers))
    if not names:
        return tuple(found)
    return (
        *(each for each in found if each not in general),
        *(_of_tier(each, name) for name in names for each in general),
    )


def _of_tier(knob: Knob, name: str) -> Knob:
    default = BUILT_IN_TIERS.get(name, {}).get(knob.path[-1], knob.default)
    return replace(knob, path=("tiers", name, *knob.path[2:]), default=default)


def value_of(profile: Profile, path: tuple[str, ...]) -> object:
    """The effective value of the knob at `path`; `None` where it is unset or its section is off."""
    value: object = profile
    for name in path:
        value = value.get(name) if isinstance(value, dict) else getattr(value, name, None)
    return value


def _with_built_in_tiers(given: dict[str, Any]) -> dict[str, Any]:
    """The tiers as given, each built-in one completed by what it is where nothing is said."""
    merged: dict[str, Any] = {**{key: {} for key in BUILT_IN_TIERS}, **given}
    return {
        name: {**BUILT_IN_TIERS.get(name, {}), **value} if isinstance(value, dict) else value
        for name, value in merged.items()
    }


def _knobs_of(section: type[BaseModel], path: tuple[str, ...]) -> Iterator[Knob]:
    for name, field in section.model_fields.items():
        inner = _section_in(field.annotation)
        if inner is not None:
            yield from _knobs_of(inner, (*path, name, ANY_TIER) if inner is Tier else (*path, name))
        elif isinstance(extra := field.json_schema_extra, dict):
            when: When = "live" if extra["when"] == "live" else "rebuild"
            unit = extra["unit"]
            yield Knob((*path, name), when, str(unit) if unit else None, field.default, field.description or "")


def _section_in(annotation: object) -> type[BaseModel] | None:
    """The section a field holds, also inside `Section | None` and `dict[str, Section]`."""
    options = (annotation, *get_args(annotation))
    return next((kind for kind in options if isinstance(kind, type) and issubclass(kind, Section)), None)
