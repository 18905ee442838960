# SPDX-License-Identifier: Apache-2.0
"""The same clients as in `lograft`, native asyncio. Each belongs to the event loop in which it was first used.

from lograft import aio

async with aio.Producer("localhost:9640") as producer:
    await producer.send("events", b"value", key=b"key")
"""

from __future__ import annotations

from lograft.aio.admin import Admin
from lograft.aio.consumer import Consumer
from lograft.aio.producer import Producer

__all__ = ["Admin", "Consumer", "Producer"]
