# SPDX-License-Identifier: Apache-2.0
"""HTTP listener of the metrics: `GET /metrics`, in the text format of Prometheus.

Owns the serving thread, and its way to the event loop: the state belongs to the loop, so each scrape has its sample taken there and
waits for it. Limits: one scrape at a time (more wait in the system's backlog), `CLIENT_WAIT_S` for a slow client, `SAMPLE_WAIT_S` for
a busy loop. A loop that is busy for longer fails the scrape, which is itself a signal.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import socketserver
import threading
from collections.abc import Callable, Iterable
from typing import Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer
from wsgiref.types import StartResponse, WSGIEnvironment

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, GCCollector, ProcessCollector, generate_latest
from prometheus_client.registry import Collector

from metaquorum.process.metrics import QuorumCollector
from metaquorum.process.settings import Address
from metaquorum.replica.quorum_metrics import QuorumSample

logger = logging.getLogger(__name__)

PATH: Final = "/metrics"
"""The only path that is served."""

CLIENT_WAIT_S: Final = 5.0
"""Seconds that a client may take to send its request, or to read a piece of the answer."""

SAMPLE_WAIT_S: Final = 5.0
"""Seconds that a scrape waits for the event loop."""

POLL_S: Final = 0.1
"""Seconds within which the thread notices that it must end."""


class MetricsAddressError(Exception):
    """This process cannot listen on the address for metrics; the message says why."""


class MetricsListener:
    """Serves the metrics of one quorum node. Must be created, opened and closed on the event loop of that node.

    Args:
        take: returns the sample; called on the event loop. None: the node has not started.
        more: further collectors; they run in the serving thread.
    """

    def __init__(self, take: Callable[[], QuorumSample | None], *more: Collector) -> None:
        self._take = take
        self._loop = asyncio.get_running_loop()
        registry = CollectorRegistry(auto_describe=False)
        registry.register(QuorumCollector(self._take_on_loop))
        for collector in more:
            registry.register(collector)
        ProcessCollector(registry=registry)
        GCCollector(registry=registry)
        self._registry = registry
        self._server: _Server | None = None
        self._thread: threading.Thread | None = None

    def open(self, listen: Address) -> Address:
        """Listen and serve. Return the address with its real port.

        Raises:
            MetricsAddressError: another process listens there, or the address is not of this machine.
        """
        assert self._server is None, "opened once"
        try:
            family, _, _, _, address = socket.getaddrinfo(listen.host, listen.port, type=socket.SOCK_STREAM)[0]
            self._server = _Server(family, (str(address[0]), int(address[1])), self._serve)
        except OSError as error:
            raise MetricsAddressError(
                f"cannot listen on {listen} for metrics: {error.strerror or error}; choose another --metrics-listen"
            ) from error
        bound = Address(host=listen.host, port=self._server.server_port)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(POLL_S,), name="metrics", daemon=True)
        self._thread.start()
        logger.info("event=metrics_listening address=%s path=%s", bound, PATH)
        return bound

    async def close(self) -> None:
        """Stop serving, after a scrape under way. Idempotent."""
        server, self._server = self._server, None
        if server is not None and self._thread is not None:
            # Not on the event loop: the scrape under way may wait for it.
            await asyncio.to_thread(server.shutdown)
            await asyncio.to_thread(self._thread.join)
            server.server_close()

    def _take_on_loop(self) -> QuorumSample | None:
        async def take() -> QuorumSample | None:
            return self._take()

        future = asyncio.run_coroutine_threadsafe(take(), self._loop)
        try:
            return future.result(SAMPLE_WAIT_S)
        finally:
            future.cancel()

    def _serve(self, environment: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        if environment.get("REQUEST_METHOD") != "GET":
            return _refuse(start_response, "405 Method Not Allowed", f"ask with GET {PATH}\n")
        if environment.get("PATH_INFO") != PATH:
            return _refuse(start_response, "404 Not Found", f"the metrics are at {PATH}\n")
        try:
            text = generate_latest(self._registry)
        except TimeoutError:
            logger.warning("event=scrape_failed reason=%r", f"the event loop was busy for {SAMPLE_WAIT_S} s")
            return _refuse(start_response, "503 Service Unavailable", "the event loop is busy; scrape again\n")
        start_response("200 OK", [("Content-Type", CONTENT_TYPE_LATEST)])
        return [text]


def _refuse(start_response: StartResponse, status: str, text: str) -> Iterable[bytes]:
    start_response(status, [("Content-Type", "text/plain; charset=utf-8")])
    return [text.encode()]


class _Server(WSGIServer):
    """An HTTP server that handles one request at a time."""

    def __init__(
        self,
        family: socket.AddressFamily,
        address: tuple[str, int],
        app: Callable[[WSGIEnvironment, StartResponse], Iterable[bytes]],
    ) -> None:
        self.address_family = family
        super().__init__(address, _Handler)
        self.set_app(app)

    def server_bind(self) -> None:
        """Bind without asking a name server for the host's name."""
        socketserver.TCPServer.server_bind(self)
        host, port = self.server_address[:2]
        self.server_name, self.server_port = str(host), int(port)
        self.setup_environ()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log a client that disconnected or was too slow."""
        logger.info("event=scrape_failed client=%s", client_address, exc_info=True)


class _Handler(WSGIRequestHandler):
    """Limits the time of a client, and writes no line for each request."""

    timeout = CLIENT_WAIT_S

    def log_message(self, format: str, *args: object) -> None:
        """Log at DEBUG level."""
        logger.debug("event=scrape what=%s", format % args)
