# SPDX-License-Identifier: Apache-2.0
"""Addresses of a host by its name, without blocking an event loop or the end of a program."""

from __future__ import annotations

import asyncio
import socket
import threading
from contextlib import suppress
from ipaddress import ip_address


async def resolve(host: str, port: int) -> tuple[str, ...]:
    """Return the addresses of a host, one or more, in the order in which they should be tried.

    In a daemon thread: those of the loop's executor are waited for at the end of a program, and a look-up may take long.

    Raises:
        socket.gaierror: the name is not known.
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
        with suppress(RuntimeError):  # the loop was closed: nobody waits any more
            loop.call_soon_threadsafe(settle, addresses, failure)

    threading.Thread(target=look_up, name="lograft-resolve", daemon=True).start()
    return await found
