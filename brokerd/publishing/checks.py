# SPDX-License-Identifier: Apache-2.0
"""Checks, at the leader of a staging partition, whether slices are there and committed: what is decided can be published.

The producer state of the log shows most slices without a read of more than their first batch (`plan.is_shown`). For the others the
headers of their batches are read.
"""

from __future__ import annotations

from collections.abc import Sequence

from lograft.wire.codes import ErrorCode

from brokerd.failure import refused
from brokerd.publishing.commits import wait_committed
from brokerd.publishing.led_partitions import LedPartitions
from brokerd.publishing.limits import CHECK_CALL_MS, MISSING_MAX, RETRY_MS
from brokerd.publishing.parts import Gap, KnownBatch, MissingSlice, Slice, slices_problem
from brokerd.publishing.plan import Planner, is_shown
from brokerd.publishing.publisher import known_batches
from brokerd.publishing.staged_reads import StagedReads, split
from brokerd.replica.replica import Replica


class StagedChecks:
    """The checks of one broker.

    Args:
        led: finds the partitions that this broker leads.
        staged: reads staged batches.
    """

    def __init__(self, *, led: LedPartitions, staged: StagedReads) -> None:
        self._led = led
        self._staged = staged

    async def check(self, topic_id: bytes, partition: int, slices: Sequence[Slice]) -> list[MissingSlice]:
        """Return the slices that cannot be published, at most `MISSING_MAX`; empty: all are there and committed.

        Args:
            topic_id: id of the topic that the staging topic belongs to.
            partition: partition.
            slices: the slices, as attempts sealed them.

        Raises:
            RefusedError: INVALID_REQUEST, the slices are absurd; METADATA_NOT_REACHED, UNKNOWN_TOPIC, NOT_LEADER, LEADER_NOT_AVAILABLE;
                TIMED_OUT, NOT_ENOUGH_REPLICAS_AFTER_APPEND: they are there and not committed; DATA_LOSS, STORAGE_FAILED.
        """
        problem = slices_problem(slices)
        if problem is not None:
            raise refused(ErrorCode.INVALID_REQUEST, problem)
        replica = self._led.replica(self._staged.topic(topic_id).topic_id, partition)
        if not replica.is_end_known:
            message = f"this broker is about to lead {replica}"
            raise refused(ErrorCode.LEADER_NOT_AVAILABLE, message, retry_after_ms=RETRY_MS)
        missing: dict[int, MissingSlice] = {}
        for index, each in enumerate(slices):
            gap = _outside(replica, each)
            if gap is not None:
                missing[index] = MissingSlice(index, each.producer_id, gap)
        there = [(index, each) for index, each in enumerate(slices) if index not in missing]
        end_offset = max((each.end_offset for _, each in there), default=0)
        if end_offset > replica.high_watermark:
            await wait_committed(replica, end_offset, leader_epoch=replica.leader_epoch, timeout_ms=CHECK_CALL_MS // 2)
        unclear = [(index, each) for index, each in there if not await self._is_shown(replica, topic_id, each)]
        planner = Planner([each for _, each in unclear], max_batches=0)
        async for piece in self._staged.look(topic_id, partition, planner.ranges):
            for batch, _ in piece:
                planner.add(batch)
        for found in planner.missing():
            index, each = unclear[found.index]
            missing[index] = MissingSlice(index, each.producer_id, found.gap)
        return [missing[index] for index in sorted(missing)[:MISSING_MAX]]

    async def _is_shown(self, replica: Replica, topic_id: bytes, wanted: Slice) -> bool:
        known = known_batches(replica, wanted.producer_id)
        if not known or known[-1].next_offset < wanted.end_offset:
            return False
        begin: KnownBatch | None = None
        if known[0].base_offset > wanted.first_offset:
            read = await self._staged.read(topic_id, replica.partition, wanted.first_offset, wanted.end_offset)
            for batch, _ in split(read)[:1]:
                if batch.producer_id == wanted.producer_id:
                    begin = KnownBatch(batch.base_sequence, batch.base_offset, batch.next_offset)
        return is_shown(wanted, known, begin=begin)


def _outside(replica: Replica, each: Slice) -> Gap | None:
    if each.first_offset < replica.log_start_offset:
        return Gap.DELETED
    return Gap.NOT_STAGED if each.end_offset > replica.log_end_offset else None
