# SPDX-License-Identifier: Apache-2.0
"""The coordinator runtime of a broker for one internal topic: finds the partition of a command, follows roles, makes snapshots.

Owns a `CoordinatorPartition` for each open replica of the topic. The owner of the replicas calls `note_role` after each change of the
role or the leader epoch of a replica, also when its log has been opened.

Law: a command of a partition that this broker does not coordinate gets an answer that says who does.
Source: `docs/coordinator.md`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Hashable, Iterator
from functools import partial
from typing import Generic

from lograft.wire.codes import ErrorCode

from brokerd.coordinator.core import Command, Core, Rec, RecordCodec, Response
from brokerd.coordinator.limits import COMMAND_WAIT_MS, SNAPSHOT_CHECK_MS
from brokerd.coordinator.machine import PartitionMachine, State
from brokerd.coordinator.partition import CoordinatorPartition
from brokerd.coordinator.unserved import Unserved, UnservedError, loading, moved, moved_to, no_coordinator
from brokerd.failure import Failure, LeaderPlace
from brokerd.replica.replica import Replica

logger = logging.getLogger(__name__)

_STOPPING = Failure(code=ErrorCode.SHUTTING_DOWN, message="the broker is stopping")


class CoordinatorRuntime(Generic[Command, Response, Rec]):
    """The coordinators of one internal topic on one broker. Belongs to one event loop; only its own methods write its state.

    Args:
        topic: name of the topic.
        node_id: this broker.
        new_core: makes an empty core for one leadership of the partition that it gets.
        codec: translates the records of the core.
        leader_place: returns the leader of a partition of the topic as the metadata has it; None: none is known, or the topic does
            not exist.
        scope_of: see `PartitionMachine`.
        on_tick: gets the partition and the response of each tick once it is committed.
        on_active: see `CoordinatorPartition`; gets the partition, and whether its coordinator is active.
        snapshot_check_ms: milliseconds between two looks for due snapshots.

    Attributes:
        keep_loaded: see `CoordinatorPartition`; the owner of the process sets it, before the first role.
    """

    def __init__(
        self,
        topic: str,
        *,
        node_id: int,
        new_core: Callable[[int], Core[Command, Response, Rec]],
        codec: RecordCodec[Rec],
        leader_place: Callable[[int], LeaderPlace | None],
        scope_of: Callable[[Command], Hashable] | None = None,
        on_tick: Callable[[int, Response], None] | None = None,
        on_active: Callable[[int, bool], None] | None = None,
        snapshot_check_ms: int = SNAPSHOT_CHECK_MS,
    ) -> None:
        self._topic = topic
        self._node_id = node_id
        self._new_core = new_core
        self._codec = codec
        self._leader_place = leader_place
        self._scope_of = scope_of
        self._on_tick = on_tick
        self._on_active = on_active
        self._snapshot_check_ms = snapshot_check_ms
        self._partitions: dict[int, CoordinatorPartition[Command, Response, Rec]] = {}
        self._snapshots: asyncio.Task[None] | None = None
        self._is_stopped = False
        self.keep_loaded: Callable[[], None] | None = None

    def start(self) -> None:
        """Begin to make snapshots."""
        if self._snapshots is None:
            self._snapshots = asyncio.create_task(self._take_snapshots(), name=f"coordinator-snapshots-{self._topic}")

    async def stop(self) -> None:
        """Stop coordinating: every waiting command gets its answer. Before the replicas are closed. Idempotent."""
        self._is_stopped = True
        snapshots, self._snapshots = self._snapshots, None
        partitions = list(self._partitions.values())
        self._partitions.clear()
        for partition in partitions:
            partition.close(_STOPPING)
        if snapshots is not None:
            snapshots.cancel()
            await asyncio.wait((snapshots,))
        for partition in partitions:
            await partition.wait_idle()

    # Roles.

    def note_role(self, replica: Replica) -> None:
        """Note that the role or the leader epoch of a replica has changed; replicas of other topics are ignored."""
        if self._is_stopped or replica.topic != self._topic:
            return
        known = self._partitions.get(replica.partition)
        if known is None or known.replica is not replica:
            if known is not None:
                # The topic was deleted and made again, or the replica came back.
                known.close(_STOPPING)
            known = self._partitions[replica.partition] = self._make(replica)
        known.note_role()

    def _make(self, replica: Replica) -> CoordinatorPartition[Command, Response, Rec]:
        machine = PartitionMachine(
            str(replica),
            new_core=partial(self._new_core, replica.partition),
            codec=self._codec,
            scope_of=self._scope_of,
        )
        return CoordinatorPartition(
            replica,
            machine,
            on_tick=self._on_tick,
            on_active=self._on_active,
            on_gone=self._forget,
            keep_loaded=self.keep_loaded,
        )

    def _forget(self, partition: CoordinatorPartition[Command, Response, Rec]) -> None:
        number = partition.replica.partition
        if self._partitions.get(number) is partition:
            del self._partitions[number]

    @property
    def partitions(self) -> Iterator[CoordinatorPartition[Command, Response, Rec]]:
        """The partitions with an open replica here."""
        return iter(tuple(self._partitions.values()))

    def find(self, partition: int) -> CoordinatorPartition[Command, Response, Rec] | None:
        """Return a partition with an open replica here, or None."""
        return self._partitions.get(partition)

    # Commands.

    async def submit(
        self, partition: int, command: Command, *, size_bytes: int = 0, timeout_ms: int = COMMAND_WAIT_MS
    ) -> Response:
        """Carry out a command at the coordinator of a partition; see `CoordinatorPartition.submit`.

        Raises:
            UnservedError: it got no response; MOVED names the broker to ask.
        """
        found = self._partitions.get(partition)
        if found is None or found.machine.state is State.INACTIVE:
            raise UnservedError(self._elsewhere(partition))
        return await found.submit(command, size_bytes=size_bytes, timeout_ms=timeout_ms)

    def _elsewhere(self, partition: int) -> Unserved:
        """Return who coordinates a partition that this broker does not."""
        name = f"{self._topic}-{partition}"
        if self._is_stopped:
            return moved(name, _STOPPING)
        place = self._leader_place(partition)
        if place is None:
            return no_coordinator(name)
        # This broker is the leader, and its log is being opened.
        return loading(name) if place.leader_id == self._node_id else moved_to(name, place)

    # Snapshots.

    async def _take_snapshots(self) -> None:
        """Look at each partition now and then, one after the other, so that one snapshot at a time is under way."""
        while True:
            await asyncio.sleep(self._snapshot_check_ms / 1000)
            await self.take_due_snapshots()

    async def take_due_snapshots(self) -> int:
        """Make the snapshots that are due; return their number. Errors are logged."""
        taken = 0
        for partition in tuple(self._partitions.values()):
            try:
                taken += await partition.snapshots.take_if_due(lambda each=partition: each.may_take_snapshot)
            except Exception:
                # A mistake in one partition must not end the snapshots of the others.
                logger.exception("coordinator snapshot failed: partition=%s", partition)
        return taken
