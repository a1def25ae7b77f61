"""What requests are charged: device-seconds and money by part, and where in the ring of steps they were."""

from dataclasses import dataclass, field

from engine_host.api.records import RequestCost

REQUEST_PARTS = ("prefill", "decode", "memory")


@dataclass(slots=True)
class Account:
    """One request's, over all its sequences and all engines it was in.

    `seconds` and `usd` are by `REQUEST_PARTS`; `usd` counts the seconds that had a price, all but `unpriced` of them.
    `prompt_step_began` is the monotonic time at which the last step for its prompt began, before it was `answered` by
    a first token; `computed` the tokens that were computed before one, without those found in the cache. `first_step`
    and `last_step` are those of the last `engine` it was in; `open` counts its sequences that haven't left it.
    """

    seconds: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0])
    usd: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0])
    unpriced: float = 0.0
    steps: int = 0
    first_step: int | None = None
    last_step: int | None = None
    engine: int = 0
    prompt_step_began: float | None = None
    answered: bool = False
    computed: int = 0
    preemptions: int = 0
    pages_peak: int = 0
    open: int = 0

    def cost(self, saved_usd: float | None = None) -> RequestCost:
        """Its cost so far. The money is unknown where some of its time had no price."""
        known = not self.unpriced
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
