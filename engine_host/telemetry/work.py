"""How much arithmetic and memory traffic a step of the model takes. Every figure here is an estimate."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class WorkModel:
    """vLLM's own analytical estimate of one device's work (`vllm.v1.metrics.perf`), as numbers to multiply with.

    flops: FLOP for each token, for each token and token of context it attends to, and for each request that leaves its
    logits. Bytes, read and written: `weights` once a step; for each token; for each token of context, which prefill and
    decode count differently; for each request's logits. `window` is the tokens of context that sliding-window layers
    see, and the `windowed` figures are theirs. Of a mixture of experts, `expert` bytes are read for each token, up to
    `experts` in all.
    """

    flops_token: float
    flops_context: float
    flops_logits: float
    weights: float
    bytes_token: float
    bytes_context_prefill: float
    bytes_context_decode: float
    bytes_logits: float
    window: int | None = None
    windowed_flops_context: float = 0.0
    windowed_bytes_prefill: float = 0.0
    windowed_bytes_decode: float = 0.0
    expert: float = 0.0
    experts: float = 0.0

    def _seen(self, context: Floats) -> Floats:
        return context if self.window is None else np.minimum(context, self.window)

    def flops(self, tokens: Any, context: Any, logits: Any) -> Floats:
        """FLOP of requests' parts of steps: `tokens` that end at a `context`, of which `logits` are sampled from."""
        tokens, context = np.asarray(tokens, np.float64), np.asarray(context, np.float64)
        attention = context * self.flops_context + self._seen(context) * self.windowed_flops_context
        found: Floats = tokens * (self.flops_token + attention) + np.asarray(logits) * self.flops_logits
        return found

    def bytes_(self, tokens: Any, context: Any, logits: Any, *, prefill: bool) -> Floats:
        """Bytes of requests' parts of steps, without the weights, which a step reads once for all of them."""
        tokens, context = np.asarray(tokens, np.float64), np.asarray(context, np.float64)
        each = self.bytes_context_prefill if prefill else self.bytes_context_decode
        windowed = self.windowed_bytes_prefill if prefill else self.windowed_bytes_decode
        cache = context * each + self._seen(context) * windowed
        found: Floats = tokens * self.bytes_token + cache + np.asarray(logits) * self.bytes_logits
        return found

    def shared_bytes(self, tokens: Any) -> Floats:
        """Bytes of weights that steps of so many tokens read."""
        found: Floats = self.weights + np.minimum(np.asarray(tokens, np.float64) * self.expert, self.experts)
        return found


BY_TOKENS = WorkModel(1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0)
"""Where vLLM knows no estimate for a model: every token counts alike. Good for sharing, not for a roofline."""
