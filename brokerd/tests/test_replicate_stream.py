# SPDX-License-Identifier: Apache-2.0
"""Replicate over real gRPC at the leader: batches as they are appended, acknowledgements, marks, credit, ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from lograft.internal.v1 import replication_pb2 as pb
from lograft.wire.codes import ErrorCode

from brokerd.failure import RefusedError, refused
from brokerd.limits import REPLICA_CHUNK_BYTES, REPLICA_SLICE, SUBSCRIBES_PER_MESSAGE
from brokerd.partition.events import Durability
from brokerd.partition.leader_events import ProposalRefused
from brokerd.partition.reconciliation import SubscriptionError
from brokerd.replication.follower_route import FollowerRead, FollowerRequest, FollowerRoute
from brokerd.rpc.replicate_codec import ROUTE_ERRORS
from brokerd.tests.replicate_support import TOPIC_ID, LeaderWorld, be_patient, leader_world
from brokerd.tests.replication_support import image
from brokerd.tests.support import WAIT_S


@pytest.fixture
async def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[LeaderWorld]:
    """A leader that listens, and waits for a slow machine."""
    be_patient(monkeypatch)
    async with leader_world(tmp_path) as made:
        yield made


async def test_everything_in_the_log_is_sent_and_then_what_is_appended(world: LeaderWorld) -> None:
    """A follower gets the bytes of the log as they are, in order, and each append without asking."""
    replica = world.lead()
    for number in range(20):
        replica.append(b"%d" % number)
    stream = await world.follow()
    await stream.subscribe(7)
    accepted = (await stream.part("accepted")).accepted
    assert (accepted.route, accepted.high_watermark, accepted.log_start_offset) == (7, 0, 0)
    data, frames = await stream.gather(20)
    assert data == replica.bytes_from(0)
    assert {(frame.route, frame.leader_epoch, frame.is_in_sync) for frame in frames} == {(7, 5, True)}
    for offset in (20, 21):
        replica.append(b"more")
        frame = await stream.batches()
        assert (frame.base_offset, bytes(frame.body)) == (offset, replica.bytes_from(offset))


async def test_acknowledgements_commit_and_the_watermark_comes_back(world: LeaderWorld) -> None:
    """A record that the in-sync follower flushed is committed; the follower is told by a mark, or by the next batches."""
    replica = world.lead()
    stream = await world.follow()
    await stream.subscribe(1)
    await stream.part("accepted")
    replica.append(b"a")
    assert (await stream.batches()).high_watermark == 0
    await stream.ack(1, 1, 0)
    await stream.ack(1, 1)
    (mark,) = (await stream.part("marks")).marks.marks
    assert (mark.route, mark.high_watermark, mark.log_start_offset) == (1, 1, 0)
    assert replica.acked == {0: Durability.FLUSHED}
    replica.append(b"b")
    assert (await stream.batches()).high_watermark == 1


async def test_a_restarted_follower_goes_on_where_it_was(world: LeaderWorld) -> None:
    """What it holds counts with the subscription; only the rest is sent."""
    replica = world.lead()
    for value in (b"a", b"b", b"c"):
        replica.append(value)
    stream = await world.follow()
    await stream.subscribe(1, end=2, last_epoch=5)
    (accepted, frame) = (await stream.part("accepted")).accepted, await stream.batches()
    assert accepted.route == 1
    assert (frame.base_offset, bytes(frame.body)) == (2, replica.bytes_from(2))
    assert replica.high_watermark == 2


async def test_older_epochs_come_in_messages_of_their_own(world: LeaderWorld) -> None:
    """All batches of a message are of one leader epoch."""
    replica = world.lead(epochs=(2, 2, 4))
    replica.append(b"of epoch 5")
    stream = await world.follow()
    await stream.subscribe(1)
    await stream.part("accepted")
    data, frames = await stream.gather(4)
    assert data == replica.bytes_from(0)
    assert [(frame.base_offset, frame.leader_epoch) for frame in frames] == [(0, 2), (2, 4), (3, 5)]


async def test_logs_that_part_are_told_where(world: LeaderWorld) -> None:
    """The answer has the leader's epoch and its end; the route is over, and another one may be bound at once."""
    world.lead(epochs=(2, 4))
    stream = await world.follow()
    await stream.subscribe(1, end=3, last_epoch=3)
    diverged = (await stream.part("diverged")).diverged
    assert (diverged.route, diverged.epoch, diverged.end_offset) == (1, 2, 1)
    await stream.subscribe(2, end=3)
    diverged = (await stream.part("diverged")).diverged
    assert (diverged.route, diverged.HasField("epoch"), diverged.end_offset) == (2, False, 2)
    await stream.subscribe(3, end=1, last_epoch=2)
    await stream.part("accepted")
    assert (await stream.batches()).base_offset == 1


async def test_subscriptions_are_refused_one_by_one(world: LeaderWorld) -> None:
    """Each reason of the core and of the stream has its name; a good one in between is served."""
    world.lead()
    stream = await world.follow()
    await stream.subscribe(1, topic_id=b"x" * 16)
    await stream.ended(1, pb.ROUTE_ERROR_NOT_LEADER)
    await stream.subscribe(2, partition=-1)
    await stream.ended(2, pb.ROUTE_ERROR_NOT_LEADER)
    await stream.subscribe(3, topic_id=b"")
    await stream.ended(3, pb.ROUTE_ERROR_NOT_LEADER)
    await stream.subscribe(4, leader_epoch=4)
    await stream.ended(4, pb.ROUTE_ERROR_FENCED_LEADER_EPOCH)
    await stream.subscribe(5, leader_epoch=6)
    await stream.ended(5, pb.ROUTE_ERROR_UNKNOWN_LEADER_EPOCH)
    await stream.subscribe(6, end=5, last_epoch=9)
    await stream.ended(6, pb.ROUTE_ERROR_LOG_AHEAD)
    await stream.subscribe(7, flushed_offset=1)
    await stream.ended(7, pb.ROUTE_ERROR_INVALID_ACK)
    await stream.subscribe(8)
    await stream.part("accepted")
    await stream.subscribe(9, session=2)
    ended = await stream.ended(9, pb.ROUTE_ERROR_SUPERSEDED)
    assert ended.message == SubscriptionError.SUPERSEDED.value


def test_every_reason_of_a_leader_has_its_name() -> None:
    """The names on the wire are those of the core; the two of followers alone are missing."""
    missing = set(SubscriptionError) - set(ROUTE_ERRORS)
    assert missing == {SubscriptionError.BAD_BATCHES, SubscriptionError.STREAM_LOST}
    names = {error: pb.RouteError.Name(number) for error, number in ROUTE_ERRORS.items()}
    assert names == {error: f"ROUTE_ERROR_{error.name}" for error in names}
    assert len(names) == len(pb.RouteError.keys()) - 1


async def test_a_follower_that_is_no_replica_is_refused(world: LeaderWorld) -> None:
    """Broker 4 has no replica of the partition."""
    world.lead()
    stream = await world.follow(4)
    await stream.subscribe(1)
    await stream.ended(1, pb.ROUTE_ERROR_NOT_A_REPLICA)


async def test_a_follower_below_the_log_start_is_told_the_start(world: LeaderWorld) -> None:
    """Both at the subscription, and when retention overtakes a slow follower later."""
    replica = world.lead()
    for _ in range(3):
        replica.append(b"x")
    stream = await world.follow(in_sync_bytes=0)
    await stream.subscribe(1, end=1, last_epoch=5)
    await stream.part("accepted")
    assert (await stream.part("marks")).marks.marks[0].high_watermark == 1, "what the follower holds is committed"
    replica.log.prefix.truncate(2, now_ms=0)
    await stream.send(credit=pb.ReplicaCredit(in_sync_bytes=1000))
    ended = await stream.ended(1, pb.ROUTE_ERROR_BELOW_LOG_START)
    assert ended.log_start_offset == 2
    assert replica.lost == [1]
    await stream.subscribe(2, end=1, last_epoch=5)
    ended = await stream.ended(2, pb.ROUTE_ERROR_BELOW_LOG_START)
    assert ended.log_start_offset == 2
    assert replica.lost == [1]


async def test_a_log_that_cannot_be_read_ends_the_route_alone(
    world: LeaderWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The follower is told, the replica loses it, other routes go on."""
    broken, good = world.lead(0), world.lead(1)

    def fail(offset: int, max_bytes: int) -> FollowerRead:
        error: RefusedError = refused(ErrorCode.STORAGE_FAILED, f"no bytes at {offset}")
        raise error

    monkeypatch.setattr(broken, "read_for_follower", fail)
    stream = await world.follow()
    await stream.subscribe(1)
    await stream.part("accepted")
    await stream.subscribe(2, partition=1)
    await stream.part("accepted")
    broken.append(b"x")
    await stream.ended(1, pb.ROUTE_ERROR_STORAGE_FAILED)
    assert broken.lost == [1]
    good.append(b"y")
    assert (await stream.batches()).route == 2


async def test_a_log_that_gives_nothing_ends_the_route(world: LeaderWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """Something is there as the log end says; who reads nothing does not try forever."""
    replica = world.lead()
    nothing = FollowerRead(data=b"", base_offset=0, next_offset=0, leader_epoch=5)
    monkeypatch.setattr(replica, "read_for_follower", lambda offset, max_bytes: nothing)
    stream = await world.follow()
    await stream.subscribe(1)
    await stream.part("accepted")
    replica.append(b"x")
    await stream.ended(1, pb.ROUTE_ERROR_STORAGE_FAILED)
    assert replica.lost == [1]


async def test_credit_bounds_what_is_under_way(world: LeaderWorld) -> None:
    """The last byte of credit sends one message more; nothing follows until more is granted."""
    replica = world.lead()
    for _ in range(4):
        replica.append(bytes(REPLICA_CHUNK_BYTES // 2 + 1))
    stream = await world.follow(in_sync_bytes=1)
    await stream.subscribe(1)
    await stream.part("accepted")
    first = await stream.batches()
    await stream.send(credit=pb.ReplicaCredit(in_sync_bytes=len(first.body) - 1, catch_up_bytes=10**9))
    # The debt is paid and not a byte more: an answer that is asked for now comes before any batch.
    await stream.subscribe(2, partition=1)
    await stream.ended(2, pb.ROUTE_ERROR_NOT_LEADER)
    await stream.send(credit=pb.ReplicaCredit(in_sync_bytes=1))
    assert (await stream.batches()).base_offset == 1


async def test_a_message_holds_a_chunk_of_whole_batches(world: LeaderWorld) -> None:
    """Many batches that are there go out together, up to 1 MiB; a larger one goes alone."""
    replica = world.lead()
    for size_bytes in (*[100_000] * 25, 2_000_000, 10):
        replica.append(bytes(size_bytes))
    stream = await world.follow()
    await stream.subscribe(1)
    await stream.part("accepted")
    data, frames = await stream.gather(27)
    assert data == replica.bytes_from(0)
    assert [frame.base_offset for frame in frames] == [0, 10, 20, 25, 26]


async def test_the_class_of_a_route_follows_the_in_sync_replicas(world: LeaderWorld) -> None:
    """A follower below the high watermark spends the other credit; from the proposal that takes it in on, it is in sync."""
    replica = world.lead(isr=(1,), min_isr=1)
    replica.append(b"a")
    stream = await world.follow(2, in_sync_bytes=0)
    await stream.subscribe(1)
    await stream.part("accepted")
    assert not (await stream.batches()).is_in_sync
    await stream.ack(1, 1)
    await replica.until(lambda: len(replica.proposals) == 1)
    replica.append(b"b")
    # There is catch-up credit, and none of the class that the route has now: the next message is an answer.
    await stream.subscribe(2, partition=1)
    await stream.ended(2, pb.ROUTE_ERROR_NOT_LEADER)
    replica.step(ProposalRefused(proposal=replica.proposals[0].proposal, code=ErrorCode.FENCED_EPOCH))
    frame = await stream.batches()
    assert (frame.base_offset, frame.is_in_sync) == (1, False)
    replica.change(image(isr=(1, 2), partition_epoch=8))
    replica.append(b"c")
    await stream.send(credit=pb.ReplicaCredit(in_sync_bytes=1))
    frame = await stream.batches()
    assert (frame.base_offset, frame.is_in_sync) == (2, True)


async def test_routes_of_both_classes_share_a_stream(world: LeaderWorld) -> None:
    """With credit of one class only, only its routes are served."""
    first, second = world.lead(0), world.lead(1, isr=(1,), min_isr=1)
    for replica in (first, second):
        replica.append(b"x")
    stream = await world.follow(2, in_sync_bytes=0)
    for partition in (0, 1):
        await stream.subscribe(partition, partition=partition)
        await stream.part("accepted")
    frame = await stream.batches()
    assert (frame.route, frame.is_in_sync) == (1, False)
    await stream.send(credit=pb.ReplicaCredit(in_sync_bytes=1))
    frame = await stream.batches()
    assert (frame.route, frame.is_in_sync) == (0, True)


async def test_a_false_acknowledgement_ends_its_route_alone(world: LeaderWorld) -> None:
    """Beyond what was sent, against itself, below zero: the route ends, nothing counts; unknown routes are passed over."""
    first, second = world.lead(0), world.lead(1)
    stream = await world.follow()
    await stream.subscribe(20, partition=1)
    await stream.part("accepted")
    for route, (appended, flushed) in enumerate([(1, 0), (0, 1), (-1, -1), (0, -1), (2**63 - 1, 0)]):
        await stream.subscribe(route)
        await stream.part("accepted")
        await stream.ack(999, 5)
        await stream.ack(-7, 5)
        await stream.ack(route, appended, flushed)
        await stream.ended(route, pb.ROUTE_ERROR_INVALID_ACK)
    assert first.lost == [2, 3, 4, 5, 6]
    assert first.high_watermark == 0
    second.append(b"y")
    assert (await stream.batches()).route == 20
    await stream.ack(20, 1)
    await stream.part("marks")
    assert second.high_watermark == 1


async def test_an_unsubscribed_route_is_silent(world: LeaderWorld) -> None:
    """The replica loses the follower; its number is used up, its partition may be asked for again."""
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
    """The older route ends without a word, and its acknowledgements count no more."""
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
    """Only the later one is answered, whether the replica would have had the earlier one or not."""
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
    """The leader stops to read while too many wait, goes on when they are taken, and leaves none out."""
    stream = await world.follow()
    rounds = 5
    for number in range(rounds):
        routes = range(number * SUBSCRIBES_PER_MESSAGE, (number + 1) * SUBSCRIBES_PER_MESSAGE)
        wanted = [pb.ReplicaSubscription(route=route, partition=route) for route in routes]
        await stream.send(subscriptions=pb.ReplicaSubscriptions(subscriptions=wanted))
    for route in range(rounds * SUBSCRIBES_PER_MESSAGE):
        await stream.ended(route, pb.ROUTE_ERROR_NOT_LEADER)


async def test_the_end_of_a_leadership_ends_the_route(world: LeaderWorld) -> None:
    """The follower hears it from the leader too; the replica needs no word."""
    replica = world.lead()
    stream = await world.follow()
    await stream.subscribe(1)
    await stream.part("accepted")
    replica.change(image(isr=(1, 2), leader_id=None, leader_epoch=6, partition_epoch=8))
    await stream.ended(1, pb.ROUTE_ERROR_NOT_LEADER)
    assert replica.lost == []


async def test_a_broken_stream_loses_every_follower(world: LeaderWorld) -> None:
    """Each replica hears it once, and goes on; a new stream begins with route 0 again."""
    replicas = [world.lead(partition) for partition in range(3)]
    stream = await world.follow()
    for partition in range(3):
        await stream.subscribe(partition, partition=partition)
        await stream.part("accepted")
    stream.call.cancel()
    async with asyncio.timeout(WAIT_S):
        await world.streams.wait_empty()
    assert [replica.lost for replica in replicas] == [[1], [2], [3]]
    assert len(world.leader.followers) == 0
    replicas[0].append(b"a")
    again = await world.follow()
    await again.subscribe(0, session=9)
    await again.part("accepted")
    assert (await again.batches()).route == 0


async def test_a_half_closed_stream_ends_in_good_order(world: LeaderWorld) -> None:
    """The leader has nothing more to say to a follower that has nothing more to say."""
    replica = world.lead()
    stream = await world.follow()
    await stream.subscribe(1)
    await stream.part("accepted")
    await stream.call.done_writing()
    await stream.orderly_end()
    assert replica.lost == [1]


async def test_an_orderly_stop_ends_when_nothing_is_led(world: LeaderWorld) -> None:
    """GoAway first, then service until the last partition is led elsewhere, then the end; nobody new is let in."""
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
    late = world.dial()
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
    """A partition that nobody else takes holds the stop up no longer than was said."""
    replica = world.lead()
    stream = await world.follow()
    await stream.subscribe(1)
    await stream.part("accepted")
    world.streams.go_away("stop", 20)
    await stream.part("go_away")
    await stream.orderly_end()
    assert replica.lost == [1]


class Note:
    """A replica that accepts everybody, and notes in which turn of the loop it lost them."""

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
    """The first one of a message may end the route; the second one finds nobody to tell."""
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
    """2,000 subscriptions in one message, and the end of as many, are handled at most 200 in one turn of the loop."""
    note = Note()
    for partition in range(SUBSCRIBES_PER_MESSAGE):
        world.replicas[TOPIC_ID, partition] = note
    stream = await world.follow()
    wanted = [
        pb.ReplicaSubscription(route=number, topic_id=TOPIC_ID, partition=number, session=number + 1, leader_epoch=5)
        for number in range(SUBSCRIBES_PER_MESSAGE)
    ]
    await stream.send(subscriptions=pb.ReplicaSubscriptions(subscriptions=wanted))
    for number in range(SUBSCRIBES_PER_MESSAGE):
        assert (await stream.part("accepted")).accepted.route == number
    await stream.call.done_writing()
    await stream.orderly_end()
    note.stop()
    for turns in (note.subscribed_in, note.lost_in):
        assert len(turns) == SUBSCRIBES_PER_MESSAGE
        counts = [list(turns.values()).count(turn) for turn in set(turns.values())]
        assert max(counts) <= REPLICA_SLICE


class Cutting(Note):
    """A replica with whose first loss the task that tells it is cancelled, as a server does that stops."""

    def lose_follower(self, route: FollowerRoute) -> None:
        super().lose_follower(route)
        task = asyncio.current_task()
        if len(self.lost_in) == 1 and task is not None:
            task.cancel()


async def test_every_replica_hears_of_a_stream_that_is_cut_twice(world: LeaderWorld) -> None:
    """A stop in the middle of the end leaves no replica with a follower that is gone."""
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
    stream.call.cancel()
    async with asyncio.timeout(WAIT_S):
        await world.streams.wait_empty()
    cutting.stop()
    assert len(cutting.lost_in) == count
