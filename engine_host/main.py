"""The host process, from the command line to its end.

The order matters. The screen first: it paints while the rest loads. Then the pipe over the output, before anything can
print. Then the forkserver, which imports vLLM on another core while this process does. Only then threads and the loop.
"""

import asyncio
import os
import shutil
import signal
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from engine_host.engine.process import BUILD_THREAD, prepare_environment, start_forkserver
from engine_host.logs.capture import RealDescriptors, capture_output, save_descriptors
from engine_host.logs.own import hear
from engine_host.logs.ring import LogRing
from engine_host.options import HostOptions
from engine_host.runtime import SOCKET_NAME, clear_leftovers, create_runtime_dir
from engine_host.supervisor import ScreenGivenUp, ScreenSupervisor


def run(options: HostOptions, screen: Sequence[str] | None) -> int:
    """Host an engine until the operator quits; returns the exit code.

    `screen` is the command of the screen process, with `{socket}` in place of the host's socket; `None` serves without
    one and writes JSON lines to standard error.
    """
    try:
        directory = create_runtime_dir(options.runtime_dir)
    except OSError as error:
        print(f"llmconsole can't use its runtime folder: {error}", file=sys.stderr)  # noqa: T201
        return 1
    descriptors = save_descriptors()
    ring = LogRing()
    hear(ring)
    supervisor = None
    if screen is not None:
        supervisor = ScreenSupervisor(
            screen, directory / SOCKET_NAME, descriptors, lambda text: ring.append("warning", "host", text)
        )
        supervisor.launch()
    forkserver_pid = -1
    code = 1
    try:
        capture_output(ring)
        prepare_environment(directory)
        forkserver_pid = start_forkserver()
        code = _serve(options, directory, ring, supervisor, descriptors, forkserver_pid)
    finally:
        if supervisor is not None:
            supervisor.stop()
        if forkserver_pid > 0:
            with suppress(ProcessLookupError):
                os.kill(forkserver_pid, signal.SIGKILL)
        shutil.rmtree(directory, ignore_errors=True)
    if any(thread.name == BUILD_THREAD for thread in threading.enumerate()):
        # It is in the middle of importing vLLM, and the interpreter can't be taken down around it.
        os._exit(code)
    return code


def _serve(
    options: HostOptions,
    directory: Path,
    ring: LogRing,
    supervisor: ScreenSupervisor | None,
    descriptors: RealDescriptors,
    forkserver_pid: int,
) -> int:
    from engine_host.logs.sinks import file_sink, json_sink

    try:
        ring.sinks.append(file_sink(options.log_dir, ring))
    except OSError as error:
        ring.append("error", "host", f"No log file is written: {error}")
    if supervisor is None:
        ring.sinks.append(json_sink(descriptors.stderr))
    for sentence in clear_leftovers(options.runtime_dir):
        ring.append("info", "host", sentence)

    import uvloop

    from engine_host.session import Session

    session = Session(options, directory, ring, forkserver_pid)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        try:
            return runner.run(session.run(supervisor))
        except ScreenGivenUp as error:
            if supervisor is not None:
                supervisor.say(str(error))
            return 1
