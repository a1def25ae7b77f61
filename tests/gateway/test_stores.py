"""Conversations that were kept are forgotten in their time, whether or not any are kept now."""

import os
from pathlib import Path

from engine_host.gateway.stores import Stores
from tests.gateway.parts import profile


async def test_conversations_are_forgotten_after_the_profile_keeps_none(tmp_path: Path) -> None:
    def stores(**sessions: object) -> Stores:
        rules = profile(gateway={"sessions": sessions}).gateway
        return Stores(lambda: rules, tmp_path, lambda: 2048, lambda message: 1)

    body = {"messages": [{"role": "user", "content": "A heron."}]}
    keeps = stores(enabled=True)
    book = keeps.sessions()
    assert book is not None
    _, ticket = await book.begin("k", "s", body)
    await book.end(ticket, {"role": "assistant", "content": "It stands."})
    await keeps.close()
    off = stores(enabled=False, ttl_s=1e-9)
    assert off.sessions() is None
    await off.sweep()
    await off.close()
    again = stores(enabled=True).sessions()
    assert again is not None
    whole, _ = await again.begin("k", "s", body)
    assert whole["messages"] == body["messages"]
    await again.close()


async def test_nothing_is_made_where_none_were_kept(tmp_path: Path) -> None:
    stores = Stores(lambda: profile().gateway, tmp_path, lambda: 2048, lambda message: 1)
    await stores.sweep()
    await stores.close()
    assert os.listdir(tmp_path) == []
