# SPDX-License-Identifier: Apache-2.0
"""A producer's sender, as Kafka calls it: carries sealed batches from the accumulator to the engine, and their results back.

This module owns the linger timer and the life of the engine, on one event loop. The lock belongs to the blocking producer; the
asyncio producer has none.

The loop normally never waits for the lock. A thread that holds it may be suspended while another one runs, so each wait would
cost a switch of threads. The loop takes sealed batches without the lock, because both ends of a deque are atomic. For results
and linger it tries to take the lock, and tries again a moment later if a caller holds it.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from contextlib import nullcontext
from typing import Final

from lograft._client.clock import monotonic_ms, wall_clock_ms
from lograft._client.cluster import Cluster
from lograft._producer.batches import SealedBatch
from lograft._producer.deliveries import Deliveries
from lograft._producer.engine import ProduceEngine
from lograft._producer.staging import STAGING_UNKNOWN_MS, Staging
from lograft.errors import UnknownTopicError
from lograft.settings import REQUEST_TIMEOUT_MS, ClientSettings
from lograft.types import BatchReceipt

LOCK_RETRY_S: Final = 0.0005
"""Seconds until the loop tries to take the lock again."""


class Sender:
    """Moves sealed batches from the accumulator to the engine, and results back. Belongs to one event loop.

    Attributes:
        cluster: the connection to the cluster.
        is_wake_due: True while a wake is scheduled. Callers set it under the lock. The loop clears it without the lock; the
            wake then sees every batch that was sealed before.
    """

    def __init__(
        self,
        client: ClientSettings,
        deliveries: Deliveries,
        lock: threading.Lock | None,
        on_progress: Callable[[], None],
        staging: Staging | None = None,
    ) -> None:
        """Start without connecting.

        Args:
            client: where the cluster is.
            deliveries: provides the batches and takes their results.
            lock: guards the deliveries; None if everything runs on this loop.
            on_progress: called after batches were resolved, with the lock held.
            staging: where an attempt of an ingest stages; None: batches go to their topics.
        """
        self.is_wake_due = False
        self.cluster = Cluster(client)
        self._deliveries = deliveries
        self._lock = lock
        self._on_progress = on_progress
        self._staging = staging
        self._loop = asyncio.get_running_loop()
        deliveries.accumulator.resolver.thread_id = threading.get_ident()
        self._engine = ProduceEngine(self.cluster, deliveries.settings, self, staging)
        # Monotonic milliseconds of the next check of lingering batches; None if none is planned.
        self._look_ms: int | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._resolved: deque[SealedBatch | BatchReceipt] = deque()
        self._is_settle_due = False
        self.cluster.add_listener(self._on_metadata)

    async def open_topic(self, topic: str) -> int:
        """Look up a topic and return its partition count."""
        timeout_ms = min(REQUEST_TIMEOUT_MS, self._deliveries.settings.delivery_timeout_ms)
        name = self._name(topic)
        if self._staging is not None:
            await self._wait_for(name, timeout_ms=min(STAGING_UNKNOWN_MS, timeout_ms))
        state = await self.cluster.topic(name, timeout_ms=timeout_ms)
        return len(state.partitions)

    async def _wait_for(self, staging_topic: str, *, timeout_ms: int) -> None:
        """Wait until a broker knows a staging topic, which was just made."""
        deadline_ms = monotonic_ms() + timeout_ms
        while monotonic_ms() < deadline_ms:
            try:
                await self.cluster.topic(staging_topic, timeout_ms=timeout_ms)
            except UnknownTopicError:
                continue
            return

    def _name(self, topic: str) -> str:
        """Return the name under which brokers know a topic of the caller."""
        return topic if self._staging is None else self._staging.name(topic)

    def needs_wake(self) -> bool:
        """True when the loop must learn of new work. The caller holds the lock.

        A batch whose pipeline is full is no new work: the loop takes it when the pipeline moves. A wake for each of them would
        cost a busy caller the interpreter lock each time.
        """
        if self.is_wake_due:
            return False
        if self._deliveries.accumulator.is_send_due:
            return True
        deadline_ms = self._deliveries.accumulator.deadline_ms()
        return deadline_ms is not None and (self._look_ms is None or deadline_ms < self._look_ms)

    def wake(self) -> None:
        """Send the sealed batches, and plan the next check of lingering ones."""
        self.is_wake_due = False
        self._submit()
        self._look()

    def _submit(self) -> None:
        self._deliveries.accumulator.is_send_due = False
        sealed = self._deliveries.accumulator.sealed
        while sealed:
            self._engine.submit(sealed.popleft())

    def _look(self) -> None:
        """Seal the batches that have lingered, if the lock is free, and plan the next check."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._lock is not None and not self._lock.acquire(blocking=False):
            self._timer = self._loop.call_later(LOCK_RETRY_S, self._look)
            return
        try:
            accumulator = self._deliveries.accumulator
            at_ms = monotonic_ms()
            accumulator.expire(now_ms=at_ms, wall_ms=wall_clock_ms())
            self._look_ms = accumulator.deadline_ms()
        finally:
            if self._lock is not None:
                self._lock.release()
        if self._look_ms is not None:
            self._timer = self._loop.call_later(max(0, self._look_ms - at_ms) / 1000, self._look)
        self._submit()

    async def close(self) -> None:
        """Fail all unresolved batches and close the connections."""
        if self._timer is not None:
            self._timer.cancel()
        self._submit()
        await self._engine.close()
        with self._lock if self._lock is not None else nullcontext():
            self._settle_all()
        await self.cluster.close()

    # -- what the engine reports

    def on_result(self, batch: SealedBatch, receipt: BatchReceipt) -> None:
        """See `ResultSink`."""
        if self._staging is not None:
            self._staging.note(batch.base_sequence, receipt)
        if receipt.error is not None:
            self._resolved.append(receipt)
        self._deliveries.call_back(receipt)
        if batch.outcome is not None:
            for call in batch.outcome.resolve(batch.first_record, receipt):
                call()

    def on_resolved(self, batch: SealedBatch) -> None:
        """See `ResultSink`."""
        self._resolved.append(batch)
        if not self._is_settle_due:
            self._is_settle_due = True
            self._loop.call_soon(self._settle)

    def on_limit(self, topic: str, partition: int, max_batch_bytes: int) -> None:
        """See `ResultSink`."""
        if self._staging is not None:
            topic = self._staging.topic(topic)
        with self._lock if self._lock is not None else nullcontext():
            self._deliveries.limit(topic, partition, max_batch_bytes)

    def _settle(self) -> None:
        """Report results if the lock is free. Send newly sealed batches either way."""
        if self._lock is not None and not self._lock.acquire(blocking=False):
            self._submit()
            self._loop.call_later(LOCK_RETRY_S, self._settle)
            return
        try:
            self._is_settle_due = False
            self._settle_all()
        finally:
            if self._lock is not None:
                self._lock.release()
        self._submit()

    def _settle_all(self) -> None:
        while self._resolved:
            resolved = self._resolved.popleft()
            if isinstance(resolved, SealedBatch):
                self._deliveries.release(resolved)
            else:
                self._deliveries.note_result(resolved)
        self._on_progress()

    def _on_metadata(self) -> None:
        for topic in list(self._deliveries.topics):
            state = self.cluster.view.topic(self._name(topic))
            if state is None:
                continue
            if len(state.partitions) > len(self._deliveries.topics[topic].parts):
                with self._lock if self._lock is not None else nullcontext():
                    self._deliveries.grow_topic(topic, len(state.partitions))
            if self._deliveries.needs_leaders:
                self.note_leaders(topic)

    def note_leaders(self, topic: str) -> None:
        """Tell the deliveries who leads the partitions of a topic. Needs no lock: each write is one number."""
        count = len(self._deliveries.topics[topic].parts)
        leaders = [self.cluster.leader(self._name(topic), partition) for partition in range(count)]
        self._deliveries.note_leaders(topic, [None if leader is None else leader.broker_id for leader in leaders])
