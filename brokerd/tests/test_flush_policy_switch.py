# SPDX-License-Identifier: Apache-2.0
"""A topic's `flush.policy` becomes `ack` while records are unflushed: what counts from then on survives a power loss."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator

import pytest

from brokerd.clock import wall_ms
from brokerd.partition.effects import CompleteAck, FailAck, FlushLog, LossReason, PublishHighWatermark
from brokerd.partition.events import (
    AckLevel,
    AckWanted,
    BatchAppended,
    Durability,
    FlushPolicyChanged,
    LogFlushed,
)
from brokerd.partition.reconciliation import EpochEnd
from brokerd.tests.replica.broker_of_three import TOPIC_ID, BrokerOfThree, followed, send, stamped
from brokerd.tests.replica.lone_broker import ROOT, LoneBroker, acked, append
from brokerd.tests.replication_support import Replica, changed, image, leader
from metaquorum.metadata.records import ConfigRecord, ConfigResource
from metaquorum.metadata.topic_configs import FlushPolicy
from storage.log.partition_log import PartitionLog
from storage.testing.sim_disk import SimDisk
from storage.testing.sim_tree import Crash
from storage.types import LogSettings

TO_ACK = FlushPolicyChanged(policy=FlushPolicy.ACK, interval_ms=1)
TO_NONE = FlushPolicyChanged(policy=FlushPolicy.NONE, interval_ms=1)
SEGMENT_BYTES = 16 * 1024
VALUE_BYTES = 6_000


def sync_names(disk: SimDisk) -> None:
    """Sync the directories above the logs, so that they survive a power loss."""
    for path in ("/", "/data"):
        disk.sync_directory(path)


@pytest.fixture
async def lone() -> AsyncIterator[LoneBroker]:
    """A broker with an empty disk."""
    disk = SimDisk()
    disk.make_directory("/data")
    disk.make_directory(ROOT)
    sync_names(disk)
    made = LoneBroker(disk)
    made.register()
    await made.manager.start()
    yield made
    await made.manager.stop()


@pytest.fixture
async def three() -> AsyncIterator[BrokerOfThree]:
    """A broker with a partition that others have too."""
    made = BrokerOfThree()
    sync_names(made.disk)
    yield made
    await made.manager.stop()


def config(name: str, value: str) -> ConfigRecord:
    """A config of the topic."""
    return ConfigRecord(resource=ConfigResource.TOPIC, resource_name=TOPIC_ID.hex(), name=name, value=value)


def end_after_power_loss(disk: SimDisk, directory: str) -> int:
    """Return the log end after a power loss at this moment."""
    copied = disk.fork()
    copied.crash(Crash.LOSE_ALL, random.Random(1))
    return PartitionLog.open(copied, directory, settings=LogSettings(), now_ms=wall_ms()).log.log_end_offset


async def test_first_flush_after_the_switch_covers_segments_that_were_rolled_before(lone: LoneBroker) -> None:
    """Everything below an acknowledgement after the switch is on stable storage, older segments included."""
    lone.create_topic("none")
    lone.commit(config("segment.bytes", str(SEGMENT_BYTES)))
    replica = await lone.replica()
    for _ in range(8):
        next_offset = append(replica, [b"v" * VALUE_BYTES])
    directory = replica.log.directory
    assert len([name for name in lone.disk.list_directory(directory) if name.endswith(".log")]) >= 3
    assert end_after_power_loss(lone.disk, directory) < next_offset == replica.high_watermark
    lone.commit(config("flush.policy", "ack"))
    next_offset = append(replica, [b"after"])
    assert await acked(replica, next_offset) is Durability.FLUSHED
    assert end_after_power_loss(lone.disk, directory) == next_offset == replica.log.flushed_offset


async def test_resend_after_the_switch_is_flushed_when_it_is_acknowledged(lone: LoneBroker) -> None:
    """A record had reached its durability before the switch and is acknowledged again after it. Now it must survive a power loss."""
    lone.create_topic("none")
    replica = await lone.replica()
    next_offset = append(replica, [b"before"])
    assert await acked(replica, next_offset) is Durability.REPLICATED
    assert end_after_power_loss(lone.disk, replica.log.directory) == 0
    lone.commit(config("flush.policy", "ack"))
    assert await acked(replica, next_offset) is Durability.FLUSHED
    assert end_after_power_loss(lone.disk, replica.log.directory) == next_offset


async def test_follower_reports_after_the_switch_what_is_flushed(three: BrokerOfThree) -> None:
    """The leader hears a flushed offset from a follower only when everything below it is on stable storage there."""
    replica = await followed(three, policy="none")
    send(three, stamped(0, 0) + stamped(1, 0), base_offset=0)
    assert [(ack.appended_offset, ack.flushed_offset) for ack in three.said.acks] == [(2, 0)]
    directory = replica.log.directory
    assert end_after_power_loss(three.disk, directory) == 0
    three.commit(config("flush.policy", "ack"))
    await three.said.wait(lambda: len(three.said.acks) == 2)
    assert (three.said.acks[1].appended_offset, three.said.acks[1].flushed_offset) == (2, 2)
    assert end_after_power_loss(three.disk, directory) == 2


async def test_log_that_is_opened_counts_as_flushed_because_it_is(lone: LoneBroker) -> None:
    """After a kill the page cache has everything. Opening the log puts it on stable storage before anything is reported."""
    lone.create_topic("none")
    replica = await lone.replica()
    next_offset = append(replica, [b"before"])
    directory = replica.log.directory
    killed = lone.disk.fork()
    killed.crash(Crash.KEEP_ALL, random.Random(1))
    opened = PartitionLog.open(killed, directory, settings=LogSettings(), now_ms=wall_ms()).log
    assert opened.flushed_offset == next_offset == end_after_power_loss(killed, directory)


def unflushed_leader() -> Replica:
    """A leader of three replicas with ten committed records under `none`, none of them flushed anywhere; then the switch."""
    replica = leader(FlushPolicy.NONE)
    replica.step(BatchAppended(log_end_offset=10))
    replica.acked(2, 10, flushed=0)
    assert replica.acked(3, 10, flushed=0) == [PublishHighWatermark(high_watermark=10)]
    assert replica.step(TO_ACK) == [FlushLog()]
    return replica


def test_resend_waits_until_all_in_sync_replicas_have_flushed() -> None:
    """An acknowledgement after the switch says that the record is on stable storage of every replica that counts."""
    replica = unflushed_leader()
    assert replica.step(AckWanted(token=1, next_offset=4, level=AckLevel.ALL)) == []
    assert replica.step(AckWanted(token=2, next_offset=10, level=AckLevel.ALL)) == []
    assert replica.step(LogFlushed(flushed_offset=10)) == []
    assert replica.acked(2, 10) == []
    assert replica.acked(3, 10, flushed=9) == [CompleteAck(token=1, durability=Durability.FLUSHED)]
    assert replica.acked(3, 10) == [CompleteAck(token=2, durability=Durability.FLUSHED)]
    done = CompleteAck(token=3, durability=Durability.FLUSHED)
    assert replica.step(AckWanted(token=3, next_offset=10, level=AckLevel.ALL)) == [done]


def test_resend_of_level_leader_does_not_wait() -> None:
    """A request that waits only for the leader's append has no stronger promise."""
    replica = unflushed_leader()
    done = CompleteAck(token=1, durability=Durability.REPLICATED)
    assert replica.step(AckWanted(token=1, next_offset=4, level=AckLevel.LEADER)) == [done]


def test_switch_back_completes_what_waited_for_flushes() -> None:
    """Under `none` committed records are enough again."""
    replica = unflushed_leader()
    replica.step(AckWanted(token=1, next_offset=4, level=AckLevel.ALL))
    assert replica.step(TO_NONE) == [CompleteAck(token=1, durability=Durability.REPLICATED)]
    done = CompleteAck(token=2, durability=Durability.REPLICATED)
    assert replica.step(AckWanted(token=2, next_offset=4, level=AckLevel.ALL)) == [done]


def test_resend_at_a_new_leader_waits_while_followers_are_unknown() -> None:
    """A leader that saw the switch over unflushed records and leads again acknowledges none of them before all have flushed."""
    replica = unflushed_leader()
    replica.step(LogFlushed(flushed_offset=10))
    replica.step(changed(image(leader_id=2, leader_epoch=6, partition_epoch=8)))
    replica.step(changed(image(leader_id=1, leader_epoch=7, partition_epoch=9)))
    assert replica.step(AckWanted(token=1, next_offset=10, level=AckLevel.ALL)) == []
    known = EpochEnd(5, 10)
    replica.subscribe(2, end=10, leader_epoch=7, last_epoch=5, epoch_end=known, session=2)
    effects = replica.subscribe(3, end=10, leader_epoch=7, last_epoch=5, epoch_end=known, session=2)
    assert CompleteAck(token=1, durability=Durability.FLUSHED) in effects


def test_waiting_resend_fails_with_the_leadership() -> None:
    """Requests that wait for flushes fail when this broker can no longer know whether they happen."""
    replica = unflushed_leader()
    replica.step(AckWanted(token=1, next_offset=4, level=AckLevel.ALL))
    effects = replica.step(changed(image(leader_id=2, leader_epoch=6, partition_epoch=8)))
    assert FailAck(token=1, reason=LossReason.NOT_LEADER) in effects
