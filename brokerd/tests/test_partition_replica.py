# SPDX-License-Identifier: Apache-2.0
"""The partition core: counted offset, high watermark, acknowledgements, roles."""

from __future__ import annotations

import pytest

from brokerd.partition.effects import CompleteAck, EndService, FailAck, FlushLog, LossReason, PublishHighWatermark
from brokerd.partition.events import (
    AckDropped,
    AckLevel,
    AckWanted,
    BatchAppended,
    Durability,
    FlushPolicyChanged,
    LeadershipChanged,
    LogFlushed,
    ReplicaRemoved,
    StorageFailed,
    Tick,
)
from brokerd.partition.replica import PartitionReplica
from metaquorum.metadata.topic_configs import FlushPolicy


def make(policy: FlushPolicy = FlushPolicy.ACK, *, end: int = 0, flushed: int | None = None) -> PartitionReplica:
    replica = PartitionReplica(
        node_id=1,
        log_end_offset=end,
        flushed_offset=end if flushed is None else flushed,
        flush_policy=policy,
        flush_interval_ms=100,
    )
    assert replica.step(LeadershipChanged(leader_id=1, leader_epoch=3), 0) == []
    return replica


def test_counts_only_flushed_records_under_policy_ack() -> None:
    """Under `ack` an appended batch asks for a flush and becomes readable only when that is done."""
    replica = make()
    assert replica.step(BatchAppended(log_end_offset=10), 0) == [FlushLog()]
    assert (replica.high_watermark, replica.log_end_offset, replica.counted_offset) == (0, 10, 0)
    assert replica.step(LogFlushed(flushed_offset=10), 1) == [PublishHighWatermark(high_watermark=10)]
    assert replica.flushed_offset == 10


def test_counts_appended_records_under_policy_none() -> None:
    """Under `none` an appended batch is readable at once and nothing asks for a flush."""
    replica = make(FlushPolicy.NONE)
    assert replica.step(BatchAppended(log_end_offset=10), 0) == [PublishHighWatermark(high_watermark=10)]
    assert replica.deadline_ms() is None


def test_flushes_after_the_interval_under_policy_interval() -> None:
    """Under `interval` one flush follows within the interval of the first unflushed batch."""
    replica = make(FlushPolicy.INTERVAL)
    assert replica.step(BatchAppended(log_end_offset=5), 1_000) == [PublishHighWatermark(high_watermark=5)]
    assert replica.deadline_ms() == 1_100
    replica.step(BatchAppended(log_end_offset=6), 1_050)
    assert replica.deadline_ms() == 1_100
    assert replica.step(Tick(), 1_099) == []
    assert replica.step(Tick(), 1_100) == [FlushLog()]
    assert replica.deadline_ms() is None
    assert replica.step(LogFlushed(flushed_offset=6), 1_101) == []


def test_tick_asks_for_no_flush_when_everything_is_flushed() -> None:
    """A tick over a log that a roll has already flushed does nothing."""
    replica = make(FlushPolicy.INTERVAL)
    replica.step(BatchAppended(log_end_offset=5), 0)
    replica.step(LogFlushed(flushed_offset=5), 50)
    assert replica.step(Tick(), 100) == []
    assert replica.step(Tick(), 200) == []


def test_completes_acks_in_offset_order_when_the_high_watermark_moves() -> None:
    """Acknowledgements complete by threshold, in any order of arrival, and report the durability that was reached."""
    replica = make()
    replica.step(BatchAppended(log_end_offset=10), 0)
    assert replica.step(AckWanted(token=1, next_offset=10, level=AckLevel.ALL), 0) == []
    assert replica.step(AckWanted(token=2, next_offset=4, level=AckLevel.ALL), 0) == []
    assert replica.pending_ack_count == 2
    assert replica.step(LogFlushed(flushed_offset=4), 1) == [
        PublishHighWatermark(high_watermark=4),
        CompleteAck(token=2, durability=Durability.FLUSHED),
    ]
    assert replica.step(LogFlushed(flushed_offset=10), 2) == [
        PublishHighWatermark(high_watermark=10),
        CompleteAck(token=1, durability=Durability.FLUSHED),
    ]
    assert replica.pending_ack_count == 0


def test_acks_of_level_leader_complete_at_once_and_say_appended() -> None:
    """Level LEADER waits for nothing and does not claim a flush that has not happened."""
    replica = make()
    replica.step(BatchAppended(log_end_offset=10), 0)
    assert replica.step(AckWanted(token=1, next_offset=10, level=AckLevel.LEADER), 0) == [
        CompleteAck(token=1, durability=Durability.APPENDED)
    ]


def test_ack_under_policy_none_says_replicated() -> None:
    """Under `none` level ALL is reached in the page cache, and the receipt says exactly that."""
    replica = make(FlushPolicy.NONE)
    replica.step(BatchAppended(log_end_offset=10), 0)
    assert replica.step(AckWanted(token=1, next_offset=10, level=AckLevel.ALL), 0) == [
        CompleteAck(token=1, durability=Durability.REPLICATED)
    ]


def test_dropped_ack_never_completes() -> None:
    """A dropped waiter is not called, the others are."""
    replica = make()
    replica.step(BatchAppended(log_end_offset=10), 0)
    replica.step(AckWanted(token=1, next_offset=5, level=AckLevel.ALL), 0)
    replica.step(AckWanted(token=2, next_offset=10, level=AckLevel.ALL), 0)
    replica.step(AckDropped(token=1), 0)
    replica.step(AckDropped(token=99), 0)
    assert replica.step(LogFlushed(flushed_offset=10), 1) == [
        PublishHighWatermark(high_watermark=10),
        CompleteAck(token=2, durability=Durability.FLUSHED),
    ]


def test_high_watermark_stays_when_the_policy_becomes_ack() -> None:
    """What was readable stays readable. A flush is requested so that new records can count."""
    replica = make(FlushPolicy.NONE)
    replica.step(BatchAppended(log_end_offset=10), 0)
    assert replica.step(FlushPolicyChanged(policy=FlushPolicy.ACK, interval_ms=1), 0) == [FlushLog()]
    assert (replica.high_watermark, replica.counted_offset) == (10, 0)
    assert replica.step(LogFlushed(flushed_offset=7), 0) == []
    assert replica.high_watermark == 10


def test_policy_change_to_none_counts_what_is_appended() -> None:
    """A change from `ack` to `none` completes requests that waited for the flush."""
    replica = make()
    replica.step(BatchAppended(log_end_offset=10), 0)
    replica.step(AckWanted(token=1, next_offset=10, level=AckLevel.ALL), 0)
    assert replica.step(FlushPolicyChanged(policy=FlushPolicy.NONE, interval_ms=1), 0) == [
        PublishHighWatermark(high_watermark=10),
        CompleteAck(token=1, durability=Durability.REPLICATED),
    ]


def test_policy_change_to_interval_plans_a_flush_only_when_needed() -> None:
    """A change to `interval` starts the interval over unflushed records and nothing otherwise."""
    replica = make(FlushPolicy.NONE)
    assert replica.step(FlushPolicyChanged(policy=FlushPolicy.INTERVAL, interval_ms=20), 0) == []
    assert replica.deadline_ms() is None
    replica.step(FlushPolicyChanged(policy=FlushPolicy.NONE, interval_ms=20), 0)
    replica.step(BatchAppended(log_end_offset=10), 0)
    replica.step(FlushPolicyChanged(policy=FlushPolicy.INTERVAL, interval_ms=20), 50)
    assert replica.deadline_ms() == 70


@pytest.mark.parametrize(
    ("leader_id", "leader_epoch", "reason"),
    [(2, 4, LossReason.NOT_LEADER), (None, 4, LossReason.NO_LEADER), (1, 4, LossReason.LEADER_EPOCH_MOVED)],
    ids=["another broker leads", "nobody leads", "new epoch of the same leader"],
)
def test_leadership_change_ends_the_service(leader_id: int | None, leader_epoch: int, reason: LossReason) -> None:
    """A replica that no longer leads in its epoch first fails pending acknowledgements and then ends every route."""
    replica = make()
    replica.step(BatchAppended(log_end_offset=10), 0)
    replica.step(AckWanted(token=1, next_offset=5, level=AckLevel.ALL), 0)
    replica.step(AckWanted(token=2, next_offset=10, level=AckLevel.ALL), 0)
    replica.step(AckDropped(token=1), 0)
    effects = replica.step(LeadershipChanged(leader_id=leader_id, leader_epoch=leader_epoch), 0)
    assert effects[0] == FailAck(token=2, reason=reason)
    assert isinstance(effects[1], EndService)
    assert effects[1].reason is reason
    assert len(effects) == 2
    assert replica.is_leader is (leader_id == 1)
    assert replica.leader_epoch == leader_epoch


def test_older_or_equal_leadership_changes_nothing() -> None:
    """States of an older epoch, or the same state again, change nothing."""
    replica = make()
    assert replica.step(LeadershipChanged(leader_id=2, leader_epoch=2), 0) == []
    assert replica.step(LeadershipChanged(leader_id=1, leader_epoch=3), 0) == []
    assert replica.is_leader


def test_storage_failure_ends_the_service_for_good() -> None:
    """A failed log fails its acks, ends its routes, and never acknowledges or advances again."""
    replica = make(FlushPolicy.INTERVAL)
    replica.step(BatchAppended(log_end_offset=10), 0)
    effects = replica.step(StorageFailed(message="disk gone"), 1)
    assert effects == [EndService(reason=LossReason.STORAGE_FAILED, message="disk gone")]
    assert replica.is_failed
    assert not replica.is_leader
    assert replica.deadline_ms() is None
    assert replica.step(AckWanted(token=3, next_offset=10, level=AckLevel.ALL), 2) == [
        FailAck(token=3, reason=LossReason.STORAGE_FAILED)
    ]
    assert replica.step(LogFlushed(flushed_offset=10), 3) == []
    assert replica.step(FlushPolicyChanged(policy=FlushPolicy.ACK, interval_ms=5), 4) == []
    assert replica.step(LeadershipChanged(leader_id=1, leader_epoch=9), 5) == []
    assert not replica.is_leader


def test_removed_replica_refuses_acks() -> None:
    """A replica that no longer belongs to this broker ends its routes and fails later acknowledgements."""
    replica = make()
    assert replica.step(ReplicaRemoved(message="deleted"), 0) == [
        EndService(reason=LossReason.REMOVED, message="deleted")
    ]
    assert replica.step(AckWanted(token=1, next_offset=0, level=AckLevel.ALL), 0) == [
        FailAck(token=1, reason=LossReason.REMOVED)
    ]


def test_laws_are_asserted() -> None:
    """Offsets that go back or beyond the log end are faults of the shell and stop the process."""
    with pytest.raises(AssertionError):
        make(end=5, flushed=6)
    replica = make(end=5)
    with pytest.raises(AssertionError):
        replica.step(BatchAppended(log_end_offset=4), 0)
    with pytest.raises(AssertionError):
        replica.step(LogFlushed(flushed_offset=6), 0)
    with pytest.raises(AssertionError):
        replica.step(AckWanted(token=1, next_offset=6, level=AckLevel.ALL), 0)


def test_unknown_event_is_a_fault() -> None:
    """An event that the core does not know stops the process instead of being dropped."""
    with pytest.raises(AssertionError):
        make().step(object(), 0)  # type: ignore[arg-type]
