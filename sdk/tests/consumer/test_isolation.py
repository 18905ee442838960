# SPDX-License-Identifier: Apache-2.0
"""`isolation="committed-together"` against a real broker whose publications are held up."""

from __future__ import annotations

import asyncio
import itertools
import pickle
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress

import pytest
from lograft import Admin, Consumer, Producer, TopicPartition, Transaction, aio
from lograft.errors import (
    ClientClosedError,
    InvalidSettingError,
    IsolationTimeoutError,
    LograftError,
    UnknownTopicError,
)
from lograft.settings import ConsumerSettings
from lograft.wire.codes import ErrorCode
from tests.consumer.publications import Publications
from tests.groups.group_relay import GroupRelay

MakeTopic = Callable[..., str]
TOGETHER = "committed-together"
GET_PUBLISHED = "/lograft.v1.IngestService/GetPublished"
DEADLINE_S = 60
SHORT_MS = 150
"""Milliseconds in which something that must not happen would have happened."""
_numbers = itertools.count()


@pytest.fixture
def publications(monkeypatch: pytest.MonkeyPatch) -> Publications:
    """The publications of the cluster."""
    return Publications(monkeypatch)


class HeldUp:
    """A transaction with one record in each of two partitions, of which partition 1 is not published."""

    def __init__(self, bootstrap: str, admin: Admin, publications: Publications, topic: str) -> None:
        self.topic = topic
        self.tps = [TopicPartition(topic, 0), TopicPartition(topic, 1)]
        self._publications = publications
        self._place = (admin.describe_topic(topic).topic_id, 1)
        self._producer = Producer(bootstrap)
        self._pool = ThreadPoolExecutor(1)
        publications.held.add(self._place)
        self._commit: Future[None] = self._pool.submit(self._transact)
        with Consumer(bootstrap) as consumer:
            consumer.assign(self.tps, start="earliest")
            until(lambda: bool(consumer.poll(timeout_ms=100)), "the first part is published")

    def _transact(self) -> None:
        with self._producer.transaction(f"held-{next(_numbers)}") as transaction:
            for tp in self.tps:
                transaction.send(self.topic, b"%d" % tp.partition, partition=tp.partition)

    def release(self) -> None:
        """Let the rest through, and wait for the commit."""
        self._publications.held.discard(self._place)
        self._commit.result(DEADLINE_S)

    def close(self) -> None:
        """End everything."""
        self._publications.held.discard(self._place)
        with suppress(LograftError):
            self._commit.result(DEADLINE_S)
        self._pool.shutdown()
        self._producer.close()


@pytest.fixture
def held(bootstrap: str, admin: Admin, make_topic: MakeTopic, publications: Publications) -> Iterator[HeldUp]:
    """A transaction that is half published."""
    made = HeldUp(bootstrap, admin, publications, make_topic(2))
    yield made
    made.close()


def until(is_so: Callable[[], bool], what: str) -> None:
    """Look again and again until something is so."""
    end_s = time.monotonic() + DEADLINE_S
    while not is_so():
        assert time.monotonic() < end_s, f"never: {what}"


@contextmanager
def reader(bootstrap: str, held: HeldUp, timeout_ms: int = 30_000) -> Iterator[Consumer]:
    """A consumer of both partitions that waits for whole decisions."""
    with Consumer(bootstrap, isolation=TOGETHER, isolation_timeout_ms=timeout_ms) as consumer:
        consumer.assign(held.tps)
        yield consumer


def _poll(consumer: Consumer, timeout_ms: int) -> list[tuple[int, bytes | None]]:
    return [(each.partition, each.value) for each in consumer.poll(timeout_ms=timeout_ms)]


def _poll_batch(consumer: Consumer, timeout_ms: int) -> list[tuple[int, bytes | None]]:
    batch = consumer.poll_batch(timeout_ms)
    return [] if batch is None else [(batch.partition, each) for each in batch.values()]


def _arrow(consumer: Consumer, timeout_ms: int) -> list[tuple[int, bytes | None]]:
    batch = consumer.poll_batch(timeout_ms)
    return [] if batch is None else [(batch.partition, each) for each in batch.to_arrow().column("value").to_pylist()]


def _consume(consumer: Consumer, timeout_ms: int) -> list[tuple[int, bytes | None]]:
    return [(each.partition, each.value) for each in consumer.consume(1, timeout_ms=timeout_ms)]


def _iterate(consumer: Consumer, timeout_ms: int) -> list[tuple[int, bytes | None]]:
    return [(each.partition, each.value) for each in consumer.records(timeout_ms)]


def nothing_comes(
    consumer: Consumer, held: HeldUp, read: Callable[[Consumer, int], list[tuple[int, bytes | None]]] = _poll
) -> None:
    """Have the half that is published arrive, and read nothing of it."""
    until(lambda: read(consumer, 50) == [] and consumer.lag(held.tps[0])[held.tps[0]].records is not None, "it arrives")
    assert read(consumer, SHORT_MS) == []


@pytest.mark.parametrize("read", [_poll, _poll_batch, _arrow, _consume, _iterate])
def test_every_way_of_reading_waits_for_the_whole_decision(
    bootstrap: str, held: HeldUp, read: Callable[[Consumer, int], list[tuple[int, bytes | None]]]
) -> None:
    """Nothing comes of the half that is published, and everything when the other half is. Nobody else waits."""
    with reader(bootstrap, held) as consumer:
        nothing_comes(consumer, held, read)
        assert consumer.position(held.tps[0]) == 0
        assert not consumer.is_caught_up
        held_ms = [consumer.health().partitions[tp].held_ms for tp in held.tps]
        assert held_ms[0] is not None
        assert held_ms[1] is None
        assert consumer.lag(held.tps[0])[held.tps[0]].records == 1
        held.release()
        got: list[tuple[int, bytes | None]] = []
        until(lambda: bool(got.extend(read(consumer, 100)) or len(got) == 2), "both come")
        assert sorted(got) == [(0, b"0"), (1, b"1")]


def test_other_partitions_and_records_before_go_on(
    bootstrap: str, admin: Admin, held: HeldUp, make_topic: MakeTopic
) -> None:
    """Only the partition of the batch waits, and what comes after the batch in it."""
    other = make_topic(1)
    with Producer(bootstrap) as producer, reader(bootstrap, held) as consumer:
        consumer.assign([*held.tps, TopicPartition(other, 0)])
        got: list[tuple[str, int, bytes | None]] = []

        def read() -> None:
            got.extend((each.topic, each.partition, each.value) for each in consumer.poll(timeout_ms=50))

        for number in range(5):
            producer.send(other, b"%d" % number)
            producer.send(held.topic, b"behind", partition=0)
            producer.send(held.topic, b"free", partition=1)
            producer.flush()
            until(lambda wanted=2 * number + 2: bool(read() or len(got) == wanted), "the others go on")
        assert {each[:2] for each in got} == {(other, 0), (held.topic, 1)}
        held.release()
        until(lambda: bool(read() or len(got) == 17), "all come")
        assert [each[2] for each in got if each[:2] == (held.topic, 0)] == [b"0", *[b"behind"] * 5]
        assert [each[2] for each in got if each[:2] == (held.topic, 1)] == [*[b"free"] * 5, b"1"]


def test_the_time_is_over_once_and_the_wait_goes_on(bootstrap: str, held: HeldUp) -> None:
    """The error says where, and what to do. It comes again only after another term."""
    with reader(bootstrap, held, timeout_ms=1_500) as consumer:
        begin_s = time.monotonic()
        with pytest.raises(
            IsolationTimeoutError, match=r"not published in all its partitions.*lograft ingest list"
        ) as raised:
            consumer.poll(timeout_ms=DEADLINE_S * 1_000)
        assert time.monotonic() - begin_s >= 1.5
        error = raised.value
        assert (error.topic, error.partition, error.offset) == (held.topic, 0, 0)
        assert error.code is ErrorCode.TIMED_OUT
        assert consumer.poll(timeout_ms=0) == []
        with pytest.raises(IsolationTimeoutError):
            consumer.poll_batch(DEADLINE_S * 1_000)
        held.release()
        assert len(consumer.consume(2, timeout_ms=DEADLINE_S * 1_000)) == 2


def test_records_that_precede_the_error_come_first(bootstrap: str, held: HeldUp) -> None:
    """`consume` returns them, and the next call raises."""
    with Producer(bootstrap) as producer, reader(bootstrap, held, timeout_ms=2_000) as consumer:
        producer.send(held.topic, b"free", partition=1)
        producer.flush()
        assert [each.value for each in consumer.consume(5, timeout_ms=DEADLINE_S * 1_000)] == [b"free"]
        with pytest.raises(IsolationTimeoutError):
            consumer.consume(5, timeout_ms=0)
        assert consumer.consume(5, timeout_ms=0) == []


def test_a_plain_reader_waits_for_nothing(bootstrap: str, held: HeldUp) -> None:
    """It has no gate at all."""
    with Consumer(bootstrap) as consumer:
        consumer.assign(held.tps)
        assert [each.value for each in consumer.consume(1, timeout_ms=DEADLINE_S * 1_000)] == [b"0"]


async def test_asyncio_waits_in_the_same_way(bootstrap: str, held: HeldUp) -> None:
    """Polls, batches, iteration, and the error."""
    async with aio.Consumer(bootstrap, isolation=TOGETHER, isolation_timeout_ms=2_000) as consumer:
        await consumer.assign(held.tps)
        while consumer.lag(held.tps[0])[held.tps[0]].records is None:
            assert await consumer.poll(timeout_ms=50) == []
        assert await consumer.poll(timeout_ms=SHORT_MS) == []
        assert await consumer.poll_batch(0) is None
        with pytest.raises(IsolationTimeoutError):
            await anext(aiter(consumer))
        await asyncio.get_running_loop().run_in_executor(None, held.release)
        got = [record.value async for record in consumer.records(1_000)]
        assert sorted(got) == [b"0", b"1"]


def test_no_commit_of_a_group_passes_what_is_held(bootstrap: str, held: HeldUp) -> None:
    """The next member of the group waits at the same place, and reads everything once."""
    group = f"together-{next(_numbers)}"
    with Producer(bootstrap) as producer:
        producer.send(held.topic, b"free", partition=1)
    seen: list[bytes | None] = []

    def read(consumer: Consumer, count: int) -> None:
        consumer.subscribe([held.topic])
        until(
            lambda: bool(seen.extend(each.value for each in consumer.poll(timeout_ms=50)) or len(seen) == count), "read"
        )

    with Consumer(bootstrap, group=group, isolation=TOGETHER) as consumer:
        read(consumer, 1)
        assert consumer.poll(timeout_ms=SHORT_MS) == []
        consumer.commit()
        committed = consumer.committed(held.tps)
        assert [None if each is None else each.offset for each in committed.values()] == [0, 1]
    held.release()
    with Consumer(bootstrap, group=group, isolation=TOGETHER) as consumer:
        read(consumer, 3)
    assert seen[0] == b"free"
    assert sorted(map(bytes, filter(None, seen[1:]))) == [b"0", b"1"]


def test_partitions_move_while_they_are_held(bootstrap: str, held: HeldUp) -> None:
    """A member joins and takes one over. Whoever has it waits; nothing is lost and nothing comes early."""
    group = f"together-{next(_numbers)}"
    seen: list[bytes | None] = []
    with (
        Consumer(bootstrap, group=group, isolation=TOGETHER) as first,
        Consumer(bootstrap, group=group, isolation=TOGETHER) as second,
    ):
        members = (first, second)

        def turn() -> None:
            for member in members:
                seen.extend(each.value for each in member.poll(timeout_ms=20))

        first.subscribe([held.topic])
        until(lambda: bool(turn() or len(first.assignment) == 2), "one has both")
        second.subscribe([held.topic])
        until(lambda: bool(turn() or len(first.assignment) == len(second.assignment) == 1), "each has one")
        assert seen == []
        held.release()
        until(lambda: bool(turn() or len(seen) == 2), "both are read")
    assert sorted(map(bytes, filter(None, seen))) == [b"0", b"1"]


def test_seek_and_pause_end_the_wait_and_what_comes_again_waits_again(bootstrap: str, held: HeldUp) -> None:
    """Also past the held records, for a program that does not want them."""
    tp = held.tps[0]
    with Producer(bootstrap) as producer, reader(bootstrap, held, timeout_ms=60_000) as consumer:
        producer.send(held.topic, b"behind", partition=0)
        producer.flush()
        nothing_comes(consumer, held)
        consumer.pause(tp)
        assert consumer.poll(timeout_ms=SHORT_MS) == []
        consumer.resume(tp)
        nothing_comes(consumer, held)
        consumer.seek(tp, 1)
        assert [each.value for each in consumer.poll(timeout_ms=DEADLINE_S * 1_000)] == [b"behind"]
        consumer.seek(tp, 0)
        assert consumer.poll(timeout_ms=SHORT_MS) == []
        held.release()
        assert len(consumer.consume(3, timeout_ms=DEADLINE_S * 1_000)) == 3


def test_a_held_partition_leaves_the_credit_to_others(bootstrap: str, held: HeldUp, make_topic: MakeTopic) -> None:
    """More than the whole prefetch arrives behind the held batch. It is dropped, the others flow, and it comes in the end."""
    other = make_topic(1)
    values = [b"x" * 900] * 200
    with (
        Producer(bootstrap, batch_bytes=4_096, buffer_bytes=1 << 20) as producer,
        Consumer(bootstrap, isolation=TOGETHER, prefetch_bytes=32_768, max_chunk_bytes=8_192) as consumer,
    ):
        producer.send_many(held.topic, values, partition=0)
        producer.send_many(other, values, partition=0)
        producer.flush()
        consumer.assign([*held.tps, TopicPartition(other, 0)])
        assert len(consumer.consume(200, timeout_ms=DEADLINE_S * 1_000)) == 200
        producer.send_many(other, values, partition=0)
        producer.flush()
        assert len(consumer.consume(200, timeout_ms=DEADLINE_S * 1_000)) == 200
        assert consumer.position(held.tps[0]) == 0
        held.release()
        got = consumer.consume(202, timeout_ms=DEADLINE_S * 1_000)
        assert [each.offset for each in got if each.partition == 0] == list(range(201))


def test_a_deleted_topic_is_told(bootstrap: str, admin: Admin, held: HeldUp) -> None:
    """Nothing says any more whether the rest of the decision is there."""
    with reader(bootstrap, held) as consumer:
        nothing_comes(consumer, held)
        admin.delete_topic(held.topic)
        with pytest.raises(UnknownTopicError):
            consumer.consume(1, timeout_ms=DEADLINE_S * 1_000)


def test_another_deleted_topic_of_the_decision_counts_as_published(
    bootstrap: str, admin: Admin, make_topic: MakeTopic, publications: Publications
) -> None:
    """Its part ends, so the decision is complete without it."""
    here, gone = make_topic(1), make_topic(1)
    publications.held.add((admin.describe_topic(gone).topic_id, 0))

    def transact() -> None:
        with Producer(bootstrap) as producer, producer.transaction(f"held-{next(_numbers)}") as transaction:
            transaction.send(here, b"here")
            transaction.send(gone, b"gone")

    with ThreadPoolExecutor(1) as pool, Consumer(bootstrap, isolation=TOGETHER) as consumer:
        consumer.assign([TopicPartition(here, 0)])
        commit = pool.submit(transact)
        until(lambda: consumer.end_offsets([TopicPartition(here, 0)]) == {TopicPartition(here, 0): 1}, "published here")
        assert consumer.poll(timeout_ms=SHORT_MS) == []
        admin.delete_topic(gone)
        assert [each.value for each in consumer.consume(1, timeout_ms=DEADLINE_S * 1_000)] == [b"here"]
        publications.held.clear()
        commit.result(DEADLINE_S)


def test_an_aborted_or_open_transaction_holds_up_nobody(bootstrap: str, make_topic: MakeTopic) -> None:
    """Only what is decided can be waited for."""
    topic = make_topic(2)
    with Producer(bootstrap) as producer, Consumer(bootstrap, isolation=TOGETHER) as consumer:
        consumer.assign([TopicPartition(topic, 0), TopicPartition(topic, 1)])

        def write(transaction: Transaction, *, is_kept: bool) -> None:
            transaction.send(topic, b"staged", partition=0)
            producer.send(topic, b"plain", partition=0)
            producer.flush()
            assert [each.value for each in consumer.consume(1, timeout_ms=DEADLINE_S * 1_000)] == [b"plain"]
            if not is_kept:
                raise ZeroDivisionError

        with suppress(ZeroDivisionError), producer.transaction(f"open-{next(_numbers)}") as transaction:
            write(transaction, is_kept=False)
        with producer.transaction(f"open-{next(_numbers)}") as transaction:
            write(transaction, is_kept=True)
        assert [each.value for each in consumer.consume(1, timeout_ms=DEADLINE_S * 1_000)] == [b"staged"]


def test_close_and_leave_do_not_wait(bootstrap: str, held: HeldUp) -> None:
    """Also while another thread waits in a poll."""
    consumer = Consumer(bootstrap, isolation=TOGETHER)
    consumer.assign(held.tps)
    failures: list[BaseException] = []

    def poll() -> None:
        try:
            consumer.poll(timeout_ms=DEADLINE_S * 1_000)
        except LograftError as error:
            failures.append(error)

    thread = threading.Thread(target=poll)
    thread.start()
    thread.join(SHORT_MS / 1000)
    begin_s = time.monotonic()
    consumer.close()
    thread.join(DEADLINE_S)
    assert time.monotonic() - begin_s < 5
    assert [type(each) for each in failures] == [ClientClosedError]


@pytest.mark.parametrize("code", [ErrorCode.COORDINATOR_LOADING, ErrorCode.OVERLOADED, ErrorCode.SHUTTING_DOWN])
def test_a_broker_that_refuses_the_question_is_asked_again(bootstrap: str, held: HeldUp, code: ErrorCode) -> None:
    """Or another one is."""
    with GroupRelay(bootstrap) as relay:
        relay.refusals[GET_PUBLISHED] = [code] * 5
        with reader(relay.bootstrap, held) as consumer:
            nothing_comes(consumer, held)
            held.release()
            assert len(consumer.consume(2, timeout_ms=DEADLINE_S * 1_000)) == 2
        assert relay.calls[GET_PUBLISHED] > 0


def test_a_broker_that_never_answers_the_question_delays_it_by_seconds(bootstrap: str, held: HeldUp) -> None:
    """A dead connection looks like that. The next question goes over another one."""
    with GroupRelay(bootstrap) as relay:
        relay.silent_methods.add(GET_PUBLISHED)
        with reader(relay.bootstrap, held) as consumer:
            held.release()
            begin_s = time.monotonic()
            assert len(consumer.consume(2, timeout_ms=DEADLINE_S * 1_000)) == 2
            assert time.monotonic() - begin_s < 20
        assert relay.calls[GET_PUBLISHED] > 0


def test_a_coordinator_that_says_nothing_is_named_when_the_time_is_over(
    bootstrap: str, held: HeldUp, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last answer is in the error."""
    from brokerd.failure import refused
    from brokerd.ingests.coordinator_calls import LocalIngests

    async def loading(*arguments: object, **fields: object) -> None:
        raise refused(ErrorCode.COORDINATOR_LOADING, "the coordinator is loading", retry_after_ms=20)

    with monkeypatch.context() as patched:
        patched.setattr(LocalIngests, "published_up_to", loading)
        with reader(bootstrap, held, timeout_ms=400) as consumer:
            with pytest.raises(IsolationTimeoutError, match="the coordinator is loading"):
                consumer.poll(timeout_ms=DEADLINE_S * 1_000)
            patched.undo()
            held.release()
            assert len(consumer.consume(2, timeout_ms=DEADLINE_S * 1_000)) == 2


def test_a_batch_that_no_coordinator_has_published_fails_its_partition(
    bootstrap: str, make_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its producer id names no coordinator. A seek goes past it."""
    from brokerd.ingests import coordinator_calls

    topic = make_topic(1)
    tp = TopicPartition(topic, 0)
    with Producer(bootstrap) as producer, Consumer(bootstrap, isolation=TOGETHER) as consumer:
        with producer.transaction(f"lost-{next(_numbers)}") as transaction:
            transaction.send(topic, b"x")
        producer.send(topic, b"y")
        producer.flush()
        monkeypatch.setattr(coordinator_calls, "FIRST_PUBLISHING_PRODUCER_ID", 2**62 + 10**6)
        consumer.assign([tp])
        for _ in range(2):
            with pytest.raises(LograftError, match="no publishing producer id"):
                consumer.poll(timeout_ms=DEADLINE_S * 1_000)
        consumer.seek(tp, 1)
        assert [each.value for each in consumer.poll(timeout_ms=DEADLINE_S * 1_000)] == [b"y"]


@pytest.mark.parametrize(
    "fields",
    [
        {"isolation": "read_committed"},
        {"isolation": ""},
        {"isolation_timeout_ms": 99},
        {"isolation_timeout_ms": 86_400_001},
        {"isolation_timeout_ms": 1.5},
    ],
)
def test_settings_are_checked(fields: dict[str, object]) -> None:
    """The message names what is possible."""
    with pytest.raises(InvalidSettingError, match="isolation"):
        ConsumerSettings(**fields)  # type: ignore[arg-type]


def test_error_survives_a_pickle() -> None:
    """Workers of other processes raise it."""
    error = IsolationTimeoutError("late", topic="t", partition=3, offset=9)
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301
    assert (str(copy), copy.topic, copy.partition, copy.offset) == (str(error), "t", 3, 9)
