# SPDX-License-Identifier: Apache-2.0
"""A hosted replica that follows: real core, real log on a simulated disk, and a recorder in the place of the stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from brokerd.partition.reconciliation import EpochEnd, SubscriptionError
from brokerd.replica.log_copying import LogCopying
from brokerd.replica.replica import HostedReplica
from brokerd.tests.hosted_support import TOPIC_ID, Hosted, append, stamped
from storage.testing.sim_disk import Refusal


@pytest.fixture
async def hosted() -> AsyncIterator[Hosted]:
    """A broker with one partition of three replicas."""
    made = Hosted()
    yield made
    await made.host.stop()


def follower(hosted: Hosted) -> LogCopying:
    """The replica, as the stream to its leader sees it."""
    said = hosted.said.follower
    assert isinstance(said, LogCopying)
    return said


def send(hosted: Hosted, batches: bytes, *, base_offset: int, leader_epoch: int = 0, high_watermark: int = 0) -> None:
    """Let the leader send batches for the present session."""
    follower(hosted).on_leader_batches(
        hosted.said.session,
        batches,
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        high_watermark=high_watermark,
        log_start_offset=0,
    )


async def followed(hosted: Hosted, policy: str = "none") -> HostedReplica:
    """A replica whose subscription to broker 2 was accepted."""
    replica = await hosted.start(leader_id=2, policy=policy)
    accept(hosted)
    return replica


def accept(hosted: Hosted) -> None:
    """Let the leader accept the present session."""
    follower(hosted).on_subscription_accepted(hosted.said.session, high_watermark=0, log_start_offset=0)


async def test_follower_subscribes_when_its_log_is_open(hosted: Hosted) -> None:
    """It asks the leader of the metadata, with where its log ends."""
    await hosted.start(leader_id=2)
    (asked,) = hosted.said.subscriptions
    assert (asked.leader_id, asked.leader_epoch, asked.log_end_offset, asked.last_epoch) == (2, 0, 0, None)
    assert follower(hosted).topic_id == TOPIC_ID
    assert follower(hosted).partition == 0
    assert str(follower(hosted)) == "t-0"


async def test_batches_are_appended_byte_for_byte_and_acknowledged(hosted: Hosted) -> None:
    """The log holds what came; what is appended is acknowledged at once under `none`, and is readable up to the mark."""
    replica = await followed(hosted)
    sent = stamped(0, 0, 3)
    send(hosted, sent, base_offset=0, high_watermark=2)
    assert bytes(replica.read(0, 1 << 20, end_offset=3).data) == sent
    assert hosted.said.acks[-1].appended_offset == 3
    assert replica.high_watermark == 2
    follower(hosted).on_leader_marks(hosted.said.session, high_watermark=9, log_start_offset=0)
    assert replica.high_watermark == 3, "never beyond its own log"


async def test_flushed_batches_are_acknowledged_under_ack(hosted: Hosted) -> None:
    """Nothing is said before the flush is done."""
    await followed(hosted, policy="ack")
    send(hosted, stamped(0, 0, 2), base_offset=0)
    assert hosted.said.acks == []
    await hosted.said.wait(lambda: bool(hosted.said.acks))
    assert hosted.said.acks[-1].flushed_offset == 2


async def test_damaged_batches_end_the_subscription_and_leave_the_log_alone(hosted: Hosted) -> None:
    """A wrong checksum is never stored; the leader is told to stop, and is asked again later."""
    replica = await followed(hosted)
    send(hosted, stamped(0, 0), base_offset=0)
    damaged = bytearray(stamped(1, 0))
    damaged[-1] ^= 1
    send(hosted, bytes(damaged), base_offset=1)
    assert replica.log_end_offset == 1
    assert hosted.said.ended == [(2, hosted.said.session)]
    session = hosted.said.session
    await hosted.said.wait(lambda: hosted.said.session > session)
    assert hosted.said.subscriptions[-1].log_end_offset == 1


async def test_full_disk_ends_the_subscription_until_there_is_room(hosted: Hosted) -> None:
    """What found no room is asked for again; nothing is lost and nothing is skipped."""
    replica = await followed(hosted)
    hosted.disk.refuse("append", ".log", Refusal.FULL)
    send(hosted, stamped(0, 0), base_offset=0)
    assert replica.log_end_offset == 0
    session = hosted.said.session
    await hosted.said.wait(lambda: hosted.said.session > session)
    accept(hosted)
    send(hosted, stamped(0, 0), base_offset=0)
    assert replica.log_end_offset == 1


async def test_log_is_cut_where_the_leader_says_and_the_leader_is_asked_again(hosted: Hosted) -> None:
    """The cut waits for the disk; then the next subscription tells the new end."""
    replica = await followed(hosted)
    send(hosted, stamped(0, 0, 4), base_offset=0)
    hosted.lead(3)
    follower(hosted).on_subscription_diverged(hosted.said.session, EpochEnd(0, 2))
    assert replica.is_lent or replica.log_end_offset == 4, "nothing waits for the disk on the loop"
    count = len(hosted.said.subscriptions)
    await hosted.said.wait(lambda: len(hosted.said.subscriptions) > count)
    asked = hosted.said.subscriptions[-1]
    assert (asked.leader_id, asked.leader_epoch, asked.log_end_offset, asked.last_epoch) == (3, 1, 2, 0)
    assert replica.log_end_offset == 2


async def test_what_happens_during_a_cut_is_taken_up_behind_it(hosted: Hosted) -> None:
    """A new leader that comes while the log is cut is followed with the log as it is after the cut."""
    replica = await followed(hosted)
    send(hosted, stamped(0, 0, 4), base_offset=0)
    hosted.lead(3)
    follower(hosted).on_subscription_diverged(hosted.said.session, EpochEnd(0, 1))
    hosted.lead(2)
    await hosted.said.wait(lambda: hosted.said.subscriptions[-1].leader_epoch == 2)
    asked = hosted.said.subscriptions[-1]
    assert (asked.leader_id, asked.log_end_offset) == (2, 1)
    assert replica.log_end_offset == 1


async def test_cut_that_finds_no_room_is_asked_for_again(hosted: Hosted, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log stays as it is, and the leader says again where to cut."""
    monkeypatch.setattr("brokerd.replica.log_cutting.CUT_RETRY_MS", 1)
    replica = await followed(hosted)
    send(hosted, stamped(0, 0, 4), base_offset=0)
    hosted.lead(3)
    hosted.disk.refuse("write", "", Refusal.FULL)
    hosted.disk.refuse("create", "", Refusal.FULL)
    follower(hosted).on_subscription_diverged(hosted.said.session, EpochEnd(0, 2))
    count = len(hosted.said.subscriptions)
    await hosted.said.wait(lambda: len(hosted.said.subscriptions) > count)
    assert hosted.said.subscriptions[-1].log_end_offset == replica.log_end_offset


async def test_disk_that_fails_under_a_cut_ends_the_replica(hosted: Hosted) -> None:
    """The log directory failed: the broker is told, and the leader is not asked any more."""
    await followed(hosted)
    send(hosted, stamped(0, 0, 4), base_offset=0)
    hosted.lead(3)
    hosted.disk.refuse("sync", "", Refusal.IO_ERROR)
    follower(hosted).on_subscription_diverged(hosted.said.session, EpochEnd(0, 2))
    assert await hosted.host.failed is not None


async def test_log_that_ends_below_the_leaders_start_begins_anew(hosted: Hosted) -> None:
    """The leader dropped what is missing here, so that the log goes on, empty, where the leader's begins."""
    replica = await followed(hosted)
    send(hosted, stamped(0, 0, 2), base_offset=0)
    hosted.lead(3)
    session = hosted.said.session
    follower(hosted).on_subscription_ended(session, SubscriptionError.BELOW_LOG_START, log_start_offset=7)
    await hosted.said.wait(lambda: hosted.said.session > session)
    assert (replica.log_start_offset, replica.log_end_offset) == (7, 7)
    assert hosted.said.subscriptions[-1].last_epoch is None
    accept(hosted)
    send(hosted, stamped(7, 1), base_offset=7, leader_epoch=1)
    assert replica.log_end_offset == 8


async def test_log_start_of_the_leader_is_followed(hosted: Hosted) -> None:
    """What the leader dropped goes here too, as far as it is committed."""
    replica = await followed(hosted)
    send(hosted, stamped(0, 0, 4), base_offset=0, high_watermark=3)
    follower(hosted).on_leader_marks(hosted.said.session, high_watermark=4, log_start_offset=2)
    follower(hosted).on_leader_marks(hosted.said.session, high_watermark=4, log_start_offset=3)
    await asyncio.gather(*(task for task in asyncio.all_tasks() if task.get_name() == "log-start"))
    assert replica.log_start_offset == 3


async def test_batches_that_come_while_the_log_is_lent_are_asked_for_again(hosted: Hosted) -> None:
    """In the last step of a move between directories nothing can be appended."""
    replica = await followed(hosted)
    session = hosted.said.session
    async with replica.lent():
        send(hosted, stamped(0, 0), base_offset=0)
        assert replica.log_end_offset == 0
    await hosted.said.wait(lambda: hosted.said.session > session)
    assert hosted.said.ended == [(2, session)]


async def test_leader_that_becomes_a_follower_forgets_its_empty_epoch(hosted: Hosted) -> None:
    """It led without an append; records of an older epoch, which the next leader has, can be appended."""
    replica = await followed(hosted)
    send(hosted, stamped(0, 0), base_offset=0)
    hosted.lead(1)
    assert replica.is_leader
    hosted.lead(3)
    accept(hosted)
    send(hosted, stamped(1, 0), base_offset=1, leader_epoch=0)
    assert replica.log_end_offset == 2
    assert hosted.said.acks[-1].appended_offset == 2


async def test_replica_that_goes_ends_its_subscription(hosted: Hosted) -> None:
    """The leader is told, and what it sends still is passed over."""
    replica = await followed(hosted)
    session = hosted.said.session
    await replica.close("the topic was deleted")
    assert hosted.said.ended == [(2, session)]
    send(hosted, stamped(0, 0), base_offset=0)
    assert len(hosted.said.subscriptions) == 1


async def test_high_watermark_is_kept_over_a_restart(hosted: Hosted) -> None:
    """After an orderly stop the replica knows what was committed before any leader tells it."""
    await followed(hosted)
    send(hosted, stamped(0, 0, 4), base_offset=0, high_watermark=3)
    await hosted.host.stop()
    again = Hosted(hosted.disk)
    replica = await again.start(leader_id=2, policy="none")
    assert replica.high_watermark == 3
    await again.host.stop()


async def test_append_is_refused_by_a_follower(hosted: Hosted) -> None:
    """Clients are told who leads."""
    replica = await followed(hosted)
    with pytest.raises(Exception, match="NOT_LEADER"):
        append(replica)
