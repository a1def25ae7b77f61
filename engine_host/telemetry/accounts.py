"""What requests are charged: device-seconds and money by part, and where in the ring of steps they were."""

from dataclasses import dataclass, field

from engine_host.api.records import RequestCost

REQUEST_PARTS = ("prefill", "decode", "memory")


@dataclass(slots=True)
class Account:
    """One request's, over all its sequences and all engines it was in.

    `seconds` and `usd` are by `REQUEST_PARTS`; `usd` counts the seconds that had a price, which are `priced` of them.
    `prompt_step_began` is the monotonic time at which the last step for its prompt began; `computed` the prompt tokens
    that were computed, without those found in the cache or computed a second time. `open` counts its sequences that
    hold or wait for pages, `pages` those it holds.
    """

    seconds: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0])
    usd: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0])
    priced: float = 0.0
    steps: int = 0
    first_step: int | None = None
    last_step: int | None = None
    prompt_step_began: float | None = None
    computed: int = 0
    preemptions: int = 0
    pages: int = 0
    pages_peak: int = 0
    open: int = 0

    def cost(self, saved_usd: float | None = None) -> RequestCost:
        """Its cost so far. The money is unknown where some of its time had no price."""
        known = self.priced >= sum(self.seconds) - 1e-9
        prefill, decode, memory = self.usd if known else (None, None, None)
        prefill_s, decode_s, memory_s = self.seconds
        return RequestCost(
            prefill_s,
            decode_s,
            memory_s,
            prefill_usd=prefill,
            decode_usd=decode,
            memory_usd=memory,
            saved_usd=saved_usd if known else None,
        )
