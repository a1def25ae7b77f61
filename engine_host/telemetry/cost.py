"""What running the engine costs: where the price comes from, and the price of a token."""

from engine_host.api.types import Cost
from engine_host.telemetry.meter import Rate
from engine_host.telemetry.prices import price_of
from profiles.schema import Cost as Prices


def rate_of(prices: Prices, profile: str, device_name: str, devices: int, watts: float | None) -> Rate:
    """What `devices` of this name cost: by the profile of that name, else (est.) by the built-in table.

    `watts` is what they draw together, `None` if unknown.
    """
    usd, source, estimated = prices.usd_per_hour, f"profile {profile}", False
    if usd is None and (listed := price_of(device_name)) is not None:
        usd, source, estimated = listed.usd_per_hour, f"{listed.source}, {listed.date}", True
    elif usd is None:
        source = "no price set"
    return Rate(devices, usd, source, estimated, watts, prices.usd_per_kwh)


def cost(rate: Rate, output_tokens: int, window_s: float) -> Cost:
    """The price of the window over the output tokens handed over in it, in USD per million tokens.

    `window_s` is how many seconds the tokens took. Idle time is part of the price. Unknown without a price or without
    tokens.
    """
    per_hour = rate.usd_per_s * 3600 if rate.usd_per_s is not None else None
    per_million = None
    if per_hour is not None and output_tokens > 0:
        per_million = per_hour * window_s / 3600 / output_tokens * 1e6
    source = f"{rate.source} (est.)" if rate.estimated else rate.source
    return Cost(usd_per_hour=per_hour, price_source=source, usd_per_million_output=per_million, window_s=window_s)
