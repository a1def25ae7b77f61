"""The accounts that a request is counted in: its key's and its tier's."""

from engine_host.gateway.budgets import Account
from engine_host.gateway.caller import Limits
from profiles.gateway import KeysSection, Tier


def key_account(key_id: str, own: Limits, defaults: KeysSection) -> Account:
    """A key's: its limits, with the profile's where it has none of its own."""
    limits = Limits(
        own.requests_per_minute or defaults.requests_per_minute,
        own.tokens_per_minute or defaults.tokens_per_minute,
        own.tokens_per_day or defaults.tokens_per_day,
        own.usd_per_day or defaults.usd_per_day,
    )
    return Account(f"key:{key_id}", limits)


def tier_account(name: str, tier: Tier) -> Account:
    """The one that all requests of a tier share."""
    limits = Limits(tier.requests_per_minute, tier.tokens_per_minute, tier.tokens_per_day, tier.usd_per_day)
    return Account(f"tier:{name}", limits)
