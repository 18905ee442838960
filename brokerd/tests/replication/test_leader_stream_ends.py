# SPDX-License-Identifier: Apache-2.0
"""Replicate over the carrier at the leader: how routes and streams end, and that many of them do not block the event loop."""

from __future__ import annotations

import asyncio

import pytest
from lograft.internal.v1 import replication_pb2 as pb
from lograft.wire.codes import ErrorCode

from brokerd.limits import REPLICA_SLICE
from brokerd.partition.reconciliation import SubscriptionError
from brokerd.replica.replication_border import FollowerRead, FollowerRequest, FollowerRoute
from brokerd.replication.leader_stream import NOT_READY_RETRY_MS
from brokerd.tests.replication.leader_world import PATIENT, TOPIC_ID, LeaderWorld
from brokerd.tests.replication_support import image
from brokerd.tests.support import WAIT_S
from metaquorum.net.link import RefusedByPeerError, UnansweredError
from metaquorum.net.methods import Method
from metaquorum.net.service import decode_refusal


async def test_an_unsubscribed_route_is_silent(world: LeaderWorld) -> None:
    """The replica loses the follower. The number is used up, and the partition may be subscribed again."""
    replica = world.lead()
    stream = await world.follow()
    await stream.subscribe(1)
    await stream.part("accepted")
    await stream.send(unsubscriptions=pb.ReplicaUnsubscriptions(routes=[1, 8]))
    await replica.until(lambda: replica.lost == [1])
    replica.append(b"a")
    await stream.subscribe(2)
    assert (await stream.part("accepted")).accepted.route == 2
    assert (await stream.batches()).route == 2


async def test_a_newer_subscription_takes_the_place_of_the_older(world: LeaderWorld) -> None:
    """The older route ends silently, and its acknowledgements no longer count."""
    replica = world.lead()
    stream = await world.follow()
    await stream.subscribe(1)
    await stream.part("accepted")
    await stream.subscribe(2)
    assert (await stream.part("accepted")).accepted.route == 2
    assert replica.lost == [1]
    replica.append(b"a")
    assert (await stream.batches()).route == 2
    await stream.ack(1, 1)
    await stream.subscribe(3, partition=1)
    await stream.ended(3, pb.ROUTE_ERROR_NOT_LEADER)
    assert replica.high_watermark == 0


async def test_two_subscriptions_of_a_partition_in_one_message(world: LeaderWorld) -> None:
    """Only the later one is answered, whether the replica would have accepted the earlier one or not."""
    replica = world.lead()
    stream = await world.follow()
    for first, leader_epoch in ((1, 5), (3, 4)):
        wanted = [
            pb.ReplicaSubscription(route=route, topic_id=TOPIC_ID, session=route, leader_epoch=epoch)
            for route, epoch in ((first, leader_epoch), (first + 1, 5))
        ]
        await stream.send(subscriptions=pb.ReplicaSubscriptions(subscriptions=wanted))
        assert (await stream.part("accepted")).accepted.route == first + 1
    assert replica.lost == [1, 2]


async def test_answers_that_nobody_reads_pile_up_to_a_bound(world: LeaderWorld) -> None:
    """The leader stops reading while too many answers wait, continues when they are taken, and drops none."""
    stream = await world.follow(window_bytes=1_000)
    rounds = 5
    for number in range(rounds):
        routes = range(number * PATIENT.subscribes_per_message, (number + 1) * PATIENT.subscribes_per_message)
        wanted = [pb.ReplicaSubscription(route=route, partition=route) for route in routes]
        await stream.send(subscriptions=pb.ReplicaSubscriptions(subscriptions=wanted))
    for route in range(rounds * PATIENT.subscribes_per_message):
        await stream.ended(route, pb.ROUTE_ERROR_NOT_LEADER)


async def test_the_end_of_a_leadership_ends_the_route(world: LeaderWorld) -> None:
    """The leader tells the follower too. The replica needs no message."""
    replica = world.lead()
    stream = await world.follow()
    await stream.subscribe(1)
    await stream.part("accepted")
    replica.change(image(isr=(1, 2), leader_id=None, leader_epoch=6, partition_epoch=8))
    await stream.ended(1, pb.ROUTE_ERROR_NOT_LEADER)
    assert replica.lost == []


@pytest.mark.parametrize("is_cut", [False, True], ids=["given up", "connection lost"])
async def test_a_broken_stream_loses_every_follower(world: LeaderWorld, *, is_cut: bool) -> None:
    """Each replica hears it once, and continues. A new stream begins with route 0 again."""
    replicas = [world.lead(partition) for partition in range(3)]
    stream = await world.follow()
    for partition in range(3):
        await stream.subscribe(partition, partition=partition)
        await stream.part("accepted")
    if is_cut:
        await world.cut(2)
    else:
        stream.give_up()
    async with asyncio.timeout(WAIT_S):
        await world.streams.wait_empty()
    assert [replica.lost for replica in replicas] == [[1], [2], [3]]
    assert world.leader.follower_count == 0
    replicas[0].append(b"a")
    again = await world.follow()
    await again.subscribe(0, session=9)
    await again.part("accepted")
    assert (await again.batches()).route == 0


async def test_a_half_closed_stream_ends_in_good_order(world: LeaderWorld) -> None:
    """When the follower closes its side, the leader closes the other side cleanly."""
    replica = world.lead()
    stream = await world.follow()
    await stream.subscribe(1)
    await stream.part("accepted")
    stream.end()
    await stream.orderly_end()
    assert replica.lost == [1]


async def test_an_orderly_stop_ends_when_nothing_is_led(world: LeaderWorld) -> None:
    """GoAway comes first, then service until the last partition has another leader, then the end. New streams are refused."""
    replica = world.lead()
    stream = await world.follow()
    await stream.subscribe(1)
    await stream.part("accepted")
    world.streams.go_away("stop", 60_000)
    assert (await stream.part("go_away")).go_away.drain_ms == 60_000
    replica.append(b"a")
    await stream.batches()
    replica.change(image(isr=(1, 2), leader_id=2, leader_epoch=6, partition_epoch=8))
    await stream.ended(1, pb.ROUTE_ERROR_NOT_LEADER)
    await stream.orderly_end()
    late = await world.dial()
    await late.open()
    assert await late.refusal() is ErrorCode.SHUTTING_DOWN


async def test_an_orderly_stop_ends_when_the_follower_lets_go(world: LeaderWorld) -> None:
    """The last route may end from either side."""
    world.lead()
    stream = await world.follow()
    await stream.subscribe(1)
    await stream.part("accepted")
    world.streams.go_away("stop", 60_000)
    await stream.part("go_away")
    await stream.send(unsubscriptions=pb.ReplicaUnsubscriptions(routes=[1]))
    await stream.orderly_end()


async def test_an_orderly_stop_has_its_time(world: LeaderWorld) -> None:
    """A partition that no other broker takes delays the stop only for the announced time."""
    replica = world.lead()
    stream = await world.follow()
    await stream.subscribe(1)
    await stream.part("accepted")
    world.streams.go_away("stop", 20)
    await stream.part("go_away")
    await stream.orderly_end()
    assert replica.lost == [1]


async def test_a_broker_that_starts_or_stops_asks_to_wait(world: LeaderWorld) -> None:
    """Its streams end with the leader's side, and each replica hears of it. New streams are told that waiting helps, and how long."""
    replica = world.lead()
    stream = await world.follow()
    await stream.subscribe(1)
    await stream.part("accepted")
    await world.service.close()
    assert replica.lost == [1]
    with pytest.raises(UnansweredError):
        await stream.hear()
    early = await world.dial()
    await early.open()
    refusals = [await early.failure()]
    with pytest.raises(RefusedByPeerError) as refused:
        await (await world.peers()).ask(str(world.address), Method.FETCH_RANGE, b"", timeout_ms=int(WAIT_S * 1_000))
    refusals.append(decode_refusal(refused.value.failure))
    assert [(refusal.code, refusal.retry_after_ms) for refusal in refusals] == [
        (ErrorCode.OVERLOADED, NOT_READY_RETRY_MS)
    ] * 2
    world.service.attach(world.leader)
    await world.follow()


class Note:
    """A replica that accepts every follower, and notes in which turn of the event loop it lost them."""

    def __init__(self) -> None:
        self.turn = 0
        self.lost_in: dict[int, int] = {}
        self.subscribed_in: dict[int, int] = {}
        self.log_start_offset = self.log_end_offset = self.high_watermark = 0
        self._clock = asyncio.create_task(self._count())

    async def _count(self) -> None:
        while True:
            self.turn += 1
            await asyncio.sleep(0)

    def subscribe_follower(self, route: FollowerRoute, request: FollowerRequest) -> None:
        self.subscribed_in[route.session] = self.turn
        route.on_accepted(high_watermark=0, log_start_offset=0, is_in_sync=True)

    def ack_follower(self, route: FollowerRoute, *, appended_offset: int, flushed_offset: int) -> None:
        raise AssertionError("nothing was acknowledged")

    def lose_follower(self, route: FollowerRoute) -> None:
        self.lost_in[route.session] = self.turn

    def read_for_follower(self, offset: int, max_bytes: int) -> FollowerRead:
        raise AssertionError("nothing is to be read")

    def stop(self) -> None:
        self._clock.cancel()


class Rude(Note):
    """A replica that ends its follower's route with the first acknowledgement."""

    def ack_follower(self, route: FollowerRoute, *, appended_offset: int, flushed_offset: int) -> None:
        route.on_ended(SubscriptionError.NOT_LEADER, log_start_offset=0)


async def test_an_acknowledgement_behind_the_end_of_its_route_is_passed_over(world: LeaderWorld) -> None:
    """The first acknowledgement of a message may end the route. The second one is then ignored."""
    rude = world.replicas[TOPIC_ID, 0] = Rude()
    stream = await world.follow()
    await stream.subscribe(1)
    await stream.part("accepted")
    await stream.send(acks=pb.ReplicaAcks(acks=[pb.ReplicaAck(route=1), pb.ReplicaAck(route=1)]))
    await stream.ended(1, pb.ROUTE_ERROR_NOT_LEADER)
    await stream.subscribe(2, partition=1)
    await stream.ended(2, pb.ROUTE_ERROR_NOT_LEADER)
    rude.stop()


async def test_many_partitions_leave_the_loop_its_turns(world: LeaderWorld) -> None:
    """2,000 subscriptions in one message, and as many ends, are handled in slices of at most 200 per turn of the event loop."""
    note = Note()
    for partition in range(PATIENT.subscribes_per_message):
        world.replicas[TOPIC_ID, partition] = note
    stream = await world.follow()
    wanted = [
        pb.ReplicaSubscription(route=number, topic_id=TOPIC_ID, partition=number, session=number + 1, leader_epoch=5)
        for number in range(PATIENT.subscribes_per_message)
    ]
    await stream.send(subscriptions=pb.ReplicaSubscriptions(subscriptions=wanted))
    for number in range(PATIENT.subscribes_per_message):
        assert (await stream.part("accepted")).accepted.route == number
    stream.end()
    await stream.orderly_end()
    note.stop()
    for turns in (note.subscribed_in, note.lost_in):
        assert len(turns) == PATIENT.subscribes_per_message
        counts = [list(turns.values()).count(turn) for turn in set(turns.values())]
        assert max(counts) <= REPLICA_SLICE


class Cutting(Note):
    """A replica at whose first loss the telling task is cancelled, as in a server that stops."""

    def lose_follower(self, route: FollowerRoute) -> None:
        super().lose_follower(route)
        task = asyncio.current_task()
        if len(self.lost_in) == 1 and task is not None:
            task.cancel()


async def test_every_replica_hears_of_a_stream_that_is_cut_twice(world: LeaderWorld) -> None:
    """A stop in the middle of the end still tells every replica that its follower is gone."""
    cutting = Cutting()
    count = 2 * REPLICA_SLICE
    for partition in range(count):
        world.replicas[TOPIC_ID, partition] = cutting
    stream = await world.follow()
    wanted = [
        pb.ReplicaSubscription(route=number, topic_id=TOPIC_ID, partition=number, session=number + 1, leader_epoch=5)
        for number in range(count)
    ]
    await stream.send(subscriptions=pb.ReplicaSubscriptions(subscriptions=wanted))
    for _ in range(count):
        await stream.part("accepted")
    stream.give_up()
    async with asyncio.timeout(WAIT_S):
        await world.streams.wait_empty()
    cutting.stop()
    assert len(cutting.lost_in) == count
