"""What running the engine costs."""

from engine_host.api.types import Cost


def cost(price_usd_per_hour: float | None, source: str, output_tokens: int, window_s: float) -> Cost:
    """The price of the window over the output tokens handed over in it, in USD per million tokens.

    `price_usd_per_hour` is what the device costs, `source` says where that figure comes from, `window_s` is how many
    seconds the tokens took. Idle time is part of the price. Unknown without a price or without tokens.
    """
    per_million = None
    if price_usd_per_hour is not None and output_tokens > 0:
        per_million = price_usd_per_hour * window_s / 3600 / output_tokens * 1e6
    return Cost(
        usd_per_hour=price_usd_per_hour, price_source=source, usd_per_million_output=per_million, window_s=window_s
    )
