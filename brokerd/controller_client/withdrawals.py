# SPDX-License-Identifier: Apache-2.0
"""What the controller has to hear of lost and found replicas: gathered, sent in one call, sent again until it holds.

Owns the one call under way and the timer. Must not decide what is withdrawn, or when: `failed_replicas.py` does.

Law: whatever becomes of a call, the metadata decides whether it is repeated; so a lost answer costs a pause and nothing else.
Source: docs/replication.md section "Lost replicas".
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from google.protobuf.message import DecodeError
from lograft.internal.v1 import controller_pb2

from brokerd.clock import monotonic_ms
from brokerd.controller_client.controller_calls import ControllerCalls
from brokerd.failure import RefusedError
from brokerd.limits import WITHDRAWAL_CALL_MS
from brokerd.replica.failed_replicas import FailedReplicas, Withdrawal
from metaquorum.metadata.changes import MetadataChange
from metaquorum.metadata.loader import MetadataLoader
from metaquorum.metadata.state import PartitionImage
from metaquorum.net.methods import Method

logger = logging.getLogger(__name__)


class Withdrawals:
    """See the module docstring.

    Args:
        calls: the way to the controller.
        observer: the metadata.
        cluster_id: the cluster.
        node_id: this broker.
        broker_epoch: gives the epoch of its registration; None while there is none.
    """

    def __init__(
        self,
        calls: ControllerCalls,
        observer: MetadataLoader,
        *,
        cluster_id: str,
        node_id: int,
        broker_epoch: Callable[[], int | None],
    ) -> None:
        self._calls = calls
        self._observer = observer
        self._cluster_id = cluster_id
        self._node_id = node_id
        self._broker_epoch = broker_epoch
        self._failed = FailedReplicas(node_id)
        self._woken = asyncio.Event()
        self._stop_watching: Callable[[], None] | None = None
        self._task: asyncio.Task[None] | None = None
        self._is_closed = False

    def note_lost(self, topic_id: bytes, partition: int) -> None:
        """Learn that the log of a replica does not work in this process any more; it is withdrawn wherever others count on it."""
        if self._is_closed:
            return
        self._failed.add(topic_id, partition)
        self._look()

    def note_found(self, topic_id: bytes, partition: int, directory_id: bytes) -> None:
        """Learn that the log of a replica lies in a directory that its partition awaits; the replica is claimed."""
        if self._is_closed:
            return
        self._failed.add_found(topic_id, partition, directory_id)
        self._look()

    def note_removed(self, topic_id: bytes, partition: int) -> None:
        """Learn that a replica does not belong here any more."""
        self._failed.discard(topic_id, partition)

    async def close(self) -> None:
        """Send nothing more. Idempotent."""
        self._is_closed = True
        if self._stop_watching is not None:
            self._stop_watching()
            self._stop_watching = None
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def _look(self) -> None:
        self._woken.set()
        if self._task is None:
            self._stop_watching = self._observer.on_change(self._on_change)
            self._task = asyncio.create_task(self._run(), name="withdrawals")

    def _on_change(self, change: MetadataChange) -> None:
        self._failed.note_change(change.topic_ids)
        self._woken.set()

    async def _run(self) -> None:
        while True:
            self._woken.clear()
            due = self._failed.due(self._state, monotonic_ms())
            if due:
                await self._send(due)
                continue
            deadline_ms = self._failed.deadline_ms()
            left_s = None if deadline_ms is None else max(deadline_ms - monotonic_ms(), 0) / 1000
            try:
                async with asyncio.timeout(left_s):
                    await self._woken.wait()
            except TimeoutError:
                pass  # a pause is over, which is a reason to look again

    def _state(self, topic_id: bytes, partition: int) -> PartitionImage | None:
        topic = self._observer.image.topic_by_id(topic_id)
        return None if topic is None or partition >= len(topic.partitions) else topic.partitions[partition]

    async def _send(self, due: tuple[Withdrawal, ...]) -> None:
        broker_epoch = self._broker_epoch()
        if broker_epoch is None:
            return  # again after the pause
        request = controller_pb2.AlterPartitionRequest(
            cluster_id=self._cluster_id,
            broker_id=self._node_id,
            broker_epoch=broker_epoch,
            proposals=[
                controller_pb2.IsrProposal(
                    topic_id=each.topic_id,
                    partition=each.partition,
                    leader_epoch=each.leader_epoch,
                    partition_epoch=each.partition_epoch,
                    is_lost=each.found_directory_id is None,
                    found_directory_id=each.found_directory_id,
                )
                for each in due
            ],
        )
        try:
            answer = await self._calls.call(
                Method.ALTER_PARTITION, request.SerializeToString(), timeout_ms=WITHDRAWAL_CALL_MS
            )
            response = controller_pb2.AlterPartitionResponse.FromString(answer)
        except (RefusedError, DecodeError) as error:
            logger.warning("lost and found replicas not told: count=%d: %s", len(due), _text(error))
            return
        self._take(due, response)

    def _take(self, due: tuple[Withdrawal, ...], response: controller_pb2.AlterPartitionResponse) -> None:
        results = {(result.topic_id, result.partition): result for result in response.results}
        for each in due:
            result = results.get((each.topic_id, each.partition))
            if result is not None and result.HasField("state"):
                state = result.state
                self._failed.note_accepted(each, state.partition_epoch)
                logger.warning(
                    "%s: topic_id=%s partition=%d leader_id=%s isr=%s",
                    "lost replica withdrawn" if each.found_directory_id is None else "awaited replica found",
                    each.topic_id.hex(),
                    each.partition,
                    state.leader_id if state.HasField("leader_id") else None,
                    list(state.isr),
                )
            elif result is not None:
                logger.info(
                    "%s: topic_id=%s partition=%d: %s",
                    "lost replica not withdrawn" if each.found_directory_id is None else "awaited replica not taken",
                    each.topic_id.hex(),
                    each.partition,
                    result.error.message,
                )


def _text(error: Exception) -> str:
    return error.failure.message if isinstance(error, RefusedError) else str(error)
