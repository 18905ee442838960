# SPDX-License-Identifier: Apache-2.0
"""Resolves host names without blocking an event loop or the end of a program."""

from __future__ import annotations

import asyncio
import socket
import threading
from contextlib import suppress
from ipaddress import ip_address


async def resolve(host: str, port: int) -> tuple[str, ...]:
    """Return the addresses of a host, at least one, in the order in which to try them.

    The lookup may take long, so it runs in a daemon thread. A program would wait at its end for a thread of the loop's
    executor.

    Raises:
        socket.gaierror: the name cannot be resolved.
    """
    try:
        return (str(ip_address(host)),)
    except ValueError:
        pass
    loop = asyncio.get_running_loop()
    found: asyncio.Future[tuple[str, ...]] = loop.create_future()

    def settle(addresses: tuple[str, ...], error: OSError | None) -> None:
        if found.done():
            return
        if error is None:
            found.set_result(addresses)
        else:
            found.set_exception(error)

    def look_up() -> None:
        addresses: tuple[str, ...] = ()
        failure: OSError | None = None
        try:
            infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            addresses = tuple(dict.fromkeys(str(info[4][0]) for info in infos))
        except OSError as error:
            failure = error
        except UnicodeError as error:
            failure = socket.gaierror(str(error))
        with suppress(RuntimeError):  # the loop is closed, so no caller waits
            loop.call_soon_threadsafe(settle, addresses, failure)

    threading.Thread(target=look_up, name="lograft-resolve", daemon=True).start()
    return await found
