# SPDX-License-Identifier: Apache-2.0
"""Looks at an address where gRPC found no broker, because gRPC does not report what it met there.

A probe owns one or two plain connections, which run beside the further attempts of the call. A call that fails uses what the
probe has seen by then, and waits at most `SETTLE_S` for it.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Iterable
from typing import Final

from lograft._client.first_words import FIRST_WORDS_BYTES, Seen, judge, say
from lograft._client.resolver import resolve

MAX_PROBES: Final = 8
"""Addresses that one call probes at most."""

CONNECT_S: Final = 5.0
"""Seconds for a connection attempt."""

WORDS_S: Final = 10.0
"""Seconds that a server may take for its first bytes."""

SETTLE_S: Final = 0.25
"""Seconds that a call whose time is up waits for its probes."""

_READ_BYTES: Final = 1_024
_HTTP2_BEGINNING: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))


class Probe:
    """A look at one address. It starts at construction and runs until `end_probes`."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._seen = Seen.NOTHING
        self._words = b""
        self._task = asyncio.get_running_loop().create_task(self._look())

    def __str__(self) -> str:
        return say(self._address, self._seen, self._words)

    @property
    def task(self) -> asyncio.Task[None]:
        """The task of the probe."""
        return self._task

    async def _look(self) -> None:
        if type(asyncio.get_running_loop()).create_connection is asyncio.AbstractEventLoop.create_connection:
            # This event loop offers no plain connections, so the probe can see nothing and must not start a thread for the
            # lookup.
            return
        host, _, port = self._address.rpartition(":")
        try:
            words = await self._ask(host.strip("[]"), int(port), _HTTP2_BEGINNING)
            if words is None:
                return
            self._words, self._seen = words, judge(words)
            if self._seen is Seen.CLOSED:
                # Some servers that expect TLS silently close a connection that begins with anything else.
                words = await self._ask(host.strip("[]"), int(port), _client_hello())
                self._seen = Seen.TLS if words and judge(words) is Seen.TLS else Seen.CLOSED
        except socket.gaierror:
            self._seen = Seen.UNKNOWN_NAME
        except ConnectionRefusedError:
            self._seen = Seen.REFUSED
        except ConnectionError:
            self._seen = Seen.CLOSED
        except (OSError, TimeoutError):
            self._seen = Seen.UNREACHABLE

    async def _ask(self, host: str, port: int, beginning: bytes) -> bytes | None:
        """Send the beginning of a protocol, and return the first bytes of the answer; None if none came in time."""
        async with asyncio.timeout(CONNECT_S):
            reader, writer = await asyncio.open_connection((await resolve(host, port))[0], port)
        try:
            writer.write(beginning)
            self._seen = Seen.SILENT
            words = b""
            try:
                async with asyncio.timeout(WORDS_S):
                    while len(words) < FIRST_WORDS_BYTES and (more := await reader.read(_READ_BYTES)):
                        words += more
            except TimeoutError:
                return words or None
            except ConnectionError:
                # The system resets a connection when the server closes it before reading all bytes.
                return words
            return words
        finally:
            writer.transport.abort()


async def wait_seen(probes: Iterable[Probe]) -> None:
    """Wait until the probes have ended, at most `SETTLE_S`."""
    waiting = [probe.task for probe in probes if not probe.task.done()]
    if waiting:
        await asyncio.wait(waiting, timeout=SETTLE_S)


async def end_probes(probes: Iterable[Probe]) -> None:
    """End the probes. Their tasks are done when this returns."""
    tasks = [probe.task for probe in probes if not probe.task.done()]
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)


def _client_hello() -> bytes:
    """Return the first bytes of a TLS client. The probe trusts nothing; it only looks at the answer."""
    sent = ssl.MemoryBIO()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    connection = context.wrap_bio(ssl.MemoryBIO(), sent)
    try:
        connection.do_handshake()
    except ssl.SSLWantReadError:
        return sent.read()
    raise AssertionError("a handshake without an answer")
