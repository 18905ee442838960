# SPDX-License-Identifier: Apache-2.0
"""Consumers in groups, against a real broker: both kinds of consumer, each verb."""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta

import grpc
import pytest
from lograft import Admin, Consumer, ConsumerRecord, OffsetAndMetadata, Producer, RebalanceListener, TopicPartition, aio
from lograft._client.clock import monotonic_ms
from lograft._consumer import shared
from lograft._groups import member
from lograft.errors import (
    DeserializationError,
    GroupNotEmptyError,
    InvalidSettingError,
    LograftError,
    MembershipLostError,
    NoCommittedOffsetError,
    NotAssignedError,
    UsageError,
)
from lograft.v1 import group_pb2
from lograft.v1.group_pb2_grpc import GroupServiceStub
from tests.client.reading import DEADLINE_MS

MakeTopic = Callable[..., str]
DEADLINE_S = 60
_numbers = itertools.count()


@pytest.fixture
def group() -> str:
    """A group that no other test uses."""
    return f"group-{next(_numbers)}"


@pytest.fixture
def producer(bootstrap: str) -> Iterator[Producer]:
    """A producer."""
    with Producer(bootstrap) as made:
        yield made


def fill(producer: Producer, topic: str, partition_count: int, per_partition: int, *, start: int = 0) -> None:
    """Write numbered records to each partition; record n has time 1,000 * (n + 1)."""
    for partition in range(partition_count):
        for number in range(start, start + per_partition):
            value = b"%d:%d" % (partition, number)
            producer.send(topic, value, partition=partition, timestamp_ms=1_000 * (number + 1))
    producer.flush()


def until(is_done: Callable[[], bool], step: Callable[[], object]) -> None:
    """Repeat a step until something is true."""
    end_s = time.monotonic() + DEADLINE_S
    while not is_done():
        assert time.monotonic() < end_s, "it did not happen"
        step()


def drain(consumer: Consumer, count: int) -> list[ConsumerRecord]:
    """Poll until `count` records have come."""
    got: list[ConsumerRecord] = []
    until(lambda: len(got) >= count, lambda: got.extend(consumer.poll(timeout_ms=100)))
    assert len(got) == count
    return got


class Diary(RebalanceListener):
    """Notes what a consumer hears, and what it commits then."""

    def __init__(self, consumer: Consumer | None = None) -> None:
        self.seen: list[tuple[str, frozenset[TopicPartition]]] = []
        self.consumer = consumer

    def on_assigned(self, partitions: Sequence[TopicPartition]) -> None:
        """Note it."""
        self.seen.append(("assigned", frozenset(partitions)))

    def on_revoked(self, partitions: Sequence[TopicPartition]) -> None:
        """Note it, and commit positions if there is a consumer."""
        self.seen.append(("revoked", frozenset(partitions)))
        if self.consumer is not None:
            self.consumer.commit({tp: self.consumer.position(tp) for tp in partitions})

    def on_lost(self, partitions: Sequence[TopicPartition]) -> None:
        """Note it."""
        self.seen.append(("lost", frozenset(partitions)))


def test_one_member_reads_everything_and_the_next_goes_on_where_it_stopped(
    bootstrap: str, make_topic: MakeTopic, producer: Producer, group: str
) -> None:
    """Positions are committed at the end, so a second process gets what is new, and nothing twice."""
    topic = make_topic(3)
    fill(producer, topic, 3, 20)
    with Consumer(bootstrap, group=group) as consumer:
        consumer.subscribe([topic])
        assert len(drain(consumer, 60)) == 60
        assert consumer.subscription == (topic,)
        member = consumer.membership
        assert member is not None
        assert (member.group, member.state, member.coordinator) == (group, "member", bootstrap)
    fill(producer, topic, 3, 5, start=20)
    with Consumer(bootstrap, group=group) as consumer:
        consumer.subscribe(topic)
        values = {record.value for record in drain(consumer, 15)}
    assert values == {b"%d:%d" % (partition, number) for partition in range(3) for number in range(20, 25)}


def test_partitions_move_with_the_callbacks_and_no_record_is_skipped_or_doubled(
    bootstrap: str, make_topic: MakeTopic, producer: Producer, group: str
) -> None:
    """A second member gets half; the first hears of it before, commits in the callback, and gets it back afterwards."""
    topic = make_topic(4)
    fill(producer, topic, 4, 10)
    everything = frozenset(TopicPartition(topic, number) for number in range(4))
    with Consumer(bootstrap, group=group, auto_commit=False) as first:
        diary = Diary(first)
        first.subscribe([topic], listener=diary)
        got = [record.value for record in drain(first, 40)]
        with Consumer(bootstrap, group=group, auto_commit=False) as second:
            second.subscribe([topic])

            def poll_both() -> None:
                got.extend(record.value for record in first.poll(timeout_ms=20))
                got.extend(record.value for record in second.poll(timeout_ms=20))

            until(lambda: len(second.assignment) == 2 == len(first.assignment), poll_both)
            assert frozenset(first.assignment) | frozenset(second.assignment) == everything
            fill(producer, topic, 4, 10, start=10)
            until(lambda: len(got) >= 80, poll_both)
            second.commit()
        until(
            lambda: len(first.assignment) == 4, lambda: got.extend(record.value for record in first.poll(timeout_ms=20))
        )
        assert sorted(map(bytes, got)) == sorted(b"%d:%d" % (p, n) for p in range(4) for n in range(20))
        moved = everything - diary.seen[-1][1] if diary.seen[-1][0] == "assigned" else None
    assert [kind for kind, _ in diary.seen] == ["assigned", "revoked", "assigned", "revoked"]
    assert diary.seen[0][1] == everything == diary.seen[3][1]
    assert diary.seen[1][1] == diary.seen[2][1]
    assert moved == everything - diary.seen[1][1]


def test_revoked_partition_gives_nothing_more_although_records_are_buffered(
    bootstrap: str, make_topic: MakeTopic, producer: Producer, group: str
) -> None:
    """Records that were fetched ahead are dropped: after the callback, each record of the partition comes to the new owner."""
    topic = make_topic(2)
    fill(producer, topic, 2, 300)
    with (
        Consumer(bootstrap, group=group) as first,
        Consumer(bootstrap, group=group) as second,
    ):
        given_up: set[TopicPartition] = set()
        late: list[ConsumerRecord] = []
        first.subscribe([topic], on_revoked=given_up.update)
        got = first.poll(max_records=7, timeout_ms=DEADLINE_MS)
        second.subscribe([topic])

        def poll_both() -> None:
            records = first.poll(max_records=1, timeout_ms=20)
            late.extend(each for each in records if TopicPartition(each.topic, each.partition) in given_up)
            got.extend(records)
            got.extend(second.poll(timeout_ms=20))

        until(lambda: len(got) >= 600, poll_both)
        assert given_up
        assert late == []
    assert sorted(record.value for record in got) == sorted(b"%d:%d" % (p, n) for p in range(2) for n in range(300))


def test_pattern_joins_topics_that_come_later(bootstrap: str, admin: Admin, producer: Producer, group: str) -> None:
    """A pattern must match the whole name; a new topic that matches is read from its beginning."""
    admin.create_topic(f"{group}-a")
    admin.create_topic(f"x{group}-a")
    fill(producer, f"{group}-a", 1, 3)
    fill(producer, f"x{group}-a", 1, 3)
    with Consumer(bootstrap, group=group, reset="latest") as consumer:
        consumer.subscribe(pattern=f"{group}-.*")
        until(lambda: len(consumer.assignment) == 1, lambda: consumer.poll(timeout_ms=50))
        admin.create_topic(f"{group}-b")
        until(lambda: len(consumer.assignment) == 2, lambda: consumer.poll(timeout_ms=50))
        assert {tp.topic for tp in consumer.assignment} == {f"{group}-a", f"{group}-b"}
        fill(producer, f"{group}-b", 1, 2)
        assert [record.topic for record in drain(consumer, 2)] == [f"{group}-b"] * 2


def test_recreated_topic_is_read_from_its_beginning(
    bootstrap: str, admin: Admin, make_topic: MakeTopic, producer: Producer, group: str
) -> None:
    """Offsets belong to the topic id: those of the deleted topic never apply to its successor."""
    topic = make_topic(1)
    fill(producer, topic, 1, 50)
    tp = TopicPartition(topic, 0)
    with Consumer(bootstrap, group=group) as consumer:
        diary = Diary()
        consumer.subscribe([topic], listener=diary)
        drain(consumer, 50)
        consumer.commit()
        admin.delete_topic(topic)
        admin.create_topic(topic)
        with Producer(bootstrap) as second:
            fill(second, topic, 1, 60)
        got = drain(consumer, 60)
        assert [record.offset for record in got] == list(range(60))
        assert consumer.position(tp) == 60
    assert [kind for kind, _ in diary.seen] == ["assigned", "revoked", "assigned", "revoked"]


@pytest.mark.parametrize(
    ("reset", "first"),
    [("earliest", 0), ("latest", 100), (timedelta(days=365 * 200), 0), (timedelta(seconds=0), 100)],
)
def test_reset_applies_where_no_offset_is_committed(
    bootstrap: str, make_topic: MakeTopic, producer: Producer, group: str, reset: str | timedelta, first: int
) -> None:
    """It decides for the partition without an offset alone; the other one begins at its committed offset."""
    topic = make_topic(2)
    fill(producer, topic, 2, 100)
    new, known = TopicPartition(topic, 0), TopicPartition(topic, 1)
    with Consumer(bootstrap, group=group) as consumer:
        consumer.commit({known: 42})
    with Consumer(bootstrap, group=group, reset=reset, auto_commit=False) as consumer:
        starts: dict[TopicPartition, int] = {}
        consumer.subscribe([topic], on_assigned=lambda tps: starts.update((tp, consumer.position(tp)) for tp in tps))
        until(lambda: len(starts) == 2, lambda: consumer.poll(timeout_ms=50))
    assert starts == {new: first, known: 42}


def test_reset_none_raises_until_a_seek(bootstrap: str, make_topic: MakeTopic, producer: Producer, group: str) -> None:
    """With "none" a missing offset is the application's decision. Nothing is committed for it before."""
    topic = make_topic(1)
    fill(producer, topic, 1, 10)
    tp = TopicPartition(topic, 0)
    with Consumer(bootstrap, group=group, reset="none") as consumer:
        consumer.subscribe([topic])
        until(lambda: bool(consumer.assignment), lambda: _poll_through(consumer))
        for _ in range(2):
            with pytest.raises(NoCommittedOffsetError, match="seek"):
                consumer.poll(timeout_ms=DEADLINE_MS)
        consumer.commit()
        assert consumer.committed(tp) is None
        consumer.seek(tp, 7)
        assert [record.offset for record in drain(consumer, 3)] == [7, 8, 9]


def _poll_through(consumer: Consumer) -> None:
    try:
        consumer.poll(timeout_ms=50)
    except NoCommittedOffsetError:
        return


def test_commit_takes_positions_numbers_metadata_records_and_batches(
    bootstrap: str, make_topic: MakeTopic, producer: Producer, group: str
) -> None:
    """Each form is stored as it was given; positions carry the leader epoch of what was read."""
    topic = make_topic(2)
    fill(producer, topic, 2, 10)
    a, b = TopicPartition(topic, 0), TopicPartition(topic, 1)
    with Consumer(bootstrap, group=group, auto_commit=False) as consumer:
        consumer.assign([a, b])
        assert consumer.committed([a, b]) == {a: None, b: None}
        records = consumer.poll(max_records=3, timeout_ms=DEADLINE_MS)
        consumer.commit()
        of = TopicPartition(records[0].topic, records[0].partition)
        stored = consumer.committed(of)
        assert stored is not None
        assert (stored.offset, stored.metadata, stored.leader_epoch) == (3, "", 0)
        assert abs(stored.commit_ms - time.time_ns() // 1_000_000) < 60_000
        consumer.commit({a: 4, b: OffsetAndMetadata(5, "half", 7)})
        found = consumer.committed()
        assert found[a] is not None
        assert found[b] is not None
        assert (found[a].offset, found[b][:3]) == (4, (5, "half", 7))
        consumer.commit(records[1])
        assert consumer.committed(of)[0] == records[1].offset + 1  # type: ignore[index]
        with pytest.raises(UsageError, match="metadata"):
            consumer.commit({a: OffsetAndMetadata(1, "x" * 5_000)})
        with pytest.raises(UsageError, match="offset"):
            consumer.commit({a: -1})


def test_commit_async_keeps_the_order_and_calls_back_in_a_poll(
    bootstrap: str, make_topic: MakeTopic, producer: Producer, group: str
) -> None:
    """The last offset wins, and every callback comes, in the thread that polls."""
    topic = make_topic(1)
    tp = TopicPartition(topic, 0)
    fill(producer, topic, 1, 1)
    done: list[tuple[int, LograftError | None]] = []
    with Consumer(bootstrap, group=group, auto_commit=False) as consumer:
        consumer.assign([tp])
        for offset in range(20):
            consumer.commit_async({tp: offset}, lambda offsets, error: done.append((offsets[tp].offset, error)))
        assert done == []
        until(lambda: len(done) == 20, lambda: consumer.poll(timeout_ms=20))
        assert sorted(done) == [(offset, None) for offset in range(20)]
        stored = consumer.committed(tp)
        assert stored is not None
        assert stored.offset == 19


def test_commit_in_the_background_is_stored_before_a_partition_is_given_up(
    bootstrap: str, make_topic: MakeTopic, producer: Producer, group: str
) -> None:
    """The callback of a revocation only starts the commit; the next owner goes on behind it."""
    topic = make_topic(2)
    fill(producer, topic, 2, 10)
    with Consumer(bootstrap, group=group, auto_commit=False) as first:
        first.subscribe([topic], on_revoked=lambda tps: first.commit_async({tp: first.position(tp) for tp in tps}))
        drain(first, 20)
        with Consumer(bootstrap, group=group, auto_commit=False) as second:
            second.subscribe([topic])

            def poll_both() -> None:
                assert first.poll(timeout_ms=20) == []
                assert second.poll(timeout_ms=20) == []

            until(lambda: len(second.assignment) == 1 == len(first.assignment), poll_both)
            assert [second.position(tp) for tp in second.assignment] == [10]


def test_former_owner_cannot_commit(bootstrap: str, make_topic: MakeTopic, producer: Producer, group: str) -> None:
    """A commit for a partition that another member has is refused with the type that says so; nobody's commit too."""
    topic = make_topic(2)
    fill(producer, topic, 2, 5)
    with Consumer(bootstrap, group=group) as first, Consumer(bootstrap, group=group) as second:
        for consumer in (first, second):
            consumer.subscribe([topic])
        until(
            lambda: len(first.assignment) == 1 == len(second.assignment),
            lambda: (first.poll(timeout_ms=20), second.poll(timeout_ms=20)),
        )
        (theirs,) = second.assignment
        with pytest.raises(MembershipLostError):
            first.commit({theirs: 1})
        with Consumer(bootstrap, group=group) as outsider, pytest.raises(GroupNotEmptyError):
            outsider.commit({theirs: 1})


def test_automatic_commit_counts_what_was_polled_before(
    bootstrap: str, make_topic: MakeTopic, producer: Producer, group: str
) -> None:
    """What the last poll returned is not committed before the next poll begins."""
    topic = make_topic(1)
    tp = TopicPartition(topic, 0)
    fill(producer, topic, 1, 30)
    with Consumer(bootstrap, group=group, auto_commit_interval_ms=100) as consumer:
        consumer.subscribe([topic])
        until(lambda: bool(consumer.assignment), lambda: consumer.poll(max_records=1, timeout_ms=50))
        until(lambda: consumer.position(tp) >= 10, lambda: consumer.poll(max_records=1, timeout_ms=50))
        position = consumer.position(tp)
        time_out = time.monotonic() + 0.5
        until(lambda: time.monotonic() > time_out, lambda: consumer.committed(tp))
        stored = consumer.committed(tp)
        assert stored is None or stored.offset < position
        consumer.poll(max_records=1, timeout_ms=0)
        until(lambda: (consumer.committed(tp) or OffsetAndMetadata(-1)).offset >= position, lambda: None)


def test_block_that_fails_does_not_commit_what_it_was_working_on(
    bootstrap: str, make_topic: MakeTopic, producer: Producer, group: str
) -> None:
    """The record in the loop whose body raised comes again; those before it do not."""
    topic = make_topic(1)
    fill(producer, topic, 1, 10)

    def fail_at(offset: int) -> None:
        with Consumer(bootstrap, group=group) as consumer:
            consumer.subscribe([topic])
            for record in consumer:
                assert record.offset != offset, "bad record"

    with pytest.raises(AssertionError, match="bad record"):
        fail_at(6)
    with Consumer(bootstrap, group=group) as consumer:
        consumer.subscribe([topic])
        assert [record.offset for record in drain(consumer, 4)] == [6, 7, 8, 9]


def test_iteration_moves_the_position_with_each_record_and_ends_in_time(
    bootstrap: str, make_topic: MakeTopic, producer: Producer
) -> None:
    """A loop may stop anywhere and another one goes on; without records it ends after the time."""
    topic = make_topic(1)
    tp = TopicPartition(topic, 0)
    fill(producer, topic, 1, 10)
    with Consumer(bootstrap) as consumer:
        consumer.assign([tp])
        for record in consumer.records():
            assert consumer.position(tp) == record.offset + 1
            if record.offset == 3:
                break
        assert [record.offset for record in consumer.records(timeout_ms=300)] == [4, 5, 6, 7, 8, 9]


def test_consume_waits_for_the_count(bootstrap: str, make_topic: MakeTopic, producer: Producer) -> None:
    """It returns as many as asked for, over several batches, and fewer when the time is up."""
    topic = make_topic(3)
    fill(producer, topic, 3, 4)
    with Consumer(bootstrap) as consumer:
        consumer.assign([TopicPartition(topic, number) for number in range(3)])
        assert len(consumer.consume(10, timeout_ms=DEADLINE_MS)) == 10
        assert len(consumer.consume(10, timeout_ms=200)) == 2
        assert consumer.consume(1, timeout_ms=0) == []


def test_paused_partition_gives_nothing_and_goes_on_without_a_gap(
    bootstrap: str, make_topic: MakeTopic, producer: Producer
) -> None:
    """The others flow on. After `resume` the next record is the one after the last."""
    topic = make_topic(2)
    a, b = TopicPartition(topic, 0), TopicPartition(topic, 1)
    fill(producer, topic, 2, 20)
    with Consumer(bootstrap) as consumer:
        consumer.assign([a, b])
        got = consumer.consume(3, timeout_ms=DEADLINE_MS)
        consumer.pause(a)
        assert consumer.paused == [a]
        before = consumer.position(a)
        got += consumer.consume(100, timeout_ms=400)
        assert consumer.position(a) == before
        assert consumer.position(b) == 20
        consumer.resume()
        assert consumer.paused == []
        got += consumer.consume(20 - before, timeout_ms=DEADLINE_MS)
        assert [record.offset for record in got if record.partition == 0] == list(range(20))
        with pytest.raises(NotAssignedError):
            consumer.pause(TopicPartition(topic, 5))


def test_seek_of_many_and_lag(bootstrap: str, make_topic: MakeTopic, producer: Producer) -> None:
    """Mappings move several partitions at once; the lag counts records and the age of the last batch."""
    topic = make_topic(2)
    a, b = TopicPartition(topic, 0), TopicPartition(topic, 1)
    fill(producer, topic, 2, 20)
    with Consumer(bootstrap) as consumer:
        consumer.assign([a, b])
        consumer.seek({a: 5, b: 18})
        assert (consumer.position(a), consumer.position(b)) == (5, 18)
        consumer.seek_to_time({a: 11_000, b: 99_000_000})
        assert (consumer.position(a), consumer.position(b)) == (10, 20)
        consumer.consume(4, timeout_ms=DEADLINE_MS)
        lag = consumer.lag(a)[a]
        assert lag.records == 6
        assert lag.seconds is not None
        assert lag.seconds > 1_000_000
        consumer.consume(6, timeout_ms=DEADLINE_MS)
        until(lambda: consumer.is_caught_up, lambda: consumer.poll(timeout_ms=50))
        assert consumer.lag() == {a: (0, 0.0), b: (0, 0.0)}
        with pytest.raises(UsageError, match="mapping"):
            consumer.seek({a: 1}, 2)  # type: ignore[call-overload]


def test_ends_of_partitions_are_told_once_each_time(bootstrap: str, make_topic: MakeTopic, producer: Producer) -> None:
    """Each end comes after its records, once, and again after further records."""
    topic = make_topic(2)
    ends: list[tuple[int, int]] = []
    caught_up: list[int] = []
    with Consumer(
        bootstrap,
        on_partition_end=lambda tp, offset: ends.append((tp.partition, offset)),
        on_caught_up=lambda: caught_up.append(len(ends)),
    ) as consumer:
        fill(producer, topic, 2, 5)
        consumer.assign([TopicPartition(topic, 0), TopicPartition(topic, 1)])
        until(lambda: len(ends) == 2, lambda: consumer.poll(timeout_ms=20))
        assert sorted(ends) == [(0, 5), (1, 5)]
        until(lambda: caught_up == [2], lambda: consumer.poll(timeout_ms=20))
        fill(producer, topic, 1, 2, start=5)
        until(lambda: len(ends) == 3, lambda: consumer.poll(timeout_ms=20))
        assert ends[2] == (0, 7)
        consumer.poll(timeout_ms=100)
        assert len(ends) == 3
        assert caught_up == [2, 3]


def test_deserializers_make_values_and_a_bad_record_stays(
    bootstrap: str, make_topic: MakeTopic, producer: Producer
) -> None:
    """Good records before it come first; the bad one raises until a seek skips it; tombstones pass untouched."""
    topic = make_topic(1)
    tp = TopicPartition(topic, 0)
    for value in (b"1", b"[2]", b"{", None, b"5"):
        producer.send(topic, value, key=b"k", partition=0)
    producer.flush()
    with Consumer(bootstrap, value_deserializer=json.loads, key_deserializer=bytes.decode) as consumer:
        consumer.assign([tp])
        records = consumer.consume(2, timeout_ms=DEADLINE_MS)
        assert [(record.key, record.value) for record in records] == [("k", 1), ("k", [2])]
        for _ in range(2):
            with pytest.raises(DeserializationError, match="offset 2") as caught:
                consumer.poll(timeout_ms=DEADLINE_MS)
            assert (caught.value.offset, caught.value.value) == (2, b"{")
            assert isinstance(caught.value.__cause__, json.JSONDecodeError)
            assert consumer.position(tp) == 2
        consumer.seek(tp, 3)
        assert [record.value for record in consumer.consume(2, timeout_ms=DEADLINE_MS)] == [None, 5]


def test_next_process_of_a_static_member_takes_over(
    bootstrap: str, make_topic: MakeTopic, producer: Producer, group: str
) -> None:
    """After a close its partitions wait for it, and nobody else hears of anything."""
    topic = make_topic(4)
    fill(producer, topic, 4, 5)
    with Consumer(bootstrap, group=group, instance_id="b") as other:
        diary = Diary()
        first = Consumer(bootstrap, group=group, instance_id="a")
        first.subscribe([topic])
        other.subscribe([topic], listener=diary)
        until(
            lambda: len(first.assignment) == 2 == len(other.assignment),
            lambda: (first.poll(timeout_ms=20), other.poll(timeout_ms=20)),
        )
        mine = frozenset(first.assignment)
        first.close()
        before = list(diary.seen)
        with Consumer(bootstrap, group=group, instance_id="a") as second:
            second.subscribe([topic])
            until(
                lambda: frozenset(second.assignment) == mine,
                lambda: (second.poll(timeout_ms=20), other.poll(timeout_ms=20)),
            )
            assert diary.seen == before


def test_unsubscribe_leaves_for_good_and_the_consumer_can_go_on(
    bootstrap: str, make_topic: MakeTopic, producer: Producer, group: str
) -> None:
    """It gives everything up with the callback, and may assign or subscribe afterwards."""
    topic = make_topic(2)
    fill(producer, topic, 2, 5)
    with Consumer(bootstrap, group=group) as consumer:
        diary = Diary()
        consumer.subscribe([topic], listener=diary)
        drain(consumer, 10)
        with pytest.raises(UsageError, match="unsubscribe"):
            consumer.assign([TopicPartition(topic, 0)])
        consumer.unsubscribe()
        assert (consumer.assignment, consumer.membership, consumer.subscription) == ([], None, ())
        assert [kind for kind, _ in diary.seen] == ["assigned", "revoked"]
        consumer.assign([TopicPartition(topic, 0)])
        assert consumer.position(TopicPartition(topic, 0)) == 5, "assign in a group begins at the committed offset"
        with pytest.raises(UsageError, match="assign"):
            consumer.subscribe([topic])
        consumer.assign([])
        consumer.subscribe([topic])
        until(lambda: len(consumer.assignment) == 2, lambda: consumer.poll(timeout_ms=50))


def test_unsubscribe_commits_everything_that_was_handed_out(
    bootstrap: str, make_topic: MakeTopic, producer: Producer, group: str
) -> None:
    """As `close` does. No further poll says that the records of the last one are processed: the call itself does."""
    topic = make_topic(1)
    fill(producer, topic, 1, 5)
    with Consumer(bootstrap, group=group) as consumer:
        consumer.subscribe(topic)
        drain(consumer, 5)
        consumer.unsubscribe()
        tp = TopicPartition(topic, 0)
        committed = consumer.committed([tp])[tp]
        assert committed is not None
        assert committed.offset == 5


def test_another_assignment_commits_everything_that_was_handed_out(
    bootstrap: str, make_topic: MakeTopic, producer: Producer, group: str
) -> None:
    """A program that reads partitions of its own choice with a group goes on where it was, also after a change of its choice."""
    topic = make_topic(2)
    fill(producer, topic, 2, 5)
    first, second = (TopicPartition(topic, partition) for partition in range(2))
    with Consumer(bootstrap, group=group) as consumer:
        consumer.assign([first])
        drain(consumer, 5)
        consumer.assign([second])
        drain(consumer, 5)
        consumer.assign([first, second])
        assert (consumer.position(first), consumer.position(second)) == (5, 5)
        consumer.unsubscribe()
    with Consumer(bootstrap, group=group, auto_commit=False) as consumer:
        consumer.assign([first])
        assert consumer.position(first) == 5


def jump(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let more than a session pass. No timer of the loop knows of it, as in the first moment after a SIGCONT."""
    for module in (shared, member):
        monkeypatch.setattr(module, "monotonic_ms", lambda: monotonic_ms() + 60_000)


def test_member_whose_process_was_stopped_beyond_its_session_delivers_nothing_more(
    bootstrap: str, make_topic: MakeTopic, producer: Producer, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When a stopped process goes on, its first poll may come before its timers. Others may have the partitions: it is told first."""
    topic = make_topic(1)
    fill(producer, topic, 1, 10)
    with Consumer(bootstrap, group=group, auto_commit=False) as consumer:
        diary = Diary()
        consumer.subscribe(topic, listener=diary)
        until(lambda: bool(consumer.poll(max_records=1, timeout_ms=100)), lambda: None)
        jump(monkeypatch)
        assert consumer.poll(max_records=5, timeout_ms=0) == []
        assert [kind for kind, _ in diary.seen] == ["assigned", "lost"]
        records = drain(consumer, 10)
    assert [record.offset for record in records] == list(range(10))


def test_iteration_after_a_stop_beyond_the_session_begins_with_the_loss(
    bootstrap: str, make_topic: MakeTopic, producer: Producer, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fast way of an iteration looks at the session too."""
    topic = make_topic(1)
    fill(producer, topic, 1, 10)
    with Consumer(bootstrap, group=group, auto_commit=False) as consumer:
        diary = Diary()
        consumer.subscribe(topic, listener=diary)
        records = consumer.records(timeout_ms=DEADLINE_MS)
        assert next(records).offset == 0
        jump(monkeypatch)
        assert next(records).offset == 0
        assert [kind for kind, _ in diary.seen] == ["assigned", "lost", "assigned"]


def test_application_that_stalls_loses_its_partitions_and_gets_them_again(
    bootstrap: str, make_topic: MakeTopic, producer: Producer, group: str
) -> None:
    """Heartbeats go on, but they prove only the process. The other member has the partitions before the stalled one is back."""
    topic = make_topic(2)
    fill(producer, topic, 2, 5)
    with (
        Consumer(bootstrap, group=group, processing_limit_ms=1_000) as slow,
        Consumer(bootstrap, group=group) as other,
    ):
        diary = Diary()
        slow.subscribe([topic], listener=diary)
        until(lambda: len(slow.assignment) == 2, lambda: slow.poll(timeout_ms=20))
        other.subscribe([topic])
        until(lambda: len(other.assignment) == 2, lambda: other.poll(timeout_ms=50))
        until(
            lambda: len(slow.assignment) == 1 == len(other.assignment),
            lambda: (slow.poll(timeout_ms=20), other.poll(timeout_ms=20)),
        )
    kinds = [kind for kind, _ in diary.seen]
    assert kinds[:2] == ["assigned", "lost"], kinds
    assert kinds[2] == "assigned"


def test_callback_that_stalls_counts_against_the_processing_limit(
    bootstrap: str, make_topic: MakeTopic, group: str
) -> None:
    """A listener that never returns keeps the partitions from the other members no longer than the application itself could."""
    topic = make_topic(2)
    is_called, may_return = threading.Event(), threading.Event()

    def stall(_: list[TopicPartition]) -> None:
        is_called.set()
        may_return.wait(DEADLINE_S)

    with (
        Consumer(bootstrap, group=group, processing_limit_ms=1_000) as slow,
        Consumer(bootstrap, group=group) as other,
    ):
        slow.subscribe([topic], on_assigned=stall)
        poller = threading.Thread(target=lambda: until(may_return.is_set, lambda: slow.poll(timeout_ms=20)))
        poller.start()
        try:
            assert is_called.wait(DEADLINE_S)
            other.subscribe([topic])
            until(lambda: len(other.assignment) == 2, lambda: other.poll(timeout_ms=50))
        finally:
            may_return.set()
            poller.join()


def test_wrong_use_is_refused_with_what_to_do(bootstrap: str, group: str) -> None:
    """Each misuse has its own text, and final refusals of the coordinator reach the poll."""
    with Consumer(bootstrap) as consumer:
        for call in (lambda: consumer.subscribe(["x"]), consumer.commit, consumer.committed):
            with pytest.raises(UsageError, match="group="):
                call()
    for wrong in ({"reset": "begin"}, {"reset": timedelta(-1)}, {"assignor": "sticky"}, {"group": ""}):
        with pytest.raises(InvalidSettingError):
            Consumer(bootstrap, **{"group": group, **wrong})  # type: ignore[arg-type]
    with pytest.raises(InvalidSettingError, match="give group"):
        Consumer(bootstrap, instance_id="a")
    with Consumer(bootstrap, group=group) as consumer:
        with pytest.raises(UsageError, match="at least one"):
            consumer.subscribe([])
        consumer.subscribe(pattern="(")
        for _ in range(2):
            with pytest.raises(LograftError, match="pattern"):
                until(lambda: False, lambda: consumer.poll(timeout_ms=50))


def test_error_of_a_callback_reaches_the_poll_and_the_rebalance_goes_on(
    bootstrap: str, make_topic: MakeTopic, producer: Producer, group: str
) -> None:
    """A failing listener does not keep the partition: the other member gets it all the same."""
    topic = make_topic(2)
    fill(producer, topic, 2, 5)

    def fail(tps: Sequence[TopicPartition]) -> None:
        raise RuntimeError(f"no {len(tps)}")

    with Consumer(bootstrap, group=group) as first, Consumer(bootstrap, group=group) as second:
        first.subscribe([topic], on_revoked=fail)
        until(lambda: len(first.assignment) == 2, lambda: first.poll(timeout_ms=20))
        second.subscribe([topic])
        with pytest.raises(RuntimeError, match="no 1"):
            until(lambda: False, lambda: (first.poll(timeout_ms=20), second.poll(timeout_ms=20)))
        until(lambda: len(second.assignment) == 1, lambda: (first.poll(timeout_ms=20), second.poll(timeout_ms=20)))
        first.subscribe([topic])


def test_poll_in_a_callback_is_refused(bootstrap: str, make_topic: MakeTopic, group: str) -> None:
    """It would wait for itself."""
    topic = make_topic(1)
    with Consumer(bootstrap, group=group) as consumer:
        consumer.subscribe([topic], on_assigned=lambda tps: consumer.poll())
        with pytest.raises(UsageError, match="must not poll"):
            until(lambda: False, lambda: consumer.poll(timeout_ms=50))
        consumer.subscribe([topic])


async def test_asyncio_members_share_and_their_callbacks_may_wait(
    bootstrap: str, make_topic: MakeTopic, producer: Producer, group: str
) -> None:
    """Coroutine functions are awaited within the poll, and can commit."""
    topic = make_topic(4)
    fill(producer, topic, 4, 10)
    kinds: list[str] = []

    async with aio.Consumer(bootstrap, group=group, auto_commit=False) as first:

        async def on_revoked(tps: Sequence[TopicPartition]) -> None:
            await first.commit({tp: first.position(tp) for tp in tps})
            kinds.append("revoked")

        await first.subscribe([topic], on_revoked=on_revoked, on_assigned=lambda tps: kinds.append("assigned"))
        got = await first.consume(40, timeout_ms=DEADLINE_MS)
        assert len(got) == 40
        async with aio.Consumer(bootstrap, group=group, auto_commit=False) as second:
            await second.subscribe([topic])
            end_s = time.monotonic() + DEADLINE_S
            while len(second.assignment) < 2:
                assert time.monotonic() < end_s
                await first.poll(timeout_ms=20)
                assert await second.poll(timeout_ms=20) == [], "the revoked partitions were committed at their ends"
            await second.pause()
            await second.resume()
            found = await second.committed()
            assert {each.offset for each in found.values() if each is not None} == {10}
            done: list[object] = []
            second.commit_async(on_done=lambda offsets, error: done.append(error))
            while not done:
                assert time.monotonic() < end_s
                await second.poll(timeout_ms=20)
            assert done == [None]
        count = 0
        await first.seek(dict.fromkeys(first.assignment, 0))
        async for _ in first.records(timeout_ms=300):
            count += 1
        assert count >= 20
    assert kinds[0] == "assigned"
    assert "revoked" in kinds


def test_instance_id_of_a_live_process_is_not_taken(
    bootstrap: str, make_topic: MakeTopic, producer: Producer, group: str
) -> None:
    """A second process with the name waits; nothing is taken from the first."""
    topic = make_topic(1)
    fill(producer, topic, 1, 3)
    with Consumer(bootstrap, group=group, instance_id="a") as first:
        first.subscribe([topic])
        drain(first, 3)
        with Consumer(bootstrap, group=group, instance_id="a") as second:
            second.subscribe([topic])
            for _ in range(10):
                assert second.poll(timeout_ms=20) == []
                first.poll(timeout_ms=20)
            assert second.assignment == []
            assert first.assignment == [TopicPartition(topic, 0)]


@pytest.mark.parametrize(("client_id", "shown"), [("billing-7", "billing-7"), (None, "lograft-python")])
def test_description_of_a_group_names_the_program_of_each_member(
    bootstrap: str, make_topic: MakeTopic, group: str, client_id: str | None, shown: str
) -> None:
    """Operators see which program a member is, by its `client_id`."""
    with Consumer(bootstrap, group=group, client_id=client_id) as consumer:
        consumer.subscribe([make_topic()])
        until(lambda: bool(consumer.assignment), lambda: consumer.poll(timeout_ms=100))
        with grpc.insecure_channel(bootstrap) as channel:
            request = group_pb2.DescribeGroupRequest(group_id=group)
            description = GroupServiceStub(channel).DescribeGroup(request, timeout=DEADLINE_S)
    assert [member.client_id for member in description.members] == [shown]
