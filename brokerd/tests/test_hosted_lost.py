# SPDX-License-Identifier: Apache-2.0
"""Which replicas a host gives up for lost: those of a directory that fails, whenever they were opened, and logs that do not open."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from lograft.wire.codes import ErrorCode

from brokerd.tests.hosted_support import NODES, TOPIC_ID, Hosted
from brokerd.tests.test_replica_host import ROOT
from metaquorum.metadata.awaited import AwaitedReplica, pack
from metaquorum.metadata.records import LeaderChange, PartitionChangeRecord, PartitionRecord, TopicRecord
from storage.errors import DiskFailedError
from storage.files.names import LOG_SUFFIX, PartitionIdentity, partition_directory_name
from storage.log.partition_log import PartitionLog
from storage.testing.sim_disk import SimCall
from storage.types import LogSettings


class Lost:
    """Remembers what it is told."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, int]] = []
        self.found: list[tuple[int, bytes]] = []

    def note_lost(self, topic_id: bytes, partition: int) -> None:
        assert topic_id == TOPIC_ID
        self.heard.append(("lost", partition))

    def note_found(self, topic_id: bytes, partition: int, directory_id: bytes) -> None:
        assert topic_id == TOPIC_ID
        self.found.append((partition, directory_id))

    def note_removed(self, topic_id: bytes, partition: int) -> None:
        assert topic_id == TOPIC_ID
        self.heard.append(("removed", partition))


@pytest.fixture
def lost() -> Lost:
    """What the host says about lost replicas."""
    return Lost()


@pytest.fixture
async def hosted(lost: Lost) -> AsyncIterator[Hosted]:
    """A broker with one partition of three replicas."""
    made = Hosted(withdrawals=lost)
    yield made
    await made.host.stop()


def fail(hosted: Hosted) -> None:
    """Let the log directory fail."""
    hosted.host.note_disk_failure(hosted.host.directories.first, DiskFailedError("/data/x", "gone"))


async def test_replicas_of_a_failed_directory_are_lost_once(hosted: Hosted, lost: Lost) -> None:
    """Whoever met the failure, and as often as it is met; the replica refuses, and stands for nothing in a later role."""
    replica = await hosted.start(leader_id=1)
    fail(hosted)
    fail(hosted)
    assert lost.heard == [("lost", 0)]
    assert replica.refusal().code is ErrorCode.STORAGE_FAILED
    hosted.lead(2)
    hosted.lead(1)
    assert not replica.is_leader
    assert hosted.said.subscriptions == []


async def test_replica_whose_directory_fails_while_it_is_opened_is_lost(hosted: Hosted, lost: Lost) -> None:
    """The log opens, and does not work."""
    hosted.commit(hosted.registration(1, broker_epoch=1), TopicRecord(topic="t", topic_id=TOPIC_ID), partition(0))
    loop = asyncio.get_running_loop()

    def fail_meanwhile(call: SimCall) -> None:
        if call.path.endswith(LOG_SUFFIX):
            hosted.disk.on_call = None
            loop.call_soon_threadsafe(fail, hosted)

    hosted.disk.on_call = fail_meanwhile
    await hosted.host.start()
    await hosted.host.wait_idle()
    assert lost.heard == [("lost", 0)]
    replica = hosted.host.find(TOPIC_ID, 0)
    assert replica is not None
    assert not replica.is_writable


async def test_replica_that_comes_to_a_failed_directory_is_lost(hosted: Hosted, lost: Lost) -> None:
    """Nothing is opened there any more."""
    hosted.commit(hosted.registration(1, broker_epoch=1), TopicRecord(topic="t", topic_id=TOPIC_ID), partition(0))
    fail(hosted)
    await hosted.host.start()
    await hosted.host.wait_idle()
    assert lost.heard == [("lost", 0)]


async def test_log_that_does_not_open_is_lost(hosted: Hosted, lost: Lost) -> None:
    """As at a start on a directory that was not repaired; the others are served."""
    path = f"{ROOT}/{partition_directory_name(PartitionIdentity(TOPIC_ID, 0))}"
    other = PartitionIdentity(bytes(16), 7)
    PartitionLog.open(hosted.disk, path, settings=LogSettings(), now_ms=0, identity=other).log.close()
    topic = TopicRecord(topic="t", topic_id=TOPIC_ID)
    hosted.commit(hosted.registration(1, broker_epoch=1), topic, partition(0), partition(1))
    await hosted.host.start()
    await hosted.host.wait_idle()
    assert lost.heard == [("lost", 0)]
    assert hosted.host.find(TOPIC_ID, 1) is not None


async def test_replica_that_leaves_is_lost_no_more(hosted: Hosted, lost: Lost) -> None:
    """One that comes again has another log, in a directory that works."""
    await hosted.start(leader_id=2)
    hosted.commit(PartitionChangeRecord(topic_id=TOPIC_ID, partition=0, replicas=(2, 3), isr=(2, 3)))
    await hosted.host.wait_idle()
    assert lost.heard == [("removed", 0)]


async def test_log_is_made_only_once_this_process_is_let_in(hosted: Hosted, lost: Lost) -> None:
    """An empty log that is made before could be taken for the one that the partition is about to await."""
    fenced = replace(hosted.registration(1, broker_epoch=1), fenced=True)
    hosted.commit(fenced, TopicRecord(topic="t", topic_id=TOPIC_ID), partition(0), partition(1))
    await hosted.host.start()
    assert hosted.host.replica_count == 0
    assert hosted.disk.list_directory(ROOT) == []
    awaited = pack([AwaitedReplica(1, (bytes(16),))])
    hosted.commit(
        PartitionChangeRecord(topic_id=TOPIC_ID, partition=0, leader=LeaderChange(leader_id=None), awaited=awaited)
    )
    hosted.commit(hosted.registration(1, broker_epoch=1))
    await hosted.host.wait_idle()
    assert hosted.host.find(TOPIC_ID, 0) is None
    assert hosted.host.find(TOPIC_ID, 1) is not None
    assert lost.found == []
    hosted.commit(
        PartitionChangeRecord(topic_id=TOPIC_ID, partition=0, leader=LeaderChange(leader_id=2), isr=(2,), awaited=())
    )
    await hosted.host.wait_idle()
    assert hosted.host.find(TOPIC_ID, 0) is not None, "another replica was elected: this one begins anew behind it"


async def test_waiting_logs_are_not_forgotten_when_another_partition_of_the_topic_changes(hosted: Hosted) -> None:
    """The change is about a partition that this broker has no replica of; what waits for leave is made once it comes."""
    fenced = replace(hosted.registration(1, broker_epoch=1), fenced=True)
    elsewhere = replace(partition(1), replicas=(2, 3), isr=(2, 3))
    hosted.commit(fenced, TopicRecord(topic="t", topic_id=TOPIC_ID), partition(0), elsewhere)
    await hosted.host.start()
    assert hosted.host.replica_count == 0
    hosted.commit(PartitionChangeRecord(topic_id=TOPIC_ID, partition=1, leader=LeaderChange(leader_id=3)))
    hosted.commit(hosted.registration(1, broker_epoch=1))
    await hosted.host.wait_idle()
    assert hosted.host.find(TOPIC_ID, 0) is not None


@pytest.mark.parametrize("directory_id", [bytes(16), b"another direct.."])
async def test_log_in_an_awaited_directory_is_claimed_and_no_other(
    hosted: Hosted, lost: Lost, directory_id: bytes
) -> None:
    """The directory of this host has the id of zeros; what another one had is not here."""
    await hosted.start(leader_id=2)
    awaited = pack([AwaitedReplica(1, (directory_id,))])
    change = PartitionChangeRecord(
        topic_id=TOPIC_ID, partition=0, leader=LeaderChange(leader_id=None), isr=(1,), awaited=awaited
    )
    hosted.commit(change)
    assert lost.found == ([(0, bytes(16))] if directory_id == bytes(16) else [])


def partition(number: int) -> PartitionRecord:
    """A partition that broker 2 leads."""
    return PartitionRecord(
        topic_id=TOPIC_ID,
        partition=number,
        replicas=NODES,
        isr=NODES,
        leader_id=2,
        leader_epoch=0,
        partition_epoch=0,
    )
