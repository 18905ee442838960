# SPDX-License-Identifier: Apache-2.0
"""The cores of both sides of a stream, connected to each other: nothing is lost, refused or sent twice."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from hypothesis import example, given, settings
from hypothesis import strategies as st

from brokerd.partition.effects import SendAck, Subscribe
from brokerd.partition.follower_stream import FollowerSession
from brokerd.partition.leader_stream import LeaderSession
from brokerd.partition.replication_rates import ReplicationRates, Traffic
from brokerd.partition.stream_limits import StreamLimits
from brokerd.partition.stream_messages import (
    Accepted,
    Acks,
    Batches,
    Credit,
    FollowerMessage,
    LeaderMessage,
    Opened,
    Subscriptions,
    Unsubscriptions,
)

LIMITS = StreamLimits(
    chunk_bytes=3, in_sync_credit_bytes=16, catch_up_credit_bytes=8, catch_up_every_bytes=8, catch_up_turn_bytes=2
)
PARTITIONS = 3


class Replica(NamedTuple):
    """A replica that follows."""

    topic_id: bytes
    partition: int


REPLICAS = tuple(Replica(b"t" * 16, partition) for partition in range(PARTITIONS))


class Pair:
    """Both cores, the messages between them in order, and logs of records of one byte each."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.leader = LeaderSession(LIMITS, ReplicationRates(), 0)
        self.leader.open(
            Credit(LIMITS.in_sync_credit_bytes, LIMITS.catch_up_credit_bytes),
            Opened(broker_epoch=1, idle_ms=1, silence_ms=1, lag_max_ms=1),
            0,
        )
        self.leader.take_answers(0)
        self.follower = FollowerSession[Replica](LIMITS, 0)
        self.to_leader: deque[FollowerMessage] = deque()
        self.to_follower: deque[LeaderMessage | Batches] = deque()
        self.led = [0] * PARTITIONS
        self.held = [0] * PARTITIONS
        self.routes: dict[int, int] = {}
        self.sessions = 0
        self.wanted: dict[int, int] = {}

    def subscribe(self, partition: int) -> None:
        self.sessions += 1
        self.wanted[partition] = self.sessions
        held = self.held[partition]
        request = Subscribe(
            leader_id=1,
            leader_epoch=1,
            session=self.sessions,
            log_end_offset=held,
            flushed_offset=held,
            last_epoch=1 if held else None,
        )
        self.follower.subscribe(REPLICAS[partition], request)

    def unsubscribe(self, partition: int) -> None:
        session = self.wanted.pop(partition, None)
        if session is not None:
            self.follower.unsubscribe(REPLICAS[partition], session)

    def append(self, partition: int) -> None:
        self.led[partition] += 2
        for route, led in self.routes.items():
            if led == partition:
                self.leader.grow(route, self.led[partition])

    def say(self) -> None:
        """The follower's writer."""
        self.to_leader += self.follower.take_messages(self.now_ms)

    def hear(self) -> None:
        """The leader's reader."""
        if not self.to_leader:
            return
        message, leader = self.to_leader.popleft(), self.leader
        match message:
            case Subscriptions():
                for replaced, wanted in leader.subscribe(message.subscriptions, self.now_ms):
                    if replaced is not None:
                        del self.routes[replaced]
                    assert wanted is not None, "a right subscription is refused"
                    self.routes[wanted.route] = wanted.partition
                    leader.accept(
                        wanted.route,
                        high_watermark=0,
                        log_start_offset=0,
                        log_end_offset=self.led[wanted.partition],
                        traffic=Traffic.CATCH_UP if wanted.partition else Traffic.IN_SYNC,
                    )
            case Unsubscriptions():
                for route in leader.unsubscribe(message.routes, self.now_ms):
                    del self.routes[route]
            case Acks():
                leader.acknowledge(message.acks, self.now_ms)
            case Credit():
                leader.grant(message, self.now_ms)
            case _:
                leader.hear(self.now_ms)
        assert not leader.is_over, leader.failure

    def write(self) -> None:
        """The leader's writer."""
        leader = self.leader
        leader.tick(self.now_ms)
        self.to_follower += leader.take_answers(self.now_ms)
        wanted = leader.next_read(self.now_ms)
        if wanted is None:
            return
        size_bytes = min(wanted.max_bytes, self.led[self.routes[wanted.route]] - wanted.offset)
        next_offset = wanted.offset + size_bytes
        assert leader.note_read(wanted.route, next_offset=next_offset, size_bytes=size_bytes, now_ms=self.now_ms)
        batches = Batches(wanted.route, wanted.offset, 1, 0, 0, wanted.is_in_sync, bytes(size_bytes))
        self.to_follower.append(batches)

    def read(self) -> None:
        """The follower's reader."""
        if not self.to_follower:
            return
        message, follower = self.to_follower.popleft(), self.follower
        follower.hear(self.now_ms)
        if isinstance(message, Batches):
            found = follower.find(message.route)
            if found is not None:
                replica, session = found
                assert session == self.wanted[replica.partition]
                assert message.base_offset == self.held[replica.partition], "batches continue the log"
                self.held[replica.partition] += len(message.body)
                held = self.held[replica.partition]
                follower.ack(replica, SendAck(session=session, appended_offset=held, flushed_offset=held))
            follower.use_credit(len(message.body), is_in_sync=message.is_in_sync)
        elif isinstance(message, Accepted):
            found = follower.find(message.route)
            assert found is None or found[1] == self.wanted[found[0].partition]

    def settle(self) -> None:
        """Deliver all messages, and send everything that may be sent."""
        for _ in range(1_000):
            self.now_ms += 1
            self.say()
            self.hear()
            self.write()
            self.read()


STEPS = st.one_of(
    st.tuples(st.sampled_from(["subscribe", "unsubscribe", "append", "append"]), st.integers(0, PARTITIONS - 1)),
    st.tuples(st.sampled_from(["say", "hear", "write", "read"])),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(STEPS, max_size=80))
@example([("subscribe", 0), ("say",), ("subscribe", 0), ("unsubscribe", 0)])
def test_what_was_appended_arrives_once_and_in_order(steps: list[tuple[str, *tuple[int, ...]]]) -> None:
    """For any interleaving, each subscription gets its log without a gap, and credit never runs out permanently."""
    pair = Pair()
    for name, *arguments in steps:
        pair.now_ms += 1
        getattr(pair, name)(*arguments)
    pair.settle()
    for partition in pair.wanted:
        assert pair.held[partition] == pair.led[partition]
    assert {pair.follower.find(route) for route in pair.routes} == {
        (REPLICAS[partition], session) for partition, session in pair.wanted.items()
    }
