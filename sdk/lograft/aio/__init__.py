# SPDX-License-Identifier: Apache-2.0
"""The clients of `lograft` for asyncio. Each client belongs to the event loop that first used it.

    from lograft import aio

    async with aio.Producer("localhost:9640") as producer:
        await producer.send("events", b"value", key=b"key")

Python imports each client at its first use (PEP 562). So the blocking admin client, which needs only `aio.Admin`, does not load
the other two.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from lograft.aio.admin import Admin as Admin
    from lograft.aio.consumer import Consumer as Consumer
    from lograft.aio.producer import Producer as Producer

__all__ = ["Admin", "Consumer", "Producer"]

_HOMES: Final = {"Admin": "lograft.aio.admin", "Consumer": "lograft.aio.consumer", "Producer": "lograft.aio.producer"}


def __getattr__(name: str) -> object:
    """Import a client from its module at the first use."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'lograft.aio' has no attribute {name!r}")
    value: object = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
