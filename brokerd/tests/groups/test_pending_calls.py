# SPDX-License-Identifier: Apache-2.0
"""Pending offsets between real brokers, and what clients of their partitions see meanwhile."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from lograft import TopicPartition, aio
from lograft.errors import ServerUnavailableError
from lograft.types import OffsetAndMetadata
from lograft.v1 import errors_pb2
from lograft.v1 import group_pb2 as pb
from lograft.wire.codes import ErrorCode

from brokerd.coordinator.internal_topics import GROUPS
from brokerd.coordinator.unserved import Unserved, UnservedError, UnservedReason
from brokerd.failure import Failure, RefusedError
from brokerd.groups.commands import OffsetCommit, PrepareOffsets, ResolveOffsets
from brokerd.groups.coordinators import GroupCoordinators
from brokerd.groups.effects import AskOutcome
from brokerd.groups.pending_calls import PendingOffsetsCalls, PendingOffsetsService
from brokerd.process.server import BrokerServer
from brokerd.tests.api.group_clients import coordinator_of, fetch_offsets, make_topic
from brokerd.tests.support import WAIT_S, Client, connected, running_broker, second_broker
from metaquorum.net.carrier import Carrier
from metaquorum.net.link import RefusedByPeerError
from metaquorum.net.methods import Method
from metaquorum.net.service import decode_refusal

PENDING = errors_pb2.ERROR_CODE_OFFSETS_PENDING


class Desk:
    """What the coordinator of an ingest has at a broker: the calls to the groups."""

    def __init__(self, server: BrokerServer) -> None:
        self.groups: GroupCoordinators = groups_of(server)
        # Nobody else decides: these ingests exist here only.
        self.groups._ask_outcome = None
        assert server._broker is not None
        parts = server._broker.parts
        self.calls = PendingOffsetsCalls(self.groups, parts.peers, parts.observer, node_id=parts.node_id)

    async def prepare(self, group_id: str, *offsets: OffsetCommit, number: int = 1) -> None:
        """Prepare offsets for a round of ingest `i`, again and again while the coordinator is loading."""
        command = PrepareOffsets(group_id=group_id, ingest_id="i", ingest_epoch=1, round=number, offsets=offsets)
        async with asyncio.timeout(WAIT_S):
            while True:
                try:
                    return await self.calls.prepare(command)
                except RefusedError as error:
                    if error.failure.code not in (ErrorCode.COORDINATOR_LOADING, ErrorCode.NOT_ENOUGH_REPLICAS):
                        raise
                await asyncio.sleep(0.05)

    async def resolve(self, group_id: str, *, is_committed: bool, number: int = 1) -> None:
        """Say what became of a round of ingest `i`."""
        await self.calls.resolve(
            ResolveOffsets(group_id=group_id, ingest_id="i", ingest_epoch=1, round=number, is_committed=is_committed)
        )

    async def refusal(self, group_id: str, *offsets: OffsetCommit, number: int = 1) -> Failure:
        """Return why a prepare is refused."""
        with pytest.raises(RefusedError) as caught:
            await self.prepare(group_id, *offsets, number=number)
        return caught.value.failure


def groups_of(server: BrokerServer) -> GroupCoordinators:
    """Return the group coordinators of a broker."""
    assert server.groups is not None
    return server.groups


@asynccontextmanager
async def two_brokers(root: Path) -> AsyncIterator[dict[int, BrokerServer]]:
    """Run two brokers that share the groups."""
    async with running_broker(root / "1") as first, second_broker(first, root / "2") as second:
        yield {1: first, 2: second}


async def group_at(client: Client, node_id: int) -> str:
    """Return the id of a group that a broker coordinates."""
    for number in range(200):
        if (await coordinator_of(client, f"g{number}")).broker_id == node_id:
            return f"g{number}"
    raise AssertionError(f"broker {node_id} coordinates nothing")


async def until(is_done: Callable[[], bool]) -> None:
    """Wait until something is true."""
    async with asyncio.timeout(WAIT_S):
        while not is_done():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


def at(topic_id: bytes, partition: int, offset: int) -> OffsetCommit:
    """Return an offset to prepare."""
    return OffsetCommit(topic_id=topic_id, partition=partition, offset=offset, leader_epoch=2, metadata="m")


@pytest.mark.slow
async def test_coordinator_is_asked_here_and_at_another_broker(tmp_path: Path) -> None:
    """From either broker the offsets reach the group, pending, and count when the outcome comes; refusals are those of the group."""
    async with two_brokers(tmp_path) as brokers, connected(brokers[1]) as client:
        topic_id = await make_topic(client, "t", 3, 2)
        for node_id, server in brokers.items():
            group_id = await group_at(client, node_id)
            async with connected(server) as there:
                for number, asking in enumerate(brokers.values(), 1):
                    desk = Desk(asking)
                    await desk.prepare(group_id, at(topic_id, 0, number), at(topic_id, 1, number), number=number)
                    await desk.prepare(group_id, at(topic_id, 0, number), at(topic_id, 1, number), number=number)
                    other = await desk.refusal(group_id, at(topic_id, 1, 9), number=9)
                    assert other.code is ErrorCode.OFFSETS_PENDING
                    assert other.retry_after_ms > 0
                    assert (
                        await desk.refusal(group_id, at(topic_id, 3, 9), number=9)
                    ).code is ErrorCode.UNKNOWN_PARTITION
                    response = await there.groups.FetchOffsets(
                        pb.FetchOffsetsRequest(
                            group_id=group_id, topics=[pb.PartitionsOfTopic(topic_id=topic_id, partitions=[0, 1, 2])]
                        )
                    )
                    assert [each.error.code for each in response.offsets] == [PENDING, PENDING, 0]
                    assert not any(each.HasField("offset") for each in response.offsets)
                    await desk.resolve(group_id, is_committed=True, number=number)
                    await desk.resolve(group_id, is_committed=True, number=number)
                    expected = {(topic_id, 0): number, (topic_id, 1): number}
                    assert await fetch_offsets(there, group_id) == expected
                (stored, _) = (await there.groups.FetchOffsets(pb.FetchOffsetsRequest(group_id=group_id))).offsets
                assert (stored.leader_epoch, stored.metadata) == (2, "m")


@pytest.mark.slow
async def test_broker_that_does_not_coordinate_the_group_names_the_one_that_does(tmp_path: Path) -> None:
    """A caller whose metadata is behind hears NOT_COORDINATOR with a leader hint, over the carrier too."""
    async with two_brokers(tmp_path) as brokers, connected(brokers[1]) as client:
        topic_id = await make_topic(client, "t", 1, 2)
        group_id = await group_at(client, 1)
        desk = Desk(brokers[1])
        await desk.prepare(group_id, at(topic_id, 0, 1))
        partition = GROUPS.partition_of(group_id)
        place = desk.groups.leader_place(partition)
        theirs = groups_of(brokers[2]).leader_place(GROUPS.partition_of(await group_at(client, 2)))
        assert place is not None
        assert theirs is not None
        assert (place.leader_id, theirs.leader_id) == (1, 2)
        desk.groups.leader_place = lambda partition: theirs
        failure = await desk.refusal(group_id, at(topic_id, 0, 1))
        assert failure.code is ErrorCode.NOT_COORDINATOR
        assert failure.leader is not None
        assert (failure.leader.leader_id, failure.leader.port) == (1, brokers[1].address.port)


async def test_broken_calls_may_be_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that cannot be reached, and an outcome that nobody knows, are refusals after which the caller comes back."""
    async with running_broker(tmp_path) as server, connected(server) as client:
        topic_id = await make_topic(client, "t", 1)
        await coordinator_of(client, "g")
        desk = Desk(server)
        await desk.prepare("g", at(topic_id, 0, 1))
        command = ResolveOffsets(group_id="g", ingest_id="i", ingest_epoch=1, round=1, is_committed=True)

        async def lost(*_: object, **__: object) -> None:
            failure = Failure(code=ErrorCode.OUTCOME_UNKNOWN, message="the leader moved")
            raise UnservedError(Unserved(UnservedReason.OUTCOME_UNKNOWN, failure))

        with monkeypatch.context() as patched:
            patched.setattr(desk.groups._runtime, "submit", lost)
            with pytest.raises(RefusedError) as caught:
                await desk.calls.resolve(command)
        assert caught.value.failure.code is ErrorCode.TIMED_OUT
        assert caught.value.failure.code.retriable

        place = desk.groups.leader_place(GROUPS.partition_of("g"))
        assert place is not None
        gone = type(place)(leader_id=7, leader_epoch=1, host=place.host, port=place.port)
        with monkeypatch.context() as patched:
            patched.setattr(desk.groups, "leader_place", lambda partition: gone)
            with pytest.raises(RefusedError) as caught:
                await desk.calls.resolve(command)
        assert caught.value.failure.code is ErrorCode.COORDINATOR_LOADING
        assert await fetch_offsets(client, "g", {topic_id: (0,)}) == {(topic_id, 0): None}, "it is pending"
        await desk.calls.resolve(command)
        assert await fetch_offsets(client, "g") == {(topic_id, 0): 1}


async def test_coordinator_that_may_have_been_replaced_says_nothing_that_another_may_contradict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That nothing is pending may be wrong, and so may a refusal; what its log takes it answers."""
    async with running_broker(tmp_path) as server, connected(server) as client:
        topic_id = await make_topic(client, "t", 1)
        await coordinator_of(client, "g")
        desk = Desk(server)
        await desk.prepare("g", at(topic_id, 0, 1))
        with monkeypatch.context() as patched:
            patched.setattr(desk.groups, "_is_lost", lambda: True)
            for call in (
                desk.resolve("g", is_committed=True, number=2),
                desk.prepare("g", at(topic_id, 9, 1), number=2),
                desk.prepare("g", at(topic_id, 0, 2)),
            ):
                with pytest.raises(RefusedError) as caught:
                    await call
                assert caught.value.failure.code is ErrorCode.NOT_COORDINATOR
                assert caught.value.failure.leader is None
                assert caught.value.failure.retry_after_ms > 0
            await desk.prepare("g", at(topic_id, 0, 1))
            await desk.resolve("g", is_committed=True)
            with pytest.raises(RefusedError, match="NOT_COORDINATOR"):
                await desk.resolve("g", is_committed=True)
        await desk.resolve("g", is_committed=True)
        assert await fetch_offsets(client, "g") == {(topic_id, 0): 1}


async def test_first_prepare_makes_the_topic_of_groups(tmp_path: Path) -> None:
    """The coordinator of an ingest may be the first to ask about a group."""
    async with running_broker(tmp_path) as server, connected(server) as client:
        topic_id = await make_topic(client, "t", 1)
        desk = Desk(server)
        assert desk.groups.leaders == ()
        await desk.prepare("g", at(topic_id, 0, 4))
        await desk.resolve("g", is_committed=True)
        assert await fetch_offsets(client, "g") == {(topic_id, 0): 4}


async def test_service_refuses_before_it_is_attached() -> None:
    """A broker that is starting asks to come back; it does not say that nothing is pending."""
    caller, starting = Carrier(cluster_id="c", node_id=1), Carrier(cluster_id="c", node_id=2)
    PendingOffsetsService(starting.table)
    address = f"127.0.0.1:{starting.bind('127.0.0.1', 0)}"
    await starting.start(address)
    await caller.start(None)
    try:
        for method in (Method.PREPARE_OFFSETS, Method.RESOLVE_OFFSETS):
            with pytest.raises(RefusedByPeerError) as caught:
                await caller.peers.ask(address, method, b"", timeout_ms=int(WAIT_S * 1000))
            refusal = decode_refusal(caught.value.failure)
            assert refusal.code is ErrorCode.COORDINATOR_LOADING
            assert refusal.retry_after_ms > 0
    finally:
        await caller.close()
        await starting.close()


async def test_outcomes_are_asked_for_by_whoever_was_handed_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The effect of the core reaches the callable; without one, a line in the log says once that offsets stay pending."""
    monkeypatch.setattr("brokerd.groups.state.PENDING_OFFSETS_MS", 50)
    monkeypatch.setattr("brokerd.groups.pending.PENDING_OFFSETS_MS", 50)
    caplog.set_level(logging.WARNING, logger="brokerd.groups.coordinators")
    async with running_broker(tmp_path) as server, connected(server) as client:
        topic_id = await make_topic(client, "t", 1)
        desk = Desk(server)
        await desk.prepare("g", at(topic_id, 0, 4))
        await until(lambda: "offsets stay pending" in caplog.text)
        asked: list[AskOutcome] = []
        desk.groups._ask_outcome = asked.append
        await until(lambda: len(asked) >= 3)
        assert set(asked) == {AskOutcome(group_id="g", ingest_id="i", ingest_epoch=1, round=1)}
        assert caplog.text.count("offsets stay pending") == 1
        await desk.resolve("g", is_committed=False)
        asked.clear()
        await asyncio.sleep(0.3)
        assert asked == []


async def test_consumer_begins_where_the_decision_says(tmp_path: Path) -> None:
    """A member that gets a partition with a pending offset waits for the outcome; its other partitions go on, and it resets nothing."""
    async with running_broker(tmp_path) as server, connected(server) as client:
        topic_id = await make_topic(client, "t", 2)
        async with aio.Producer(client.address) as producer:
            for number in range(6):
                for partition in range(2):
                    await producer.send("t", b"%d" % number, partition=partition)
            await producer.flush()
        desk = Desk(server)
        await desk.prepare("g", at(topic_id, 0, 4))
        async with asyncio.timeout(WAIT_S), aio.Consumer(client.address, group="g", auto_commit=False) as consumer:
            await consumer.subscribe(["t"])
            seen: list[tuple[int, int]] = []

            async def read(count: int) -> None:
                while len(seen) < count:
                    seen.extend((each.partition, each.offset) for each in await consumer.poll(timeout_ms=50))

            await read(6)
            for _ in range(10):
                seen.extend((each.partition, each.offset) for each in await consumer.poll(timeout_ms=50))
            assert seen == [(1, offset) for offset in range(6)], "nothing of the partition that waits"
            waiting = asyncio.create_task(consumer.committed([TopicPartition("t", 0)]))
            committing = asyncio.create_task(
                consumer.commit({TopicPartition("t", 0): OffsetAndMetadata(4, metadata="later")}, timeout_ms=20_000)
            )
            await asyncio.sleep(0.5)
            assert not waiting.done()
            assert not committing.done()
            await desk.resolve("g", is_committed=True)
            await committing
            committed = (await waiting)[TopicPartition("t", 0)]
            assert committed is not None
            assert committed.offset == 4
            await read(8)
            assert seen[6:] == [(0, 4), (0, 5)]
            (stored,) = (await client.groups.FetchOffsets(pb.FetchOffsetsRequest(group_id="g"))).offsets
            assert (stored.offset, stored.metadata) == (4, "later"), "the commit waited, and came after the decision"


async def test_admin_waits_for_the_decision_within_its_time(tmp_path: Path) -> None:
    """A look-up is repeated until the outcome is known; when the time is up, the partition has a typed error that may be retried."""
    async with running_broker(tmp_path) as server, connected(server) as client:
        topic_id = await make_topic(client, "t", 2)
        desk = Desk(server)
        await desk.prepare("g", at(topic_id, 1, 7), number=1)
        await desk.resolve("g", is_committed=True, number=1)
        await desk.prepare("g", at(topic_id, 0, 4), number=2)
        async with aio.Admin(client.address, request_timeout_ms=1_500) as admin:
            for partitions in (None, ["t"]):
                (found,) = await admin.group_offsets(["g"], partitions, with_lag=False)
                first, second = found.offsets
                assert isinstance(first.error, ServerUnavailableError)
                assert first.error.code is ErrorCode.OFFSETS_PENDING
                assert first.committed is None
                assert second.committed is not None
                assert second.committed.offset == 7
        async with aio.Admin(client.address) as admin:
            looking = asyncio.create_task(admin.group_offsets(["g"], with_lag=False))
            await asyncio.sleep(0.4)
            assert not looking.done()
            await desk.resolve("g", is_committed=True, number=2)
            (found,) = await looking
            assert [each.committed and each.committed.offset for each in found.offsets] == [4, 7]
            await desk.prepare("g", at(topic_id, 0, 5), number=3)
            deleting = asyncio.create_task(admin.delete_groups(["g"]))
            await asyncio.sleep(0.4)
            assert not deleting.done()
            await desk.resolve("g", is_committed=False, number=3)
            async with asyncio.timeout(WAIT_S):
                assert [each.error for each in await deleting] == [None]
            assert await fetch_offsets(client, "g") == {}
