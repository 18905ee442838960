# SPDX-License-Identifier: Apache-2.0
"""What a follower serves to readers, until when, and what happens to an offset. docs/replication.md, R15."""

from __future__ import annotations

import pytest
from lograft.wire.codes import ErrorCode

from brokerd.api.log_service.readers import Verdict, judge_offset
from brokerd.failure import Failure
from brokerd.partition.events import LeadershipChanged, ReplicaRemoved, StorageFailed
from brokerd.partition.follower_events import (
    BatchesReceived,
    LeaderAdvanced,
    SubscriptionAccepted,
    SubscriptionEnded,
)
from brokerd.partition.reconciliation import SubscriptionError
from brokerd.tests.replica.broker_of_three import BrokerOfThree, followed, send, stamped
from brokerd.tests.replication_support import Replica, changed, image


def follower(*, told: int = 6, end: int = 8, high_watermark: int = 0) -> Replica:
    """Return a follower of node 2 in epoch 5 that was accepted and has got a high watermark."""
    replica = Replica(end=end, high_watermark=high_watermark, last_epoch=4)
    replica.step(changed(image(leader_id=2)))
    replica.step(SubscriptionAccepted(session=1, high_watermark=told, log_start_offset=0))
    return replica


def test_follower_serves_below_what_its_leader_has_told() -> None:
    """Neither its own log end nor the high watermark of an earlier leadership counts, only what this leader has sent."""
    replica = follower(told=6, high_watermark=8)
    assert replica.core.high_watermark == 8
    assert replica.core.followed_end == 6
    replica.step(LeaderAdvanced(session=1, high_watermark=7, log_start_offset=0))
    assert replica.core.followed_end == 7
    replica.step(LeaderAdvanced(session=1, high_watermark=12, log_start_offset=0))
    assert replica.core.followed_end == 8, "it has no more"
    replica.step(BatchesReceived(session=1, base_offset=8, leader_epoch=5))
    replica.append(10)
    assert replica.core.followed_end == 10


def test_nobody_is_served_before_the_leader_has_accepted() -> None:
    """The log of a restarted follower may not be a prefix of the leader's."""
    replica = Replica(end=8, high_watermark=8, last_epoch=4)
    assert replica.core.followed_end is None, "nothing heard of the partition"
    replica.step(changed(image(leader_id=2)))
    assert replica.core.followed_end is None, "subscribing"


@pytest.mark.parametrize(
    "error", [SubscriptionError.STREAM_LOST, SubscriptionError.NOT_LEADER, SubscriptionError.BELOW_LOG_START]
)
def test_a_lost_subscription_ends_it(error: SubscriptionError) -> None:
    """A follower without contact to its leader may be behind without knowing it. When it is accepted again, it serves again."""
    replica = follower()
    start = 20 if error is SubscriptionError.BELOW_LOG_START else None
    replica.step(SubscriptionEnded(session=1, error=error, log_start_offset=start))
    assert replica.core.followed_end is None
    if error is SubscriptionError.STREAM_LOST:
        replica.step(SubscriptionAccepted(session=2, high_watermark=7, log_start_offset=0))
        assert replica.core.followed_end == 7


def test_leader_epoch_role_and_sync_end_it() -> None:
    """Another leader epoch, no leader, its own leadership, or leaving the in-sync replicas ends the service."""
    replica = follower()
    replica.step(changed(image(leader_id=2, isr=(2, 3), partition_epoch=8)))
    assert replica.core.followed_end is None, "out of sync"
    replica.step(changed(image(leader_id=2, partition_epoch=9)))
    assert replica.core.followed_end == 6, "in sync again, and never unsubscribed"
    for partition in (
        image(leader_id=3, leader_epoch=6, partition_epoch=10),
        image(leader_id=None, leader_epoch=6, partition_epoch=10),
        image(leader_id=1, leader_epoch=6, partition_epoch=10),
    ):
        replica = follower()
        replica.step(changed(partition))
        assert replica.core.followed_end is None


def test_failed_removed_and_lone_replicas_follow_nobody() -> None:
    """A failed log and a closed replica serve no reader. A replica without followers serves as the leader."""
    replica = follower()
    replica.step(StorageFailed(message="x"))
    assert replica.core.followed_end is None
    replica = follower()
    replica.step(ReplicaRemoved(message="x"))
    assert replica.core.followed_end is None
    alone = Replica(high_watermark=None)
    alone.step(LeadershipChanged(leader_id=1, leader_epoch=5))
    assert alone.core.followed_end is None


class Reader:
    """Notes its events."""

    def __init__(self) -> None:
        self.told: list[int | Failure] = []

    def on_high_watermark(self, high_watermark: int) -> None:
        self.told.append(high_watermark)

    def on_service_end(self, failure: Failure) -> None:
        self.told.append(failure)


async def test_readers_hear_of_each_end_once_and_of_the_end_of_service(three: BrokerOfThree) -> None:
    """A reader that came after an end of service hears of the next one too."""
    replica = await followed(three)
    send(three, stamped(0, 0, 8), base_offset=0, high_watermark=8)
    three.lead(3)
    replica.on_subscription_accepted(three.said.session, high_watermark=6, log_start_offset=0)
    assert (replica.high_watermark, replica.followed_end) == (8, 6)
    reader = Reader()
    replica.follower_listeners.add_read(reader)
    for told in (6, 7, 7, 8):
        replica.on_leader_marks(three.said.session, high_watermark=told, log_start_offset=0)
    assert reader.told == [7, 8], "also below the own high watermark"
    for _ in range(2):
        session = three.said.session
        replica.on_subscription_ended(session, SubscriptionError.STREAM_LOST)
        assert isinstance(reader.told[-1], Failure)
        assert reader.told[-1].code is ErrorCode.NOT_LEADER
        assert len(replica.follower_listeners) == 0
        await three.said.wait(lambda session=session: three.said.session > session)
        replica.on_subscription_accepted(three.said.session, high_watermark=8, log_start_offset=0)
        reader = Reader()
        replica.follower_listeners.add_read(reader)


@pytest.mark.parametrize(
    ("offset", "is_leader", "verdict"),
    [
        (-1, True, Verdict.BELOW_ZERO),
        (-1, False, Verdict.BELOW_ZERO),
        (4, True, Verdict.OUT_OF_RANGE),
        (4, False, Verdict.OUT_OF_RANGE),
        (5, False, Verdict.SERVED),
        (9, True, Verdict.SERVED),
        (9, False, Verdict.SERVED),
        (10, True, Verdict.OUT_OF_RANGE),
        (10, False, Verdict.ASK_LEADER),
    ],
)
def test_only_the_leader_says_that_an_offset_is_beyond_the_end(offset: int, is_leader: bool, verdict: Verdict) -> None:
    """The log is [5, 9). Leader and follower serve its end, where the reader waits. Beyond it a follower refers to the leader."""
    assert judge_offset(offset, log_start_offset=5, log_end_offset=9, is_leader=is_leader) is verdict
