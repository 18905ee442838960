# SPDX-License-Identifier: Apache-2.0
"""The follower of a leader: subscription, truncations, appends, acknowledgements. docs/replication.md, "The follower"."""

from __future__ import annotations

import pytest

from brokerd.limits import SUBSCRIBE_RETRY_MAX_MS, SUBSCRIBE_RETRY_MIN_MS
from brokerd.partition.effects import (
    AdvanceLogStart,
    AppendBatches,
    BeginLeaderEpoch,
    Effect,
    FailAck,
    FlushLog,
    ForgetEmptyEpoch,
    LossReason,
    PublishHighWatermark,
    RestartLog,
    SendAck,
    Subscribe,
    TruncateLog,
    Unsubscribe,
)
from brokerd.partition.events import (
    AckLevel,
    AckWanted,
    BatchAppended,
    BrokerChanged,
    Event,
    FlushPolicyChanged,
    LeadershipChanged,
    LogFlushed,
    StorageFailed,
    Tick,
)
from brokerd.partition.follower_events import (
    BatchesReceived,
    LeaderAdvanced,
    LogTruncated,
    SubscriptionAccepted,
    SubscriptionDiverged,
    SubscriptionEnded,
)
from brokerd.partition.reconciliation import EpochEnd, SubscriptionError
from brokerd.tests.replication_support import Replica, broker, changed, image
from metaquorum.metadata.topic_configs import FlushPolicy

FOLLOWED = image(leader_id=2)


def subscribe(session: int, *, end: int = 8, flushed: int | None = None, last_epoch: int | None = 4) -> Subscribe:
    """Return a subscription at node 2 in epoch 5."""
    return Subscribe(
        leader_id=2,
        leader_epoch=5,
        session=session,
        log_end_offset=end,
        flushed_offset=end if flushed is None else flushed,
        last_epoch=last_epoch,
    )


def subscribing(policy: FlushPolicy = FlushPolicy.ACK, *, high_watermark: int = 6) -> Replica:
    """Return a follower of node 2 with 8 records of epoch 4, whose first subscription is not answered yet."""
    replica = Replica(policy, end=8, last_epoch=4, high_watermark=high_watermark)
    assert replica.step(changed(FOLLOWED)) == [ForgetEmptyEpoch(), subscribe(1)]
    return replica


def following(policy: FlushPolicy = FlushPolicy.ACK) -> Replica:
    """Return the same follower, accepted, with the leader's high watermark at 6."""
    replica = subscribing(policy)
    assert replica.step(SubscriptionAccepted(session=1, high_watermark=6, log_start_offset=0)) == []
    return replica


def diverged(session: int, leader_end: EpochEnd, own_end: EpochEnd | None, *, start: int = 0) -> SubscriptionDiverged:
    """Return the answer of a leader whose log diverges from this one."""
    return SubscriptionDiverged(session=session, leader_end=leader_end, own_end=own_end, own_start_offset=start)


def receive(replica: Replica, end: int, *, epoch: int = 5) -> list[Effect]:
    """Receive and append batches that continue the log."""
    base = replica.core.log_end_offset
    effects = replica.step(BatchesReceived(session=replica_session(replica), base_offset=base, leader_epoch=epoch))
    assert effects == [AppendBatches(base_offset=base)]
    return replica.step(BatchAppended(log_end_offset=end))


def replica_session(replica: Replica) -> int:
    """Return the number of the present subscription."""
    assert replica.core.roles.following is not None
    return replica.core.roles.following.session_count


def test_follower_subscribes_with_what_its_log_holds() -> None:
    """It sends log end, flushed offset and the epoch of the last record. An epoch without records is forgotten first."""
    replica = Replica(FlushPolicy.NONE, end=8, last_epoch=4, high_watermark=9)
    assert replica.core.high_watermark == 8
    assert replica.step(changed(FOLLOWED)) == [ForgetEmptyEpoch(), subscribe(1)]
    assert not replica.core.is_leader
    assert replica.core.maximal_isr == ()
    assert not replica.core.is_below_min_isr


def test_under_ack_a_follower_acknowledges_what_it_has_flushed() -> None:
    """Law R10: an append causes a flush and no acknowledgement. The flush is acknowledged."""
    replica = following()
    assert receive(replica, 12) == [FlushLog()]
    assert replica.step(LogFlushed(flushed_offset=10)) == [SendAck(session=1, appended_offset=12, flushed_offset=10)]
    assert replica.step(LogFlushed(flushed_offset=12)) == [SendAck(session=1, appended_offset=12, flushed_offset=12)]


def test_under_none_a_follower_acknowledges_what_it_has_appended() -> None:
    """It also acknowledges flushes that happen for other reasons."""
    replica = following(FlushPolicy.NONE)
    assert receive(replica, 12) == [SendAck(session=1, appended_offset=12, flushed_offset=8)]
    assert replica.step(Tick()) == []
    assert replica.step(LogFlushed(flushed_offset=12)) == [SendAck(session=1, appended_offset=12, flushed_offset=12)]


def test_under_interval_a_follower_flushes_within_the_interval() -> None:
    """It keeps both deadlines, that of the flush and that of the next subscription."""
    replica = following(FlushPolicy.INTERVAL)
    receive(replica, 12)
    assert replica.core.deadline_ms() == replica.now_ms + 100
    replica.step(SubscriptionEnded(session=1, error=SubscriptionError.OVERLOADED))
    assert replica.core.deadline_ms() == replica.now_ms + SUBSCRIBE_RETRY_MIN_MS
    assert replica.step(Tick(), after_ms=100) == [FlushLog(), subscribe(2, end=12, flushed=8, last_epoch=5)]


def test_flush_before_the_acceptance_is_acknowledged_with_it() -> None:
    """The subscription was sent with a smaller flushed offset."""
    replica = following(FlushPolicy.NONE)
    receive(replica, 12)
    replica.step(SubscriptionEnded(session=1, error=SubscriptionError.STREAM_LOST))
    assert replica.step(LogFlushed(flushed_offset=12)) == []
    accepted = SubscriptionAccepted(session=2, high_watermark=6, log_start_offset=0)
    assert replica.step(accepted) == [SendAck(session=2, appended_offset=12, flushed_offset=12)]


def test_high_watermark_of_a_follower_is_the_leaders_up_to_its_own_end() -> None:
    """It comes with the batches and never goes back. The follower cannot show what it does not hold yet."""
    replica = following()
    assert replica.step(LeaderAdvanced(session=1, high_watermark=20, log_start_offset=0)) == [
        PublishHighWatermark(high_watermark=8)
    ]
    assert receive(replica, 12) == [FlushLog(), PublishHighWatermark(high_watermark=12)]
    assert replica.step(LeaderAdvanced(session=1, high_watermark=10, log_start_offset=0)) == []
    assert replica.core.high_watermark == 12


def test_follower_drops_what_the_leader_has_dropped() -> None:
    """It moves once, and not above its own high watermark."""
    replica = following()
    assert replica.step(LeaderAdvanced(session=1, high_watermark=6, log_start_offset=5)) == [
        AdvanceLogStart(log_start_offset=5)
    ]
    assert replica.step(LeaderAdvanced(session=1, high_watermark=7, log_start_offset=8)) == [
        PublishHighWatermark(high_watermark=7)
    ]
    assert replica.step(LeaderAdvanced(session=1, high_watermark=8, log_start_offset=8)) == [
        PublishHighWatermark(high_watermark=8),
        AdvanceLogStart(log_start_offset=8),
    ]


def test_diverging_log_is_cut_and_asks_again() -> None:
    """KIP-101: it truncates to where both agree about the leader's epoch. The next session sends what is left."""
    replica = subscribing()
    effects = replica.step(diverged(1, EpochEnd(3, 7), EpochEnd(3, 7)))
    assert effects == [TruncateLog(to_offset=7, loses_committed=False)]
    cut = LogTruncated(log_end_offset=7, flushed_offset=7, last_epoch=3, log_start_offset=0)
    assert replica.step(cut) == [subscribe(2, end=7, last_epoch=3)]
    assert replica.core.high_watermark == 6


def test_cut_below_the_high_watermark_takes_it_back_and_says_so() -> None:
    """Only an unclean election brings a leader that lacks committed records."""
    replica = subscribing()
    effects = replica.step(diverged(1, EpochEnd(2, 5), EpochEnd(1, 4)))
    assert effects == [TruncateLog(to_offset=4, loses_committed=True)]
    replica.step(LogTruncated(log_end_offset=3, flushed_offset=3, last_epoch=1, log_start_offset=0))
    assert (replica.core.high_watermark, replica.core.log_end_offset, replica.core.flushed_offset) == (3, 3, 3)


def test_cut_below_the_own_log_start_begins_the_log_anew() -> None:
    """No records are left that could agree."""
    replica = subscribing()
    assert replica.step(diverged(1, EpochEnd(2, 3), None, start=5)) == [RestartLog(start_offset=3)]


def test_follower_whose_end_the_leader_has_dropped_begins_anew_at_its_start() -> None:
    """Retention at the leader has passed its log end. A log start that is not beyond its end is no reason."""
    replica = subscribing()
    below = SubscriptionError.BELOW_LOG_START
    assert replica.step(SubscriptionEnded(session=1, error=below, log_start_offset=20)) == [RestartLog(start_offset=20)]
    cut = LogTruncated(log_end_offset=20, flushed_offset=20, last_epoch=None, log_start_offset=20)
    assert replica.step(cut)[-1] == subscribe(2, end=20, last_epoch=None)
    assert replica.core.high_watermark == 20, (
        "what the leader has dropped was committed: none of it is below the log start"
    )
    assert replica.step(SubscriptionEnded(session=2, error=below, log_start_offset=20)) == []
    assert replica.step(Tick(), after_ms=SUBSCRIBE_RETRY_MIN_MS) == [subscribe(3, end=20, last_epoch=None)]
    assert replica.step(SubscriptionEnded(session=3, error=below)) == []


def test_broken_stream_is_followed_by_a_new_subscription_at_once() -> None:
    """The shell has a backoff for the stream, so the partition needs none."""
    replica = following()
    lost = SubscriptionEnded(session=1, error=SubscriptionError.STREAM_LOST)
    assert replica.step(lost) == [subscribe(2)]
    assert replica.step(lost) == []


def test_refused_follower_asks_again_after_a_back_off_that_doubles() -> None:
    """The pause grows up to its limit, and starts again after an acceptance."""
    replica = subscribing()
    waits: list[int] = []
    for session in range(1, 9):
        replica.step(SubscriptionEnded(session=session, error=SubscriptionError.UNKNOWN_LEADER_EPOCH))
        deadline_ms = replica.core.deadline_ms()
        assert deadline_ms is not None
        waits.append(deadline_ms - replica.now_ms)
        assert replica.step(Tick(), after_ms=waits[-1] - 1) == []
        assert replica.step(Tick(), after_ms=1) == [subscribe(session + 1)]
    assert waits == [min(SUBSCRIBE_RETRY_MIN_MS << number, SUBSCRIBE_RETRY_MAX_MS) for number in range(8)]
    replica.step(SubscriptionAccepted(session=9, high_watermark=6, log_start_offset=0))
    replica.step(SubscriptionEnded(session=9, error=SubscriptionError.NOT_LEADER))
    assert replica.core.deadline_ms() == replica.now_ms + SUBSCRIBE_RETRY_MIN_MS


def test_follower_whose_disk_is_full_asks_again_after_the_longest_pause() -> None:
    """The leader accepts it each time, and each time the first batch finds no room: it would be sent 20 times a second."""
    replica = following()
    for session in range(1, 4):
        replica.step(SubscriptionEnded(session=session, error=SubscriptionError.STORAGE_FAILED))
        assert replica.core.deadline_ms() == replica.now_ms + SUBSCRIBE_RETRY_MAX_MS
        assert replica.step(Tick(), after_ms=SUBSCRIBE_RETRY_MAX_MS) == [subscribe(session + 1)]
        replica.step(SubscriptionAccepted(session=session + 1, high_watermark=6, log_start_offset=0))


@pytest.mark.parametrize(
    ("base", "epoch"), [(9, 5), (7, 5), (8, 6), (8, 3)], ids=["gap", "overlap", "newer than the leader", "older"]
)
def test_batches_that_cannot_follow_end_the_subscription(base: int, epoch: int) -> None:
    """A leader that sends them is wrong about this log. Nothing is appended, and the follower subscribes again later."""
    replica = following()
    effects = replica.step(BatchesReceived(session=1, base_offset=base, leader_epoch=epoch))
    assert effects == [Unsubscribe(leader_id=2, session=1)]
    assert replica.step(BatchesReceived(session=1, base_offset=8, leader_epoch=5)) == []
    assert replica.step(Tick(), after_ms=SUBSCRIBE_RETRY_MIN_MS) == [subscribe(2)]


@pytest.mark.parametrize(
    "event",
    [
        SubscriptionAccepted(session=1, high_watermark=8, log_start_offset=0),
        diverged(1, EpochEnd(3, 5), EpochEnd(3, 5)),
        SubscriptionEnded(session=1, error=SubscriptionError.NOT_LEADER),
        BatchesReceived(session=1, base_offset=8, leader_epoch=5),
        LeaderAdvanced(session=1, high_watermark=8, log_start_offset=0),
    ],
    ids=lambda event: type(event).__name__,
)
def test_what_belongs_to_an_earlier_session_is_passed_over(event: Event) -> None:
    """The message comes from a leader of another epoch, or concerns another log (law R6)."""
    replica = following()
    replica.step(changed(image(leader_id=3, leader_epoch=6, partition_epoch=8)))
    assert replica.step(event) == []
    assert (replica.core.high_watermark, replica.core.deadline_ms()) == (6, None)
    alone = Replica(end=8, high_watermark=None)
    assert alone.step(event) == []


def test_other_news_of_the_present_session_at_the_wrong_time_are_passed_over() -> None:
    """An acceptance or divergence of an accepted session, and batches of an unaccepted one."""
    replica = following()
    assert replica.step(SubscriptionAccepted(session=1, high_watermark=8, log_start_offset=0)) == []
    assert replica.step(diverged(1, EpochEnd(3, 5), None)) == []
    assert replica.core.high_watermark == 6
    other = subscribing()
    assert other.step(BatchesReceived(session=1, base_offset=8, leader_epoch=5)) == []
    assert other.step(LeaderAdvanced(session=1, high_watermark=8, log_start_offset=0)) == []


def test_new_leader_is_subscribed_to_and_the_old_one_told() -> None:
    """A higher leader epoch ends the session. Session numbers go up."""
    replica = following()
    effects = replica.step(changed(image(leader_id=3, leader_epoch=6, partition_epoch=8)))
    assert effects[:2] == [Unsubscribe(leader_id=2, session=1), ForgetEmptyEpoch()]
    assert isinstance(effects[2], Subscribe)
    assert (effects[2].leader_id, effects[2].leader_epoch, effects[2].session) == (3, 6, 2)


def test_state_that_changes_neither_leader_nor_epoch_leaves_the_session() -> None:
    """Other in-sync replicas, and changes of brokers, concern only the leader."""
    replica = following()
    assert replica.step(changed(image(leader_id=2, isr=(2, 3), partition_epoch=8))) == []
    assert replica.step(BrokerChanged(broker=broker(2, can_lead=False))) == []
    assert receive(replica, 9) == [FlushLog()]


def test_follower_becomes_leader_with_what_it_has() -> None:
    """Its high watermark stays; its epoch begins at its log end, and the old leader's session is over."""
    replica = following()
    receive(replica, 12)
    effects = replica.step(changed(image(leader_id=1, leader_epoch=6, partition_epoch=8)))
    assert effects == [Unsubscribe(leader_id=2, session=1), BeginLeaderEpoch(leader_epoch=6)]
    assert replica.core.is_leader
    assert replica.core.roles.leadership is not None
    assert replica.core.roles.leadership.epoch_start_offset == 12
    assert replica.core.high_watermark == 6


def test_deposed_leader_subscribes_with_the_epoch_that_it_appended_in() -> None:
    """Records that no replica copied are compared like any others."""
    replica = Replica(FlushPolicy.NONE, end=8, last_epoch=4)
    replica.step(changed(image()))
    replica.append(10)
    effects = replica.step(changed(image(leader_id=2, leader_epoch=6, partition_epoch=8)))
    asked = effects[-1]
    assert isinstance(asked, Subscribe)
    assert (asked.log_end_offset, asked.last_epoch) == (10, 5)


def test_without_a_leader_nothing_is_asked_and_nothing_is_committed() -> None:
    """The replica keeps what it has; a flush moves no high watermark."""
    replica = following(FlushPolicy.NONE)
    receive(replica, 12)
    effects = replica.step(changed(image(leader_id=None, leader_epoch=6, partition_epoch=8)))
    assert effects == [Unsubscribe(leader_id=2, session=1)]
    assert replica.step(LogFlushed(flushed_offset=12)) == []
    assert (replica.core.high_watermark, replica.core.deadline_ms()) == (6, None)
    wanted = AckWanted(token=1, next_offset=12, level=AckLevel.ALL)
    assert replica.step(wanted) == [FailAck(token=1, reason=LossReason.NO_LEADER)]


def test_failed_log_ends_the_subscription() -> None:
    """Nothing is acknowledged any more. A waiting follower has nothing to end."""
    replica = following()
    assert replica.step(StorageFailed(message="disk gone"))[1:] == [Unsubscribe(leader_id=2, session=1)]
    waiting = subscribing()
    waiting.step(SubscriptionEnded(session=1, error=SubscriptionError.OVERLOADED))
    assert len(waiting.step(StorageFailed(message="disk gone"))) == 1


def test_policy_change_to_none_is_acknowledged() -> None:
    """Appended records count from now on, so the leader gets an acknowledgement."""
    replica = following()
    receive(replica, 12)
    change = FlushPolicyChanged(policy=FlushPolicy.NONE, interval_ms=1)
    assert replica.step(change) == [SendAck(session=1, appended_offset=12, flushed_offset=8)]


def test_replica_is_alone_when_the_metadata_says_so() -> None:
    """A restarted replica does not treat what it counts as committed until it is known to be alone."""
    replica = Replica(end=8, high_watermark=3)
    assert replica.core.high_watermark == 3
    assert replica.step(LogFlushed(flushed_offset=8)) == []
    effects = replica.step(changed(image(replicas=(1,), isr=(1,))))
    assert effects == [PublishHighWatermark(high_watermark=8)]
    assert replica.append(9) == [FlushLog(), PublishHighWatermark(high_watermark=9)]
    assert replica.step(changed(image(replicas=(1,), isr=(1,), partition_epoch=8))) == []


def test_replica_that_was_alone_gets_a_follower_and_goes_on_serving() -> None:
    """A reassignment adds one in the same leader epoch. Waiting requests keep waiting, and no client is told of a new leader."""
    replica = Replica(end=8, high_watermark=None)
    replica.step(LeadershipChanged(leader_id=1, leader_epoch=5))
    effects = replica.step(changed(image(replicas=(1, 2), isr=(1,), adding=(2,))))
    assert effects == [BeginLeaderEpoch(leader_epoch=5)]
    assert replica.append(9) == [FlushLog(), PublishHighWatermark(high_watermark=9)]
