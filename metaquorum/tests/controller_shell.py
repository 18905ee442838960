# SPDX-License-Identifier: Apache-2.0
"""A controller's shell over a log whose commits the test decides."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from metaquorum.controller.commands import (
    AllocateProducerIds,
    BrokerRegistered,
    CreateTopic,
    Heartbeat,
    RegisterBroker,
)
from metaquorum.controller.settings import ControllerSettings
from metaquorum.controller_service.commit_waiters import CommandError, Outcome
from metaquorum.controller_service.controller_host import ControllerHost
from metaquorum.metadata.image_store import ImageStore, open_image
from metaquorum.metadata.listener import CommittedBatch, QuorumLeader
from metaquorum.metadata.loader import MetadataLoader
from metaquorum.raft.effects import LeaderChange
from metaquorum.raft.types import NodeId
from metaquorum.raft_codec.control_codec import encode_control_record
from metaquorum.tests.controller_world import register

EPOCH = 4
SETTINGS = ControllerSettings(session_timeout_ms=60_000)


class ManualLog:
    """A quorum's log that commits when the test calls it, because the tests are about timing."""

    def __init__(self) -> None:
        self.node_id = 1
        self.known = QuorumLeader(leader_id=1, quorum_epoch=EPOCH, address="127.0.0.1:9641")
        self.failure: Exception | None = None
        self.on_append: Callable[[], None] | None = None
        self.end_offset = 2
        self.pending: list[CommittedBatch] = []
        self.reads: list[asyncio.Future[int]] = []
        self.hurry_count = 0

    def leader(self) -> QuorumLeader:
        """The current leader."""
        return self.known

    @property
    def log_end_offset(self) -> int:
        """End of the appended records."""
        return self.end_offset

    def append(self, records: Sequence[bytes], *, quorum_epoch: int) -> int:
        """Append, or fail if the test has asked for it."""
        if self.failure is not None:
            raise self.failure
        base_offset = self.end_offset
        self.end_offset += len(records)
        self.pending.append(
            CommittedBatch(
                base_offset=base_offset,
                next_offset=self.end_offset,
                quorum_epoch=quorum_epoch,
                append_timestamp_ms=0,
                records=list(records),
                is_control=False,
            )
        )
        if self.on_append is not None:
            self.on_append()
        return base_offset

    def hurry(self) -> None:
        """Count it; the test commits."""
        self.hurry_count += 1

    async def read_offset(self) -> int:
        """Answer when the test allows it."""
        self.reads.append(asyncio.get_running_loop().create_future())
        return await self.reads[-1]


class Shell:
    """A host on a manual log."""

    def __init__(self, directory: Path, *, settings: ControllerSettings = SETTINGS) -> None:
        self.store: ImageStore
        self.store, loaded = open_image(directory)
        self.log = ManualLog()
        self.loader = MetadataLoader()
        self.loader.open(self.store, loaded)
        self.host = ControllerHost(self.loader, settings=settings)
        self.host.attach(self.log)
        if self.loader.applied_offset == 0:
            self.loader.on_commit(control(0, 2))
        self.log.end_offset = self.loader.applied_offset

    async def activate(self) -> None:
        """Become the controller and commit its first own records."""
        self.loader.on_activate(EPOCH)
        await self.settle()

    def commit(self) -> None:
        """Commit everything that is appended."""
        batches, self.log.pending = self.log.pending, []
        for batch in batches:
            self.loader.on_commit(batch)

    async def settle(self) -> None:
        """Commit until the host has no more work."""
        for _ in range(50):
            await asyncio.sleep(0)
            self.commit()

    async def run(self, command: RegisterBroker | Heartbeat | CreateTopic | AllocateProducerIds) -> Outcome:
        """Submit and commit."""
        task = asyncio.ensure_future(self.host.submit(command, timeout_ms=5_000))
        await self.settle()
        return await task

    async def broker(self, broker_id: int) -> int:
        """Register and unfence a broker; return its epoch."""
        outcome = await self.run(register(broker_id))
        assert outcome.response == BrokerRegistered(broker_epoch=None)
        assert outcome.base_offset is not None
        await self.run(Heartbeat(broker_id=broker_id, broker_epoch=outcome.base_offset, metadata_offset=1 << 40))
        return outcome.base_offset


def control(base_offset: int, next_offset: int) -> CommittedBatch:
    """Return a committed batch of the quorum itself."""
    return CommittedBatch(
        base_offset=base_offset,
        next_offset=next_offset,
        quorum_epoch=EPOCH,
        append_timestamp_ms=0,
        records=[encode_control_record(LeaderChange(leader_id=NodeId(1), granting_voters=()))]
        * (next_offset - base_offset),
        is_control=True,
    )


async def failure(shell: Shell, command: CreateTopic | AllocateProducerIds, *, timeout_ms: int = 50) -> CommandError:
    """Submit a command that must fail; return how."""
    with pytest.raises(CommandError) as caught:
        await shell.host.submit(command, timeout_ms=timeout_ms)
    return caught.value
