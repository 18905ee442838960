# SPDX-License-Identifier: Apache-2.0
"""Which replicas a broker reports as offline: those in a failed directory, whenever they were opened, and logs that do not open."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from lograft.wire.codes import ErrorCode

from brokerd.tests.replica.broker_of_three import NODES, TOPIC_ID, BrokerOfThree
from brokerd.tests.replica.lone_broker import ROOT
from metaquorum.metadata.awaited import AwaitedReplica, pack
from metaquorum.metadata.records import LeaderChange, PartitionChangeRecord, PartitionRecord, TopicRecord
from storage.errors import DiskFailedError
from storage.files.names import LOG_SUFFIX, PartitionIdentity, partition_directory_name
from storage.log.partition_log import PartitionLog
from storage.testing.sim_disk import SimCall
from storage.types import LogSettings


def fail(three: BrokerOfThree) -> None:
    """Make the log directory fail."""
    three.manager.note_disk_failure(three.manager.directories.first, DiskFailedError("/data/x", "gone"))


async def test_replicas_of_a_failed_directory_are_lost_once(three: BrokerOfThree) -> None:
    """Each is reported once, although several places meet the failure. The replica refuses, and has no part in later roles."""
    replica = await three.start(leader_id=1)
    fail(three)
    fail(three)
    assert three.said.offline == [("lost", 0)]
    assert replica.refusal().code is ErrorCode.STORAGE_FAILED
    three.lead(2)
    three.lead(1)
    assert not replica.is_leader
    assert three.said.subscriptions == []


async def test_replica_whose_directory_fails_while_it_is_opened_is_lost(three: BrokerOfThree) -> None:
    """The log opens, but does not work."""
    three.commit(three.registration(1, broker_epoch=1), TopicRecord(topic="t", topic_id=TOPIC_ID), partition(0))
    loop = asyncio.get_running_loop()

    def fail_meanwhile(call: SimCall) -> None:
        if call.path.endswith(LOG_SUFFIX):
            three.disk.on_call = None
            loop.call_soon_threadsafe(fail, three)

    three.disk.on_call = fail_meanwhile
    await three.manager.start()
    await three.manager.wait_idle()
    assert three.said.offline == [("lost", 0)]
    replica = three.manager.find(TOPIC_ID, 0)
    assert replica is not None
    assert not replica.is_writable


async def test_replica_that_comes_to_a_failed_directory_is_lost(three: BrokerOfThree) -> None:
    """Nothing is opened in that directory any more."""
    three.commit(three.registration(1, broker_epoch=1), TopicRecord(topic="t", topic_id=TOPIC_ID), partition(0))
    fail(three)
    await three.manager.start()
    await three.manager.wait_idle()
    assert three.said.offline == [("lost", 0)]


async def test_log_that_does_not_open_is_lost(three: BrokerOfThree) -> None:
    """It is as at a start on an unrepaired directory; the others are served."""
    path = f"{ROOT}/{partition_directory_name(PartitionIdentity(TOPIC_ID, 0))}"
    other = PartitionIdentity(bytes(16), 7)
    PartitionLog.open(three.disk, path, settings=LogSettings(), now_ms=0, identity=other).log.close()
    topic = TopicRecord(topic="t", topic_id=TOPIC_ID)
    three.commit(three.registration(1, broker_epoch=1), topic, partition(0), partition(1))
    await three.manager.start()
    await three.manager.wait_idle()
    assert three.said.offline == [("lost", 0)]
    assert three.manager.find(TOPIC_ID, 1) is not None


async def test_replica_that_leaves_is_lost_no_more(three: BrokerOfThree) -> None:
    """If it comes back, it has another log in a working directory."""
    await three.start(leader_id=2)
    three.commit(PartitionChangeRecord(topic_id=TOPIC_ID, partition=0, replicas=(2, 3), isr=(2, 3)))
    await three.manager.wait_idle()
    assert three.said.offline == [("removed", 0)]


async def test_log_is_made_only_once_this_process_is_let_in(three: BrokerOfThree) -> None:
    """An empty log, created too early, could look like the one that the partition is about to await."""
    fenced = replace(three.registration(1, broker_epoch=1), fenced=True)
    three.commit(fenced, TopicRecord(topic="t", topic_id=TOPIC_ID), partition(0), partition(1))
    await three.manager.start()
    assert three.manager.replica_count == 0
    assert three.disk.list_directory(ROOT) == []
    awaited = pack([AwaitedReplica(1, (bytes(16),))])
    three.commit(
        PartitionChangeRecord(topic_id=TOPIC_ID, partition=0, leader=LeaderChange(leader_id=None), awaited=awaited)
    )
    three.commit(three.registration(1, broker_epoch=1))
    await three.manager.wait_idle()
    assert three.manager.find(TOPIC_ID, 0) is None
    assert three.manager.find(TOPIC_ID, 1) is not None
    assert three.said.found == []
    three.commit(
        PartitionChangeRecord(topic_id=TOPIC_ID, partition=0, leader=LeaderChange(leader_id=2), isr=(2,), awaited=())
    )
    await three.manager.wait_idle()
    assert three.manager.find(TOPIC_ID, 0) is not None, "another replica was elected: this one starts empty behind it"


async def test_waiting_logs_are_not_forgotten_when_another_partition_of_the_topic_changes(three: BrokerOfThree) -> None:
    """The change concerns a partition without a replica here. Logs that wait for permission are created once it comes."""
    fenced = replace(three.registration(1, broker_epoch=1), fenced=True)
    elsewhere = partition(1)._replace(replicas=(2, 3), isr=(2, 3))
    three.commit(fenced, TopicRecord(topic="t", topic_id=TOPIC_ID), partition(0), elsewhere)
    await three.manager.start()
    assert three.manager.replica_count == 0
    three.commit(PartitionChangeRecord(topic_id=TOPIC_ID, partition=1, leader=LeaderChange(leader_id=3)))
    three.commit(three.registration(1, broker_epoch=1))
    await three.manager.wait_idle()
    assert three.manager.find(TOPIC_ID, 0) is not None


@pytest.mark.parametrize("directory_id", [bytes(16), b"another direct.."])
async def test_log_in_an_awaited_directory_is_claimed_and_no_other(three: BrokerOfThree, directory_id: bytes) -> None:
    """This broker's directory has the id of zeros. The log of another directory is not here."""
    await three.start(leader_id=2)
    awaited = pack([AwaitedReplica(1, (directory_id,))])
    change = PartitionChangeRecord(
        topic_id=TOPIC_ID, partition=0, leader=LeaderChange(leader_id=None), isr=(1,), awaited=awaited
    )
    three.commit(change)
    assert three.said.found == ([(0, bytes(16))] if directory_id == bytes(16) else [])


def partition(number: int) -> PartitionRecord:
    """Return a partition that broker 2 leads."""
    return PartitionRecord(
        topic_id=TOPIC_ID,
        partition=number,
        replicas=NODES,
        isr=NODES,
        leader_id=2,
        leader_epoch=0,
        partition_epoch=0,
    )
