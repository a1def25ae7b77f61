"""Where the host listens: the Unix socket for its screens, and the OpenAI port, which can be moved while running."""

import asyncio
from collections.abc import Callable
from pathlib import Path

from aiohttp import web

from engine_host.api.types import CommandReply, PortCommand, PortInfo
from engine_host.gateway.access import is_loopback
from engine_host.port.server import PortInUseError, Site, start_site, start_unix_site


class Ports:
    """Binds both. The OpenAI port is bound before the model loads: a taken one is known within a second.

    `exposure` says why the port may not be moved to an address that others than this machine reach, `None` if it may.
    """

    def __init__(
        self,
        make_app: Callable[[], web.Application],
        host: str,
        port: int,
        exposure: Callable[[str], str | None] = lambda host: None,
    ) -> None:
        self._make_app = make_app
        self._exposure = exposure
        self._sites: list[Site] = []
        self._public: Site | None = None
        self.info = PortInfo(host, port, bound=False)

    async def open_socket(self, app: web.Application, path: Path) -> None:
        """Listen for screens on the Unix socket `path`."""
        self._sites.append(await start_unix_site(app, path))

    async def open_port(self) -> CommandReply:
        """Bind the OpenAI port; a port that is taken is told in the reply and in `info`, and nothing raises.

        Whether it may be opened there was checked when the host was started, with the profile it was started with.
        """
        return await self._bind(self.info.host, self.info.port)

    async def move(self, command: PortCommand) -> CommandReply:
        """Bind the OpenAI port somewhere else.

        The old one stops listening only once the new one does, and the streams open on it run to their ends.
        """
        if self.info.bound and (command.host, command.port) == (self.info.host, self.info.port):
            return CommandReply(True)
        exposed = self._exposure(command.host)
        if exposed is not None and not await asyncio.to_thread(is_loopback, command.host):
            return CommandReply(False, exposed)
        return await self._bind(command.host, command.port)

    async def _bind(self, host: str, port: int) -> CommandReply:
        try:
            site = await start_site(self._make_app(), host, port)
        except (PortInUseError, OSError, OverflowError) as error:
            if not self.info.bound:
                self.info = PortInfo(host, port, bound=False, error=str(error))
            return CommandReply(False, str(error))
        old, self._public = self._public, site
        self._sites.append(site)
        self.info = PortInfo(host, site.port or port, bound=True)
        if old is not None:
            old.stop_listening()
        return CommandReply(True)

    async def close(self) -> None:
        """Stop listening and end the connections."""
        for site in self._sites:
            await site.close()
