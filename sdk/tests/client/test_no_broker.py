# SPDX-License-Identifier: Apache-2.0
"""Addresses without a broker: the error says what is there instead, and what to do."""

from __future__ import annotations

import asyncio
import http.server
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest
from lograft import Admin, Consumer, Producer, TopicPartition, aio
from lograft.cli.app import run
from lograft.errors import NoBrokerError

TIMEOUT_MS = 1_000


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    """Python's own HTTP server, without its log."""

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""


@contextmanager
def http_port() -> Iterator[int]:
    """A real HTTP/1 server."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), QuietHandler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def talking_port(talk: Callable[[socket.socket], None]) -> Iterator[int]:
    """A server that runs `talk` for each connection and then closes it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    with connection, suppress(OSError):
                        talk(connection)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


@contextmanager
def tls_port(directory: Path, *, is_mute: bool) -> Iterator[int]:
    """A server that speaks TLS with its own certificate. A mute one closes other connections without an alert."""
    key, certificate = directory / "key.pem", directory / "certificate.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=localhost"]
    subprocess.run([*command, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)

    def talk(connection: socket.socket) -> None:
        if is_mute and connection.recv(1, socket.MSG_PEEK) != b"\x16":
            return
        context.wrap_socket(connection, server_side=True).close()

    with talking_port(talk) as port:
        yield port


@contextmanager
def silent_port() -> Iterator[int]:
    """A port that accepts connections and sends nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


@contextmanager
def refused_port() -> Iterator[int]:
    """A port without a listener."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


KINDS = {
    "http": "is an HTTP server, not a Lograft broker; check the port",
    "tls": "speaks TLS, and Lograft speaks plaintext; give the address of the plaintext port",
    "mute tls": "speaks TLS, and Lograft speaks plaintext; give the address of the plaintext port",
    "silent": "accepts connections and says nothing; is it a Lograft broker, or does it hang?",
    "refused": "refuses connections: no process listens there; is it running?",
    "closed": "closes connections without a word; is it a Lograft broker?",
    "other": r"speaks another protocol, so it is no Lograft broker; check the port (it began with b'SSH-2.0-it\r\n')",
    "name": "cannot be resolved; check the host name",
}


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, str]]:
    """Yield (address, the text expected for it)."""
    kind = str(request.param)
    ports = {
        "http": http_port,
        "tls": lambda: tls_port(tmp_path, is_mute=False),
        "mute tls": lambda: tls_port(tmp_path, is_mute=True),
        "silent": silent_port,
        "refused": refused_port,
        "closed": lambda: talking_port(lambda connection: None),
        "other": lambda: talking_port(lambda connection: connection.sendall(b"SSH-2.0-it\r\n")),
    }
    if kind == "name":
        yield "no-such-host.invalid:9640", KINDS[kind]
        return
    with ports[kind]() as port:
        yield f"127.0.0.1:{port}", KINDS[kind]


def test_blocking_clients_say_what_was_seen(place: tuple[str, str]) -> None:
    """Each client says so in its first call."""
    address, said = place
    with (
        Admin(address, request_timeout_ms=TIMEOUT_MS) as admin,
        Consumer(address, request_timeout_ms=TIMEOUT_MS) as consumer,
        Producer(address, delivery_timeout_ms=TIMEOUT_MS) as producer,
    ):
        for call in (
            admin.list_topics,
            lambda: consumer.assign([TopicPartition("t", 0)]),
            lambda: producer.send("t", b"v"),
        ):
            with pytest.raises(NoBrokerError) as caught:
                call()
            expected = f"no broker answered at {address} within "
            assert caught.value.message.startswith(expected)
            assert caught.value.message.endswith(f": {address} {said}")


def test_asyncio_clients_say_the_same(place: tuple[str, str]) -> None:
    """Both kinds of clients share this code."""
    address, said = place

    async def list_topics() -> None:
        async with aio.Admin(address, request_timeout_ms=TIMEOUT_MS) as admin:
            await admin.list_topics()

    with pytest.raises(NoBrokerError) as caught:
        asyncio.run(list_topics())
    assert caught.value.message.endswith(f": {address} {said}")


def test_command_says_the_same(place: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    """The command prints one line and exits with code 1."""
    address, said = place
    assert run(["topics", "list", "--bootstrap", address, "--timeout-ms", str(TIMEOUT_MS)]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("lograft: error: no broker answered at ")
    assert line.endswith(f": {address} {said}")


def test_each_of_several_addresses_is_told_of() -> None:
    """The error names the addresses in the order in which they were asked."""
    with ExitStack() as stack:
        silent, refused = (f"127.0.0.1:{stack.enter_context(port())}" for port in (silent_port, refused_port))
        with Admin([silent, refused], request_timeout_ms=5_000) as admin, pytest.raises(NoBrokerError) as caught:
            admin.list_topics()
    assert f"{silent} {KINDS['silent']}" in caught.value.message
    assert f"{refused} {KINDS['refused']}" in caught.value.message
