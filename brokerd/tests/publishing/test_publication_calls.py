# SPDX-License-Identifier: Apache-2.0
"""Publications and checks between real brokers: leaders elsewhere, staged records elsewhere, broken and forged calls."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from unittest import mock

import pytest
from lograft.internal.v1 import publication_pb2 as pb
from lograft.v1 import admin_pb2
from lograft.wire.codes import ErrorCode

from brokerd.addresses import internal_address
from brokerd.failure import RefusedError
from brokerd.process.server import BrokerServer
from brokerd.publishing.calls import Unstaged
from brokerd.publishing.parts import PublishedPart, Slice
from brokerd.publishing.publisher import RecordsLostError
from brokerd.tests.publishing.staging_clients import (
    RemoteAttempt,
    calls_of,
    led_by,
    part_of,
    publish_until_done,
    read_all,
    replica_of,
    staged_topic,
)
from brokerd.tests.support import WAIT_S, Client, connected, running_broker, second_broker
from metaquorum.net.link import RefusedByPeerError
from metaquorum.net.methods import Method
from metaquorum.net.service import decode_refusal

PARTITIONS = 8


@dataclass(frozen=True, slots=True)
class Two:
    """Two brokers, each with a client, and `t` with its staging topic spread over both."""

    first: BrokerServer
    second: BrokerServer
    clients: dict[int, Client]
    topic_id: bytes
    staging: str

    def server(self, node_id: int) -> BrokerServer:
        return self.first if node_id == 1 else self.second

    async def spread(self) -> None:
        """Let each broker lead some of the staging partitions of what either leads."""
        image = self.first.observer.image.topic_by_name("t")
        assert image is not None
        turns = {1: 0, 2: 0}
        wanted: dict[int, int] = {}
        for each in image.partitions:
            assert each.leader_id is not None
            turns[each.leader_id] += 1
            wanted[each.partition] = 1 + turns[each.leader_id] % 2
        moves = [
            admin_pb2.PartitionReassignment(topic=self.staging, partition=partition, replicas=[node_id])
            for partition, node_id in wanted.items()
        ]
        request = admin_pb2.AlterPartitionReassignmentsRequest(reassignments=moves)
        # The two lie apart only while a reassignment of the topic is under way: one of them arrives first. Here they stay apart.
        with mock.patch("metaquorum.controller.reassignment.change_problem", return_value=None):
            response = await self.clients[1].admin.AlterPartitionReassignments(request, timeout=WAIT_S)
        assert not any(each.HasField("error") for each in response.results)
        async with asyncio.timeout(WAIT_S):
            for server in (self.first, self.second):
                while self.led(server) != wanted:
                    await server.observer.wait_for(server.observer.metadata_offset + 1, timeout_ms=1_000)
        for partition, node_id in wanted.items():
            broker = self.server(node_id)._broker
            assert broker is not None
            await broker.parts.locator.local_leader(self.staging, partition, timeout_ms=int(WAIT_S * 1000))

    def led(self, server: BrokerServer) -> dict[int, int | None]:
        """Return the leaders of the staging partitions, as a broker knows them, once nothing moves."""
        image = server.observer.image.topic_by_name(self.staging)
        assert image is not None
        return {each.partition: each.leader_id for each in image.partitions if len(each.replicas) == 1}

    def partition(self, *, target: int, staging: int) -> int:
        """Return a partition that `target` leads and whose staging partition `staging` leads."""
        image = self.first.observer.image
        t, staged = image.topic_by_name("t"), image.topic_by_name(self.staging)
        assert t is not None
        assert staged is not None
        return next(
            one.partition
            for one, other in zip(t.partitions, staged.partitions, strict=True)
            if (one.leader_id, other.leader_id) == (target, staging)
        )

    async def staged(self, partition: int, *, batches: int = 3) -> tuple[list[Slice], list[bytes]]:
        """Stage the batches of two attempts in turns."""
        attempts = [RemoteAttempt(self.clients[1], self.staging, partition, number) for number in (0, 1)]
        for number in range(batches):
            for attempt in attempts:
                await attempt.stage(*(b"%d-%d-%d" % (attempt.producer_id, number, each) for each in range(5)))
        return [each.seal() for each in attempts], [value for each in attempts for value in each.values]


@pytest.fixture
async def two(tmp_path: Path) -> AsyncIterator[Two]:
    async with (
        running_broker(tmp_path / "1") as first,
        second_broker(first, tmp_path / "2") as second,
        staged_topic(first, second, partitions=PARTITIONS) as (client, topic_id, name),
        connected(second) as other,
    ):
        made = Two(first, second, {1: client, 2: other}, topic_id, name)
        await made.spread()
        yield made


@pytest.mark.parametrize(("target", "staging"), [(1, 1), (1, 2), (2, 1), (2, 2)])
async def test_any_leader_publishes_from_any_other(two: Two, target: int, staging: int) -> None:
    """Whichever brokers lead the partition and its staging partition, and whichever broker asks."""
    partition = two.partition(target=target, staging=staging)
    slices, values = await two.staged(partition)
    wanted = part_of(two.topic_id, partition, *slices)
    for asking in (1, 2):
        calls = calls_of(two.server(asking))
        assert await calls.check(two.topic_id, partition, slices) == []
        assert await calls.publish(wanted) == PublishedPart(0, len(values))
    assert await read_all(two.clients[1], "t", partition) == values


async def test_large_part_comes_from_afar_in_pieces(two: Two) -> None:
    """More than one answer and more than what may be in flight."""
    partition = two.partition(target=1, staging=2)
    attempts = [RemoteAttempt(two.clients[1], two.staging, partition, number) for number in (0, 1)]
    for number in range(4):
        for attempt in attempts:
            await attempt.stage(*(bytes([number]) * 300_000 for _ in range(3)))
    slices = [attempt.seal() for attempt in reversed(attempts)]
    found = await calls_of(two.second).publish(part_of(two.topic_id, partition, *slices))
    assert found == PublishedPart(0, 24)
    replica = replica_of(two.first, "t", partition)
    assert replica is not None
    assert replica.high_watermark == 24
    assert await read_all(two.clients[1], "t", partition) == attempts[1].values + attempts[0].values


async def test_missing_slices_are_named_across_brokers(two: Two) -> None:
    """The answer of the leader comes back with places and reasons, and a publication of it fails without a trace."""
    partition = two.partition(target=1, staging=2)
    slices, _ = await two.staged(partition)
    longer = slices[1]._replace(records=slices[1].records + 1, end_offset=slices[1].end_offset + 1)
    shifted = slices[0]._replace(first_sequence=1)
    found = await calls_of(two.first).check(two.topic_id, partition, [slices[0], longer])
    assert found == [Unstaged(1, "the log ends before it does")]
    for bad in (longer, shifted, slices[0]._replace(first_offset=slices[0].first_offset + 1, records=14)):
        with pytest.raises(RefusedError) as caught:
            await calls_of(two.second).publish(part_of(two.topic_id, partition, bad))
        assert caught.value.failure.code in (ErrorCode.INGEST_INCOMPLETE, ErrorCode.OFFSET_NOT_AVAILABLE)
    assert await read_all(two.clients[1], "t", partition) == []


async def test_lost_records_are_told_and_noted_across_brokers(two: Two) -> None:
    """The number comes back with the error, and goes with the next request."""
    partition = two.partition(target=2, staging=1)
    slices, values = await two.staged(partition)
    calls, first = calls_of(two.first), part_of(two.topic_id, partition, slices[0])
    await calls.publish(first)
    after_loss = replace(part_of(two.topic_id, partition, slices[1]), base_sequence=first.records + 3)
    with pytest.raises(RecordsLostError) as caught:
        await calls.publish(after_loss)
    assert caught.value.records == 3
    found = await calls.publish(replace(after_loss, lost_records=3))
    assert found == PublishedPart(first.records, len(values))
    assert await calls.publish(after_loss) == found
    assert await read_all(two.clients[1], "t", partition) == values


async def test_unreachable_leader_of_staged_records_is_retriable(two: Two) -> None:
    """The publication goes on when the broker is back."""
    partition = two.partition(target=1, staging=2)
    slices, values = await two.staged(partition)
    wanted = part_of(two.topic_id, partition, *slices)
    await two.second.stop()
    with pytest.raises(RefusedError) as caught:
        await calls_of(two.first).publish(wanted)
    assert caught.value.failure.code is ErrorCode.LEADER_NOT_AVAILABLE
    with pytest.raises(RefusedError) as unled:
        await calls_of(two.first).check(two.topic_id, partition, slices)
    assert unled.value.failure.code is ErrorCode.LEADER_NOT_AVAILABLE
    async with returned(two.second):
        found = await publish_until_done(lambda: calls_of(two.first), wanted)
    assert found == PublishedPart(0, len(values))


@asynccontextmanager
async def returned(stopped: BrokerServer) -> AsyncIterator[BrokerServer]:
    """Run a broker again over the data of a stopped one."""
    server = BrokerServer(stopped._settings)
    await server.start()
    try:
        await server.wait_serving(timeout_ms=30_000)
        yield server
    finally:
        await server.stop()


async def test_forged_and_stray_requests_are_refused(two: Two) -> None:
    """Another cluster, another broker, an older process, another leader, nonsense."""
    assert two.first._quorum is not None
    peers, observer = two.first._quorum.peers, two.first.observer
    sender = observer.image.brokers[1]
    address = str(internal_address(observer.image, 2))
    good = pb.PublicationPeers(
        cluster_id=two.first.cluster_id,
        broker_id=2,
        sender_id=1,
        broker_epoch=sender.broker_epoch,
        incarnation_id=sender.incarnation_id,
    )
    slices, _ = await two.staged(led_by(two.first, "t", 1))
    request = pb.PublishPartRequest(
        peers=good,
        topic_id=two.topic_id,
        partition=led_by(two.first, "t", 1),
        producer_id=2**62,
        records=slices[0].records,
        slices=[pb.StagedSlice(**slices[0]._asdict())],
    )

    async def code_of(method: Method, message: bytes) -> ErrorCode:
        with pytest.raises(RefusedByPeerError) as caught:
            await peers.ask(address, method, message, timeout_ms=10_000)
        return decode_refusal(caught.value.failure).code

    assert await code_of(Method.PUBLISH_PART, request.SerializeToString()) is ErrorCode.NOT_LEADER
    for change, code in (
        ({"cluster_id": "other"}, ErrorCode.WRONG_CLUSTER),
        ({"broker_id": 1}, ErrorCode.INVALID_REQUEST),
        ({"broker_epoch": sender.broker_epoch - 1}, ErrorCode.STALE_BROKER_EPOCH),
        ({"broker_epoch": sender.broker_epoch + 1_000}, ErrorCode.METADATA_NOT_REACHED),
        ({"incarnation_id": bytes(16)}, ErrorCode.INVALID_REQUEST),
    ):
        changed = pb.PublicationPeers()
        changed.CopyFrom(good)
        for name, value in change.items():
            setattr(changed, name, value)
        forged = pb.PublishPartRequest()
        forged.CopyFrom(request)
        forged.peers.CopyFrom(changed)
        assert await code_of(Method.PUBLISH_PART, forged.SerializeToString()) is code, change
        check = pb.CheckStagedRequest(peers=changed, topic_id=two.topic_id, slices=forged.slices)
        assert await code_of(Method.CHECK_STAGED, check.SerializeToString()) is code, change
    absurd = pb.PublishPartRequest(peers=good, topic_id=two.topic_id, partition=led_by(two.first, "t", 2), records=5)
    assert await code_of(Method.PUBLISH_PART, absurd.SerializeToString()) is ErrorCode.INVALID_REQUEST
    assert await code_of(Method.PUBLISH_PART, b"\xff\xff") is ErrorCode.INVALID_REQUEST


async def test_publication_survives_its_caller(two: Two) -> None:
    """A call that times out leaves the publication under way; the next one gets the answer."""
    partition = two.partition(target=2, staging=2)
    slices, values = await two.staged(partition)
    wanted = part_of(two.topic_id, partition, *slices)
    with pytest.raises(RefusedError) as caught:
        await calls_of(two.first).publish(wanted, timeout_ms=1)
    assert caught.value.failure.code in (ErrorCode.TIMED_OUT, ErrorCode.LEADER_NOT_AVAILABLE)
    answers = await asyncio.gather(*(calls_of(two.server(each)).publish(wanted) for each in (1, 2, 1, 2)))
    assert set(answers) == {PublishedPart(0, len(values))}
    assert await read_all(two.clients[1], "t", partition) == values
