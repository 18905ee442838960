# SPDX-License-Identifier: Apache-2.0
"""Waits until records are committed."""

from __future__ import annotations

import asyncio

from lograft.wire.codes import ErrorCode

from brokerd.failure import RefusedError, refused
from brokerd.partition.effects import LossReason
from brokerd.partition.events import AckLevel, Durability
from brokerd.publishing.limits import RETRY_MS
from brokerd.replica.refusals import too_few_after_failure
from brokerd.replica.replica import Replica


async def wait_committed(replica: Replica, end_offset: int, *, leader_epoch: int, timeout_ms: int) -> None:
    """Wait until everything below an offset is committed, as the `flush.policy` of the partition says.

    Args:
        replica: the replica.
        end_offset: the offset (exclusive).
        leader_epoch: leader epoch in which this broker saw the log. In a later one, other records may have these offsets.
        timeout_ms: longest wait in milliseconds.

    Raises:
        RefusedError: NOT_ENOUGH_REPLICAS_AFTER_APPEND; LEADER_NOT_AVAILABLE, this broker no longer leads; TIMED_OUT.
    """
    if not replica.is_leader or replica.leader_epoch != leader_epoch:
        message = f"this broker does not lead {replica} in epoch {leader_epoch} any more"
        raise refused(ErrorCode.LEADER_NOT_AVAILABLE, message, retry_after_ms=RETRY_MS)
    reached: asyncio.Future[Durability | LossReason] = asyncio.get_running_loop().create_future()

    def on_ack(outcome: Durability | LossReason) -> None:
        if not reached.done():
            reached.set_result(outcome)

    token = replica.want_ack(end_offset, AckLevel.ALL, on_ack)
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            outcome = await reached
    except TimeoutError:
        message = f"{replica} is committed up to {replica.high_watermark}, not up to {end_offset} in {timeout_ms} ms"
        raise refused(ErrorCode.TIMED_OUT, message, retry_after_ms=RETRY_MS) from None
    finally:
        replica.drop_ack(token)
    if outcome is LossReason.NOT_ENOUGH_REPLICAS:
        raise RefusedError(too_few_after_failure(str(replica)))
    if not isinstance(outcome, Durability):
        message = f"{replica}: {outcome.value}; the records may or may not stay"
        raise refused(ErrorCode.LEADER_NOT_AVAILABLE, message, retry_after_ms=RETRY_MS)
