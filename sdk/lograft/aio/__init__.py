# SPDX-License-Identifier: Apache-2.0
"""The clients of `lograft` for asyncio. Each client belongs to the event loop that first used it.

    from lograft import aio

    async with aio.Producer("localhost:9640") as producer:
        await producer.send("events", b"value", key=b"key")

Python imports each client at its first use (PEP 562). So the blocking admin client, which needs only `aio.Admin`, does not load
the others.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from lograft.aio.admin import Admin as Admin
    from lograft.aio.consumer import Consumer as Consumer
    from lograft.aio.ingest import Attempt as Attempt
    from lograft.aio.ingest import Ingest as Ingest
    from lograft.aio.producer import Producer as Producer
    from lograft.aio.transaction import Transaction as Transaction

__all__ = ["Admin", "Attempt", "Consumer", "Ingest", "Producer", "Transaction"]

_HOMES: Final = {
    "Admin": "lograft.aio.admin",
    "Attempt": "lograft.aio.ingest",
    "Consumer": "lograft.aio.consumer",
    "Ingest": "lograft.aio.ingest",
    "Producer": "lograft.aio.producer",
    "Transaction": "lograft.aio.transaction",
}


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
