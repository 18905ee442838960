# SPDX-License-Identifier: Apache-2.0
"""Ingests on three real brokers: coordinators and leaders that stop, and questions that other brokers answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from lograft.internal.v1 import ingest_calls_pb2, publication_pb2
from lograft.v1 import group_pb2
from lograft.v1 import ingest_pb2 as pb
from lograft.wire.codes import ErrorCode

from brokerd.coordinator.internal_topics import INGESTS
from brokerd.failure import RefusedError
from brokerd.publishing import publisher as publisher_module
from brokerd.tests.api.group_clients import coordinator_of, served
from brokerd.tests.api.test_group_failover import group_at
from brokerd.tests.ingests.ingest_clients import Clients, Gate, Ingest, sweep_often, until, wait_freed, wait_loaded
from brokerd.tests.publishing.staging_clients import read_all, replica_of
from brokerd.tests.support import connected, refusal
from brokerd.tests.three_brokers import LONG_S, Cluster, three_brokers
from metaquorum.metadata.topic_names import staging_topic
from metaquorum.net.methods import Method


@asynccontextmanager
async def three(root: Path) -> AsyncIterator[tuple[Cluster, Clients]]:
    """Three brokers with topic `t`, and clients of those that are up."""
    async with three_brokers(root) as cluster:
        clients = Clients(lambda: [str(cluster.brokers[node_id].address) for node_id in sorted(cluster.brokers)])
        try:
            async with connected(cluster.brokers[1]) as client:
                await cluster.create_topic(client, min_insync_replicas="2")
            yield cluster, clients
        finally:
            await clients.close()


async def ingest_at(clients: Clients, node_id: int, *, prefix: str = "x") -> Ingest:
    """Return an ingest that a broker coordinates."""
    for number in range(200):
        if (await clients.coordinator(f"{prefix}{number}")).broker_id == node_id:
            return Ingest(clients, f"{prefix}{number}")
    raise AssertionError(f"broker {node_id} coordinates nothing")


async def values_of(clients: Clients, count: int) -> list[list[bytes]]:
    """Return the values of the partitions of `t`, once there are enough."""
    async with asyncio.timeout(LONG_S):
        while True:
            values = [await read_all(clients.any, "t", partition) for partition in range(3)]
            if sum(map(len, values)) >= count:
                return values
            await asyncio.sleep(0.05)


@pytest.mark.slow
async def test_wrong_broker_names_the_coordinator(tmp_path: Path) -> None:
    """And lists and watermarks come from all of them, whichever is asked."""
    async with three(tmp_path) as (cluster, clients):
        ingests = [await ingest_at(clients, node_id) for node_id in (1, 2, 3)]
        for each in ingests:
            await each.open("t")
        await wait_loaded(*cluster.brokers.values())
        second, address = ingests[1], cluster.brokers[2].address
        client = clients.any
        for method, request in (
            ("OpenIngest", second.open_request("t")),
            ("OpenAttempt", second.attempt_request(0)),
            ("CommitIngest", second.commit_request()),
            ("AbortIngest", pb.AbortIngestRequest(ingest_id=second.ingest_id)),
            ("TouchIngest", pb.TouchIngestRequest(ingest_id=second.ingest_id, ingest_epoch=1)),
            ("DescribeIngest", pb.DescribeIngestRequest(ingest_id=second.ingest_id)),
        ):
            status = await refusal(getattr(client.ingests, method)(request))
            assert status.code is ErrorCode.NOT_COORDINATOR, method
            assert status.leader is not None
            assert (status.leader.leader_id, status.leader.port) == (2, address.port)
        names = sorted(each.ingest_id for each in ingests)
        for server in cluster.brokers.values():
            listed = await clients.at(str(server.address)).ingests.ListIngests(pb.ListIngestsRequest())
            assert [each.ingest_id for each in listed.ingests] == names
            assert not listed.missing_coordinator_ids
        here = await client.ingests.ListIngests(pb.ListIngestsRequest(only_here=True))
        assert [each.ingest_id for each in here.ingests] == [ingests[0].ingest_id]
        topic = cluster.brokers[1].observer.image.topic_by_name("t")
        assert topic is not None
        asked = [
            pb.PublishedPartition(topic_id=topic.topic_id, partition=0, producer_id=2**62 + number)
            for number in range(INGESTS.partition_count)
        ]
        found = (await client.ingests.GetPublished(pb.GetPublishedRequest(partitions=asked))).partitions
        assert not any(each.HasField("error") or each.HasField("sequence") for each in found)

        third = cluster.brokers[3]
        assert third._forwarded is not None
        third._forwarded.attach({})
        partial = await client.ingests.ListIngests(pb.ListIngestsRequest())
        assert [each.ingest_id for each in partial.ingests] == sorted(each.ingest_id for each in ingests[:2])
        assert list(partial.missing_coordinator_ids) == [3]

        # A group's coordinator asks from anywhere.
        for number, server in enumerate(cluster.brokers.values()):
            calls = server.ingest_calls
            assert calls is not None
            is_committed = await calls.decide_outcome(
                second.ingest_id, ingest_epoch=1, round_number=1, offsets_digest=b"%d" % number
            )
            assert not is_committed
        assert (await second.describe()).state == pb.INGEST_STATE_ABORTED


@pytest.mark.slow
async def test_next_coordinator_publishes_what_was_decided(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The coordinator stops between decision and publication; the commit that comes again hears that it was committed."""
    async with three(tmp_path) as (cluster, clients):
        gate = Gate(monkeypatch, 2)
        ingest = await ingest_at(clients, 2)
        await ingest.open("t")
        attempts = [await ingest.attempt(task) for task in range(2)]
        for attempt in attempts:
            for partition in range(3):
                await attempt.stage("t", partition, b"%d-0" % attempt.task, b"%d-1" % attempt.task)
            await attempt.seal()
        committing = asyncio.create_task(ingest.commit(*attempts))
        await ingest.wait_state(pb.INGEST_STATE_DECIDED)
        assert gate.held
        assert await values_of(clients, 0) == [[], [], []]
        await cluster.stop(2)
        committed = await committing
        assert committed.was_committed
        assert (committed.result.records, len(committed.result.parts)) == (12, 3)
        wanted = [b"0-0", b"0-1", b"1-0", b"1-1"]
        assert await values_of(clients, 12) == [wanted] * 3
        gate.open()
        again = await ingest.commit(*attempts)
        assert again.result == committed.result
        assert (await clients.coordinator(ingest.ingest_id)).broker_id != 2
        # The broker that comes back finds nothing to do.
        await cluster.start(2)
        await cluster.wait(lambda: all(len(cluster.partition(each).isr) == 3 for each in range(3)))
        assert (await ingest.commit(*attempts)).result == committed.result
        assert await values_of(clients, 12) == [wanted] * 3


@pytest.mark.slow
async def test_leader_that_stops_amid_a_publication(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next leader goes on where it stopped; the commit is answered once everything is there, once."""
    async with three(tmp_path) as (cluster, clients):
        # One batch at a time, so that the leader can be stopped amid the part.
        monkeypatch.setattr(publisher_module, "IN_FLIGHT_BYTES", 1)
        partition = next(each for each in range(3) if cluster.partition(each).leader_id != 1)
        leader_id = cluster.partition(partition).leader_id
        assert leader_id is not None
        ingest = await ingest_at(clients, 1)
        await ingest.open("t")
        attempts = [await ingest.attempt(task) for task in range(2)]
        for number in range(30):
            for attempt in attempts:
                await attempt.stage(
                    "t", partition, *(b"%d-%02d-%d" % (attempt.task, number, each) for each in range(3))
                )
        for attempt in attempts:
            await attempt.seal()
        replica = await cluster.replica(leader_id, partition)
        committing = asyncio.create_task(ingest.commit(*attempts))
        await cluster.committed(leader_id, partition, 30)
        assert replica.log_end_offset < 180, "the part is whole before the leader stops"
        await cluster.stop(leader_id)
        committed = await committing
        assert not committed.was_committed
        (part,) = committed.result.parts
        assert (part.first_offset, part.end_offset) == (0, 180)
        values = await read_all(clients.any, "t", partition)
        assert values == [
            b"%d-%02d-%d" % (task, number, each) for task in (0, 1) for number in range(30) for each in range(3)
        ]


@pytest.mark.slow
async def test_staged_space_returns_wherever_coordinators_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaders ask the coordinators, which are other brokers; what is open keeps its records until it ends."""
    sweep_often(monkeypatch)
    async with three(tmp_path) as (cluster, clients):
        done, lasting = [await ingest_at(clients, node_id) for node_id in (2, 3)]
        await done.open("t")
        await lasting.open("t")
        attempts = [await each.attempt(0) for each in (done, lasting)]
        for partition in range(3):
            for attempt in attempts:
                await attempt.stage("t", partition, b"x" * 1000)
        for attempt in attempts:
            await attempt.seal()
        await done.commit(attempts[0])
        topic_id = done.topics["t"].topic_id
        name = staging_topic(topic_id)
        staging = cluster.brokers[1].observer.image.topic_by_name(name)
        assert staging is not None
        leaders = {each.partition: each.leader_id for each in staging.partitions}
        replicas = [
            replica_of(cluster.brokers[leader_id], name, partition)
            for partition, leader_id in leaders.items()
            if leader_id is not None
        ]
        assert len(replicas) == 3
        await until(lambda: all(each is not None and each.log_start_offset >= 1 for each in replicas))
        # What is open lies behind.
        assert {each.log_start_offset for each in replicas if each is not None} == {1}
        await lasting.abort()
        for partition, leader_id in leaders.items():
            assert leader_id is not None
            await wait_freed(cluster.brokers[leader_id], topic_id, partition)
        assert [len(each) for each in await values_of(clients, 3)] == [1, 1, 1]


@pytest.mark.slow
async def test_topics_of_ingests_have_replicas_on_all_brokers(tmp_path: Path) -> None:
    """Staging topics as their topics; made once, although many opens at all coordinators need them."""
    async with three(tmp_path) as (cluster, clients):
        ingests = [
            await ingest_at(clients, node_id, prefix=f"p{number}-") for number in range(4) for node_id in (1, 2, 3)
        ]
        await asyncio.gather(*(each.open("t") for each in ingests))
        image = cluster.brokers[1].observer.image
        staging, own = image.topic_by_name(ingests[0].topics["t"].staging_topic), image.topic_by_name(INGESTS.name)
        assert staging is not None
        assert own is not None
        for topic in (staging, own):
            assert {len(each.replicas) for each in topic.partitions} == {3}
            assert topic.configs["min.insync.replicas"] == "2"
        assert (len(staging.partitions), len(own.partitions)) == (3, INGESTS.partition_count)


@pytest.mark.slow
async def test_questions_between_brokers_are_refused_unless_they_come_from_the_cluster(tmp_path: Path) -> None:
    """And by a broker that does not coordinate the ingest."""
    async with three(tmp_path) as (cluster, clients):
        ingest = await ingest_at(clients, 2)
        await ingest.open("t")
        await wait_loaded(*cluster.brokers.values())
        calls = cluster.brokers[1].ingest_calls
        assert calls is not None
        peers = calls._calls.names(2)

        async def code(**fields: object) -> ErrorCode:
            changed = publication_pb2.PublicationPeers()
            changed.CopyFrom(peers)
            changed.MergeFrom(publication_pb2.PublicationPeers(**fields))
            node_id = changed.broker_id if changed.broker_id in cluster.brokers else 2
            request = ingest_calls_pb2.DecideOutcomeRequest(
                peers=changed, ingest_id=ingest.ingest_id, ingest_epoch=1, round=1, offsets_digest=b"d"
            )
            try:
                await calls._calls.ask(
                    node_id, Method.DECIDE_OUTCOME, request, ingest_calls_pb2.DecideOutcomeResponse, timeout_ms=5_000
                )
            except RefusedError as error:
                return error.failure.code
            return ErrorCode.UNSPECIFIED

        assert await code(cluster_id="?") is ErrorCode.WRONG_CLUSTER
        assert await code(broker_id=9) is ErrorCode.INVALID_REQUEST
        assert await code(sender_id=77) is ErrorCode.METADATA_NOT_REACHED
        assert await code(incarnation_id=bytes(16)) is ErrorCode.INVALID_REQUEST
        assert await code(broker_id=3) is ErrorCode.NOT_COORDINATOR
        assert (await ingest.describe()).state == pb.INGEST_STATE_OPEN
        assert await code() is ErrorCode.UNSPECIFIED, "answered"
        assert (await ingest.describe()).state == pb.INGEST_STATE_ABORTED


@pytest.mark.slow
async def test_offsets_go_with_the_decision_whoever_coordinates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The group is at one broker, the ingest at another, which stops after the decision: the next one tells the group."""
    async with three(tmp_path) as (cluster, clients):
        gate = Gate(monkeypatch, 2)
        monkeypatch.setattr(cluster.brokers[2].ingests, "_begin_group", lambda *_: None)
        group_id = await group_at(cluster, clients.any, 3)
        ingest = await ingest_at(clients, 2)
        await ingest.open("t")
        topic_id = ingest.topics["t"].topic_id
        attempt = await ingest.staged(0, "t", 0, b"x")
        place = pb.IngestOffset(topic_id=topic_id, partition=1, offset=42)
        offsets = pb.IngestOffsets(group_id=group_id, member_epoch=-1, offsets=[place])
        committing = asyncio.create_task(ingest.commit(attempt, offsets=offsets))
        await ingest.wait_state(pb.INGEST_STATE_DECIDED)
        await until(lambda: bool(gate.held))
        await cluster.stop(2)
        assert (await committing).was_committed
        topics = [group_pb2.PartitionsOfTopic(topic_id=topic_id, partitions=[1])]
        request = group_pb2.FetchOffsetsRequest(group_id=group_id, topics=topics)
        async with asyncio.timeout(LONG_S):
            while True:
                found = await coordinator_of(clients.any, group_id)
                there = clients.at(f"{found.host}:{found.port}")
                (answer,) = (await served(there.groups.FetchOffsets, request)).offsets
                if not answer.HasField("error"):
                    break
                assert answer.error.code == int(ErrorCode.OFFSETS_PENDING)
                await asyncio.sleep(0.05)
        assert answer.offset == 42
        gate.open()
