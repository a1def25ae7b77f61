"""The real Prometheus with the shipped configuration, scraping a page that a test writes."""

import json
import shutil
import subprocess
import tempfile
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

DEPLOY = Path(__file__).parents[2] / "deploy"
PROMETHEUS = shutil.which("prometheus")
PROMTOOL = shutil.which("promtool")

WAIT_S = 30
"""How long to wait for what has to come."""

_POLL_S = 0.05

Vector = dict[tuple[tuple[str, str], ...], float]


class Page:
    """What `/metrics` says; replaced whole."""

    def __init__(self) -> None:
        self.text = b""
        page = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200)
                self.send_header("Content-Type", "text/plain; version=0.0.4")
                self.end_headers()
                self.wfile.write(page.text)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()
        self.port = self._server.server_port

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class Prometheus:
    """Asks a running server."""

    def __init__(self, url: str, process: "subprocess.Popen[str]") -> None:
        self._url = url
        self._process = process
        # Not by a proxy of the environment: it is here.
        self._open = urllib.request.build_opener(urllib.request.ProxyHandler({})).open

    def get(self, path: str, **parameters: str) -> Any:
        """The `data` of an answer; an error of an expression raises with Prometheus' words."""
        url = f"{self._url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with self._open(url, timeout=WAIT_S) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{parameters}: {json.load(error)['error']}") from error

    def vector(self, expression: str) -> Vector:
        """The samples of an instant query, by labels without the metric's name."""
        found = self.get("query", query=expression)["result"]
        return {
            tuple(sorted((name, label) for name, label in each["metric"].items() if name not in ("__name__", "job"))):
            float(each["value"][1])
            for each in found
        }  # fmt: skip

    def until(self, what: str, condition: Callable[[], bool]) -> None:
        """Ask again until it is so."""
        deadline = time.monotonic() + WAIT_S
        while not condition():
            assert self._process.poll() is None, "Prometheus has ended"
            assert time.monotonic() < deadline, what
            time.sleep(_POLL_S)


@contextmanager
def running(page: Page) -> Iterator[Prometheus]:
    """A server with the shipped files, its address and intervals those of a test."""
    assert PROMETHEUS is not None
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(DEPLOY / "prometheus", folder, dirs_exist_ok=True)
        config = Path(folder) / "prometheus.yml"
        shipped = config.read_text()
        ours = shipped.replace("127.0.0.1:8000", f"127.0.0.1:{page.port}").replace("_interval: 15s", "_interval: 200ms")
        assert ours.count(f"127.0.0.1:{page.port}") == 1
        assert ours.count("200ms") == 2
        config.write_text(ours)
        command = [
            PROMETHEUS, f"--config.file={config}", f"--storage.tsdb.path={folder}/data",
            "--web.listen-address=127.0.0.1:0", "--log.level=info",
        ]  # fmt: skip
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
            assert process.stderr is not None
            try:
                address = _address(process.stderr)
                threading.Thread(target=process.stderr.read, daemon=True).start()
                yield Prometheus(f"http://{address}", process)
            finally:
                process.terminate()
                process.wait(WAIT_S)


def _address(lines: Iterable[str]) -> str:
    """Where it listens, once it is ready: of a port that it took by itself nobody else can be there first."""
    said, address = "", ""
    for line in lines:
        said += line
        if 'msg="Listening on"' in line:
            address = line.split("address=")[1].split()[0]
        if "Server is ready" in line:
            return address
    raise AssertionError(said)
