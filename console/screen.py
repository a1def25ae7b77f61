"""The screen process: `python -m console.screen --socket PATH`, started by the host on the real terminal.

Exit codes: 0, the user quit and the host should end; 143 and 129 after SIGTERM and SIGHUP; 3, the host is gone;
anything else is a crash, after which the host starts the screen again.
"""

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from console.terminal_modes import TerminalModes

if TYPE_CHECKING:
    from engine_host.api.contract import HostApi

REFUSED_TERMINALS = ("", "dumb", "unknown")


def main(argv: Sequence[str] | None = None) -> int:
    """Show the console of the host at `--socket` until the user quits or the host is gone."""
    parser = argparse.ArgumentParser(prog="console.screen", description="The console of a running host.")
    parser.add_argument("--socket", required=True, metavar="PATH", help="the host's Unix socket (may not exist yet)")
    socket: str = parser.parse_args(argv).socket
    if os.environ.get("TERM", "") in REFUSED_TERMINALS:
        sys.stderr.write("This terminal can't show the console (TERM=dumb). Serve without it: `llmconsole serve`.\n")
        return 2
    modes = TerminalModes(sys.stdin.fileno())
    # Ctrl+C is a key here; a SIGINT from elsewhere goes to the whole process group and must not end the screen.
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def connect() -> "HostApi":
        from engine_host.api.client import HostClient

        return HostClient(socket)

    from console.app import HOST_GONE, HOST_GONE_CODE, ConsoleApp
    from console.lifeline import end_for_certain, stand_back, watch_parent
    from console.settings import SettingsError, load_settings

    problem = ""
    try:
        settings = load_settings()
    except SettingsError as error:
        settings, problem = error.usable, str(error)
    app = ConsoleApp(connect, settings, notice=problem, when_ready=stand_back)

    def leave(code: int, why: str = "") -> None:
        modes.note()
        end_for_certain(code)
        app.leave(code, why)

    watch_parent(lambda: leave(HOST_GONE_CODE, HOST_GONE))
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: leave(128 + number))
    app.run()
    modes.restore()
    return app.return_code or 0


if __name__ == "__main__":
    sys.exit(main())
