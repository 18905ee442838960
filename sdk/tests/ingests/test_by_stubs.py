# SPDX-License-Identifier: Apache-2.0
"""Ingests and transactions with generated stubs alone: what docs/clients.md says about each call is so."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import grpc
import pytest
from lograft.v1 import ingest_pb2 as pb
from lograft.v1 import ingest_pb2_grpc, log_pb2, log_pb2_grpc
from tests.ingests.stub_client import CALL_S, StubIngest, committed_offset, read_all, refusal_of

MakeTopic = Callable[..., str]
PUBLISHING = 2**62
"""First producer id of published batches."""


@pytest.fixture
def make_ingest(bootstrap: str) -> Iterator[Callable[..., StubIngest]]:
    """Make a client of an ingest."""
    made: list[StubIngest] = []

    def make(ingest_id: str, *topics: str, is_repeated: bool = False) -> StubIngest:
        made.append(StubIngest(bootstrap, ingest_id, topics, is_repeated=is_repeated))
        return made[-1]

    yield make
    for each in made:
        each.close()


def reason(call: Callable[[], object]) -> str:
    """Return the reason with which a call is refused."""
    with pytest.raises(grpc.RpcError) as raised:
        call()
    return refusal_of(raised.value).reason


def test_a_job_publishes_once(
    bootstrap: str, make_topic: MakeTopic, ingest_id: str, make_ingest: Callable[..., StubIngest]
) -> None:
    """Two tasks, a try that does not count, calls that come twice, and the job again."""
    topic = make_topic(2)
    ingest = make_ingest(ingest_id, topic)
    assert ingest.open().state == pb.INGEST_STATE_OPEN
    assert [each.topic for each in ingest.opened.topics] == [topic]
    late = ingest.open_attempt(1)
    loser = ingest.open_attempt(0)
    winner = ingest.open_attempt(0)
    assert len({late.producer_id, loser.producer_id, winner.producer_id}) == 3
    ingest.append(loser, topic, 0, [b"lost"])
    assert not ingest.append(late, topic, 0, [b"c", b"d"])
    assert not ingest.append(winner, topic, 0, [b"a"])
    assert not ingest.append(winner, topic, 0, [b"b"])
    ingest.append(winner, topic, 1, [b"e"])
    # The same call again, as after a lost answer.
    winner.sequences[topic, 1] = 0
    assert ingest.append(winner, topic, 1, [b"e"])
    ingest.touch()
    manifest = [ingest.seal(each) for each in (winner, late)]
    assert ingest.seal(winner) == manifest[0]
    assert [each.records for each in manifest] == [3, 2]
    assert read_all(bootstrap, topic, 0) == []
    done = ingest.commit(manifest)
    assert not done.was_committed
    assert {(each.partition, each.first_offset, each.end_offset) for each in done.result.parts} == {
        (0, 0, 4),
        (1, 0, 1),
    }
    assert done.result.dropped_attempts == 1
    assert [read_all(bootstrap, topic, number) for number in range(2)] == [[b"a", b"b", b"c", b"d"], [b"e"]]
    again = ingest.commit(manifest)
    assert (again.was_committed, again.result) == (True, done.result)
    assert reason(lambda: ingest.commit(manifest[:1])) == "INGEST_CONFLICT"
    assert reason(lambda: ingest.open_attempt(2)) == "INGEST_COMMITTED"
    assert reason(ingest.abort) == "INGEST_COMMITTED"
    rerun = make_ingest(ingest_id, topic)
    assert rerun.open().state == pb.INGEST_STATE_COMMITTED
    assert rerun.opened.result == done.result
    assert reason(lambda: make_ingest(ingest_id, topic, is_repeated=True).open()) == "INGEST_CONFLICT"


def test_what_is_refused(make_topic: MakeTopic, ingest_id: str, make_ingest: Callable[..., StubIngest]) -> None:
    """The table of the page: fenced, incomplete, aborted, out of order, never opened."""
    topic = make_topic(1)
    ingest = make_ingest(ingest_id, topic)
    ingest.epoch = 1
    assert reason(ingest.touch) == "INGEST_NOT_FOUND"
    assert reason(lambda: make_ingest(ingest_id, f"{topic}-missing").open()) == "UNKNOWN_TOPIC"
    ingest.open()
    attempt = ingest.open_attempt(0)
    ingest.append(attempt, topic, 0, [b"a"])
    entry = pb.ManifestEntry(task=0, attempt_id=attempt.attempt_id, records=1)
    assert reason(lambda: ingest.commit([entry])) == "INGEST_INCOMPLETE"
    attempt.staged[topic, 0].next_sequence += 1
    attempt.staged[topic, 0].end_offset += 1
    lying = ingest.seal(attempt)
    assert reason(lambda: ingest.commit([lying])) == "INGEST_INCOMPLETE"
    attempt.staged[topic, 0].next_sequence -= 1
    assert reason(lambda: ingest.seal(attempt)) == "INGEST_CONFLICT"
    gap = ingest.open_attempt(0)
    ingest.append(gap, topic, 0, [b"a"])
    gap.sequences[topic, 0] = 5
    assert reason(lambda: ingest.append(gap, topic, 0, [b"b"])) == "OUT_OF_ORDER_SEQUENCE"
    newer = make_ingest(ingest_id, topic)
    newer.open()
    assert newer.epoch == ingest.epoch + 1
    for call in (lambda: ingest.open_attempt(1), ingest.touch, ingest.abort, lambda: ingest.commit([])):
        assert reason(call) == "INGEST_FENCED"
    newer.abort()
    newer.abort()
    assert reason(lambda: newer.open_attempt(0)) == "INGEST_ABORTED"
    assert newer.open().ingest_epoch == ingest.epoch + 2
    assert newer.commit([]).result.records == 0


def test_transactions_with_offsets_of_a_group(
    bootstrap: str, make_topic: MakeTopic, ingest_id: str, group: str, make_ingest: Callable[..., StubIngest]
) -> None:
    """Rounds of one attempt that goes on, an abort, a commit whose answer was lost, and a takeover."""
    source, sink = make_topic(1), make_topic(1)
    program = make_ingest(ingest_id, source, sink, is_repeated=True)
    program.open()
    ids = {each.topic: each.topic_id for each in program.opened.topics}

    def offsets(offset: int, number: int) -> pb.IngestOffsets:
        moved = pb.IngestOffset(topic_id=ids[source], partition=0, offset=offset)
        return pb.IngestOffsets(group_id=group, offsets=[moved], commit_number=number)

    attempt = program.open_attempt(0)
    for number in range(3):
        program.append(attempt, sink, 0, [b"%d" % number])
        program.append(attempt, sink, 0, [b"%d again" % number])
        done = program.commit([program.seal(attempt)], offsets(number + 1, number + 1))
        assert (done.result.round, done.result.records, program.round) == (number + 1, 2, number + 2)
        assert committed_offset(bootstrap, group, ids[source], 0) == number + 1
        before, attempt = attempt, program.open_attempt(0, attempt)
        assert attempt.producer_id == before.producer_id, "a sealed attempt goes on"
        assert attempt.sequences == {(sink, 0): 2 * number + 2}
    program.append(attempt, sink, 0, [b"aborted"])
    program.abort()
    assert committed_offset(bootstrap, group, ids[source], 0) == 3
    program.open()
    attempt = program.open_attempt(0, attempt)
    assert attempt.sequences == {}, "another producer id begins at 0"
    program.append(attempt, sink, 0, [b"3"])
    manifest, moved = [program.seal(attempt)], offsets(4, 4)
    done = program.commit(manifest, moved)
    program.round = done.result.round
    assert program.commit(manifest, moved) == pb.CommitIngestResponse(result=done.result, was_committed=True)
    program.round = 99
    assert reason(lambda: program.commit(manifest, moved)) == "INVALID_REQUEST"
    # A program that did not hear opens again: the result says which round was committed last.
    heir = make_ingest(ingest_id, source, sink, is_repeated=True)
    assert heir.open().result == done.result
    assert heir.round == done.result.round + 1
    assert committed_offset(bootstrap, group, ids[source], 0) == 4
    wanted = [b"0", b"0 again", b"1", b"1 again", b"2", b"2 again", b"3"]
    assert read_all(bootstrap, sink, 0) == wanted


def test_a_reader_asks_whether_all_of_it_is_there(
    bootstrap: str, make_topic: MakeTopic, ingest_id: str, make_ingest: Callable[..., StubIngest]
) -> None:
    """The header of a published batch says whom to ask, and for what."""
    topic = make_topic(1)
    ingest = make_ingest(ingest_id, topic)
    ingest.open()
    attempt = ingest.open_attempt(0)
    ingest.append(attempt, topic, 0, [b"a", b"b"])
    ingest.commit([ingest.seal(attempt)])
    with grpc.insecure_channel(bootstrap) as channel:
        opening = log_pb2.FetchOpen(
            routes=[log_pb2.FetchRoute(route=0, topic=topic, partition=0, offset=0)], credit_bytes=1 << 20
        )
        stream = log_pb2_grpc.LogServiceStub(channel).Fetch(iter([log_pb2.FetchRequest(open=opening)]), timeout=CALL_S)
        batch = next(each.chunk.body for each in stream if each.WhichOneof("message") == "chunk")
        stream.cancel()
        producer_id = int.from_bytes(batch[43:51], "big")
        sequence = int.from_bytes(batch[53:57], "big")
        assert producer_id >= PUBLISHING
        place = pb.PublishedPartition(topic_id=ingest.opened.topics[0].topic_id, partition=0, producer_id=producer_id)
        (found,) = (
            ingest_pb2_grpc.IngestServiceStub(channel)
            .GetPublished(pb.GetPublishedRequest(partitions=[place]), timeout=CALL_S)
            .partitions
        )
        assert not found.HasField("error")
        assert not found.HasField("sequence")
        assert found.end_sequence == sequence + 2
