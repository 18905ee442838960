# SPDX-License-Identifier: Apache-2.0
"""Replicate over the carrier at the leader: which followers are admitted, bad input, heartbeats and silence."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from lograft.internal.v1 import replication_pb2 as pb
from lograft.wire.codes import ErrorCode

from brokerd.failure import RefusedError
from brokerd.limits import REPLICA_LAG_MAX_MS
from brokerd.partition.events import BrokerChanged
from brokerd.partition.follower_stream import is_hopeless
from brokerd.replication.leader_stream import LeaderStream
from brokerd.tests.leading_replica import LEADER_ID
from brokerd.tests.replication.leader_world import (
    INCARNATION_ID,
    PATIENT,
    TOPIC_ID,
    LeaderWorld,
    leader_world,
    let_silence_pass,
)
from brokerd.tests.replication_support import broker
from brokerd.tests.support import WAIT_S


async def test_the_opening_is_answered_with_the_times(world: LeaderWorld) -> None:
    """The follower learns the leader's registration and the intervals."""
    stream = await world.dial()
    await stream.open(formats=[2, 16])
    opened = (await stream.part("opened")).opened
    assert opened == pb.ReplicateOpened(
        broker_epoch=10,
        idle_ms=PATIENT.idle_ms,
        silence_ms=PATIENT.silence_ms,
        lag_max_ms=REPLICA_LAG_MAX_MS,
    )


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"cluster_id": "other"}, ErrorCode.WRONG_CLUSTER),
        ({"cluster_id": ""}, ErrorCode.WRONG_CLUSTER),
        ({"leader_id": 3}, ErrorCode.INVALID_REQUEST),
        ({"follower_id": LEADER_ID}, ErrorCode.INVALID_REQUEST),
        ({"follower_id": -1}, ErrorCode.INVALID_REQUEST),
        ({"broker_epoch": -1}, ErrorCode.INVALID_REQUEST),
        ({"formats": [1, 2]}, ErrorCode.INVALID_REQUEST),
        ({"follower_id": 2, "broker_epoch": 19}, ErrorCode.STALE_BROKER_EPOCH),
        ({"follower_id": 2, "broker_epoch": 21}, ErrorCode.METADATA_NOT_REACHED),
        ({"follower_id": 4, "broker_epoch": 40}, ErrorCode.METADATA_NOT_REACHED),
        ({"incarnation_id": b"j" * 16}, ErrorCode.INVALID_REQUEST),
        ({"incarnation_id": b""}, ErrorCode.INVALID_REQUEST),
        ({"in_sync_bytes": -1}, ErrorCode.INVALID_REQUEST),
        ({"catch_up_bytes": 2**62}, ErrorCode.INVALID_REQUEST),
    ],
    ids=str,
)
async def test_who_is_not_meant_is_refused(world: LeaderWorld, fields: dict[str, Any], code: ErrorCode) -> None:
    """Each reason has its code, and an open stream does not notice."""
    good = await world.follow()
    stream = await world.dial()
    await stream.open(**{"follower_id": 3, "broker_epoch": 30, **fields})
    failure = await stream.failure()
    assert failure.code is code
    assert failure.message
    world.lead()
    await good.subscribe(1)
    await good.part("accepted")


async def test_a_registration_ahead_of_the_metadata_is_let_in_once_that_has_it(world: LeaderWorld) -> None:
    """The leader's metadata may be behind the follower's registration. The refusal says that waiting helps, and how long."""
    early = await world.dial()
    await early.open(broker_epoch=21)
    failure = await early.failure()
    assert failure.code is ErrorCode.METADATA_NOT_REACHED
    assert failure.retry_after_ms
    assert not is_hopeless(failure.code)
    world.register(2, 21)
    await world.follow(broker_epoch=21)


async def test_an_unregistered_follower_is_sent_nothing_more(world: LeaderWorld) -> None:
    """Its stream was opened in time. Later subscriptions are refused until the metadata has its registration again."""
    world.lead(0)
    world.lead(1)
    stream = await world.follow()
    await stream.subscribe(1)
    await stream.part("accepted")
    known = world.observer.image.brokers[2]
    world.observer.image.drop_broker(2)
    await stream.subscribe(2, partition=1)
    await stream.ended(2, pb.ROUTE_ERROR_UNKNOWN_BROKER_EPOCH)
    world.observer.image.put_broker(known)
    await stream.subscribe(3, partition=1)
    await stream.part("accepted")


async def test_a_leader_without_a_registration_asks_to_wait(world: LeaderWorld) -> None:
    """It cannot name its own process yet."""
    world.own_epoch = None
    stream = await world.dial()
    await stream.open()
    failure = await stream.failure()
    assert failure.code is ErrorCode.OVERLOADED
    assert failure.retry_after_ms


async def test_streams_have_a_most(world: LeaderWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """One stream above the limit is refused with OVERLOADED."""
    monkeypatch.setattr(world.streams, "_max_streams", 1)
    first = await world.follow(2)
    second = await world.dial()
    await second.open(3)
    assert await second.refusal() is ErrorCode.OVERLOADED
    await first.subscribe(1)
    await first.ended(1, pb.ROUTE_ERROR_NOT_LEADER)


@pytest.mark.parametrize("epoch", [20, 21])
async def test_a_second_stream_of_a_follower_ends_the_first(world: LeaderWorld, epoch: int) -> None:
    """It belongs to the same process or a newer one. The routes of the first are lost there, and the second may bind them."""
    replica = world.lead()
    first = await world.follow()
    await first.subscribe(1)
    await first.part("accepted")
    if epoch == 21:
        world.register(2, 21)
        replica.step(BrokerChanged(broker=broker(2, epoch=21)))
    second = await world.follow(broker_epoch=epoch)
    assert await first.refusal() is ErrorCode.STALE_BROKER_EPOCH
    await second.subscribe(1, session=2)
    await second.part("accepted")
    if epoch == 20:  # otherwise the change of the registration would come first
        await replica.until(lambda: replica.lost == [1])
    replica.append(b"a")
    assert (await second.batches()).route == 1
    assert world.leader.follower_count == 1


async def test_a_forged_session_locks_no_follower_out(world: LeaderWorld) -> None:
    """A process that knows the registration may subscribe in the follower's name, with any session, until the follower returns."""
    replica = world.lead()
    forger = await world.follow()
    await forger.subscribe(1, session=2**63 - 1)
    await forger.part("accepted")
    real = await world.follow()
    await real.subscribe(1, session=7)
    await real.part("accepted")
    await replica.until(lambda: bool(replica.lost))
    replica.append(b"a")
    assert (await real.batches()).route == 1
    await real.ack(1, 1)
    await replica.until(lambda: replica.high_watermark == 1)


async def test_an_older_process_does_not_end_the_stream_of_a_newer(world: LeaderWorld) -> None:
    """It is refused, and other followers do not notice."""
    first = await world.follow(broker_epoch=20)
    other = await world.follow(3)
    second = await world.dial()
    await second.open(broker_epoch=19)
    assert await second.refusal() is ErrorCode.STALE_BROKER_EPOCH
    for stream in (first, other):
        await stream.subscribe(1)
        await stream.ended(1, pb.ROUTE_ERROR_NOT_LEADER)


SUBSCRIPTION = pb.ReplicaSubscription(route=1, topic_id=TOPIC_ID, session=1, leader_epoch=5)


@pytest.mark.parametrize(
    "messages",
    [
        [b"\xff\xff\xff"],
        [b""],
        [b"\x7a\x00"],
        [pb.ReplicateRequest(open=pb.ReplicateOpen(cluster_id="c"))],
        [pb.ReplicateRequest(credit=pb.ReplicaCredit(in_sync_bytes=-1))],
        [pb.ReplicateRequest(credit=pb.ReplicaCredit(catch_up_bytes=2**63 - 1))],
        [pb.ReplicateRequest(subscriptions=pb.ReplicaSubscriptions(subscriptions=[SUBSCRIPTION, SUBSCRIPTION]))],
        [pb.ReplicateRequest(subscriptions=pb.ReplicaSubscriptions(subscriptions=[SUBSCRIPTION] * 2_001))],
        [pb.ReplicateRequest(subscriptions=pb.ReplicaSubscriptions(subscriptions=[pb.ReplicaSubscription(route=-1)]))],
        [pb.ReplicateRequest(acks=pb.ReplicaAcks(acks=[pb.ReplicaAck()] * 2_001))],
        [pb.ReplicateRequest(unsubscriptions=pb.ReplicaUnsubscriptions(routes=[0] * 2_001))],
    ],
    ids=[
        "no message",
        "empty message",
        "unknown part",
        "second open",
        "credit below zero",
        "credit over the limit",
        "number used twice",
        "too many subscriptions",
        "number below zero",
        "too many acks",
        "too many unsubscriptions",
    ],
)
async def test_bad_messages_end_their_stream_alone(world: LeaderWorld, messages: list[Any]) -> None:
    """The follower gets INVALID_REQUEST, and its routes are lost. The stream of another follower continues."""
    replica = world.lead(isr=(1, 2, 3))
    bad, good = await world.follow(2), await world.follow(3)
    for stream in (bad, good):
        await stream.subscribe(0)
        await stream.part("accepted")
    for message in messages:
        await bad.say(message if isinstance(message, bytes) else message.SerializeToString())
    assert await bad.refusal() is ErrorCode.INVALID_REQUEST
    await replica.until(lambda: replica.follower_count == 1)
    replica.append(b"a")
    assert (await good.batches()).route == 0


@pytest.mark.parametrize(
    "part",
    [
        {"subscriptions": pb.ReplicaSubscriptions(subscriptions=[SUBSCRIPTION])},
        {"acks": pb.ReplicaAcks()},
        {"heartbeat": pb.ReplicaHeartbeat()},
        {"credit": pb.ReplicaCredit(in_sync_bytes=1)},
        {"unsubscriptions": pb.ReplicaUnsubscriptions()},
        {},
    ],
    ids=lambda part: next(iter(part), "nothing"),
)
async def test_nothing_comes_before_the_opening(world: LeaderWorld, part: dict[str, Any]) -> None:
    """Any other first message is refused, and has no effect."""
    replica = world.lead()
    stream = await world.dial()
    await stream.send(**part)
    assert await stream.refusal() is ErrorCode.INVALID_REQUEST
    assert replica.follower_count == 0


async def test_an_idle_stream_hears_heartbeats(tmp_path: Path) -> None:
    """The leader sends heartbeats repeatedly while it has nothing else to send."""
    async with leader_world(tmp_path, replace(PATIENT, idle_ms=5)) as world:
        stream = await world.follow()
        for _ in range(3):
            message = await stream.hear()
            assert message is not None
            response = pb.ReplicateResponse.FromString(message)
            assert response.WhichOneof("part") == "heartbeat"


async def test_a_silent_follower_is_let_go(world: LeaderWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its stream ends with TIMED_OUT, and its replicas hear that it is lost."""
    replica = world.lead()
    stream = await world.follow()
    await stream.subscribe(1)
    await stream.part("accepted")
    let_silence_pass(monkeypatch)
    assert await stream.refusal() is ErrorCode.TIMED_OUT
    assert replica.lost == [1]


class Stuck:
    """A stream that delivers the follower's second message and sends two answers. The next write never ends."""

    def __init__(self, request: pb.ReplicateRequest) -> None:
        self.requests = [request.SerializeToString()]
        self.answers: list[bytes] = []
        self.is_stuck = asyncio.Event()

    def listen(self, on_messages: Callable[[list[bytes]], None], on_end: object) -> None:
        del on_end
        on_messages(self.requests)

    def pause(self) -> None:
        raise AssertionError("the leader stops hearing")

    def resume(self) -> None:
        pass

    async def write(self, data: bytes) -> None:
        if len(self.answers) == 2:
            self.is_stuck.set()
            await asyncio.Event().wait()
        self.answers.append(data)


@pytest.mark.parametrize("end", ["silence", "another stream", "stop"])
async def test_a_write_that_never_ends_does_not_hold_up_the_end(
    world: LeaderWorld, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    """A follower that neither reads nor sends is given up, even in the middle of a message to it."""
    replica = world.lead()
    replica.append(b"a")
    credit = pb.ReplicaCredit(in_sync_bytes=1_000)
    opening = pb.ReplicateOpen(
        cluster_id="c",
        follower_id=2,
        broker_epoch=20,
        incarnation_id=INCARNATION_ID,
        leader_id=LEADER_ID,
        credit=credit,
    )
    subscriptions = pb.ReplicaSubscriptions(subscriptions=[SUBSCRIPTION])
    stuck: Any = Stuck(pb.ReplicateRequest(subscriptions=subscriptions))
    stream = LeaderStream(world.leader, stuck, pb.ReplicateRequest(open=opening))
    running = asyncio.create_task(stream.run())
    async with asyncio.timeout(WAIT_S):
        await stuck.is_stuck.wait()
        if end == "silence":
            let_silence_pass(monkeypatch)
        elif end == "stop":
            world.streams.go_away("stop", 1)
        else:
            await world.follow()
        if end == "stop":
            await running
        else:
            with pytest.raises(RefusedError):
                await running
    assert replica.lost == [1]
