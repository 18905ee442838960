# SPDX-License-Identifier: Apache-2.0
"""The leader of several replicas: subscriptions, committed records, acknowledgements. docs/replication.md, "The leader"."""

from __future__ import annotations

import pytest

from brokerd.partition.effects import (
    AcceptSubscription,
    BeginLeaderEpoch,
    CompleteAck,
    DivergeSubscription,
    EndService,
    EndSubscription,
    FailAck,
    FlushLog,
    LossReason,
    ProposeIsr,
    PublishHighWatermark,
)
from brokerd.partition.events import (
    AckLevel,
    AckWanted,
    BatchAppended,
    BrokerChanged,
    Durability,
    FlushPolicyChanged,
    LogFlushed,
    ReplicaRemoved,
    StorageFailed,
)
from brokerd.partition.leader_events import FollowerLost
from brokerd.partition.reconciliation import EpochEnd, SubscriptionError
from brokerd.tests.replication_support import Replica, broker, changed, image, leader
from metaquorum.metadata.topic_configs import FlushPolicy


def ended(
    node_id: int, error: SubscriptionError, *, session: int = 1, broker_epoch: int | None = None
) -> EndSubscription:
    return EndSubscription(
        node_id=node_id,
        broker_epoch=10 * node_id if broker_epoch is None else broker_epoch,
        session=session,
        error=error,
    )


def test_leadership_begins_its_epoch_in_the_log_and_accepts_equal_logs() -> None:
    """The log learns the epoch before the first append; a follower with the same log is accepted with the high watermark."""
    replica = Replica(end=8, last_epoch=4, high_watermark=6)
    assert replica.step(changed(image()))[0] == BeginLeaderEpoch(leader_epoch=5)
    assert replica.core.high_watermark == 6
    assert replica.subscribe(2, end=8, last_epoch=4, epoch_end=EpochEnd(4, 8)) == [
        AcceptSubscription(node_id=2, broker_epoch=20, session=1, high_watermark=6)
    ]


def test_high_watermark_is_the_least_counted_offset_of_all_in_sync() -> None:
    """Under `ack` the flushed offsets of leader and followers count; nothing less moves it (law R1)."""
    replica = leader()
    assert replica.step(BatchAppended(log_end_offset=10)) == [FlushLog()]
    assert replica.acked(2, 10) == []
    assert replica.acked(3, 10, flushed=4) == []
    assert replica.step(LogFlushed(flushed_offset=10)) == [PublishHighWatermark(high_watermark=4)]
    assert replica.acked(3, 10, flushed=9) == [PublishHighWatermark(high_watermark=9)]
    assert replica.core.roles.leadership is not None
    assert replica.core.roles.leadership.is_in_sync(3)
    assert not replica.core.roles.leadership.is_in_sync(4)


def test_appended_offsets_count_under_policy_none() -> None:
    """Under `none` a record must reach the page caches of the in-sync replicas, and the receipt says so."""
    replica = leader(FlushPolicy.NONE)
    replica.step(BatchAppended(log_end_offset=10))
    assert replica.step(AckWanted(token=1, next_offset=10, level=AckLevel.ALL)) == []
    assert replica.acked(2, 10, flushed=0) == []
    assert replica.acked(3, 10, flushed=0) == [
        PublishHighWatermark(high_watermark=10),
        CompleteAck(token=1, durability=Durability.REPLICATED),
    ]


def test_receipt_says_flushed_when_all_in_sync_have_flushed() -> None:
    """Law R11: flushed by the leader alone is not flushed."""
    replica = leader(FlushPolicy.NONE)
    replica.append(10)
    replica.acked(2, 10, flushed=10)
    replica.acked(3, 10, flushed=5)
    for token, (next_offset, durability) in enumerate([(5, Durability.FLUSHED), (6, Durability.REPLICATED)]):
        wanted = AckWanted(token=token, next_offset=next_offset, level=AckLevel.ALL)
        assert replica.step(wanted) == [CompleteAck(token=token, durability=durability)]


def test_acks_of_level_leader_say_appended_even_when_the_leader_has_flushed() -> None:
    """Records that the followers lack are not replicated, and so not flushed in the terms of a receipt."""
    replica = leader()
    replica.append(10)
    wanted = AckWanted(token=1, next_offset=10, level=AckLevel.LEADER)
    assert replica.step(wanted) == [CompleteAck(token=1, durability=Durability.APPENDED)]


def test_receipt_does_not_claim_what_an_unknown_replica_has() -> None:
    """An in-sync replica that has not subscribed yet may have flushed nothing."""
    replica = leader(FlushPolicy.NONE, followers=(2,))
    replica.append(10)
    wanted = AckWanted(token=1, next_offset=10, level=AckLevel.LEADER)
    assert replica.step(wanted) == [CompleteAck(token=1, durability=Durability.APPENDED)]


def test_replica_that_has_not_subscribed_holds_the_high_watermark() -> None:
    """Its content is unknown in this leadership. When it subscribes, the high watermark moves."""
    replica = leader(followers=(2,))
    replica.append(10)
    assert replica.acked(2, 10) == []
    assert replica.subscribe(3, end=0) == [AcceptSubscription(node_id=3, broker_epoch=30, session=1, high_watermark=0)]
    assert replica.acked(3, 10) == [PublishHighWatermark(high_watermark=10)]


def test_restarted_follower_of_an_idle_partition_counts_with_its_subscription() -> None:
    """Log end and flushed offset of the subscription count at once: no record is needed."""
    replica = Replica(end=8, last_epoch=4, high_watermark=6)
    replica.step(changed(image()))
    replica.subscribe(2, end=8, last_epoch=4, epoch_end=EpochEnd(4, 8))
    effects = replica.subscribe(3, end=8, flushed=7, last_epoch=4, epoch_end=EpochEnd(4, 8))
    assert effects[-1] == PublishHighWatermark(high_watermark=7)


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"leader_epoch": 4}, SubscriptionError.FENCED_LEADER_EPOCH),
        ({"leader_epoch": 6}, SubscriptionError.UNKNOWN_LEADER_EPOCH),
        ({"node_id": 4}, SubscriptionError.NOT_A_REPLICA),
        ({"broker_epoch": 19}, SubscriptionError.STALE_BROKER_EPOCH),
        ({"broker_epoch": 21}, SubscriptionError.UNKNOWN_BROKER_EPOCH),
        ({"session": 1}, SubscriptionError.SUPERSEDED),
        ({"flushed": 9}, SubscriptionError.INVALID_ACK),
    ],
)
def test_fenced_subscription_is_refused_and_changes_nothing(changes: dict[str, int], error: SubscriptionError) -> None:
    """Kafka's testFenceFollowerFetchWithStaleBrokerEpoch, and each other fence (law R12)."""
    replica = leader()
    replica.append(10)
    replica.acked(3, 10)
    arguments = {"node_id": 2, "session": 2, "end": 0, **changes}
    node_id = arguments.pop("node_id")
    session, broker_epoch = arguments["session"], arguments.get("broker_epoch")
    effects = replica.subscribe(node_id, **arguments)  # pyright: ignore[reportArgumentType]
    assert effects == [ended(node_id, error, session=session, broker_epoch=broker_epoch)]
    # The previous session continues.
    assert replica.acked(2, 10) == [PublishHighWatermark(high_watermark=10)]


def test_follower_that_cannot_be_compared_is_told_why_and_its_older_session_is_over() -> None:
    """LOG_AHEAD and BELOW_LOG_START mean that the follower's log is not the earlier one."""
    replica = leader()
    replica.append(10)
    replica.acked(3, 10)
    assert replica.subscribe(2, session=2, end=3, last_epoch=9) == [ended(2, SubscriptionError.LOG_AHEAD, session=2)]
    assert replica.subscribe(2, session=3, end=3, log_start_offset=4) == [
        ended(2, SubscriptionError.BELOW_LOG_START, session=3)
    ]
    assert replica.acked(2, 10) == []
    assert replica.acked(2, 10, session=3) == []


def test_follower_that_diverges_is_told_where_and_counts_for_nothing() -> None:
    """Its log is not a prefix. Its earlier acknowledgements do not count until it subscribes again."""
    replica = leader(end=8)
    effects = replica.subscribe(2, session=2, end=9, last_epoch=3, epoch_end=EpochEnd(2, 5))
    assert effects == [DivergeSubscription(node_id=2, broker_epoch=20, session=2, leader_end=EpochEnd(2, 5))]
    assert replica.acked(2, 8, session=2) == []
    replica.append(10)
    replica.acked(3, 10)
    assert replica.core.high_watermark == 8


def test_acknowledgements_of_another_session_or_process_are_passed_over() -> None:
    """Law R6: an older session number, an older process, a lost session, a node that is no replica."""
    replica = leader()
    replica.append(10)
    replica.acked(3, 10)
    replica.subscribe(2, session=4, end=0)
    assert replica.acked(2, 10, session=1) == []
    assert replica.acked(2, 10, session=4, broker_epoch=19) == []
    assert replica.acked(4, 10) == []
    replica.step(FollowerLost(node_id=2, broker_epoch=20, session=1))
    replica.step(FollowerLost(node_id=4, broker_epoch=40, session=1))
    assert replica.acked(2, 6, session=4) == [PublishHighWatermark(high_watermark=6)]
    assert replica.step(FollowerLost(node_id=2, broker_epoch=20, session=4)) == []
    assert replica.acked(2, 10, session=4) == []


def test_late_acknowledgement_of_the_session_takes_nothing_back() -> None:
    """Acknowledgements are cumulative: a lower one adds nothing and takes nothing back."""
    replica = leader(FlushPolicy.NONE)
    replica.append(10)
    replica.acked(3, 10)
    replica.acked(2, 8)
    replica.acked(2, 5)
    assert replica.core.high_watermark == 8
    assert replica.acked(2, 10) == [PublishHighWatermark(high_watermark=10)]


@pytest.mark.parametrize(("appended", "flushed"), [(11, 0), (5, 6)])
def test_impossible_acknowledgement_ends_the_subscription(appended: int, flushed: int) -> None:
    """Beyond the leader's log end, or flushed but not appended: nothing that this follower acknowledged counts any more."""
    replica = leader()
    replica.append(10)
    replica.acked(3, 10)
    assert replica.acked(2, appended, flushed=flushed) == [ended(2, SubscriptionError.INVALID_ACK)]
    assert replica.acked(2, 10) == []


def test_new_registration_voids_what_the_process_before_acknowledged() -> None:
    """KIP-903: the metadata names a newer process. The old one's session ends, and it no longer counts."""
    replica = leader()
    assert replica.step(BrokerChanged(broker=broker(2, epoch=25))) == [ended(2, SubscriptionError.STALE_BROKER_EPOCH)]
    assert replica.step(BrokerChanged(broker=broker(2, epoch=20))) == []
    replica.append(10)
    assert replica.acked(3, 10) == []
    assert replica.acked(2, 10) == []
    assert replica.subscribe(2, session=1, broker_epoch=20)[0] == ended(2, SubscriptionError.STALE_BROKER_EPOCH)
    replica.subscribe(2, session=1, broker_epoch=25)
    assert replica.acked(2, 10, broker_epoch=25) == [PublishHighWatermark(high_watermark=10)]


def test_process_that_the_metadata_does_not_know_yet_waits_for_it() -> None:
    """The leader's metadata is behind. The new process does not count before it arrives, and the old one not after it."""
    replica = leader()
    refused = ended(2, SubscriptionError.UNKNOWN_BROKER_EPOCH, broker_epoch=26)
    assert replica.subscribe(2, broker_epoch=26) == [refused]
    replica.step(BrokerChanged(broker=broker(2, epoch=26)))
    assert isinstance(replica.subscribe(2, session=2, broker_epoch=26)[0], AcceptSubscription)
    assert replica.subscribe(2, session=9)[0] == ended(2, SubscriptionError.STALE_BROKER_EPOCH, session=9)


def test_replica_that_is_not_registered_is_sent_nothing() -> None:
    """The metadata names it as a replica and has no registration of it."""
    replica = Replica()
    replica.step(changed(image(), brokers=(broker(1), broker(3))))
    assert replica.subscribe(2) == [ended(2, SubscriptionError.UNKNOWN_BROKER_EPOCH)]
    assert isinstance(replica.subscribe(3)[0], AcceptSubscription)


def test_nothing_is_committed_below_min_isr() -> None:
    """KIP-966, strict min ISR (kip-966-hw-1): the in-sync replicas have everything, but are too few."""
    replica = leader(isr=(1, 2), min_isr=3, followers=(2,))
    assert replica.core.is_below_min_isr
    replica.append(10)
    assert replica.acked(2, 10) == []
    assert replica.core.high_watermark == 0
    effects = replica.step(changed(image(isr=(1, 2), partition_epoch=8), min_isr=2))
    assert effects == [PublishHighWatermark(high_watermark=10)]


def test_min_isr_above_the_replication_factor_counts_as_the_replication_factor() -> None:
    """kip-966-hw-2, and replicas that are being added do not count."""
    replica = Replica(FlushPolicy.NONE)
    replica.step(changed(image(replicas=(1, 2, 3), isr=(1, 2), adding=(3,)), min_isr=5))
    assert not replica.core.is_below_min_isr
    replica.step(changed(image(replicas=(1, 2, 3), isr=(1,), adding=(3,), partition_epoch=8), min_isr=5))
    assert replica.core.is_below_min_isr


def test_not_enough_replicas_before_and_after_the_append_are_told_apart() -> None:
    """kip-966-hw-3: below min ISR an append is refused. A waiting append fails, and its records are in the log."""
    replica = leader()
    assert not replica.core.is_below_min_isr
    replica.append(10)
    replica.step(AckWanted(token=1, next_offset=10, level=AckLevel.ALL))
    effects = replica.step(changed(image(isr=(1,), partition_epoch=8)))
    assert FailAck(token=1, reason=LossReason.NOT_ENOUGH_REPLICAS) in effects
    assert replica.core.is_below_min_isr
    assert replica.core.log_end_offset == 10
    wanted = AckWanted(token=2, next_offset=10, level=AckLevel.ALL)
    assert replica.step(wanted) == [FailAck(token=2, reason=LossReason.NOT_ENOUGH_REPLICAS)]


def test_new_leader_does_not_know_the_end_before_its_epoch_start_is_committed() -> None:
    """Kafka's testMonotonicOffsetsAfterLeaderChange: the previous leader may have shown readers more."""
    replica = Replica(end=8, last_epoch=4, high_watermark=3)
    assert replica.core.is_end_known
    replica.step(changed(image()))
    assert not replica.core.is_end_known
    for node_id in (2, 3):
        replica.subscribe(node_id, end=8, last_epoch=4, epoch_end=EpochEnd(4, 8))
    assert replica.core.is_end_known


def test_acks_fail_when_the_broker_becomes_a_follower() -> None:
    """Kafka's testDeltaToFollowerCompletesProduce: waiting and new requests get NOT_LEADER, and so do followers."""
    replica = leader()
    replica.append(10)
    replica.step(AckWanted(token=1, next_offset=10, level=AckLevel.ALL))
    effects = replica.step(changed(image(leader_id=2, leader_epoch=6, partition_epoch=8)))
    assert effects[0] == FailAck(token=1, reason=LossReason.NOT_LEADER)
    assert isinstance(effects[1], EndService)
    assert effects[2:4] == [ended(2, SubscriptionError.NOT_LEADER), ended(3, SubscriptionError.NOT_LEADER)]
    assert replica.subscribe(3, session=2) == [ended(3, SubscriptionError.NOT_LEADER, session=2)]
    assert replica.acked(3, 10) == []
    wanted = AckWanted(token=2, next_offset=10, level=AckLevel.ALL)
    assert replica.step(wanted) == [FailAck(token=2, reason=LossReason.NOT_LEADER)]


def test_new_epoch_of_the_same_leader_begins_anew() -> None:
    """Followers of the previous epoch must subscribe again, because their acknowledgements belong to another leadership."""
    replica = leader()
    effects = replica.step(changed(image(leader_epoch=6, partition_epoch=8)))
    assert [effect for effect in effects if isinstance(effect, EndSubscription)] == [
        ended(2, SubscriptionError.NOT_LEADER),
        ended(3, SubscriptionError.NOT_LEADER),
    ]
    assert BeginLeaderEpoch(leader_epoch=6) in effects
    replica.append(10)
    assert replica.acked(2, 10) == replica.acked(3, 10) == []
    assert replica.subscribe(2, session=2) == [ended(2, SubscriptionError.FENCED_LEADER_EPOCH, session=2)]


def test_replica_that_is_reassigned_away_is_sent_no_more() -> None:
    """Its subscription ends with the state that leaves it out. A new one starts without its old offsets."""
    replica = leader()
    effects = replica.step(changed(image(isr=(1, 2), replicas=(1, 2, 4), partition_epoch=8), brokers=(broker(4),)))
    assert effects == [ended(3, SubscriptionError.NOT_A_REPLICA)]
    assert isinstance(replica.subscribe(4)[0], AcceptSubscription)


def test_failed_log_ends_all_subscriptions_for_good() -> None:
    """A failed log sends nothing to followers and accepts none. A later leadership changes nothing."""
    replica = leader()
    effects = replica.step(StorageFailed(message="disk gone"))
    assert effects[1:] == [ended(2, SubscriptionError.STORAGE_FAILED), ended(3, SubscriptionError.STORAGE_FAILED)]
    assert replica.subscribe(2, session=2) == [ended(2, SubscriptionError.STORAGE_FAILED, session=2)]
    assert replica.step(changed(image(leader_epoch=6, partition_epoch=8))) == []
    assert replica.core.deadline_ms() is None


def test_removed_replica_ends_all_subscriptions() -> None:
    """A closed replica leads no followers."""
    replica = leader(followers=(2,))
    effects = replica.step(ReplicaRemoved(message="the broker is stopping"))
    assert effects[1:] == [ended(2, SubscriptionError.NOT_LEADER)]


def test_policy_change_counts_what_the_new_policy_counts() -> None:
    """From `ack` to `none` the followers' appended offsets count at once. Back to `ack` only flushed ones count; nothing is lost."""
    replica = leader()
    replica.step(BatchAppended(log_end_offset=10))
    replica.acked(2, 10, flushed=0)
    replica.acked(3, 10, flushed=0)
    changed_policy = FlushPolicyChanged(policy=FlushPolicy.NONE, interval_ms=1)
    assert replica.step(changed_policy) == [PublishHighWatermark(high_watermark=10)]
    assert replica.step(FlushPolicyChanged(policy=FlushPolicy.ACK, interval_ms=1)) == [FlushLog()]
    replica.append(12)
    replica.acked(2, 12, flushed=11)
    assert replica.core.high_watermark == 10
    assert replica.acked(3, 12, flushed=12) == [PublishHighWatermark(high_watermark=11)]


def test_idle_leader_asks_for_no_time_and_proposes_nothing() -> None:
    """Law R14: with all followers at the log end there is no deadline."""
    replica = leader(end=8)
    assert replica.core.deadline_ms() is None
    assert not any(isinstance(effect, ProposeIsr) for effect in replica.step(BrokerChanged(broker=broker(2))))
