# SPDX-License-Identifier: Apache-2.0
"""Which followers join and leave the in-sync replicas: KIP-497, KIP-841, KIP-903, Kafka's PartitionTest."""

from __future__ import annotations

import pytest
from lograft.wire.codes import ErrorCode

from brokerd.limits import ISR_RETRY_MAX_MS, ISR_RETRY_MIN_MS
from brokerd.partition.effects import Effect, FailAck, ProposedMember, ProposeIsr, PublishHighWatermark
from brokerd.partition.events import BatchAppended, BrokerChanged, Tick
from brokerd.partition.leader_events import FollowerLost, ProposalAccepted, ProposalRefused, ProposalUnanswered
from brokerd.partition.reconciliation import EpochEnd
from brokerd.tests.replication_support import LAG_MS, Replica, broker, changed, image, leader
from metaquorum.metadata.topic_configs import FlushPolicy


def proposal(*node_ids: int, number: int = 1, partition_epoch: int = 7) -> ProposeIsr:
    """Return a proposal of epoch 5 with the usual broker epochs."""
    members = tuple(ProposedMember(node_id=node_id, broker_epoch=10 * node_id) for node_id in node_ids)
    return ProposeIsr(proposal=number, leader_epoch=5, partition_epoch=partition_epoch, members=members)


def proposals(effects: list[Effect]) -> list[ProposeIsr]:
    """Return the proposals among effects."""
    return [effect for effect in effects if isinstance(effect, ProposeIsr)]


def lagging() -> Replica:
    """Return a leader with records that follower 3 lacks, at the time at which it lags. Proposal 1 is under way."""
    replica = leader()
    replica.append(10)
    replica.acked(2, 10)
    replica.step(Tick(), after_ms=LAG_MS)
    assert proposals(replica.step(Tick(), after_ms=1)) == [proposal(1, 2)]
    return replica


def joining() -> Replica:
    """Return a leader of {1, 2} whose follower 3 has just caught up. Proposal 1 is under way."""
    replica = leader(isr=(1, 2), followers=(2,))
    replica.append(10)
    replica.acked(2, 10)
    replica.subscribe(3)
    assert replica.acked(3, 9) == []
    assert replica.acked(3, 10) == [proposal(1, 2, 3)]
    return replica


def test_follower_that_is_behind_for_the_lag_time_is_left_out() -> None:
    """The time begins with the append that leaves it behind. There is a deadline for it, and none before."""
    replica = leader()
    assert replica.core.deadline_ms() is None
    replica.step(Tick(), after_ms=20 * LAG_MS)
    replica.append(10)
    replica.acked(2, 10)
    assert replica.core.deadline_ms() == replica.now_ms + LAG_MS + 1
    assert replica.step(Tick(), after_ms=LAG_MS) == []
    assert replica.step(Tick(), after_ms=1) == [proposal(1, 2)]
    assert replica.core.deadline_ms() is None


def test_follower_at_the_log_end_never_lags() -> None:
    """Kafka's testShouldNotShrinkIsrIfFollowerCaughtUpToLogEnd, also when its subscription is lost."""
    replica = leader(end=8)
    replica.step(FollowerLost(node_id=3, broker_epoch=30, session=1))
    assert replica.step(Tick(), after_ms=100 * LAG_MS) == []


def test_follower_a_little_behind_under_load_does_not_lag() -> None:
    """It never is at the log end, but each acknowledgement shows that it holds what the leader had a moment ago."""
    replica = leader(FlushPolicy.NONE)
    for end in range(10, 500, 10):
        replica.step(BatchAppended(log_end_offset=end), after_ms=LAG_MS // 4)
        replica.acked(2, end)
        assert proposals(replica.acked(3, end - 10)) == []
    assert replica.core.high_watermark == 480


def test_follower_that_moves_and_falls_behind_lags() -> None:
    """Acknowledgements alone are not enough: they must reach what the leader had within the time."""
    replica = leader(FlushPolicy.NONE)
    found: list[ProposeIsr] = []
    for step in range(1, 40):
        found += proposals(replica.step(BatchAppended(log_end_offset=100 * step), after_ms=LAG_MS // 4))
        found += proposals(replica.acked(2, 100 * step))
        found += proposals(replica.acked(3, step))
    assert found == [proposal(1, 2)]


def test_follower_with_a_stuck_disk_lags_under_ack() -> None:
    """Under `ack` unflushed records delay acknowledgements as much as missing ones."""
    replica = leader()
    replica.append(10)
    replica.acked(2, 10)
    replica.acked(3, 10, flushed=0)
    assert proposals(replica.step(Tick(), after_ms=LAG_MS + 1)) == [proposal(1, 2)]


def test_slow_follower_costs_acknowledgements_the_lag_time_once() -> None:
    """Once it has left, the high watermark moves without it. It returns when it holds everything committed, not before."""
    replica = lagging()
    accepted = ProposalAccepted(proposal=1, partition=image(isr=(1, 2), partition_epoch=8))
    assert replica.step(accepted) == [PublishHighWatermark(high_watermark=10)]
    assert replica.acked(3, 9) == []
    replica.append(20)
    assert replica.acked(2, 20) == [PublishHighWatermark(high_watermark=20)]
    assert replica.acked(3, 19) == []
    assert replica.acked(3, 20) == [proposal(1, 2, 3, number=2, partition_epoch=8)]


def test_member_that_has_not_subscribed_within_the_lag_time_is_left_out() -> None:
    """A new leader gives every in-sync replica the whole time, and no more."""
    replica = leader(followers=(2,), end=8)
    assert replica.step(Tick(), after_ms=LAG_MS) == []
    assert replica.step(Tick(), after_ms=1) == [proposal(1, 2)]


def test_new_process_of_a_member_has_the_whole_time() -> None:
    """After a new registration it must subscribe again. Until then it is in sync, with the epoch in the metadata."""
    replica = leader(end=8)
    replica.step(BrokerChanged(broker=broker(3, epoch=35)), after_ms=50 * LAG_MS)
    assert replica.step(Tick(), after_ms=LAG_MS) == []
    assert proposals(replica.step(Tick(), after_ms=1)) == [proposal(1, 2)]


def test_proposed_follower_counts_before_the_controller_confirms() -> None:
    """Kafka's testFollowerDoesNotJoinISRUntilCaughtUp...: the high watermark waits for it from the proposal on."""
    replica = joining()
    assert replica.core.maximal_isr == (1, 2, 3)
    replica.append(20)
    assert replica.acked(2, 20) == []
    assert replica.acked(3, 15) == [PublishHighWatermark(high_watermark=15)]


def test_member_that_is_proposed_away_counts_until_the_controller_confirms() -> None:
    """The controller may still refuse. Until then its missing records hold the high watermark back."""
    replica = lagging()
    assert replica.core.maximal_isr == (1, 2, 3)
    assert replica.acked(3, 4) == [PublishHighWatermark(high_watermark=4)]


def test_follower_below_the_start_of_the_leader_epoch_does_not_join() -> None:
    """It is at the high watermark, but below what an earlier leader may have committed: law R5."""
    replica = Replica(end=8, last_epoch=4, high_watermark=3)
    replica.step(changed(image(isr=(1, 2))))
    assert proposals(replica.subscribe(3, end=5, last_epoch=4, epoch_end=EpochEnd(4, 8))) == []
    assert proposals(replica.acked(3, 7)) == []
    assert proposals(replica.acked(3, 8)) == [proposal(1, 2, 3)]


def test_below_min_isr_a_follower_must_also_have_caught_up() -> None:
    """The high watermark stands still while the log may grow. A follower that joined there could be far behind and delay everything."""
    replica = leader(FlushPolicy.NONE, isr=(1,), followers=())
    replica.step(BatchAppended(log_end_offset=100))
    replica.step(Tick(), after_ms=LAG_MS + 1)
    assert replica.core.high_watermark == 0
    assert replica.subscribe(3)[1:] == []
    replica.step(BatchAppended(log_end_offset=110), after_ms=LAG_MS // 2)
    assert replica.acked(3, 50) == []
    assert replica.acked(3, 109) == [proposal(1, 3)]


@pytest.mark.parametrize(
    "news",
    [broker(3, can_lead=False), broker(3, epoch=35)],
    ids=["fenced or leaving", "another process"],
)
def test_follower_that_may_not_lead_does_not_join(news: object) -> None:
    """KIP-841, KIP-903: only as the process that is registered, unfenced and not leaving."""
    assert isinstance(news, type(broker(3)))
    replica = leader(isr=(1, 2), followers=(2,))
    replica.append(10)
    replica.acked(2, 10)
    replica.subscribe(3)
    replica.step(BrokerChanged(broker=news))
    assert replica.acked(3, 10) == []


def test_follower_joins_when_its_broker_is_unfenced() -> None:
    """It had caught up while it was fenced. The change alone makes it join, because an idle partition has no acknowledgements."""
    replica = leader(isr=(1, 2), followers=(2,))
    replica.step(BrokerChanged(broker=broker(3, can_lead=False)))
    replica.subscribe(3)
    assert replica.step(BrokerChanged(broker=broker(3))) == [proposal(1, 2, 3)]


def test_below_min_isr_a_follower_at_the_log_end_joins_however_long_ago_it_got_there() -> None:
    """In an idle partition it was fenced all the time and has everything."""
    replica = leader(isr=(1,), followers=())
    replica.step(BrokerChanged(broker=broker(3, can_lead=False)))
    replica.append(10)
    replica.subscribe(3)
    assert replica.acked(3, 10) == []
    assert replica.step(BrokerChanged(broker=broker(3)), after_ms=50 * LAG_MS) == [proposal(1, 3)]


def test_follower_that_is_not_registered_or_not_subscribed_does_not_join() -> None:
    """The metadata has no registration of the first one. The second one is not subscribed."""
    replica = Replica()
    replica.step(changed(image(isr=(1, 2)), brokers=(broker(1), broker(2))))
    assert proposals(replica.subscribe(3)) == []
    other = leader(isr=(1, 2), followers=(2,))
    other.append(10)
    other.acked(2, 10)
    other.subscribe(3)
    other.step(FollowerLost(node_id=3, broker_epoch=30, session=1))
    assert proposals(other.acked(3, 10)) == []


def test_proposal_leaves_out_members_that_may_not_lead() -> None:
    """The controller would refuse the whole proposal because of one of them."""
    replica = leader()
    replica.step(BrokerChanged(broker=broker(2, can_lead=False)))
    replica.append(10)
    replica.acked(2, 10)
    assert proposals(replica.step(Tick(), after_ms=LAG_MS + 1)) == [proposal(1)]


def test_one_proposal_is_under_way_at_a_time() -> None:
    """A second follower that lags waits for the outcome of the first proposal."""
    replica = lagging()
    replica.append(20)
    assert replica.step(Tick(), after_ms=LAG_MS + 1) == []
    effects = replica.step(ProposalAccepted(proposal=1, partition=image(isr=(1, 2), partition_epoch=8)))
    assert proposals(effects) == [proposal(1, number=2, partition_epoch=8)]


def test_refused_members_count_no_more_and_are_proposed_again_after_the_back_off() -> None:
    """A refusal proves that the proposal was not carried out, so the high watermark moves on at once."""
    replica = joining()
    replica.append(20)
    replica.acked(2, 20)
    effects = replica.step(ProposalRefused(proposal=1, code=ErrorCode.NOT_CONTROLLER))
    assert effects == [PublishHighWatermark(high_watermark=20)]
    assert replica.core.deadline_ms() == replica.now_ms + ISR_RETRY_MIN_MS
    assert replica.acked(3, 20) == []
    assert replica.step(Tick(), after_ms=ISR_RETRY_MIN_MS) == [proposal(1, 2, 3, number=2)]


def test_unanswered_members_count_until_the_partition_epoch_rises() -> None:
    """The request may still be carried out. The high watermark waits for its members, whatever a later answer says."""
    replica = joining()
    replica.append(20)
    replica.acked(2, 20)
    assert replica.step(ProposalUnanswered(proposal=1)) == []
    assert replica.core.maximal_isr == (1, 2, 3)
    replica.step(FollowerLost(node_id=3, broker_epoch=30, session=1))
    replica.step(Tick(), after_ms=ISR_RETRY_MIN_MS)
    assert replica.core.high_watermark == 10
    effects = replica.step(changed(image(isr=(1, 2), partition_epoch=8)))
    assert effects == [PublishHighWatermark(high_watermark=20)]


def test_unanswered_member_counts_no_more_once_it_is_another_process() -> None:
    """The request names the broker epoch of each member, so it will be refused for this one."""
    replica = joining()
    replica.append(20)
    replica.acked(2, 20)
    replica.step(ProposalUnanswered(proposal=1))
    assert replica.step(BrokerChanged(broker=broker(3, epoch=35)))[1:] == [PublishHighWatermark(high_watermark=20)]
    assert replica.core.maximal_isr == (1, 2)


def test_outcome_of_an_earlier_proposal_changes_nothing() -> None:
    """Late answers are recognised by their number, and so are answers of an earlier leadership."""
    replica = joining()
    replica.step(ProposalRefused(proposal=1, code=ErrorCode.TIMED_OUT))
    replica.step(Tick(), after_ms=ISR_RETRY_MIN_MS)
    assert replica.step(ProposalRefused(proposal=1, code=ErrorCode.TIMED_OUT)) == []
    assert replica.step(ProposalUnanswered(proposal=1)) == []
    assert replica.core.maximal_isr == (1, 2, 3)
    replica.step(changed(image(isr=(1, 2), leader_epoch=6, partition_epoch=8)))
    replica.subscribe(3, session=2, leader_epoch=6, end=10, last_epoch=5, epoch_end=EpochEnd(5, 10))
    assert replica.step(ProposalRefused(proposal=2, code=ErrorCode.FENCED_EPOCH)) == []
    assert replica.core.maximal_isr == (1, 2, 3)


def test_back_off_doubles_up_to_its_bound_and_ends_with_a_new_state() -> None:
    """A controller that refuses is asked more and more rarely."""
    replica = joining()
    waits: list[int] = []
    for number in range(1, 9):
        replica.step(ProposalRefused(proposal=number, code=ErrorCode.OVERLOADED))
        deadline_ms = replica.core.deadline_ms()
        assert deadline_ms is not None
        waits.append(deadline_ms - replica.now_ms)
        assert proposals(replica.step(Tick(), after_ms=waits[-1] - 1)) == []
        assert len(proposals(replica.step(Tick(), after_ms=1))) == 1
    assert waits == [min(ISR_RETRY_MIN_MS << number, ISR_RETRY_MAX_MS) for number in range(8)]
    replica.step(ProposalRefused(proposal=9, code=ErrorCode.FENCED_EPOCH))
    effects = replica.step(changed(image(isr=(1, 2), partition_epoch=9)))
    assert effects == [proposal(1, 2, 3, number=10, partition_epoch=9)]


def test_fenced_proposal_is_made_again_for_a_newer_state_only() -> None:
    """The controller has a newer state, so naming the old one again would fail, however much time passes."""
    replica = joining()
    replica.append(20)
    replica.acked(2, 20)
    effects = replica.step(ProposalRefused(proposal=1, code=ErrorCode.FENCED_EPOCH))
    assert effects == [PublishHighWatermark(high_watermark=20)]
    assert replica.core.deadline_ms() is None
    assert proposals(replica.acked(3, 20)) == []
    assert replica.step(Tick(), after_ms=10 * ISR_RETRY_MAX_MS) == []
    assert replica.step(changed(image(isr=(1, 2), partition_epoch=7))) == []
    effects = replica.step(changed(image(isr=(1, 2), partition_epoch=8)))
    assert effects == [proposal(1, 2, 3, number=2, partition_epoch=8)]


def test_fenced_leader_sets_no_timer_for_a_follower_that_lags() -> None:
    """Time alone has no effect: no follower may be left out before the newer state arrives."""
    replica = lagging()
    assert replica.step(ProposalRefused(proposal=1, code=ErrorCode.FENCED_EPOCH)) == []
    assert replica.core.deadline_ms() is None
    effects = replica.step(changed(image(partition_epoch=8)), after_ms=LAG_MS)
    assert effects == [proposal(1, 2, number=2, partition_epoch=8)]


def test_late_fence_of_an_earlier_proposal_stops_nothing() -> None:
    """The newer state came first, and the proposal for it is already under way."""
    replica = lagging()
    effects = replica.step(changed(image(partition_epoch=8)))
    assert effects == [proposal(1, 2, number=2, partition_epoch=8)]
    assert replica.step(ProposalRefused(proposal=1, code=ErrorCode.FENCED_EPOCH)) == []
    assert replica.core.roles.leadership is not None
    assert replica.core.roles.leadership.isr.is_proposing


def test_metadata_may_bring_the_outcome_before_the_answer() -> None:
    """The first one is applied, the other one changes nothing, and an older state takes nothing back."""
    replica = joining()
    state = image(partition_epoch=8)
    assert replica.step(changed(state)) == []
    assert replica.core.roles.leadership is not None
    assert replica.core.roles.leadership.isr.partition == state
    assert replica.step(ProposalAccepted(proposal=1, partition=state)) == []
    assert replica.step(changed(image(isr=(1,), partition_epoch=7))) == []
    assert replica.core.maximal_isr == (1, 2, 3)
    assert not any(isinstance(effect, FailAck) for effect in replica.step(changed(state)))


def test_answer_that_leaves_the_partition_as_it_is_ends_the_proposal() -> None:
    """The same state again means that nothing was changed. After a backoff it is proposed again."""
    replica = joining()
    assert replica.step(ProposalAccepted(proposal=1, partition=image(isr=(1, 2)))) == []
    assert proposals(replica.step(Tick(), after_ms=ISR_RETRY_MIN_MS)) == [proposal(1, 2, 3, number=2)]


def test_answer_may_end_the_leadership() -> None:
    """A reassignment that completed with the proposal moves the leader. The answer is the first to say so."""
    replica = joining()
    moved = image(leader_id=3, leader_epoch=6, partition_epoch=8, replicas=(2, 3), isr=(2, 3))
    replica.step(ProposalAccepted(proposal=1, partition=moved))
    assert not replica.core.is_leader
    assert replica.step(ProposalUnanswered(proposal=1)) == []


def test_new_member_has_the_whole_time_from_its_acceptance() -> None:
    """It joined at the high watermark, which may be behind the log end. It must not be left out the next moment."""
    replica = leader(isr=(1, 2), followers=(2,))
    replica.append(10)
    replica.acked(2, 5)
    replica.subscribe(3)
    assert replica.acked(3, 5) == [proposal(1, 2, 3)]
    replica.acked(2, 10, after_ms=LAG_MS // 2)
    replica.append(20, after_ms=LAG_MS)
    replica.acked(2, 20)
    assert proposals(replica.step(ProposalAccepted(proposal=1, partition=image(partition_epoch=8)))) == []
    assert proposals(replica.step(Tick(), after_ms=LAG_MS)) == []
    assert proposals(replica.step(Tick(), after_ms=1)) == [proposal(1, 2, number=2, partition_epoch=8)]
