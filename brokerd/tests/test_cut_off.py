# SPDX-License-Identifier: Apache-2.0
"""A leader that its followers do not reach resigns to one of them. docs/replication.md, "Stepping down"."""

from __future__ import annotations

import pytest

from brokerd.limits import RESIGN_AFTER_MS, RESIGN_RETRY_MS
from brokerd.partition.effects import CompleteAck, Effect, Resign
from brokerd.partition.events import AckLevel, AckWanted, BatchAppended, BrokerChanged, Tick
from brokerd.partition.leader_events import FollowerLost, ProposalUnanswered
from brokerd.tests.replication_support import LAG_MS, Replica, broker, changed, image, leader

RESIGNS = Resign(leader_epoch=5)


def lose(replica: Replica, *node_ids: int) -> None:
    """Break the subscriptions of these followers."""
    for node_id in node_ids:
        assert RESIGNS not in replica.step(FollowerLost(node_id=node_id, broker_epoch=10 * node_id, session=1))


def shrink(replica: Replica, *, elr: tuple[int, ...] = (2, 3)) -> list[Effect]:
    """Let the controller remove the followers from the in-sync replicas."""
    return replica.step(changed(image(isr=(1,), partition_epoch=8, elr=elr)))


def wait(replica: Replica, after_ms: int = RESIGN_AFTER_MS) -> list[Effect]:
    """Let time pass."""
    return replica.step(Tick(), after_ms=after_ms)


def isolated(*, end: int = 0) -> Replica:
    """Return a leader without subscriptions, whose followers were in sync and are alive for the controller."""
    replica = leader(end=end)
    if end:
        assert replica.core.high_watermark == end
    lose(replica, 2, 3)
    shrink(replica)
    return replica


def test_leader_that_is_cut_off_asks_for_another_one() -> None:
    """It resigns after the time, with its leader epoch. The timer is set for that, and again for the next attempt."""
    replica = isolated()
    assert replica.core.deadline_ms() == replica.now_ms + RESIGN_AFTER_MS
    assert wait(replica, RESIGN_AFTER_MS - 1) == []
    assert wait(replica, 1) == [RESIGNS]
    assert replica.core.deadline_ms() == replica.now_ms + RESIGN_RETRY_MS
    assert wait(replica, RESIGN_RETRY_MS - 1) == []
    assert wait(replica, 1) == [RESIGNS]


def test_time_before_the_in_sync_replicas_became_too_few_counts() -> None:
    """So a leader resigns as soon as it can commit nothing."""
    replica = leader()
    lose(replica, 2, 3)
    assert wait(replica) == []
    assert shrink(replica) == [RESIGNS]


def test_leader_with_enough_in_sync_leads_on() -> None:
    """Followers at the log end are in sync without a subscription. Nothing is stopped, and no timer is set."""
    replica = leader()
    lose(replica, 2, 3)
    assert wait(replica, 100 * RESIGN_AFTER_MS) == []
    assert replica.core.deadline_ms() is None


def test_follower_that_is_connected_keeps_the_leader() -> None:
    """Such a follower is slow, and would be slow as a leader. When it leaves too, the time begins."""
    replica = leader(end=4)
    replica.append(6)
    lose(replica, 2)
    wait(replica, 2 * LAG_MS)
    shrink(replica)
    assert wait(replica, 100 * RESIGN_AFTER_MS) == []
    lose(replica, 3)
    assert wait(replica, RESIGN_AFTER_MS - 1) == []
    assert wait(replica, 1) == [RESIGNS]


def test_one_follower_is_not_enough_company_where_three_must_be_in_sync() -> None:
    """A leader that only one of two followers reaches may be replaced by the one that both reach."""
    replica = leader(min_isr=3)
    lose(replica, 3)
    replica.step(changed(image(isr=(1, 2), partition_epoch=8, elr=(3,)), min_isr=3))
    assert wait(replica) == [RESIGNS]


def test_follower_that_comes_back_ends_the_time() -> None:
    """Between two attempts followers pause for less than that time."""
    replica = isolated(end=4)
    wait(replica, RESIGN_AFTER_MS - 1)
    replica.subscribe(2, session=2)
    replica.step(FollowerLost(node_id=2, broker_epoch=20, session=2))
    assert wait(replica, RESIGN_AFTER_MS - 1) == []
    assert wait(replica, 1) == [RESIGNS]


def test_nobody_is_asked_while_no_other_one_could_lead() -> None:
    """Fenced followers are dead for the controller. An unfenced one has the whole time to subscribe."""
    replica = leader()
    lose(replica, 2, 3)
    fenced = tuple(broker(node_id, can_lead=node_id == 1) for node_id in (1, 2, 3))
    replica.step(changed(image(isr=(1,), partition_epoch=8, elr=(2, 3)), brokers=fenced))
    assert wait(replica, 100 * RESIGN_AFTER_MS) == []
    replica.step(BrokerChanged(broker=broker(3)))
    assert wait(replica, RESIGN_AFTER_MS - 1) == []
    assert wait(replica, 1) == [RESIGNS]


def test_nobody_is_asked_where_the_others_are_not_eligible() -> None:
    """They may lack what is committed."""
    replica = leader()
    lose(replica, 2, 3)
    shrink(replica, elr=())
    assert wait(replica, 100 * RESIGN_AFTER_MS) == []


def test_new_process_of_a_follower_has_the_whole_time() -> None:
    """Its subscription ends with its previous process. The controller decides whether it may still lead."""
    replica = leader()
    for node_id in (2, 3):
        replica.step(BrokerChanged(broker=broker(node_id, epoch=10 * node_id + 1)))
    shrink(replica)
    assert wait(replica, RESIGN_AFTER_MS - 1) == []
    assert wait(replica, 1) == [RESIGNS]


@pytest.mark.parametrize("isr", [(1,), (1, 2, 3)])
def test_leader_that_nobody_ever_reached_leads_on(isr: tuple[int, ...]) -> None:
    """It was elected because another leader was isolated or dead. If no broker reaches another, the leadership does not circulate."""
    replica = Replica()
    replica.step(changed(image(isr=isr, elr=() if len(isr) > 1 else (2, 3))))
    shrink(replica)
    assert wait(replica, 100 * RESIGN_AFTER_MS) == []
    # Once enough followers have reached it, it is a leader like others.
    replica.subscribe(2)
    replica.step(changed(image(isr=(1, 2), partition_epoch=9)))
    lose(replica, 2)
    replica.step(changed(image(isr=(1,), partition_epoch=10, elr=(2,))))
    assert wait(replica) == [RESIGNS]


@pytest.mark.parametrize("level", list(AckLevel))
def test_what_the_leader_alone_acknowledged_keeps_it(level: AckLevel) -> None:
    """Uncommitted records of acks=1 would be truncated. Those of acks=all were never acknowledged."""
    replica = leader(end=4)
    replica.append(6)
    effects = replica.step(AckWanted(token=1, next_offset=6, level=level))
    assert any(isinstance(effect, CompleteAck) for effect in effects) is (level is AckLevel.LEADER)
    lose(replica, 2, 3)
    shrink(replica)
    assert wait(replica, 100 * RESIGN_AFTER_MS) == ([] if level is AckLevel.LEADER else [RESIGNS])


def test_acknowledged_records_that_are_committed_keep_nobody() -> None:
    """All eligible replicas have them."""
    replica = leader(end=4)
    replica.append(6)
    replica.step(AckWanted(token=1, next_offset=6, level=AckLevel.LEADER))
    replica.acked(2, 6)
    replica.acked(3, 6)
    assert replica.core.high_watermark == 6
    lose(replica, 2, 3)
    replica.step(BatchAppended(log_end_offset=7))
    shrink(replica)
    assert wait(replica) == [RESIGNS]


def test_records_of_earlier_leaders_that_are_not_known_to_be_committed_keep_the_leader() -> None:
    """An earlier leader may have acknowledged them."""
    replica = leader(end=4, followers=())
    assert replica.core.high_watermark < 4
    shrink(replica)
    assert wait(replica, 100 * RESIGN_AFTER_MS) == []


def test_leader_asks_when_its_proposal_is_decided() -> None:
    """Before the decision it does not know which replicas are in sync."""
    replica = leader()
    lose(replica, 2, 3)
    replica.step(changed(image(isr=(1,), partition_epoch=8, elr=(2, 3))))
    proposals = replica.subscribe(2, session=2)
    (proposal,) = [effect for effect in proposals if hasattr(effect, "proposal")]
    replica.step(FollowerLost(node_id=2, broker_epoch=20, session=2))
    assert wait(replica) == []
    effects = replica.step(ProposalUnanswered(proposal=proposal.proposal))
    assert effects == [RESIGNS]


def test_leadership_that_ends_asks_no_more() -> None:
    """The metadata answers."""
    replica = isolated()
    wait(replica)
    replica.step(changed(image(isr=(2,), leader_id=2, leader_epoch=6, partition_epoch=9, elr=(1, 3))))
    assert RESIGNS not in wait(replica, RESIGN_RETRY_MS)
