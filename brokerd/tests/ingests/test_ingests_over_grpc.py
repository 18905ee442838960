# SPDX-License-Identifier: Apache-2.0
"""Ingests of one real broker, over generated stubs: what is published, what is not, and what is left of it."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from lograft.v1 import admin_pb2
from lograft.v1 import ingest_pb2 as pb
from lograft.wire.codes import ErrorCode

from brokerd.coordinator.internal_topics import INGESTS
from brokerd.failure import refused
from brokerd.process.server import BrokerServer
from brokerd.publishing.calls import PublicationCalls
from brokerd.publishing.parts import Part, PublishedPart
from brokerd.tests.api.group_clients import make_topic
from brokerd.tests.ingests.ingest_clients import (
    Clients,
    Gate,
    Ingest,
    clients_of,
    code_of,
    sweep_often,
    until,
    wait_freed,
    wait_loaded,
)
from brokerd.tests.publishing.staging_clients import read_all, replica_of
from brokerd.tests.support import WAIT_S, refusal, running_broker
from metaquorum.metadata.topic_names import staging_topic


@dataclass
class Lone:
    """One broker with topic `t` of two partitions."""

    server: BrokerServer
    clients: Clients
    topic_id: bytes

    async def values(self, partition: int = 0, topic: str = "t") -> list[bytes]:
        return await read_all(self.clients.any, topic, partition)


@pytest.fixture
async def lone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Lone]:
    sweep_often(monkeypatch)
    async with running_broker(tmp_path) as server, clients_of(server) as clients:
        yield Lone(server, clients, await make_topic(clients.any, "t", 2))


async def test_what_the_manifest_names_is_published_once_and_in_order(lone: Lone) -> None:
    """By task, then by sequence; losers are dropped, readers see nothing before, and the staged space returns."""
    ingest = Ingest(lone.clients, "job")
    opened = await ingest.open("t")
    assert (opened.state, opened.ingest_epoch, opened.round) == (pb.INGEST_STATE_OPEN, 1, 1)
    assert opened.topics[0].topic_id == lone.topic_id
    assert opened.touch_interval_ms == 1_200_000
    second = await ingest.attempt(1)
    first = await ingest.attempt(0)
    lost = await ingest.staged(0, "t", 0, b"loser", attempt_id=b"b")
    unsealed = await ingest.attempt(2)
    await unsealed.stage("t", 0, b"never")
    for number in range(3):
        await second.stage("t", 0, b"1-%d" % number)
        await first.stage("t", 0, b"0-%d" % number, b"0-%d'" % number)
    await first.stage("t", 1, b"other")
    await second.seal()
    await first.seal()
    assert await lone.values() == []
    before = await ingest.describe()
    assert (before.open_attempts, before.sealed_attempts, before.sealed_records) == (1, 3, 11)

    committed = await ingest.commit(second, first)
    assert not committed.was_committed
    found = [(each.topic, each.partition, each.records) for each in committed.result.parts]
    assert found == [("t", 0, 9), ("t", 1, 1)]
    assert (committed.result.records, committed.result.dropped_attempts) == (10, 2)
    wanted = [b"0-0", b"0-0'", b"0-1", b"0-1'", b"0-2", b"0-2'", b"1-0", b"1-1", b"1-2"]
    assert await lone.values() == wanted
    assert await lone.values(1) == [b"other"]

    again = await ingest.commit(second, first)
    assert again.was_committed
    assert again.result == committed.result
    status = await lone.clients.refused("job", "CommitIngest", ingest.commit_request(lost, second))
    assert status.code is ErrorCode.INGEST_CONFLICT
    other = Ingest(lone.clients, "job")
    reopened = await other.open("t")
    assert (reopened.state, reopened.result) == (pb.INGEST_STATE_COMMITTED, committed.result)
    assert await code_of(lone.clients.any.ingests.OpenAttempt(ingest.attempt_request(5))) is ErrorCode.INGEST_COMMITTED
    assert await lone.values() == wanted
    for partition in range(2):
        await wait_freed(lone.server, lone.topic_id, partition)


async def test_abort_publishes_nothing_and_frees_the_space(lone: Lone) -> None:
    """What stays open meanwhile keeps its records."""
    ingest, other = Ingest(lone.clients, "a"), Ingest(lone.clients, "b")
    await other.open("t")
    kept = await other.staged(0, "t", 1, b"kept")
    await ingest.open("t")
    attempt = await ingest.staged(0, "t", 0, b"x")
    await ingest.abort()
    await ingest.abort()
    assert (await ingest.describe()).state == pb.INGEST_STATE_ABORTED
    for method, request in (
        ("OpenAttempt", ingest.attempt_request(1)),
        ("CommitIngest", ingest.commit_request(attempt)),
        ("TouchIngest", pb.TouchIngestRequest(ingest_id="a", ingest_epoch=1)),
    ):
        status = await lone.clients.refused("a", method, request)
        assert status.code is ErrorCode.INGEST_ABORTED, method
    replica = replica_of(lone.server, staging_topic(lone.topic_id), 0)
    assert replica is not None
    await until(lambda: replica.log_start_offset == replica.log_end_offset)
    assert (await other.commit(kept)).result.records == 1
    assert [await lone.values(), await lone.values(1)] == [[], [b"kept"]]
    assert (await ingest.open("t")).ingest_epoch == 2
    await wait_freed(lone.server, lone.topic_id, 1)


async def test_a_later_open_fences_the_earlier_client(lone: Lone) -> None:
    """Nothing of it can count any more, even if the later client names it."""
    early, late = Ingest(lone.clients, "x"), Ingest(lone.clients, "x")
    await early.open("t")
    attempt = await early.staged(0, "t", 0, b"early")
    assert (await late.open("t")).ingest_epoch == 2
    for method, request in (
        ("OpenAttempt", early.attempt_request(1)),
        ("SealAttempt", attempt.seal_request()),
        ("CommitIngest", early.commit_request(attempt)),
        ("AbortIngest", pb.AbortIngestRequest(ingest_id="x", ingest_epoch=1)),
        ("TouchIngest", pb.TouchIngestRequest(ingest_id="x", ingest_epoch=1)),
    ):
        assert (await lone.clients.refused("x", method, request)).code is ErrorCode.INGEST_FENCED, method
    status = await lone.clients.refused("x", "CommitIngest", late.commit_request(attempt))
    assert status.code is ErrorCode.INGEST_INCOMPLETE
    taken = await late.staged(0, "t", 0, b"late")
    await late.commit(taken)
    assert await lone.values() == [b"late"]


async def test_empty_manifest_commits(lone: Lone) -> None:
    """An empty data frame is legal, and its id is used up."""
    ingest = Ingest(lone.clients, "empty")
    await ingest.open("t")
    for was_committed in (False, True):
        response = await ingest.commit()
        assert response.was_committed is was_committed
        assert (response.result.records, len(response.result.parts)) == (0, 0)


async def test_rounds_of_a_repeated_ingest(lone: Lone) -> None:
    """One attempt goes on over the rounds; each round is published once, and its space returns while the ingest lives on."""
    ingest = Ingest(lone.clients, "app")
    await ingest.open("t", kind=pb.INGEST_KIND_REPEATED)
    attempt = await ingest.attempt(0)
    wanted: list[bytes] = []
    results: list[pb.IngestResult] = []
    for number in range(1, 4):
        again = await ingest.attempt(0)
        assert again.producer_id == attempt.producer_id, "it goes on"
        attempt.parts.clear()
        await attempt.stage("t", 0, b"%d" % number, b"%d'" % number)
        await attempt.seal(number)
        wanted += [b"%d" % number, b"%d'" % number]
        response = await ingest.commit(attempt, round=number)
        assert response.result.round == number
        results.append(response.result)
        assert await lone.values() == wanted
    assert (await ingest.commit(attempt, round=3)).result == results[2]
    for number in (2, 5):
        status = await lone.clients.refused("app", "CommitIngest", ingest.commit_request(attempt, round=number))
        assert status.code is ErrorCode.INVALID_REQUEST
    status = await lone.clients.refused("app", "SealAttempt", attempt.seal_request(2))
    assert status.code is ErrorCode.INVALID_REQUEST
    assert (await ingest.describe()).round == 4
    await wait_freed(lone.server, lone.topic_id, 0)
    assert await lone.values() == wanted


async def test_missing_staged_records_refuse_the_commit(lone: Lone) -> None:
    """The refusal names the task, nothing is decided, and a commit without it goes through."""
    ingest = Ingest(lone.clients, "x")
    await ingest.open("t")
    good = await ingest.staged(0, "t", 0, b"good")
    for task, (records, end_offset) in enumerate(((2, 3), (1, 100)), start=7):
        bad = await ingest.attempt(task)
        await bad.stage("t", 0, b"bad")
        part = bad.parts["t", 0]
        part.records, part.end_offset = records, part.first_offset + end_offset
        await bad.seal()
        status = await lone.clients.refused("x", "CommitIngest", ingest.commit_request(good, bad))
        assert status.code is ErrorCode.INGEST_INCOMPLETE
        assert f"task {task}" in status.message
        assert (await ingest.describe()).state == pb.INGEST_STATE_OPEN
    unsealed = await ingest.attempt(9)
    status = await lone.clients.refused("x", "CommitIngest", ingest.commit_request(good, unsealed))
    assert status.code is ErrorCode.INGEST_INCOMPLETE
    await ingest.commit(good)
    assert await lone.values() == [b"good"]


async def test_untouched_ingest_ends(lone: Lone, monkeypatch: pytest.MonkeyPatch) -> None:
    """After its time to live, and its space returns; one that is touched lives on."""
    for module in ("brokerd.ingests.opening", "brokerd.api.ingest_service.messages"):
        monkeypatch.setattr(f"{module}.TTL_MS_MIN", 1)
    touched, left = Ingest(lone.clients, "touched"), Ingest(lone.clients, "left")
    await touched.open("t", ttl_ms=5_000)
    await left.open("t", ttl_ms=500)
    await left.staged(0, "t", 0, b"x")
    touching = asyncio.create_task(_touch(touched))
    try:
        await left.wait_state(pb.INGEST_STATE_ABORTED)
        await wait_freed(lone.server, lone.topic_id, 0)
    finally:
        touching.cancel()
    assert lone.server.ingests is not None
    assert lone.server.ingests.totals.expired_ingests == 1
    assert (await touched.describe()).state == pb.INGEST_STATE_OPEN
    status = await lone.clients.refused("left", "OpenAttempt", left.attempt_request(1))
    assert status.code is ErrorCode.INGEST_ABORTED


async def _touch(ingest: Ingest) -> None:
    while True:
        request = pb.TouchIngestRequest(ingest_id=ingest.ingest_id, ingest_epoch=ingest.epoch)
        await ingest.clients.call(ingest.ingest_id, "TouchIngest", request)
        await asyncio.sleep(0.1)


async def test_topic_deleted_before_the_decision(lone: Lone) -> None:
    """The commit is refused, and nothing is decided; what is meant for other topics can still be committed."""
    await make_topic(lone.clients.any, "u", 1)
    ingest = Ingest(lone.clients, "x")
    await ingest.open("t", "u")
    gone, kept = await ingest.staged(0, "u", 0, b"gone"), await ingest.staged(1, "t", 0, b"kept")
    await lone.clients.any.admin.DeleteTopic(admin_pb2.DeleteTopicRequest(topic="u"), timeout=WAIT_S)
    status = await lone.clients.refused("x", "CommitIngest", ingest.commit_request(gone, kept))
    assert status.code is ErrorCode.UNKNOWN_TOPIC
    await ingest.commit(kept)
    assert await lone.values() == [b"kept"]


async def test_topic_deleted_after_the_decision(lone: Lone, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its part ends without offsets; the others are published."""
    await make_topic(lone.clients.any, "u", 1)
    gate = Gate(monkeypatch)
    ingest = Ingest(lone.clients, "x")
    await ingest.open("t", "u")
    gone, kept = await ingest.staged(0, "u", 0, b"gone"), await ingest.staged(1, "t", 0, b"kept")
    committing = asyncio.create_task(ingest.commit(gone, kept))
    await ingest.wait_state(pb.INGEST_STATE_DECIDED)
    await lone.clients.any.admin.DeleteTopic(admin_pb2.DeleteTopicRequest(topic="u"), timeout=WAIT_S)
    async with asyncio.timeout(WAIT_S):
        while True:
            if (await ingest.describe()).published_parts == 1:
                break
            await asyncio.sleep(0.02)
    gate.open()
    result = (await committing).result
    found = {each.topic: (each.records, each.first_offset, each.end_offset) for each in result.parts}
    assert found == {"t": (1, 0, 1), "u": (1, -1, -1)}
    assert await lone.values() == [b"kept"]
    # A reader of the topic hears that nobody says any more what is complete there.
    asked = [
        pb.PublishedPartition(topic_id=each.topic_id, partition=0, producer_id=gate.held[0].producer_id)
        for each in sorted(result.parts, key=lambda each: each.topic)
    ]
    answer = await lone.clients.any.ingests.GetPublished(pb.GetPublishedRequest(partitions=asked))
    assert [each.error.code for each in answer.partitions] == [0, int(ErrorCode.UNKNOWN_TOPIC)]
    assert answer.partitions[0].end_sequence == 1


async def test_leader_that_knows_the_topic_as_deleted_ends_its_part(
    lone: Lone, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the coordinator was not told by the metadata."""
    await make_topic(lone.clients.any, "u", 1)
    gate = Gate(monkeypatch)
    assert lone.server.ingests is not None
    await lone.server.ingests._deleted.stop()
    ingest = Ingest(lone.clients, "x")
    await ingest.open("u")
    gone = await ingest.staged(0, "u", 0, b"gone")
    committing = asyncio.create_task(ingest.commit(gone))
    await ingest.wait_state(pb.INGEST_STATE_DECIDED)
    await lone.clients.any.admin.DeleteTopic(admin_pb2.DeleteTopicRequest(topic="u"), timeout=WAIT_S)
    gate.open()
    (part,) = (await committing).result.parts
    assert (part.topic, part.records, part.first_offset, part.end_offset) == ("u", 1, -1, -1)
    assert lone.server.ingests.totals.ended_parts == 1


async def test_calls_about_a_decided_ingest_wait_for_its_publication(
    lone: Lone, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit that ran out of time is repeated, an open hears the result, and nobody can abort it."""
    gate = Gate(monkeypatch)
    ingest = Ingest(lone.clients, "x")
    await ingest.open("t")
    attempt = await ingest.staged(0, "t", 0, b"x")
    status = await refusal(lone.clients.any.ingests.CommitIngest(ingest.commit_request(attempt), timeout=1.0))
    assert status.code is ErrorCode.TIMED_OUT
    assert "decided" in status.message
    described = await ingest.describe()
    assert (described.state, described.parts, described.published_parts) == (pb.INGEST_STATE_DECIDED, 1, 0)
    assert await lone.values() == []
    aborting = pb.AbortIngestRequest(ingest_id="x", ingest_epoch=1)
    assert await code_of(lone.clients.any.ingests.AbortIngest(aborting)) is ErrorCode.INGEST_COMMITTED
    opening = asyncio.create_task(Ingest(lone.clients, "x").open("t"))
    committing = asyncio.create_task(ingest.commit(attempt))
    await asyncio.sleep(0.1)
    assert not opening.done()
    assert not committing.done()
    gate.open()
    opened, committed = await opening, await committing
    assert committed.was_committed
    assert (opened.state, opened.result) == (pb.INGEST_STATE_COMMITTED, committed.result)
    assert await lone.values() == [b"x"]


async def test_word_of_a_publication_may_be_lost(lone: Lone, monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit that waits asks again."""
    monkeypatch.setattr("brokerd.ingests.steps.ASK_AGAIN_MS", 100)
    assert lone.server.ingests is not None
    monkeypatch.setattr(lone.server.ingests, "_complete", lambda _: None)
    ingest = Ingest(lone.clients, "x")
    await ingest.open("t")
    attempt = await ingest.staged(0, "t", 0, b"x")
    committed = await ingest.commit(attempt)
    assert not committed.was_committed
    assert committed.result.records == 1


async def test_readers_learn_up_to_where_decisions_are_complete(lone: Lone, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest incomplete decision of a partition is the limit, although a later one is published there."""
    gate = Gate(monkeypatch)
    ingest = Ingest(lone.clients, "x")
    await ingest.open("t")
    attempt = await ingest.staged(0, "t", 0, b"x")
    committing = asyncio.create_task(ingest.commit(attempt))
    await ingest.wait_state(pb.INGEST_STATE_DECIDED)
    producer_id = gate.held[0].producer_id
    asked = [
        pb.PublishedPartition(topic_id=lone.topic_id, partition=0, producer_id=producer_id),
        pb.PublishedPartition(topic_id=lone.topic_id, partition=1, producer_id=producer_id),
        pb.PublishedPartition(topic_id=lone.topic_id, partition=0, producer_id=2**62 + 99),
        pb.PublishedPartition(topic_id=lone.topic_id, partition=0, producer_id=7),
    ]
    request = pb.GetPublishedRequest(partitions=asked)
    found = (await lone.clients.any.ingests.GetPublished(request)).partitions
    assert found[0].sequence == 0
    assert found[0].HasField("sequence")
    assert not found[1].HasField("sequence")
    assert [each.end_sequence for each in found[:2]] == [1, 0]
    assert [each.HasField("error") for each in found] == [False, False, True, True]
    gate.open()
    await committing
    found = (await lone.clients.any.ingests.GetPublished(request)).partitions
    assert not found[0].HasField("sequence")
    assert not found[0].HasField("error")


async def test_staging_topic_is_as_durable_as_its_topic_and_keeps_everything(lone: Lone) -> None:
    """Retention and compaction of the topic do not concern what is staged."""
    configs = {"flush.policy": "none", "cleanup.policy": "compact", "retention.ms": "1000"}
    request = admin_pb2.CreateTopicRequest(topic="u", partition_count=3, replication_factor=1, configs=configs)
    created = await lone.clients.any.admin.CreateTopic(request, timeout=WAIT_S)
    ingest = Ingest(lone.clients, "x")
    (topic,) = (await ingest.open("u")).topics
    assert topic.staging_topic == staging_topic(created.topic.topic_id)
    image = lone.server.observer.image.topic_by_name(topic.staging_topic)
    assert image is not None
    assert (len(image.partitions), image.replication_factor) == (3, 1)
    wanted = {
        "flush.policy": "none",
        "cleanup.policy": "delete",
        "retention.ms": "-1",
        "retention.bytes": "-1",
        "segment.bytes": str(16 * 1024 * 1024),
    }
    assert {name: image.configs[name] for name in wanted} == wanted


async def test_commits_of_many_clients_share_partitions(lone: Lone) -> None:
    """All of each, in one piece, and none twice."""
    ingests = [Ingest(lone.clients, f"x{number}") for number in range(12)]

    async def run(ingest: Ingest) -> None:
        await ingest.open("t")
        attempts = [await ingest.attempt(task) for task in range(2)]
        for attempt in attempts:
            for partition in range(2):
                name = f"{ingest.ingest_id}-{attempt.task}".encode()
                await attempt.stage("t", partition, name + b"-0", name + b"-1")
            await attempt.seal()
        await ingest.commit(*attempts)
        await ingest.commit(*attempts)

    await asyncio.gather(*map(run, ingests))
    for partition in range(2):
        values = await lone.values(partition)
        assert sorted(values) == sorted(
            b"%s-%d-%d" % (each.ingest_id.encode(), task, number)
            for each in ingests
            for task in range(2)
            for number in range(2)
        )
        for each in ingests:
            own = [value for value in values if value.startswith(each.ingest_id.encode() + b"-")]
            assert own == sorted(own)


async def test_broker_that_restarts_between_decision_and_publication(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit that waits is told to come back; the next process publishes, and says that it was committed."""
    async with running_broker(tmp_path) as server, clients_of(server) as clients:
        topic_id = await make_topic(clients.any, "t", 1)
        with monkeypatch.context() as patch:
            gate = Gate(patch)
            ingest = Ingest(clients, "x")
            await ingest.open("t")
            attempt = await ingest.staged(0, "t", 0, b"x")
            request = ingest.commit_request(attempt)
            committing = asyncio.create_task(code_of(clients.any.ingests.CommitIngest(request)))
            await ingest.wait_state(pb.INGEST_STATE_DECIDED)
            await until(lambda: bool(gate.held))
            async with asyncio.timeout(WAIT_S):
                await server.stop()
                assert await committing in (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOADING)
    sweep_often(monkeypatch)
    async with running_broker(tmp_path) as server, clients_of(server) as clients:
        committed = await clients.call("x", "CommitIngest", request)
        assert committed.was_committed
        assert await read_all(clients.any, "t", 0) == [b"x"]
        await wait_freed(server, topic_id, 0)


async def test_client_that_goes_away_amid_its_commit(lone: Lone, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is decided is published all the same."""
    gate = Gate(monkeypatch)
    ingest = Ingest(lone.clients, "x")
    await ingest.open("t")
    attempt = await ingest.staged(0, "t", 0, b"x")
    call = lone.clients.any.ingests.CommitIngest(ingest.commit_request(attempt))
    await ingest.wait_state(pb.INGEST_STATE_DECIDED)
    call.cancel()
    gate.open()
    assert (await ingest.wait_state(pb.INGEST_STATE_COMMITTED)).result.records == 1
    assert await lone.values() == [b"x"]


async def test_failed_publications_are_repeated(lone: Lone, monkeypatch: pytest.MonkeyPatch) -> None:
    """After any refusal but that of a deleted topic."""
    publish, codes = PublicationCalls.publish, [ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.INTERNAL, ErrorCode.DATA_LOSS]

    async def failing(calls: PublicationCalls, part: Part, **fields: int) -> PublishedPart:
        if codes:
            raise refused(codes.pop(), "not now")
        return await publish(calls, part, **fields)

    monkeypatch.setattr(PublicationCalls, "publish", failing)
    monkeypatch.setattr("brokerd.ingests.asks.PUBLISH_RETRY_MS", 50)
    ingest = Ingest(lone.clients, "x")
    await ingest.open("t")
    await ingest.commit(await ingest.staged(0, "t", 0, b"x"))
    assert await lone.values() == [b"x"]
    assert lone.server.ingests is not None
    totals = lone.server.ingests.totals
    assert (totals.failed_parts, totals.published_parts, totals.completed_decisions) == (3, 1, 1)


async def test_partition_that_lost_what_was_published_goes_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Its log was restored from an old copy. The next ingest is published whole, and its result says how many records are gone."""

    async def publish(server: BrokerServer, name: str, count: int) -> pb.IngestResult:
        async with clients_of(server) as clients:
            # Each coordinator has its own sequences, so the ingests must have the same.
            same = (each for each in map(f"{name}{{}}".format, range(1_000)) if INGESTS.partition_of(each) == 7)
            ingest = Ingest(clients, next(same))
            await ingest.open("t")
            attempts = [
                await ingest.staged(0, "t", 0, *(b"%s%d" % (name.encode(), number) for number in range(count))),
                await ingest.staged(1, "t", 1, b"whole"),
            ]
            committed = await ingest.commit(*attempts)
            assert (await ingest.describe()).result == committed.result
            return committed.result

    async with running_broker(tmp_path / "data") as server:
        async with clients_of(server) as clients:
            await make_topic(clients.any, "t", 2)
        await publish(server, "a", 2)
        replica = replica_of(server, "t", 0)
        assert replica is not None
        directory = Path(replica.log.directory)
    shutil.copytree(directory, tmp_path / "copy")
    async with running_broker(tmp_path / "data") as server:
        assert [each.lost_records for each in (await publish(server, "b", 3)).parts] == [0, 0]
    shutil.rmtree(directory)
    shutil.copytree(tmp_path / "copy", directory)
    async with running_broker(tmp_path / "data") as server:
        result = await publish(server, "c", 2)
        assert [each.lost_records for each in result.parts] == [3, 0]
        assert server.ingests is not None
        assert server.ingests.totals.lost_records == 3
        assert caplog.text.count("published records are lost") == 1
        assert [each.lost_records for each in (await publish(server, "d", 1)).parts] == [0, 0]
        async with clients_of(server) as clients:
            assert await read_all(clients.any, "t", 0) == [b"a0", b"a1", b"c0", b"c1", b"d0"]


async def test_loaded_coordinator_hears_of_topics_that_were_deleted_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody told the former one: the next one looks at all its topics, and ends their parts without asking a leader."""
    gate = Gate(monkeypatch)
    async with running_broker(tmp_path) as server, clients_of(server) as clients:
        await make_topic(clients.any, "u", 1)
        assert server.ingests is not None
        await server.ingests._deleted.stop()
        ingest = Ingest(clients, "x")
        await ingest.open("u")
        attempt = await ingest.staged(0, "u", 0, b"gone")
        request = ingest.commit_request(attempt)
        committing = asyncio.create_task(code_of(clients.any.ingests.CommitIngest(request)))
        await ingest.wait_state(pb.INGEST_STATE_DECIDED)
        await clients.any.admin.DeleteTopic(admin_pb2.DeleteTopicRequest(topic="u"), timeout=WAIT_S)
        await server.stop()
        await committing
    async with running_broker(tmp_path) as server, clients_of(server) as clients:
        (part,) = (await clients.call("x", "CommitIngest", request)).result.parts
        assert (part.records, part.first_offset, part.end_offset) == (1, -1, -1)
        assert server.ingests is not None
        assert (server.ingests.totals.published_parts, server.ingests.totals.ended_parts) == (0, 0)
    gate.open()


async def test_more_parts_than_one_broker_asks_for_at_once(lone: Lone, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that were left out are asked for later."""
    monkeypatch.setattr("brokerd.ingests.coordinators.ASKED_PARTS_MAX", 1)
    monkeypatch.setattr("brokerd.ingests.asks.PUBLISH_RETRY_MS", 50)
    ingest = Ingest(lone.clients, "x")
    await ingest.open("t")
    attempt = await ingest.attempt(0)
    for partition in range(2):
        await attempt.stage("t", partition, b"x")
    await attempt.seal()
    assert len((await ingest.commit(attempt)).result.parts) == 2
    assert lone.server.ingests is not None
    assert lone.server.ingests.totals.left_out_parts >= 1


async def test_sweep_hears_what_is_needed_in_each_partition(lone: Lone) -> None:
    """Of open attempts everything, of ended ones nothing; ids that nobody gives are garbage, those to come are not."""
    ingest, ended = Ingest(lone.clients, "x"), Ingest(lone.clients, "y")
    for each in (ingest, ended):
        await each.open("t")
    await wait_loaded(lone.server)
    live, dead = await ingest.attempt(0), await ended.attempt(0)
    await ended.abort()
    calls = lone.server.ingest_calls
    assert calls is not None
    nobody, later = 2**61 + 40 * 2**40, live.producer_id + 1_000_000
    found = await calls.live_attempts(lone.topic_id, 0, [live.producer_id, dead.producer_id, nobody, later])
    assert found == {live.producer_id: 0, dead.producer_id: None, nobody: None, later: 0}
    many = [live.producer_id + number for number in range(2_500)]
    assert len(await calls.live_attempts(lone.topic_id, 0, many)) == len(many)
    assert lone.server.ingests is not None
    await lone.server.ingests.stop()
    assert await calls.live_attempts(lone.topic_id, 0, [live.producer_id]) == {}, "nobody answers: it may be needed"


async def test_two_commits_at_the_same_time_are_one_decision(lone: Lone) -> None:
    """Both get its answer, and one of them made it."""
    for number in range(5):
        ingest = Ingest(lone.clients, f"x{number}")
        await ingest.open("t")
        attempt = await ingest.staged(0, "t", 0, b"%d" % number)
        found = await asyncio.gather(ingest.commit(attempt), ingest.commit(attempt))
        assert sorted(each.was_committed for each in found) == [False, True]
        assert found[0].result == found[1].result
    assert await lone.values() == [b"0", b"1", b"2", b"3", b"4"]


async def test_refusal_of_a_check_does_not_deny_what_another_call_has_decided(
    lone: Lone, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Meanwhile the staged records may be published and swept, and then the check misses them."""
    ingest = Ingest(lone.clients, "x")
    await ingest.open("t")
    attempt = await ingest.staged(0, "t", 0, b"once")
    check = PublicationCalls.check

    async def late(calls: PublicationCalls, *arguments: Any, **fields: Any) -> Any:
        monkeypatch.setattr(PublicationCalls, "check", check)
        assert not (await ingest.commit(attempt)).was_committed
        raise refused(ErrorCode.INGEST_INCOMPLETE, "the slices were deleted")

    monkeypatch.setattr(PublicationCalls, "check", late)
    assert (await ingest.commit(attempt)).was_committed
    assert await lone.values() == [b"once"]


async def test_topic_grows_while_an_ingest_is_open(lone: Lone) -> None:
    """Its staging topic grows with it, so an open attempt can stage for new partitions."""
    ingest = Ingest(lone.clients, "x")
    await ingest.open("t")
    attempt = await ingest.attempt(0)
    await attempt.stage("t", 0, b"old")
    request = admin_pb2.CreatePartitionsRequest(topic="t", partition_count=4)
    grown = await lone.clients.any.admin.CreatePartitions(request, timeout=WAIT_S)
    await lone.clients.see(grown.metadata_offset)
    await attempt.stage("t", 3, b"new")
    await attempt.seal()
    assert len((await ingest.commit(attempt)).result.parts) == 2
    assert [await lone.values(each) for each in (0, 3)] == [[b"old"], [b"new"]]
