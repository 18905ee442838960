# SPDX-License-Identifier: Apache-2.0
"""Replicate over the carrier at the leader: batches as they are appended, acknowledgements, marks, credit, ends."""

from __future__ import annotations

import pytest
from lograft.internal.v1 import replication_pb2 as pb
from lograft.wire.codes import ErrorCode

from brokerd.failure import RefusedError, refused
from brokerd.partition.events import Durability
from brokerd.partition.leader_events import ProposalRefused
from brokerd.partition.reconciliation import SubscriptionError
from brokerd.replica.replication_border import FollowerRead
from brokerd.tests.leading_replica import LEADER_EPOCH
from brokerd.tests.replication.leader_world import PATIENT, LeaderWorld
from brokerd.tests.replication_support import image


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
    """A record that the in-sync follower has flushed is committed. The follower hears of it by a mark or by the next batches."""
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
    """What it holds counts from the subscription on, and only the rest is sent."""
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
    """The answer has the leader's epoch and its end. The route has ended, and another one may be bound at once."""
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
    """Each reason of the core and of the stream has its name. A valid subscription in between is served."""
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


async def test_a_follower_that_is_no_replica_is_refused(world: LeaderWorld) -> None:
    """Broker 4 has no replica of the partition."""
    world.lead()
    world.register(4, 40)
    stream = await world.follow(4)
    await stream.subscribe(1)
    await stream.ended(1, pb.ROUTE_ERROR_NOT_A_REPLICA)


async def test_a_follower_below_the_log_start_is_told_the_start(world: LeaderWorld) -> None:
    """This happens at the subscription, or later when retention overtakes a slow follower."""
    replica = world.lead()
    for _ in range(3):
        replica.append(b"x")
    other, slow = await world.follow(2), await world.follow(3, catch_up_bytes=0)
    await other.subscribe(1, end=3, last_epoch=5)
    await replica.until(lambda: replica.high_watermark == 3)
    await slow.subscribe(1, end=1, last_epoch=5)
    await slow.part("accepted")
    assert await replica.replica.delete_before(2, 0) == 2
    await slow.send(credit=pb.ReplicaCredit(catch_up_bytes=1000))
    ended = await slow.ended(1, pb.ROUTE_ERROR_BELOW_LOG_START)
    assert ended.log_start_offset == 2
    assert len(replica.lost) == 1
    await slow.subscribe(2, end=1, last_epoch=5)
    ended = await slow.ended(2, pb.ROUTE_ERROR_BELOW_LOG_START)
    assert ended.log_start_offset == 2
    assert len(replica.lost) == 1


async def test_a_log_that_cannot_be_read_ends_the_route_alone(
    world: LeaderWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The follower is told, the replica loses it, and other routes continue."""
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
    """According to the log end there are bytes. A read without result is not repeated forever."""
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
        replica.append(bytes(PATIENT.chunk_bytes // 2 + 1))
    stream = await world.follow(in_sync_bytes=1)
    await stream.subscribe(1)
    await stream.part("accepted")
    first = await stream.batches()
    await stream.send(credit=pb.ReplicaCredit(in_sync_bytes=len(first.body) - 1, catch_up_bytes=10**9))
    # The debt is paid and not a byte more: the answer to this subscription comes before any batch.
    await stream.subscribe(2, partition=1)
    await stream.ended(2, pb.ROUTE_ERROR_NOT_LEADER)
    await stream.send(credit=pb.ReplicaCredit(in_sync_bytes=1))
    assert (await stream.batches()).base_offset == 1


async def test_a_message_holds_a_chunk_of_whole_batches(world: LeaderWorld) -> None:
    """Many waiting batches are sent together, up to 1 MiB. A larger batch is sent alone."""
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
    """A follower below the high watermark spends the other credit. From the proposal that adds it on, it is in sync."""
    replica = world.lead(isr=(1,), min_isr=1)
    replica.append(b"a")
    stream = await world.follow(2, in_sync_bytes=0)
    await stream.subscribe(1)
    await stream.part("accepted")
    assert not (await stream.batches()).is_in_sync
    await stream.ack(1, 1)
    await replica.until(lambda: len(replica.proposals) == 1)
    replica.append(b"b")
    # There is catch-up credit but none of the route's present class, so the next message is an answer.
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


@pytest.mark.parametrize(("appended", "flushed"), [(3, 1), (1, 2), (-1, -1), (1, -1), (2**63 - 1, 1), (0, 0)], ids=str)
async def test_a_false_acknowledgement_ends_the_stream(
    world: LeaderWorld, caplog: pytest.LogCaptureFixture, appended: int, flushed: int
) -> None:
    """Acknowledgements beyond what was sent, inconsistent ones, or ones below zero or below an earlier one: none counts.

    One line of the log names the follower, and the follower's next stream is served.
    """
    replica = world.lead()
    replica.append(b"x")
    stream = await world.follow()
    await stream.subscribe(1)
    await stream.part("accepted")
    assert (await stream.batches()).route == 1
    await stream.ack(999, 5)  # of routes that have ended, or were never bound
    await stream.ack(-7, 5)
    await stream.ack(1, 1, 1)
    await replica.until(lambda: replica.high_watermark == 1)
    replica.append(b"y")
    await stream.batches()
    for _ in range(2):
        await stream.ack(1, appended, flushed)
    assert await stream.refusal() is ErrorCode.INVALID_REQUEST
    assert replica.high_watermark == 1
    assert replica.lost == [1]
    told = [record.getMessage() for record in caplog.records if "stream of a follower refused" in record.getMessage()]
    assert len(told) == 1
    assert "node_id=2" in told[0]
    assert "acknowledgement of route 1" in told[0]
    again = await world.follow()
    await again.subscribe(1, end=1, last_epoch=LEADER_EPOCH, session=2)
    await again.part("accepted")
    await again.batches()
    await again.ack(1, 2)
    await replica.until(lambda: replica.high_watermark == 2)
