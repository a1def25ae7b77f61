"""Holds a request's prompt and reply length against the profile, before anything is computed for it."""

from collections.abc import Mapping
from typing import Any

from engine_host.gateway import prompts
from engine_host.gateway.compress import WHY_NOT, compress
from engine_host.port.backend import Serving
from profiles.gateway import Prompts


async def governed(
    path: str, body: dict[str, Any], serving: Serving, rules: Prompts, reply_headers: dict[str, str]
) -> dict[str, Any]:
    """The body as it is served: with its reply capped, and compressed where the profile says so.

    What was changed goes into `reply_headers`. Raises `Refusal`. The prompt is counted here only where its length is
    not known well enough from its characters and the profile needs it before vLLM tokenizes it; every prompt's exact
    count is held against the limits once more when it is let in.
    """
    prompts.check_not_empty(body)
    context = serving.context_length
    body, changed = prompts.cap_reply(path, body, rules, context)
    if changed is not None:
        reply_headers[prompts.MAX_TOKENS_HEADER] = changed
    limit, longest = prompts.hard_limit(rules, context), serving.longest_token_chars
    if longest is not None and prompts.surely_over(body, limit, longest):
        raise prompts.refuse_over(rules, context, longest)
    if rules.over_hard != 400 and (count := await _count_over(path, body, serving, limit)) is not None:
        # vLLM itself would answer 400.
        prompts.check_hard(count, rules, context)
    if rules.over_soft != "compress" or rules.soft_limit is None:
        return body
    return await _compressed(path, body, serving, rules, reply_headers)


async def _compressed(
    path: str, body: dict[str, Any], serving: Serving, rules: Prompts, reply_headers: dict[str, str]
) -> dict[str, Any]:
    assert rules.soft_limit is not None
    count = await _count_over(path, body, serving, rules.soft_limit)
    if count is None:
        return body
    prompts.check_hard(count, rules, serving.context_length)

    async def counted(changed: Mapping[str, Any]) -> int | None:
        return await serving.count_tokens(path, changed)

    found = await compress(body, count, rules.compress_to or rules.soft_limit, counted)
    if found is None or found.after > rules.soft_limit:
        why = WHY_NOT if found is None else f"Compressed as far as it can be it still has {found.after:,}."
        raise prompts.refuse_soft(count, rules, serving.context_length, why)
    reply_headers[prompts.PROMPT_HEADER] = found.header
    return found.body


async def _count_over(path: str, body: Mapping[str, Any], serving: Serving, limit: int) -> int | None:
    """The prompt's tokens where they are more than `limit`; `None` also where vLLM can't tell: it will say why."""
    if prompts.surely_within(body, limit, await serving.template_cost()):
        return None
    count = await serving.count_tokens(path, body)
    return count if count is not None and count > limit else None
