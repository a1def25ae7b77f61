"""What a client is told of its budget: the sentence, until when, and OpenAI's headers."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from engine_host.api.types import UsageLine
from engine_host.gateway.budgets import Account, Budgets, open_budgets
from engine_host.gateway.caller import Limits
from engine_host.gateway.rate_headers import duration, rate_limit_headers
from engine_host.gateway.refusal import Refusal

NOW = 1_800_014_400.0 + 12.5
"""12 and a half seconds past noon, UTC."""


@pytest.fixture
async def budgets(tmp_path: Path) -> AsyncIterator[Budgets]:
    opened = open_budgets(None, tmp_path, lambda: NOW)
    yield opened
    await opened.close()


async def refused(budgets: Budgets, account: Account, tokens: int, usd: float = 0.0) -> Refusal:
    with pytest.raises(Refusal) as caught:
        await budgets.reserve([account], tokens, usd)
    assert caught.value.status == 429
    return caught.value


async def test_says_which_limit_how_much_and_until_when(budgets: Budgets) -> None:
    key = Account("key:k1", Limits(tokens_per_minute=1000))
    await budgets.reserve([key], 950, 0)
    refusal = await refused(budgets, key, 100)
    assert str(refusal) == (
        "The limit of 1000 tokens a minute of key k1 is used up: 950 tokens are used or reserved, and this request may "
        "need 100 tokens. Send it again at 12:01:00 UTC, in 48 s."
    )
    assert refusal.headers == {
        "Retry-After": "48",
        "x-ratelimit-limit-tokens": "1000",
        "x-ratelimit-remaining-tokens": "50",
        "x-ratelimit-reset-tokens": "48s",
    }


async def test_names_the_limit_that_lasts_longest(budgets: Budgets) -> None:
    key = Account("key:k1", Limits(requests_per_minute=1, usd_per_day=0.5))
    await budgets.reserve([key], 1, 0.4)
    refusal = await refused(budgets, key, 1, 0.2)
    assert "0.5 USD a day of key k1 is used up: 0.4 USD are used or reserved" in str(refusal)
    assert "at 00:00:00 UTC, in 43188 s" in str(refusal)
    assert refusal.headers["Retry-After"] == "43188"


async def test_what_no_window_could_hold_is_not_to_be_tried_again(budgets: Budgets) -> None:
    refusal = await refused(budgets, Account("tier:standard", Limits(tokens_per_minute=10)), 11)
    assert "11 tokens, more than the 10 tokens that tier standard may use in a minute" in str(refusal)
    assert "waiting doesn't help" in str(refusal)
    assert refusal.headers == {"x-should-retry": "false"}


async def test_the_last_token_and_the_last_cent_can_be_used(budgets: Budgets) -> None:
    key = Account("key:k1", Limits(requests_per_minute=3, tokens_per_minute=30, usd_per_day=0.3))
    # As floats, three times 0.1 is more than 0.3.
    await budgets.release(await budgets.reserve([key], 10, 0.1 + 0.1 + 0.1))
    for _ in range(3):
        await budgets.reserve([key], 10, 0.1)
    assert [line.used == line.allowed for line in await budgets.usage(key)] == [True, True, True]
    await refused(budgets, key, 1, 0.0)


async def test_a_grant_carries_what_the_headers_tell(budgets: Budgets) -> None:
    key = Account("key:k1", Limits(requests_per_minute=60))
    tier = Account("tier:standard", Limits(requests_per_minute=600, tokens_per_minute=5000, tokens_per_day=5100))
    await budgets.settle(await budgets.reserve([key, tier], 200, 0), 200, 0)
    grant = await budgets.reserve([key, tier], 100, 0)
    assert rate_limit_headers(grant.usage) == {
        "x-ratelimit-limit-requests": "60",  # The key's; it has no limit of tokens, so these are the tier's.
        "x-ratelimit-remaining-requests": "58",
        "x-ratelimit-reset-requests": "48s",
        "x-ratelimit-limit-tokens": "5000",
        "x-ratelimit-remaining-tokens": "4700",
        "x-ratelimit-reset-tokens": "48s",
    }


def test_of_two_limits_the_nearer_one_is_told() -> None:
    minute = UsageLine("tokens_per_minute", used=0, allowed=1000, resets_s=10)
    day = UsageLine("tokens_per_day", used=4500, allowed=5000, resets_s=40_000)
    assert rate_limit_headers([(minute, day)])["x-ratelimit-remaining-tokens"] == "500"


def test_no_limit_no_headers_and_nothing_left_is_zero() -> None:
    assert rate_limit_headers([]) == rate_limit_headers([(), ()]) == {}
    over = UsageLine("tokens_per_minute", used=12, allowed=10, resets_s=1)
    assert rate_limit_headers([(over,)])["x-ratelimit-remaining-tokens"] == "0"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0s"), (0.2, "1s"), (59.9, "1m0s"), (360, "6m0s"), (3600, "1h0m0s"), (82_805, "23h0m5s")],
)
def test_durations_as_openai_writes_them(seconds: float, text: str) -> None:
    assert duration(seconds) == text
