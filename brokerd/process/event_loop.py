# SPDX-License-Identifier: Apache-2.0
"""The event loop of a broker: uvloop if it is installed, else the loop of the standard library."""

from __future__ import annotations

import asyncio
import logging

logger = logging.getLogger(__name__)

try:
    from uvloop import new_event_loop as _new_loop
except ImportError:
    from asyncio import new_event_loop as _new_loop


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Return a new loop that does not report a harmless race inside grpcio.

    Several loops in one process (an embedded broker beside a client) all watch one wake-up socket of grpcio. In versions before about
    1.80, the loop that comes second finds the socket empty and raises BlockingIOError, which means nothing.
    Source: grpc issue 25364.
    """
    loop = _new_loop()
    loop.set_exception_handler(_on_exception)
    return loop


def _on_exception(loop: asyncio.AbstractEventLoop, details: dict[str, object]) -> None:
    place = f"{details.get('message')} {details.get('handle')}"
    if isinstance(details.get("exception"), BlockingIOError) and "PollerCompletionQueue" in place:
        return
    loop.default_exception_handler(details)
