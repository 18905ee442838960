# SPDX-License-Identifier: Apache-2.0
"""IngestService of one broker: fields that mean nothing, lists, limits, and offsets of groups."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from lograft.v1 import admin_pb2, group_pb2
from lograft.v1 import ingest_pb2 as pb
from lograft.wire.codes import ErrorCode

from brokerd.failure import RefusedError, refused
from brokerd.ingests.commands import GroupOffset
from brokerd.ingests.coordinators import WITHOUT_GROUPS, GroupOffsetsCalls, IngestCoordinators, OffsetsToPrepare
from brokerd.ingests.effects import ResolveOffsets
from brokerd.process.server import BrokerServer
from brokerd.tests.api.group_clients import coordinator_of, make_topic, served
from brokerd.tests.ingests.ingest_clients import Clients, Ingest, clients_of, code_of, until, wait_loaded
from brokerd.tests.publishing.staging_clients import read_all
from brokerd.tests.support import WAIT_S, refusal, running_broker


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[BrokerServer]:
    async with running_broker(tmp_path) as made:
        yield made


@pytest.fixture
async def clients(server: BrokerServer) -> AsyncIterator[Clients]:
    async with clients_of(server) as made:
        yield made


def coordinators_of(server: BrokerServer) -> IngestCoordinators:
    assert server.ingests is not None
    return server.ingests


OPEN = {"ingest_id": "x", "kind": pb.INGEST_KIND_SINGLE, "topics": ["t"]}
ATTEMPT = {"ingest_id": "x", "ingest_epoch": 1, "task": 0, "attempt_id": b"a"}
PART = {"topic_id": bytes(16), "partition": 0, "first_sequence": 0, "records": 1, "first_offset": 0, "end_offset": 1}
COMMIT = {"ingest_id": "x", "ingest_epoch": 1, "round": 1}
OFFSETS: dict[str, Any] = {"group_id": "g", "offsets": [pb.IngestOffset(topic_id=bytes(16), partition=0, offset=0)]}


def seal(**fields: Any) -> pb.SealAttemptRequest:
    return pb.SealAttemptRequest(**{**ATTEMPT, "parts": [pb.StagedPart(**{**PART, **fields})]})


def with_offsets(**fields: Any) -> pb.CommitIngestRequest:
    return pb.CommitIngestRequest(**COMMIT, offsets=pb.IngestOffsets(**{**OFFSETS, **fields}))


def offset(**fields: Any) -> list[pb.IngestOffset]:
    return [pb.IngestOffset(**{"topic_id": bytes(16), "partition": 0, "offset": 0, **fields})]


BAD: list[tuple[str, Any, ErrorCode]] = [
    ("FindIngestCoordinator", pb.FindIngestCoordinatorRequest(), ErrorCode.INVALID_REQUEST),
    ("FindIngestCoordinator", pb.FindIngestCoordinatorRequest(ingest_ids=["x"] * 1001), ErrorCode.INVALID_REQUEST),
    ("FindIngestCoordinator", pb.FindIngestCoordinatorRequest(ingest_ids=[""]), ErrorCode.INVALID_REQUEST),
    (
        "FindIngestCoordinator",
        pb.FindIngestCoordinatorRequest(cluster_id="?", ingest_ids=["x"]),
        ErrorCode.WRONG_CLUSTER,
    ),
    ("OpenIngest", pb.OpenIngestRequest(**{**OPEN, "ingest_id": "é" * 128}), ErrorCode.INVALID_REQUEST),
    ("OpenIngest", pb.OpenIngestRequest(**{**OPEN, "kind": 0}), ErrorCode.INVALID_REQUEST),
    ("OpenIngest", pb.OpenIngestRequest(**{**OPEN, "kind": 9}), ErrorCode.INVALID_REQUEST),
    ("OpenIngest", pb.OpenIngestRequest(**{**OPEN, "topics": []}), ErrorCode.INVALID_REQUEST),
    ("OpenIngest", pb.OpenIngestRequest(**{**OPEN, "topics": ["t", "t"]}), ErrorCode.INVALID_REQUEST),
    ("OpenIngest", pb.OpenIngestRequest(**{**OPEN, "topics": ["t"] * 101}), ErrorCode.LIMIT_EXCEEDED),
    ("OpenIngest", pb.OpenIngestRequest(**{**OPEN, "topics": ["a/b"]}), ErrorCode.INVALID_TOPIC_NAME),
    ("OpenIngest", pb.OpenIngestRequest(**{**OPEN, "topics": ["__groups"]}), ErrorCode.INVALID_TOPIC_NAME),
    ("OpenIngest", pb.OpenIngestRequest(**{**OPEN, "topics": ["nowhere"]}), ErrorCode.UNKNOWN_TOPIC),
    ("OpenIngest", pb.OpenIngestRequest(**OPEN, ttl_ms=1), ErrorCode.INVALID_REQUEST),
    ("OpenIngest", pb.OpenIngestRequest(**OPEN, ttl_ms=-1), ErrorCode.INVALID_REQUEST),
    ("OpenIngest", pb.OpenIngestRequest(**OPEN, ttl_ms=604_800_001), ErrorCode.INVALID_REQUEST),
    ("OpenIngest", pb.OpenIngestRequest(**OPEN, owner=b"o" * 65), ErrorCode.INVALID_REQUEST),
    ("OpenIngest", pb.OpenIngestRequest(**OPEN, cluster_id="?"), ErrorCode.WRONG_CLUSTER),
    ("OpenAttempt", pb.OpenAttemptRequest(**{**ATTEMPT, "ingest_epoch": 0}), ErrorCode.INVALID_REQUEST),
    ("OpenAttempt", pb.OpenAttemptRequest(**{**ATTEMPT, "task": -1}), ErrorCode.INVALID_REQUEST),
    ("OpenAttempt", pb.OpenAttemptRequest(**{**ATTEMPT, "attempt_id": b""}), ErrorCode.INVALID_REQUEST),
    ("OpenAttempt", pb.OpenAttemptRequest(**{**ATTEMPT, "attempt_id": bytes(65)}), ErrorCode.INVALID_REQUEST),
    ("OpenAttempt", pb.OpenAttemptRequest(**ATTEMPT), ErrorCode.INGEST_NOT_FOUND),
    ("SealAttempt", pb.SealAttemptRequest(**ATTEMPT, round=-1), ErrorCode.INVALID_REQUEST),
    ("SealAttempt", pb.SealAttemptRequest(**ATTEMPT, parts=[pb.StagedPart(**PART)] * 3001), ErrorCode.LIMIT_EXCEEDED),
    ("SealAttempt", seal(topic_id=b"x"), ErrorCode.INVALID_REQUEST),
    ("SealAttempt", seal(partition=-1), ErrorCode.INVALID_REQUEST),
    ("SealAttempt", seal(first_sequence=-1), ErrorCode.INVALID_REQUEST),
    ("SealAttempt", seal(records=0), ErrorCode.INVALID_REQUEST),
    ("SealAttempt", seal(first_offset=-1), ErrorCode.INVALID_REQUEST),
    ("SealAttempt", seal(end_offset=0), ErrorCode.INVALID_REQUEST),
    ("SealAttempt", seal(end_offset=2**63 - 1), ErrorCode.INVALID_REQUEST),
    ("CommitIngest", pb.CommitIngestRequest(**{**COMMIT, "round": 0}), ErrorCode.INVALID_REQUEST),
    ("CommitIngest", pb.CommitIngestRequest(**{**COMMIT, "ingest_epoch": -1}), ErrorCode.INVALID_REQUEST),
    (
        "CommitIngest",
        pb.CommitIngestRequest(**COMMIT, manifest=[pb.ManifestEntry(task=0, attempt_id=b"a", records=-1)]),
        ErrorCode.INVALID_REQUEST,
    ),
    (
        "CommitIngest",
        pb.CommitIngestRequest(**COMMIT, manifest=[pb.ManifestEntry(task=0, attempt_id=b"a")] * 20_001),
        ErrorCode.LIMIT_EXCEEDED,
    ),
    (
        "CommitIngest",
        pb.CommitIngestRequest(**COMMIT, manifest=[pb.ManifestEntry(task=0, attempt_id=b"a")] * 2),
        ErrorCode.INVALID_REQUEST,
    ),
    ("CommitIngest", with_offsets(group_id=""), ErrorCode.INVALID_REQUEST),
    ("CommitIngest", with_offsets(offsets=[]), ErrorCode.INVALID_REQUEST),
    ("CommitIngest", with_offsets(offsets=offset(topic_id=b"x")), ErrorCode.INVALID_REQUEST),
    ("CommitIngest", with_offsets(offsets=offset(offset=-1)), ErrorCode.INVALID_REQUEST),
    ("CommitIngest", with_offsets(offsets=offset(partition=-1)), ErrorCode.INVALID_REQUEST),
    ("CommitIngest", with_offsets(offsets=offset(metadata="x" * 4097)), ErrorCode.INVALID_REQUEST),
    ("CommitIngest", with_offsets(offsets=offset() * 2), ErrorCode.INVALID_REQUEST),
    ("CommitIngest", with_offsets(offsets=offset() * 4001), ErrorCode.LIMIT_EXCEEDED),
    ("CommitIngest", with_offsets(commit_number=-1), ErrorCode.INVALID_REQUEST),
    ("CommitIngest", with_offsets(), ErrorCode.INGEST_NOT_FOUND),
    ("AbortIngest", pb.AbortIngestRequest(ingest_id="x", ingest_epoch=-1), ErrorCode.INVALID_REQUEST),
    ("AbortIngest", pb.AbortIngestRequest(ingest_id="x", round=-1), ErrorCode.INVALID_REQUEST),
    ("AbortIngest", pb.AbortIngestRequest(ingest_id="x"), ErrorCode.INGEST_NOT_FOUND),
    ("TouchIngest", pb.TouchIngestRequest(ingest_id="x"), ErrorCode.INVALID_REQUEST),
    ("DescribeIngest", pb.DescribeIngestRequest(ingest_id=""), ErrorCode.INVALID_REQUEST),
    ("DescribeIngest", pb.DescribeIngestRequest(ingest_id="x"), ErrorCode.INGEST_NOT_FOUND),
    ("ListIngests", pb.ListIngestsRequest(limit=1001), ErrorCode.INVALID_REQUEST),
    ("ListIngests", pb.ListIngestsRequest(limit=-1), ErrorCode.INVALID_REQUEST),
    ("ListIngests", pb.ListIngestsRequest(after="x" * 256), ErrorCode.INVALID_REQUEST),
    ("ListIngests", pb.ListIngestsRequest(states=[0]), ErrorCode.INVALID_REQUEST),
    ("GetPublished", pb.GetPublishedRequest(), ErrorCode.INVALID_REQUEST),
    ("GetPublished", pb.GetPublishedRequest(partitions=[pb.PublishedPartition()] * 1001), ErrorCode.INVALID_REQUEST),
    ("GetPublished", pb.GetPublishedRequest(partitions=[pb.PublishedPartition()]), ErrorCode.INVALID_REQUEST),
]


async def test_fields_that_mean_nothing_are_refused(server: BrokerServer, clients: Clients) -> None:
    """Each with a typed error that says what to do; nothing is opened, and no staging topic is made."""
    await make_topic(clients.any, "t", 1)
    await clients.coordinator("x")
    await clients.refused("x", "DescribeIngest", pb.DescribeIngestRequest(ingest_id="x"))
    for method, request, code in BAD:
        status = await refusal(getattr(clients.any.ingests, method)(request, timeout=WAIT_S))
        assert status.code is code, (method, request, status)
        assert status.message
    assert not any(each.topic.startswith("__staging") for each in server.observer.image.topics())
    assert (await clients.any.ingests.ListIngests(pb.ListIngestsRequest())).ingests == []


async def test_ingests_are_listed_in_pages(clients: Clients) -> None:
    """By id, over all coordinators, and by state."""
    await make_topic(clients.any, "t", 1)
    assert (await clients.any.ingests.ListIngests(pb.ListIngestsRequest())).ingests == []
    names = [f"i{number:02}" for number in range(12)]
    for name in names:
        ingest = Ingest(clients, name)
        await ingest.open("t", kind=pb.INGEST_KIND_REPEATED)
        if name == "i03":
            await ingest.abort()
    found: list[str] = []
    while True:
        page = await clients.any.ingests.ListIngests(pb.ListIngestsRequest(limit=5, after=found[-1] if found else ""))
        found += [each.ingest_id for each in page.ingests]
        if not page.has_more:
            break
    assert found == names
    aborted = await clients.any.ingests.ListIngests(pb.ListIngestsRequest(states=[pb.INGEST_STATE_ABORTED]))
    (only,) = aborted.ingests
    assert (only.ingest_id, only.kind, only.ttl_ms) == ("i03", pb.INGEST_KIND_REPEATED, 3_600_000)
    assert only.topics[0].topic == "t"
    assert only.touched_ms > 1_700_000_000_000


async def test_an_ingest_keeps_its_kind(clients: Clients) -> None:
    """The other kind is a conflict, whatever its state."""
    await make_topic(clients.any, "t", 1)
    ingest = Ingest(clients, "x")
    await ingest.open("t")
    request = ingest.open_request("t", kind=pb.INGEST_KIND_REPEATED)
    assert (await clients.refused("x", "OpenIngest", request)).code is ErrorCode.INGEST_CONFLICT
    await ingest.commit()
    assert (await clients.refused("x", "OpenIngest", request)).code is ErrorCode.INGEST_CONFLICT


async def test_committed_ingest_is_answered_after_its_topic_has_gone(clients: Clients) -> None:
    """A job that runs again has nothing to do, whatever became of its topic."""
    await make_topic(clients.any, "t", 1)
    ingest = Ingest(clients, "x")
    await ingest.open("t")
    committed = await ingest.commit(await ingest.staged(0, "t", 0, b"x"))
    await clients.any.admin.DeleteTopic(admin_pb2.DeleteTopicRequest(topic="t"), timeout=WAIT_S)
    opened = await Ingest(clients, "x").open("t")
    assert opened.state == pb.INGEST_STATE_COMMITTED
    assert opened.result == committed.result
    assert opened.result.parts[0].topic == "t", "the ingest knows its name"


async def test_too_many_commits_at_once(clients: Clients, monkeypatch: pytest.MonkeyPatch) -> None:
    """Are told to come back."""
    await make_topic(clients.any, "t", 1)
    ingest = Ingest(clients, "x")
    await ingest.open("t")
    monkeypatch.setattr("brokerd.ingests.coordinators.COMMITS_MAX", 0)
    assert await code_of(clients.any.ingests.CommitIngest(ingest.commit_request())) is ErrorCode.OVERLOADED
    monkeypatch.undo()
    await ingest.commit()


class Group:
    """A group that prepares what it is asked for, and what it was told.

    Attributes:
        refusals: codes of the next prepares, and of the next outcomes, before one succeeds.
        prepared: what was prepared.
        told: outcomes.
    """

    def __init__(self, server: BrokerServer) -> None:
        self.refusals: list[ErrorCode] = []
        self.prepared: list[OffsetsToPrepare] = []
        self.told: list[ResolveOffsets] = []
        coordinators_of(server).group_offsets = GroupOffsetsCalls(prepare=self._prepare, resolve=self._resolve)

    async def _prepare(self, asked: OffsetsToPrepare) -> None:
        self._refuse()
        self.prepared.append(asked)

    async def _resolve(self, asked: ResolveOffsets) -> None:
        self._refuse()
        self.told.append(asked)

    def _refuse(self) -> None:
        if self.refusals:
            raise refused(self.refusals.pop(0), "the group says no")

    async def wait_told(self, count: int) -> list[bool]:
        """Wait for a number of outcomes."""
        await until(lambda: len(self.told) >= count)
        return [each.is_committed for each in self.told]


async def test_offsets_of_a_group_go_with_the_decision(server: BrokerServer, clients: Clients) -> None:
    """Prepared before it, resolved after it; the group's refusal refuses the commit, and passing ones are repeated."""
    topic_id = await make_topic(clients.any, "t", 1)
    group, ingest = Group(server), Ingest(clients, "x")
    await ingest.open("t", kind=pb.INGEST_KIND_REPEATED)
    attempt = await ingest.staged(0, "t", 0, b"x")
    offsets = pb.IngestOffsets(
        group_id="g",
        member_id="m",
        member_epoch=7,
        instance_id="i",
        commit_number=9,
        offsets=[pb.IngestOffset(topic_id=topic_id, partition=0, offset=5, leader_epoch=2, metadata="text")],
    )
    group.refusals = [ErrorCode.STALE_MEMBER_EPOCH]
    status = await clients.refused("x", "CommitIngest", ingest.commit_request(attempt, offsets=offsets))
    assert status.code is ErrorCode.STALE_MEMBER_EPOCH
    assert (await ingest.describe()).state == pb.INGEST_STATE_OPEN
    group.refusals = [ErrorCode.COORDINATOR_LOADING, ErrorCode.NOT_COORDINATOR]
    await ingest.commit(attempt, offsets=offsets)
    assert await group.wait_told(1) == [True]
    (asked,) = group.prepared
    assert (asked.group_id, asked.ingest_id, asked.ingest_epoch, asked.round) == ("g", "x", 1, 1)
    assert (asked.member_id, asked.member_epoch, asked.instance_id, asked.commit_number) == ("m", 7, "i", 9)
    (only,) = asked.offsets
    assert (only.topic_id, only.partition, only.offset, only.leader_epoch, only.metadata) == (topic_id, 0, 5, 2, "text")
    assert (await ingest.commit(attempt, offsets=offsets)).was_committed
    assert len(group.prepared) == 1

    # The next round is aborted: what was prepared for it does not count. The group is told until it has heard it.
    ingest.round = 2
    again = await ingest.staged(0, "t", 0, b"y", attempt_id=b"b")
    bad = ingest.commit_request(again, round=2, offsets=offsets)
    bad.offsets.commit_number = 10
    group.refusals = [ErrorCode.STALE_MEMBER_EPOCH]
    await clients.refused("x", "CommitIngest", bad)
    group.refusals = [ErrorCode.TIMED_OUT] * 2
    await ingest.abort()
    assert await group.wait_told(2) == [True, False]
    assert (group.told[1].ingest_epoch, group.told[1].round) == (1, 2)
    assert await read_all(clients.any, "t", 0) == [b"x"]


async def test_broker_without_groups_takes_no_offsets(server: BrokerServer, clients: Clients) -> None:
    """The commit is refused before anything is decided, and goes through without them."""
    topic_id = await make_topic(clients.any, "t", 1)
    coordinators_of(server).group_offsets = WITHOUT_GROUPS
    ingest = Ingest(clients, "x")
    await ingest.open("t")
    offsets = pb.IngestOffsets(group_id="g", offsets=[pb.IngestOffset(topic_id=topic_id, partition=0, offset=5)])
    status = await clients.refused("x", "CommitIngest", ingest.commit_request(offsets=offsets))
    assert status.code is ErrorCode.INVALID_REQUEST
    assert "offsets" in status.message
    await ingest.commit()


async def test_group_has_the_offsets_of_what_is_committed(clients: Clients) -> None:
    """Of each round that is committed, as soon as its records can be read; those of an aborted one never."""
    topic_id = await make_topic(clients.any, "t", 1)
    await coordinator_of(clients.any, "g")
    ingest = Ingest(clients, "x")
    await ingest.open("t", kind=pb.INGEST_KIND_REPEATED)
    for number in (1, 2):
        ingest.round = number
        attempt = await ingest.staged(0, "t", 0, b"%d" % number, attempt_id=b"%d" % number)
        offsets = pb.IngestOffsets(
            group_id="g",
            member_epoch=-1,
            offsets=[pb.IngestOffset(topic_id=topic_id, partition=0, offset=10 * number)],
        )
        await ingest.commit(attempt, offsets=offsets)
        assert await settled_offset(clients, topic_id) == 10 * number
    stale = pb.IngestOffsets(group_id="g", member_id="nobody", member_epoch=3, offsets=offsets.offsets)
    ingest.round = 3
    status = await clients.refused("x", "CommitIngest", ingest.commit_request(offsets=stale))
    assert status.code is ErrorCode.UNKNOWN_MEMBER
    await ingest.abort()
    assert await settled_offset(clients, topic_id) == 20


async def committed_offset(clients: Clients, topic_id: bytes) -> group_pb2.CommittedOffset:
    """Return what group `g` answers for partition 0."""
    topics = [group_pb2.PartitionsOfTopic(topic_id=topic_id, partitions=[0])]
    request = group_pb2.FetchOffsetsRequest(group_id="g", topics=topics)
    return (await served(clients.any.groups.FetchOffsets, request)).offsets[0]


async def settled_offset(clients: Clients, topic_id: bytes) -> int | None:
    """Return the offset of partition 0 once no decision is awaited; None: positively none."""
    async with asyncio.timeout(WAIT_S):
        while True:
            found = await committed_offset(clients, topic_id)
            if not found.HasField("error"):
                return found.offset if found.HasField("offset") else None
            assert found.error.code == int(ErrorCode.OFFSETS_PENDING)
            await asyncio.sleep(0.02)


async def test_program_that_dies_before_the_decision_holds_its_group_up_for_seconds(
    server: BrokerServer, clients: Clients
) -> None:
    """The group asks what becomes of what was prepared, and that aborts the round."""
    topic_id = await make_topic(clients.any, "t", 1)
    await coordinator_of(clients.any, "g")
    ingest = Ingest(clients, "x")
    await ingest.open("t")
    await coordinators_of(server).group_offsets.prepare(
        OffsetsToPrepare(
            group_id="g",
            ingest_id="x",
            ingest_epoch=1,
            round=1,
            offsets=(GroupOffset(topic_id=topic_id, partition=0, offset=5),),
            member_id="",
            member_epoch=-1,
            instance_id="",
            commit_number=0,
        )
    )
    assert (await committed_offset(clients, topic_id)).error.code == int(ErrorCode.OFFSETS_PENDING)
    assert await settled_offset(clients, topic_id) is None
    assert (await ingest.describe()).state == pb.INGEST_STATE_ABORTED


async def test_question_of_a_group_decides(server: BrokerServer, clients: Clients) -> None:
    """What is undecided is aborted; what is decided counts; what nobody knows does not."""
    await make_topic(clients.any, "t", 1)
    calls = server.ingest_calls
    assert calls is not None
    lone, done = Ingest(clients, "open"), Ingest(clients, "done")
    await lone.open("t")
    await done.open("t")
    await done.commit()
    await wait_loaded(server)
    asked = {"ingest_epoch": 1, "round_number": 1, "group_id": "g"}
    assert not await calls.decide_outcome("open", **asked)
    assert await calls.decide_outcome("done", **asked)
    assert not await calls.decide_outcome("unknown", **asked)
    assert (await lone.describe()).state == pb.INGEST_STATE_ABORTED


async def test_broker_that_may_have_been_replaced_says_nothing_that_could_be_wrong(
    server: BrokerServer, clients: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It refuses nothing by what it knows and describes nothing; what its log takes it answers."""
    await make_topic(clients.any, "t", 1)
    ingest = Ingest(clients, "x")
    await ingest.open("t")
    attempt = await ingest.staged(0, "t", 0, b"x")
    await wait_loaded(server)
    monkeypatch.setattr(coordinators_of(server), "_is_lost", lambda: True)
    service = clients.any.ingests
    for call in (
        service.DescribeIngest(pb.DescribeIngestRequest(ingest_id="x")),
        service.TouchIngest(pb.TouchIngestRequest(ingest_id="unknown", ingest_epoch=1)),
        service.CommitIngest(pb.CommitIngestRequest(ingest_id="x", ingest_epoch=1, round=2)),
    ):
        assert await code_of(call) is ErrorCode.NOT_COORDINATOR
    published = pb.PublishedPartition(topic_id=bytes(16), partition=0, producer_id=2**62)
    found = await service.GetPublished(pb.GetPublishedRequest(partitions=[published]))
    assert found.partitions[0].error.code == int(ErrorCode.NOT_COORDINATOR)
    assert list((await service.ListIngests(pb.ListIngestsRequest())).missing_coordinator_ids) == [1]
    assert server.ingest_calls is not None
    with pytest.raises(RefusedError, match="NOT_COORDINATOR"):
        await server.ingest_calls.decide_outcome("y", ingest_epoch=1, round_number=1, group_id="g")
    committed = await service.CommitIngest(ingest.commit_request(attempt))
    assert committed.result.records == 1
