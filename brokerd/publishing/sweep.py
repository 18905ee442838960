# SPDX-License-Identifier: Apache-2.0
"""Frees staged records that no ingest needs: the sweep over the staging partitions that this broker leads.

A sweep of a partition reads the batches from its log start on, asks for the attempts that it has not asked for yet, and stops at the
first batch that may be needed. The log start moves there, by the rules of `DeleteRecords`; if nothing is needed, to the high watermark.
A log whose active segment lies wholly below its log start rolls it, so an idle staging partition has no batches on disk.

A partition in which something was just published is swept soon, so that what was staged seldom reaches the disk: most of its pages are
free again before the system writes them. After a large part it is swept almost at once: the next part is then written to memory that
this one was staged in. On a virtual machine, memory that was not used before costs five to ten times as much.

Owns the pace. Does not know who answers for attempts.
Source: docs/ingest.md, section "Staging".
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence

from brokerd.clock import wall_ms
from brokerd.failure import RefusedError
from brokerd.publishing.garbage import first_needed, is_staging_id
from brokerd.publishing.limits import (
    LOOK_BYTES,
    STAGING_SWEEP_MS,
    SWEEP_IDS_MAX,
    SWEEP_LARGE_MS,
    SWEEP_READ_BYTES,
    SWEEP_SOON_MS,
)
from brokerd.publishing.quota import staging_partitions
from brokerd.publishing.staged_reads import staged_batch
from brokerd.replica.replica import Replica
from metaquorum.metadata.topic_names import staged_topic_id
from storage.errors import StorageError

logger = logging.getLogger(__name__)

LiveAttempts = Callable[[bytes, int, Sequence[int]], Awaitable[Mapping[int, int | None]]]
"""Returns, for the topic id and the partition that records are staged for and for producer ids of attempts, the sequence from which on
they may be needed, or None: nothing is. Those whose coordinator did not answer are missing from the result. It raises nothing."""


class StagingSweep:
    """The sweeps of one broker.

    Args:
        replicas: returns the open replicas.
        live_attempts: answers for attempts.
        now_ms: wall clock in milliseconds.
        read_bytes: bytes that one sweep of one partition reads, about.
    """

    def __init__(
        self,
        replicas: Callable[[], Iterable[Replica]],
        live_attempts: LiveAttempts,
        *,
        now_ms: Callable[[], int] = wall_ms,
        read_bytes: int = SWEEP_READ_BYTES,
    ) -> None:
        self._replicas = replicas
        self._live_attempts = live_attempts
        self._now_ms = now_ms
        self._read_bytes = read_bytes
        # By topic id and partition in which something was published: when to sweep, ascending, in seconds of the event loop.
        self._due_s: dict[tuple[bytes, int], list[float]] = {}
        # When `run` next looks by itself, and what wakes it before.
        self._wake_s = math.inf
        self._hurried = asyncio.Event()
        # Until then, what is published waits for the same sweep.
        self._together_s = -math.inf

    def soon(self, topic_id: bytes, partition: int, is_large: bool) -> None:
        """Sweep the staging partition of a partition in `SWEEP_SOON_MS`: something was published there.

        Args:
            topic_id: id of the topic.
            partition: partition.
            is_large: it was much; sweep in `SWEEP_LARGE_MS` as well.
        """
        now_s = asyncio.get_running_loop().time()
        if self._together_s <= now_s:
            self._together_s = now_s + SWEEP_SOON_MS / 1000
        due_s = [self._together_s]
        if is_large:
            # The coordinator may not know of the part yet. By the second sweep it does, as a rule.
            due_s = [now_s + SWEEP_LARGE_MS / 1000, now_s + SWEEP_SOON_MS / 1000]
        self._due_s[topic_id, partition] = due_s
        if due_s[0] < self._wake_s:
            self._hurried.set()

    async def run(self) -> None:
        """Sweep again and again, until it is cancelled."""
        loop = asyncio.get_running_loop()
        all_due_s = loop.time() + STAGING_SWEEP_MS / 1000
        while True:
            self._wake_s = min([all_due_s, *(each[0] for each in self._due_s.values())])
            try:
                async with asyncio.timeout_at(self._wake_s):
                    await self._hurried.wait()
            except TimeoutError:
                pass
            else:
                self._hurried.clear()
                continue
            # A timer may fire a little before its time.
            now_s = max(loop.time(), self._wake_s)
            if now_s >= all_due_s:
                await self.sweep()
                all_due_s = loop.time() + STAGING_SWEEP_MS / 1000
                continue
            due = [key for key, due_s in self._due_s.items() if due_s[0] <= now_s]
            for key in due:
                del self._due_s[key][0]
                if not self._due_s[key]:
                    del self._due_s[key]
            await self.sweep(due)

    async def sweep(self, published: Collection[tuple[bytes, int]] | None = None) -> int:
        """Sweep every staging partition once, or those of some partitions; return the number of those whose log start has moved."""
        moved_count = 0
        for replica in list(staging_partitions(self._replicas())):
            topic_id = staged_topic_id(replica.topic)
            if topic_id is None or (published is not None and (topic_id, replica.partition) not in published):
                continue
            try:
                moved_count += await self._sweep_partition(replica, topic_id)
            except (RefusedError, StorageError) as error:
                # It has moved, its log is being moved, or its disk is full. The next sweep tries again.
                logger.warning("staging partition not swept: partition=%s: %s", replica, error)
        return moved_count

    async def _sweep_partition(self, replica: Replica, topic_id: bytes) -> bool:
        # A leader that does not know what is committed yet frees nothing.
        start_offset, end_offset = replica.log_start_offset, replica.high_watermark
        if start_offset >= end_offset or not replica.is_end_known:
            return False
        to_offset = await self._first_needed(replica, topic_id, start_offset, end_offset)
        if to_offset <= start_offset or not replica.is_leader:
            return False
        await replica.delete_before(to_offset, self._now_ms())
        logger.debug("staged records freed: partition=%s from_offset=%d to_offset=%d", replica, start_offset, to_offset)
        return True

    async def _first_needed(self, replica: Replica, topic_id: bytes, offset: int, end_offset: int) -> int:
        """Return the offset below which nothing is needed, as far as this sweep reads."""
        live: dict[int, int | None] = {}
        asked: set[int] = set()
        left_bytes = self._read_bytes
        while offset < end_offset and left_bytes > 0:
            found = replica.read_headers(offset, LOOK_BYTES, end_offset=end_offset)
            if not found.headers:
                break
            batches = [staged_batch(header) for header in found.headers]
            unknown = sorted({each.producer_id for each in batches if is_staging_id(each.producer_id)} - asked)
            for at in range(0, len(unknown), SWEEP_IDS_MAX):
                some = unknown[at : at + SWEEP_IDS_MAX]
                live.update(await self._live_attempts(topic_id, replica.partition, some))
            asked.update(unknown)
            needed = first_needed(batches, live)
            if needed is not None:
                return max(needed, offset)
            offset = found.next_offset
            left_bytes -= sum(each.size_bytes for each in batches)
            await asyncio.sleep(0)
        return min(offset, end_offset)
