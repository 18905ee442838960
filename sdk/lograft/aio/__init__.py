# SPDX-License-Identifier: Apache-2.0
"""The same clients as in `lograft`, native asyncio. Each belongs to the event loop in which it was first used.

from lograft import aio

async with aio.Producer("localhost:9640") as producer:
    await producer.send("events", b"value", key=b"key")

They are found at first use (PEP 562): who needs one of them, as the blocking admin client does, loads no other.
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
    """Import the home of a public name at its first use."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'lograft.aio' has no attribute {name!r}")
    value: object = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
