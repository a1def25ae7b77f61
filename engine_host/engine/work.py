"""vLLM's estimate of a model's work, taken apart into the numbers it is made of.

Its functions are linear in tokens, contexts and their products (up to a sliding window, and to the number of experts),
so that a few evaluations give all coefficients. A test compares the result with vLLM's own on other batches.
"""

import logging
from collections.abc import Callable
from typing import Any

from engine_host.telemetry.work import WorkModel

logger = logging.getLogger(__name__)

_FAR = 1 << 20
"""Tokens by which every expert is read; a context beyond any sliding window."""


def work_model(vllm_config: Any) -> WorkModel | None:
    """The estimate for one device of this configuration; `None` where vLLM has none for the model."""
    try:
        from vllm.v1.metrics.perf import ExecutionContext, ModelMetrics

        metrics = ModelMetrics(vllm_config)
        if not metrics.is_enabled():
            return None

        def flops(*requests: tuple[int, int, bool]) -> float:
            return float(metrics.get_num_flops(_batch(ExecutionContext, requests)))

        def traffic(*requests: tuple[int, int, bool]) -> float:
            batch = _batch(ExecutionContext, requests)
            return float(metrics.get_read_bytes(batch) + metrics.get_write_bytes(batch))

        return _taken_apart(flops, traffic, vllm_config.model_config.get_sliding_window())
    except Exception:
        logger.warning("vLLM can't estimate this model's work: there is no roofline.", exc_info=True)
        return None


def _batch(kind: Callable[[], Any], requests: tuple[tuple[int, int, bool], ...]) -> Any:
    batch = kind()
    for tokens, context, is_prefill in requests:
        batch.add(tokens, context, is_prefill)
    return batch


def _taken_apart(flops: Callable[..., float], traffic: Callable[..., float], window: int | None) -> WorkModel:
    # Differences of contexts: both within the window, both beyond it.
    near = max(1, (window or _FAR) // 2)
    flops_near = (flops((1, 2 * near, False)) - flops((1, near, False))) / near
    flops_far = (flops((1, 4 * _FAR, False)) - flops((1, 2 * _FAR, False))) / (2 * _FAR)
    # Two decodes of one token against one of two: the second has its own context.
    flops_token = flops((2, 0, True)) - flops((1, 0, True))
    flops_logits = flops((1, 0, True)) - flops_token

    def per_context(is_prefill: bool) -> tuple[float, float]:
        low = (traffic((1, 2 * near, is_prefill)) - traffic((1, near, is_prefill))) / near
        far = (traffic((1, 4 * _FAR, is_prefill)) - traffic((1, 2 * _FAR, is_prefill))) / (2 * _FAR)
        return low, far

    prefill_near, prefill_far = per_context(True)
    decode_near, decode_far = per_context(False)
    bytes_token = (traffic((2 * _FAR, 0, True)) - traffic((_FAR, 0, True))) / _FAR
    # A second prompt adds its logits; its context and tokens are known.
    bytes_logits = traffic((_FAR, 0, True), (_FAR, 0, True)) - traffic((2 * _FAR, 0, True))
    all_weights = traffic((_FAR, 0, True)) - _FAR * bytes_token - bytes_logits
    one, two = traffic((1, 0, True)), traffic((2, 0, True))
    expert = max(two - one - bytes_token, 0.0)
    weights = one - bytes_token - bytes_logits - expert
    return WorkModel(
        flops_token=flops_token,
        flops_context=flops_far,
        flops_logits=flops_logits,
        weights=weights,
        bytes_token=bytes_token,
        bytes_context_prefill=prefill_far,
        bytes_context_decode=decode_far,
        bytes_logits=bytes_logits,
        window=window,
        windowed_flops_context=flops_near - flops_far if window else 0.0,
        windowed_bytes_prefill=prefill_near - prefill_far if window else 0.0,
        windowed_bytes_decode=decode_near - decode_far if window else 0.0,
        expert=expert,
        experts=max(all_weights - weights, 0.0) if expert else 0.0,
    )
