# SPDX-License-Identifier: Apache-2.0
"""A following replica of three: real core, real log on a simulated disk, and a recorder instead of the stream."""

from __future__ import annotations

import asyncio

import pytest

from brokerd.partition.reconciliation import EpochEnd, SubscriptionError
from brokerd.tests.replica.broker_of_three import (
    TOPIC_ID,
    BrokerOfThree,
    accept,
    append,
    followed,
    follower,
    send,
    stamped,
)
from storage.testing.sim_disk import Refusal


async def test_follower_subscribes_when_its_log_is_open(three: BrokerOfThree) -> None:
    """It subscribes at the leader that the metadata names, with its log end."""
    await three.start(leader_id=2)
    (asked,) = three.said.subscriptions
    assert (asked.leader_id, asked.leader_epoch, asked.log_end_offset, asked.last_epoch) == (2, 0, 0, None)
    assert follower(three).topic_id == TOPIC_ID
    assert follower(three).partition == 0
    assert str(follower(three)) == "t-0"


async def test_batches_are_appended_byte_for_byte_and_acknowledged(three: BrokerOfThree) -> None:
    """The log has the received bytes. Appends are acknowledged at once under `none`, and are readable up to the mark."""
    replica = await followed(three)
    sent = stamped(0, 0, 3)
    send(three, sent, base_offset=0, high_watermark=2)
    assert bytes(replica.read(0, 1 << 20, end_offset=3).data) == sent
    assert three.said.acks[-1].appended_offset == 3
    assert replica.high_watermark == 2
    follower(three).on_leader_marks(three.said.session, high_watermark=9, log_start_offset=0)
    assert replica.high_watermark == 3, "never beyond its own log"


async def test_flushed_batches_are_acknowledged_under_ack(three: BrokerOfThree) -> None:
    """Nothing is acknowledged before the flush is done."""
    await followed(three, policy="ack")
    send(three, stamped(0, 0, 2), base_offset=0)
    assert three.said.acks == []
    await three.said.wait(lambda: bool(three.said.acks))
    assert three.said.acks[-1].flushed_offset == 2


async def test_damaged_batches_end_the_subscription_and_leave_the_log_alone(three: BrokerOfThree) -> None:
    """A batch with a wrong checksum is never stored. The subscription ends, and the follower subscribes again later."""
    replica = await followed(three)
    send(three, stamped(0, 0), base_offset=0)
    damaged = bytearray(stamped(1, 0))
    damaged[-1] ^= 1
    send(three, bytes(damaged), base_offset=1)
    assert replica.log_end_offset == 1
    assert three.said.ended == [(2, three.said.session)]
    session = three.said.session
    await three.said.wait(lambda: three.said.session > session)
    assert three.said.subscriptions[-1].log_end_offset == 1


async def test_full_disk_ends_the_subscription_until_there_is_room(three: BrokerOfThree) -> None:
    """Batches that found no space are requested again. Nothing is lost and nothing is skipped."""
    replica = await followed(three)
    three.disk.refuse("append", ".log", Refusal.FULL)
    send(three, stamped(0, 0), base_offset=0)
    assert replica.log_end_offset == 0
    session = three.said.session
    await three.said.wait(lambda: three.said.session > session)
    accept(three)
    send(three, stamped(0, 0), base_offset=0)
    assert replica.log_end_offset == 1


async def test_full_disk_is_logged_once(three: BrokerOfThree, caplog: pytest.LogCaptureFixture) -> None:
    """A broker with thousands of partitions would write as many lines a second. The next failure after a success is logged again."""
    replica = await followed(three)
    for count, expected in ((3, 1), (1, 2)):
        for _ in range(count):
            three.disk.refuse("append", ".log", Refusal.FULL)
            session = three.said.session
            send(three, stamped(replica.log_end_offset, 0), base_offset=replica.log_end_offset)
            await three.said.wait(lambda before=session: three.said.session > before)
            accept(three)
        send(three, stamped(replica.log_end_offset, 0), base_offset=replica.log_end_offset)
        assert len([line for line in caplog.messages if "not stored" in line]) == expected
    assert replica.log_end_offset == 2


async def test_log_is_cut_where_the_leader_says_and_the_leader_is_asked_again(three: BrokerOfThree) -> None:
    """The truncation waits for the disk. Then the next subscription has the new log end."""
    replica = await followed(three)
    send(three, stamped(0, 0, 4), base_offset=0)
    three.lead(3)
    follower(three).on_subscription_diverged(three.said.session, EpochEnd(0, 2))
    assert replica.is_locked or replica.log_end_offset == 4, "nothing waits for the disk on the loop"
    count = len(three.said.subscriptions)
    await three.said.wait(lambda: len(three.said.subscriptions) > count)
    asked = three.said.subscriptions[-1]
    assert (asked.leader_id, asked.leader_epoch, asked.log_end_offset, asked.last_epoch) == (3, 1, 2, 0)
    assert replica.log_end_offset == 2


async def test_what_happens_during_a_cut_is_taken_up_behind_it(three: BrokerOfThree) -> None:
    """A new leader that appears during a truncation is followed with the log after the truncation."""
    replica = await followed(three)
    send(three, stamped(0, 0, 4), base_offset=0)
    three.lead(3)
    follower(three).on_subscription_diverged(three.said.session, EpochEnd(0, 1))
    three.lead(2)
    await three.said.wait(lambda: three.said.subscriptions[-1].leader_epoch == 2)
    asked = three.said.subscriptions[-1]
    assert (asked.leader_id, asked.log_end_offset) == (2, 1)
    assert replica.log_end_offset == 1


async def test_cut_that_finds_no_room_is_asked_for_again(three: BrokerOfThree, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log stays as it is, and the leader names the offset again."""
    monkeypatch.setattr("brokerd.replica.replica.TRUNCATE_RETRY_MS", 1)
    replica = await followed(three)
    send(three, stamped(0, 0, 4), base_offset=0)
    three.lead(3)
    three.disk.refuse("write", "", Refusal.FULL)
    three.disk.refuse("create", "", Refusal.FULL)
    follower(three).on_subscription_diverged(three.said.session, EpochEnd(0, 2))
    count = len(three.said.subscriptions)
    await three.said.wait(lambda: len(three.said.subscriptions) > count)
    assert three.said.subscriptions[-1].log_end_offset == replica.log_end_offset


async def test_disk_that_fails_under_a_cut_ends_the_replica(three: BrokerOfThree) -> None:
    """The log directory failed. The broker is told, and the follower no longer subscribes."""
    await followed(three)
    send(three, stamped(0, 0, 4), base_offset=0)
    three.lead(3)
    three.disk.refuse("sync", "", Refusal.IO_ERROR)
    follower(three).on_subscription_diverged(three.said.session, EpochEnd(0, 2))
    assert await three.manager.failed is not None


async def test_log_that_ends_below_the_leaders_start_begins_anew(three: BrokerOfThree) -> None:
    """The leader has dropped the missing records, so the log restarts, empty, at the leader's log start."""
    replica = await followed(three)
    send(three, stamped(0, 0, 2), base_offset=0)
    three.lead(3)
    session = three.said.session
    follower(three).on_subscription_ended(session, SubscriptionError.BELOW_LOG_START, log_start_offset=7)
    await three.said.wait(lambda: three.said.session > session)
    assert (replica.log_start_offset, replica.log_end_offset) == (7, 7)
    assert three.said.subscriptions[-1].last_epoch is None
    accept(three)
    send(three, stamped(7, 1), base_offset=7, leader_epoch=1)
    assert replica.log_end_offset == 8


async def test_log_start_of_the_leader_is_followed(three: BrokerOfThree) -> None:
    """What the leader has dropped is dropped here too, as far as it is committed."""
    replica = await followed(three)
    send(three, stamped(0, 0, 4), base_offset=0, high_watermark=3)
    follower(three).on_leader_marks(three.said.session, high_watermark=4, log_start_offset=2)
    follower(three).on_leader_marks(three.said.session, high_watermark=4, log_start_offset=3)
    await asyncio.gather(*(task for task in asyncio.all_tasks() if task.get_name() == "log-start"))
    assert replica.log_start_offset == 3


async def test_batches_that_come_while_the_log_is_locked_are_asked_for_again(three: BrokerOfThree) -> None:
    """In the last step of a move between directories nothing can be appended."""
    replica = await followed(three)
    session = three.said.session
    async with replica.locked():
        send(three, stamped(0, 0), base_offset=0)
        assert replica.log_end_offset == 0
    await three.said.wait(lambda: three.said.session > session)
    assert three.said.ended == [(2, session)]


async def test_leader_that_becomes_a_follower_forgets_its_empty_epoch(three: BrokerOfThree) -> None:
    """It led without an append. Records of an older epoch, which the next leader has, can be appended."""
    replica = await followed(three)
    send(three, stamped(0, 0), base_offset=0)
    three.lead(1)
    assert replica.is_leader
    three.lead(3)
    accept(three)
    send(three, stamped(1, 0), base_offset=1, leader_epoch=0)
    assert replica.log_end_offset == 2
    assert three.said.acks[-1].appended_offset == 2


async def test_replica_that_goes_ends_its_subscription(three: BrokerOfThree) -> None:
    """The leader is told, and its later messages are ignored."""
    replica = await followed(three)
    session = three.said.session
    await replica.close("the topic was deleted")
    assert three.said.ended == [(2, session)]
    send(three, stamped(0, 0), base_offset=0)
    assert len(three.said.subscriptions) == 1


async def test_high_watermark_is_kept_over_a_restart(three: BrokerOfThree) -> None:
    """After a clean shutdown the replica knows what was committed before any leader tells it."""
    await followed(three)
    send(three, stamped(0, 0, 4), base_offset=0, high_watermark=3)
    await three.manager.stop()
    again = BrokerOfThree(three.disk)
    replica = await again.start(leader_id=2, policy="none")
    assert replica.high_watermark == 3
    await again.manager.stop()


async def test_append_is_refused_by_a_follower(three: BrokerOfThree) -> None:
    """Clients are told who leads."""
    replica = await followed(three)
    with pytest.raises(Exception, match="NOT_LEADER"):
        append(replica)
