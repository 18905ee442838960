# SPDX-License-Identifier: Apache-2.0
"""Repairs damaged ranges of this broker's logs with batches of other replicas.

Design
    The repairs check all logs at intervals, and at once when a read meets damage. In each damaged log they take one
    segment after the other. They first fetch the first batches from a replica that has them. A leader then resigns, so
    that another replica serves readers at once. A thread rewrites the segment (`storage.maintenance.repair`), and the
    event loop swaps it in.

Laws
    A leader resigns only when another replica has shown that it has the missing records: of two damaged replicas
    neither sends readers to the other in vain. If no other replica may lead, the leader repairs its own log, and
    readers of the range wait for that.
    A segment that cannot be repaired stays as it is, is reported, and is tried again after `REPAIR_RETRY_MS`. The
    others continue.

Source: docs/replication.md section "Damage".
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterable
from typing import NoReturn, TypeVar

from lograft.wire.errors import BatchError

from brokerd.clock import monotonic_ms, wall_ms
from brokerd.controller_client.partition_requests import ResignReason
from brokerd.limits import REPAIR_BYTES_PER_S, REPAIR_CHECK_MS, REPAIR_PAUSE_MS, REPAIR_RETRY_MS, REPLICA_SLICE
from brokerd.replica.replica import Replica
from brokerd.replica.replication_border import RepairCallError, RepairPeers
from storage.errors import OutOfOrderOffsetError, StorageError
from storage.files.rate_limit import RateLimit, WorkStopped
from storage.log.follower_append import check_follower_batches
from storage.log.partition_log import PartitionLog
from storage.log.swap import CleanedGroup
from storage.maintenance.repair import LogRepair, RepairTask, SegmentRepair

logger = logging.getLogger(__name__)

_Result = TypeVar("_Result")


class DamageRepairs:
    """The repairs of one broker.

    Args:
        replicas: returns the open replicas.
        peers: the other replicas.
    """

    def __init__(self, replicas: Callable[[], Iterable[Replica]], peers: RepairPeers) -> None:
        self._replicas = replicas
        self._peers = peers
        self._stopping = threading.Event()
        self._rate = RateLimit(REPAIR_BYTES_PER_S, now_ms=monotonic_ms, wait_ms=self._wait)

    async def run(self) -> NoReturn:
        """Repair all damage until cancelled; a step under way in a thread ends first."""
        while True:
            # The scrub, a start and the cleaner find damage too, but do not report it.
            await self._peers.reports.wait(timeout_ms=REPAIR_CHECK_MS)
            await self.run_round()
            await asyncio.sleep(REPAIR_PAUSE_MS / 1000)

    async def run_round(self) -> int:
        """Repair all damage that is due; return the number of repaired segments."""
        self._peers.reports.forget_due(monotonic_ms())
        repaired = 0
        for count, replica in enumerate(tuple(self._replicas()), start=1):
            # A partition with one replica has no other replica to ask.
            if not replica.is_alone and replica.log.damaged:
                try:
                    repaired += await self._repair_log(replica)
                except Exception:
                    # A bug in one place must not end the repairs of all logs.
                    logger.exception("log=%s action=repair problem=fault", replica)
                    self._give_up_all(replica)
            if count % REPLICA_SLICE == 0:
                await asyncio.sleep(0)
        return repaired

    def _wait(self, timeout_ms: int) -> bool:
        return self._stopping.wait(timeout_ms / 1000)

    async def _repair_log(self, replica: Replica) -> int:
        repaired = 0
        while (task := await self._begin(replica)) is not None:
            if await self._repair_segment(replica, task):
                repaired += 1
            else:
                self._give_up(task.directory, task.segment.base_offset)
        # What is left is not committed yet, or compacted, or below the log start.
        self._give_up_all(replica)
        return repaired

    def _give_up_all(self, replica: Replica) -> None:
        for damaged in replica.log.damaged:
            self._give_up(replica.log.directory, damaged.segment_base_offset)

    def _give_up(self, directory: str, base_offset: int) -> None:
        if base_offset not in self._peers.reports.given_up(directory):
            self._peers.reports.give_up(directory, base_offset, due_ms=monotonic_ms() + REPAIR_RETRY_MS)

    async def _begin(self, replica: Replica) -> RepairTask | None:
        passed_over = self._peers.reports.given_up(replica.log.directory)

        def begin(log: PartitionLog, high_watermark: int) -> RepairTask | None:
            return LogRepair(log).begin(high_watermark=high_watermark, now_ms=wall_ms(), passed_over=passed_over)

        if all(damaged.segment_base_offset in passed_over for damaged in replica.log.damaged):
            return None
        try:
            await replica.wait_unlocked()
            task = replica.run_step(begin)
            if task is None and replica.log.flushed_offset < replica.log.log_end_offset:
                # If the policy leaves flushes to the system, a segment that was rolled just now would never become due.
                async with replica.locked_and_flushed():
                    pass
                task = replica.run_step(begin)
            return task
        except StorageError as error:
            logger.error("log=%s action=repair error=%r", replica, str(error))
            return None

    async def _repair_segment(self, replica: Replica, task: RepairTask) -> bool:
        first = task.damaged[0]
        wanted = range(first.base_offset, first.end_offset)
        try:
            await self._check_another_has(replica, wanted)
            if replica.is_leader:
                replica.resign(ResignReason.DAMAGE)
            replica.check_room(task.segment.size_bytes)
            is_done = await self._rewrite(replica, task)
        except (RepairCallError, StorageError) as error:
            logger.error(
                "log=%s action=repair base_offset=%d end_offset=%d error=%r",
                replica,
                wanted.start,
                task.damaged[-1].end_offset,
                str(error),
            )
            return False
        logger.warning(
            "log=%s action=%s base_offset=%d end_offset=%d",
            replica,
            "repaired" if is_done else "repair-again",
            wanted.start,
            task.damaged[-1].end_offset,
        )
        return is_done

    async def _check_another_has(self, replica: Replica, wanted: range) -> None:
        """Raise `RepairCallError` if no other replica has the beginning of a range."""

        def check(batches: bytes) -> None:
            check_follower_batches(batches, log_end_offset=wanted.start, last_epoch=None)

        await self._fetch_from_any(replica, wanted, check)

    async def _fetch_from_any(self, replica: Replica, wanted: range, take: Callable[[bytes], object]) -> None:
        """Fetch the beginning of a range from the first replica that has it; `take` raises for unusable batches."""
        problems: list[str] = []
        for broker_id in self._peers.sources(replica.topic_id, replica.partition):
            try:
                batches = await self._peers.fetch(broker_id, replica.topic_id, replica.partition, wanted)
                await self._in_thread(lambda batches=batches: take(batches))
                return
            except (RepairCallError, BatchError, OutOfOrderOffsetError) as error:
                problems.append(str(error))
        raise RepairCallError(f"no other replica has [{wanted.start}, {wanted.stop}): {'; '.join(problems)}")

    async def _rewrite(self, replica: Replica, task: RepairTask) -> bool:
        work = SegmentRepair(replica.log.disk, task, self._rate.take)
        try:
            await self._in_thread(work.start)
            while (wanted := work.wanted) is not None:
                await self._fetch_from_any(replica, wanted, work.put)
            repaired = await self._in_thread(work.finish)
        except BaseException:
            # Not awaited, because the task may have been cancelled. No step is under way any more.
            work.discard()
            raise
        return await self._swap(replica, task, work, repaired)

    async def _swap(self, replica: Replica, task: RepairTask, work: SegmentRepair, repaired: CleanedGroup) -> bool:
        def end(log: PartitionLog, _high_watermark: int) -> bool:
            # The log has moved to another log directory; it has the damage there too.
            if log.directory != task.directory:
                return False
            return LogRepair(log).end(repaired, found_epochs=work.found_epochs, now_ms=wall_ms())

        try:
            await replica.wait_unlocked()
            if work.found_epochs:
                # Then no flush is under way that could save the old epochs.
                async with replica.locked_and_flushed():
                    pass
            is_done = replica.run_step(end)
        except StorageError:
            work.discard()
            raise
        if not is_done:
            work.discard()
        return is_done

    async def _in_thread(self, step: Callable[[], _Result]) -> _Result:
        """Run a step in a thread; on cancellation it ends first."""
        running = asyncio.ensure_future(asyncio.to_thread(step))
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            self._stopping.set()
            await asyncio.wait((running,))
            if not running.cancelled() and isinstance(running.exception(), WorkStopped):
                logger.info("action=repair problem=stopped")
            raise
