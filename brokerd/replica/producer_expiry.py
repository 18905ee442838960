# SPDX-License-Identifier: Apache-2.0
"""Forgets producers that were idle for long, in every open log; the background side of `ProducerWindows.expire`.

Each log keeps the state of all producers that ever wrote to it. Without expiry the state would grow until
`max_producers` drops the idlest. A step looks at the producer state of one log in memory, on the event loop that owns
the log. After a few logs the event loop has its turn.
Source: Kafka, `producer.id.expiration.ms` and `producer.id.expiration.check.interval.ms` (KIP-854).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

from brokerd.limits import RETENTION_STEPS_PER_TURN
from brokerd.replica.replica import Replica
from storage.errors import LogClosedError
from storage.log.partition_log import PartitionLog

logger = logging.getLogger(__name__)


async def expire_producers(replicas: Iterable[Replica], *, now_ms: int, expiration_ms: int) -> int:
    """Forget the producers whose newest batch was appended more than `expiration_ms` ago; return their number.

    A producer with an open transaction stays. A producer whose time is unknown, because it was read back from batches,
    counts from now on.

    Args:
        replicas: the open replicas.
        now_ms: wall clock in milliseconds, the same as for appends.
        expiration_ms: milliseconds (`producer.id.expiration.ms`).
    """

    def step(log: PartitionLog, _high_watermark: int) -> int:
        return log.producers.expire(now_ms, expiration_ms)

    expired_count = 0
    for number, replica in enumerate(list(replicas), start=1):
        try:
            expired_count += replica.run_step(step)
        except LogClosedError:
            continue
        if number % RETENTION_STEPS_PER_TURN == 0:
            await asyncio.sleep(0)
    if expired_count:
        logger.info("idle producers forgotten: producer_count=%d", expired_count)
    return expired_count
