"""Whether a memory plan fits its device, and what would."""

from collections.abc import Callable

from profiles.memory import MemoryPlan, plan
from profiles.schema import Profile


def refusal(planned: MemoryPlan) -> str | None:
    """Why the profile can't be built, with numbers and the largest values that would fit; `None` if nothing says so.

    Either weights, KV cache and activations together are above the device's memory, or the KV cache holds less than
    one sequence of the context length. vLLM refuses that too (`check_enough_kv_cache_memory` in
    vllm/v1/core/kv_cache_utils.py), but counts its null block in: with one page too few, a sequence of full length
    would be preempted for ever. What is unknown refuses nothing.
    """
    problem = _problem(planned)
    return None if problem is None else f"{problem} {_advice(planned)}"


def size_text(size: int) -> str:
    """Bytes as decimal GB or MB, three digits or so."""
    return f"{size / 1e9:.2f} GB" if abs(size) >= 1e9 else f"{size / 1e6:.1f} MB"


def _problem(planned: MemoryPlan) -> str | None:
    weights, activations, kv = planned.weights_bytes, planned.activation_bytes, planned.kv_bytes
    total, device = planned.total_bytes, planned.device_bytes
    name = planned.profile.name
    needs = f"{size_text(weights or 0)} of weights and an estimated {size_text(activations or 0)} of activations"
    if weights is not None and activations is not None and device is not None and kv is not None:
        share = planned.profile.engine.gpu_memory_utilization
        if planned.kv_estimated and kv <= 0:
            return (
                f'Profile "{name}" does not fit: {needs} leave nothing for the KV cache of the '
                f"{size_text(int(device * share))} it may use ({share:g} of {size_text(device)})."
            )
        if total is not None and total > device:
            return (
                f'Profile "{name}" does not fit: {needs} with {size_text(kv)} of KV cache are {size_text(total)}, '
                f"and the device has {size_text(device)}."
            )
    if planned.concurrency is not None and planned.concurrency < 1:
        return (
            f'Profile "{name}" does not fit: its KV cache holds {planned.tokens} tokens ({size_text(kv or 0)}), '
            f"less than one sequence of its context length, {planned.context}."
        )
    return None


def _advice(planned: MemoryPlan) -> str:
    profile = planned.profile
    found = []
    if planned.context is not None:
        length = _largest(planned.context - 1, lambda n: _fits(planned, _with_engine(profile, max_model_len=n)))
        found += [f"engine.max_model_len = {length}"] if length else []
    requests = _largest(profile.scheduler.max_active - 1, lambda n: _fits(planned, _with_requests(profile, n)))
    found += [f"scheduler.max_active = {requests}"] if requests else []
    found += _smaller_cache(planned)
    if found:
        return f"By this plan the largest that fits is {', or '.join(found)}."
    return (
        f"No engine.max_model_len and no scheduler.max_active makes it fit: {_remedy(planned)}choose a smaller model."
    )


def _remedy(planned: MemoryPlan) -> str:
    """What else gives the KV cache room, where the device may have some."""
    if planned.kv_estimated:
        return "raise engine.gpu_memory_utilization or "
    total, device = planned.total_bytes, planned.device_bytes
    return "" if total is not None and device is not None and total > device else "raise engine.kv_cache_memory or "


def _smaller_cache(planned: MemoryPlan) -> list[str]:
    """The KV cache that the device has room for where the profile's own is too large for it, and its context length."""
    weights, activations, device = planned.weights_bytes, planned.activation_bytes, planned.device_bytes
    if planned.kv_estimated or weights is None or activations is None or device is None:
        return []
    room = device - weights - activations
    if room <= 0 or room >= (planned.kv_bytes or 0):
        return []
    smaller = _with_engine(planned.profile, kv_cache_memory=room)
    if _fits(planned, smaller):
        return [f"engine.kv_cache_memory = {room}"]
    length = _largest((planned.context or 1) - 1, lambda n: _fits(planned, _with_engine(smaller, max_model_len=n)))
    return [f"engine.kv_cache_memory = {room} with engine.max_model_len = {length}"] if length else []


def _with_engine(profile: Profile, **values: int) -> Profile:
    return profile.model_copy(update={"engine": profile.engine.model_copy(update=values)})


def _with_requests(profile: Profile, max_active: int) -> Profile:
    scheduler = profile.scheduler.model_copy(update={"max_active": max_active})
    return profile.model_copy(update={"scheduler": scheduler})


def _fits(planned: MemoryPlan, profile: Profile) -> bool:
    return _problem(plan(planned.shape, profile, planned.device_bytes, planned.device)) is None


def _largest(highest: int, fits: Callable[[int], bool]) -> int | None:
    """The largest value from 1 to `highest` that fits, where all below one that fits do; `None` if there is none."""
    low, high = 0, highest
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low or None
