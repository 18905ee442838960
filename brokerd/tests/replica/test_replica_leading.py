# SPDX-License-Identifier: Apache-2.0
"""A leading replica of three: real core, real log on a simulated disk, and recorders instead of streams."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from lograft.wire.codes import ErrorCode
from lograft.wire.header import read_header

from brokerd.controller_client.partition_requests import Resignation, ResignReason
from brokerd.failure import RefusedError
from brokerd.partition import cut_off
from brokerd.partition.effects import LossReason
from brokerd.partition.events import AckLevel, Durability
from brokerd.partition.leader_events import ProposalAccepted, ProposalRefused
from brokerd.partition.reconciliation import EpochEnd, SubscriptionError
from brokerd.replica.replica import Replica
from brokerd.tests.leading_replica import LeadingReplica
from brokerd.tests.replica.broker_of_three import NODES, TOPIC_ID, BrokerOfThree, Route, append, batch
from brokerd.tests.support import WAIT_S
from metaquorum.metadata.records import PartitionChangeRecord
from metaquorum.metadata.state import PartitionImage
from storage.log.epochs import LeaderEpochs


async def led(three: BrokerOfThree, policy: str = "none", min_isr: int = 1) -> tuple[Replica, Route, Route]:
    """A leader with two followers that were accepted."""
    replica = await three.start(leader_id=1, policy=policy, min_isr=min_isr)
    routes = Route(2), Route(3)
    for route in routes:
        three.subscribe(replica, route)
        assert route.heard == [("accepted", 0, 0, True)]
        route.heard.clear()
    return replica, *routes


async def acked(replica: Replica, next_offset: int) -> Durability | LossReason:
    """Wait for an acknowledgement of level ALL."""
    reached: asyncio.Future[Durability | LossReason] = asyncio.get_running_loop().create_future()
    replica.want_ack(next_offset, AckLevel.ALL, reached.set_result)
    async with asyncio.timeout(WAIT_S):
        return await reached


async def test_record_is_acknowledged_when_every_follower_holds_it(three: BrokerOfThree) -> None:
    """The streams hear of the growth, and of the high watermark once the last follower has acknowledged."""
    replica, second, third = await led(three)
    waits = asyncio.create_task(acked(replica, append(replica)))
    assert second.heard == third.heard == [("grown", 1)]
    replica.ack_follower(second, appended_offset=1, flushed_offset=0)
    assert replica.high_watermark == 0
    replica.ack_follower(third, appended_offset=1, flushed_offset=0)
    assert replica.high_watermark == 1
    assert await waits is Durability.REPLICATED
    assert second.heard[-1] == third.heard[-1] == ("marks", 1, 0)


async def test_flushed_is_said_when_all_have_flushed(three: BrokerOfThree) -> None:
    """Under `ack` an offset that is only appended does not count."""
    replica, second, third = await led(three, policy="ack")
    waits = asyncio.create_task(acked(replica, append(replica)))
    for route in (second, third):
        replica.ack_follower(route, appended_offset=1, flushed_offset=0)
    assert replica.high_watermark == 0
    for route in (second, third):
        replica.ack_follower(route, appended_offset=1, flushed_offset=1)
    assert await waits is Durability.FLUSHED


async def test_follower_reads_whole_batches_of_one_epoch(three: BrokerOfThree) -> None:
    """A chunk ends where the next leader epoch begins."""
    replica, _, _ = await led(three)
    for _ in range(2):
        append(replica)
    three.lead(1)
    append(replica)
    read = replica.read_for_follower(0, 1 << 20)
    assert (read.base_offset, read.next_offset, read.leader_epoch) == (0, 2, 0)
    read = replica.read_for_follower(2, 1 << 20)
    assert (read.base_offset, read.next_offset, read.leader_epoch) == (2, 3, 1)
    assert read_header(read.data).leader_epoch == 1
    with pytest.raises(RefusedError):
        replica.read_for_follower(4, 1 << 20)


async def test_followers_with_another_history_are_told_where_it_parts(three: BrokerOfThree) -> None:
    """The leader compares the last epoch of the follower with its own."""
    replica, _, _ = await led(three)
    append(replica)
    three.lead(1)
    route = Route(2, session=2)
    three.subscribe(replica, route, leader_epoch=1, end=3, last_epoch=0)
    assert route.heard == [("diverged", EpochEnd(0, 1))]
    ahead = Route(3, session=2)
    three.subscribe(replica, ahead, leader_epoch=1, end=3, last_epoch=9)
    assert ahead.heard == [("ended", SubscriptionError.LOG_AHEAD, 0)]


async def test_route_that_is_lost_hears_nothing_more(three: BrokerOfThree) -> None:
    """Its acknowledgements are ignored too."""
    replica, second, third = await led(three)
    replica.lose_follower(second)
    replica.lose_follower(second)
    append(replica)
    assert second.heard == []
    replica.ack_follower(second, appended_offset=1, flushed_offset=1)
    replica.ack_follower(third, appended_offset=1, flushed_offset=1)
    assert replica.high_watermark == 0
    assert replica.follower_count == 1


async def test_newer_subscription_ends_the_older_one(three: BrokerOfThree) -> None:
    """The stream of the older one hears of its end."""
    replica, second, _ = await led(three)
    again = Route(2, session=2)
    three.subscribe(replica, again)
    assert again.heard == [("accepted", 0, 0, True)]
    assert second.heard == [] or second.heard[0][0] == "ended"
    append(replica)
    replica.ack_follower(second, appended_offset=1, flushed_offset=1)
    assert replica.high_watermark == 0


async def test_leader_that_stops_to_lead_ends_every_route(three: BrokerOfThree) -> None:
    """Waiting acknowledgements fail with the reason."""
    replica, second, third = await led(three)
    waits = asyncio.create_task(acked(replica, append(replica)))
    await asyncio.sleep(0)
    three.lead(2)
    assert await waits is LossReason.NOT_LEADER
    for route in (second, third):
        assert route.heard[-1] == ("ended", SubscriptionError.NOT_LEADER, 0)
    refused = Route(3, session=5)
    three.subscribe(replica, refused, leader_epoch=1)
    assert refused.heard == [("ended", SubscriptionError.NOT_LEADER, 0)]


async def test_lagging_follower_is_proposed_to_leave(three: BrokerOfThree) -> None:
    """A follower without acknowledgements for the lag time leaves the ISR. When the controller accepts, the high watermark moves."""
    replica, second, _ = await led(three)
    append(replica)
    replica.ack_follower(second, appended_offset=1, flushed_offset=0)
    await three.said.wait(lambda: bool(three.said.proposals))
    proposal = three.said.proposals[0]
    assert [member.node_id for member in proposal.members] == [1, 2]
    assert replica.high_watermark == 0
    smaller = PartitionImage(0, NODES, (1, 2), 1, proposal.leader_epoch, proposal.partition_epoch + 1)
    assert three.said.proposer is replica
    replica.take_event(ProposalAccepted(proposal=proposal.proposal, partition=smaller))
    assert replica.high_watermark == 1


async def test_traffic_of_a_follower_that_left_is_catch_up(three: BrokerOfThree) -> None:
    """Its stream gets the class. When it has caught up it is proposed again, and counts at once."""
    replica, _, third = await led(three)
    three.commit(PartitionChangeRecord(topic_id=TOPIC_ID, partition=0, isr=(1, 2)))
    assert [member.node_id for member in three.said.proposals[-1].members] == [1, 2, 3]
    assert third.heard == [], "it has everything, so that it is proposed, and counts, at once"
    refusal = ProposalRefused(proposal=three.said.proposals[-1].proposal, code=ErrorCode.BROKER_FENCED)
    replica.take_event(refusal)
    assert third.heard == [("traffic", False)]
    await three.said.wait(lambda: len(three.said.proposals) > 1)
    assert third.heard[-1] == ("traffic", True)


async def test_too_few_in_sync_refuse_before_and_fail_after_the_append(three: BrokerOfThree) -> None:
    """Below min.insync.replicas an append of level ALL is refused. Appends that already wait get another code."""
    replica, _, _ = await led(three, min_isr=2)
    waits = asyncio.create_task(acked(replica, append(replica)))
    await asyncio.sleep(0)
    three.commit(PartitionChangeRecord(topic_id=TOPIC_ID, partition=0, isr=(1,)))
    assert await waits is LossReason.NOT_ENOUGH_REPLICAS
    data = batch()
    with pytest.raises(RefusedError) as caught:
        replica.append(memoryview(data), read_header(data), level=AckLevel.ALL)
    assert caught.value.failure.code is ErrorCode.NOT_ENOUGH_REPLICAS
    assert caught.value.failure.retry_after_ms
    assert replica.log_end_offset == 1
    assert append(replica) == 2, "level LEADER asks for nobody else"


async def test_leader_that_followers_do_not_reach_resigns(
    three: BrokerOfThree, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It asks the controller in time, by the timer, and leads until the metadata names another leader."""
    monkeypatch.setattr(cut_off, "RESIGN_AFTER_MS", 1)
    replica, *routes = await led(three, min_isr=2)
    for route in routes:
        replica.lose_follower(route)
    three.commit(PartitionChangeRecord(topic_id=TOPIC_ID, partition=0, isr=(1,), elr=(2, 3)))
    await three.said.wait(lambda: bool(three.said.given_up))
    assert three.said.given_up[0] == Resignation(
        topic_id=TOPIC_ID,
        partition=0,
        leader_epoch=replica.leader_epoch,
        reason=ResignReason.CUT_OFF,
        allow_eligible=True,
    )
    assert replica.is_leader


async def test_new_registration_of_a_follower_voids_the_old_process(three: BrokerOfThree) -> None:
    """Its route ends, and its acknowledgements no longer count."""
    replica, second, third = await led(three)
    three.commit(three.registration(2, broker_epoch=77))
    await asyncio.gather(*(task for task in asyncio.all_tasks() if "_tell_brokers" in repr(task.get_coro())))
    assert second.heard[-1] == ("ended", SubscriptionError.STALE_BROKER_EPOCH, 0)
    assert third.heard == []
    assert not replica.high_watermark


async def test_new_leader_does_not_know_the_end_at_once(three: BrokerOfThree) -> None:
    """An earlier leader may have committed everything up to the start of the epoch. Until that is reached, the end is unknown."""
    replica, second, third = await led(three)
    append(replica)
    three.lead(1)
    assert not replica.is_end_known
    for route, node_id in ((second, 2), (third, 3)):
        again = Route(node_id, session=route.session + 1)
        three.subscribe(replica, again, leader_epoch=1, end=1, last_epoch=0)
        assert again.heard[0][0] == "accepted"
    assert replica.is_end_known
    assert replica.high_watermark == 1


async def test_batches_of_unknown_epochs_go_one_by_one_with_the_epoch_of_their_header(tmp_path: Path) -> None:
    """The epochs are unknown after damage to a whole log and its epoch checkpoint, which other replicas repaired."""
    replica = LeadingReplica(tmp_path, epochs=(1, 1, 3))
    replica.log._epochs = LeaderEpochs()  # pyright: ignore[reportPrivateUsage]
    found = [replica.read_for_follower(offset, 10**6) for offset in range(3)]
    assert [(each.base_offset, each.next_offset, each.leader_epoch) for each in found] == [
        (0, 1, 1),
        (1, 2, 1),
        (2, 3, 3),
    ]
    await replica.close()
