# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: PT012 - a whole block is what must raise
"""Transactions of producers against a real broker: both kinds of client."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable

import pyarrow as pa
import pytest
from lograft import Admin, Consumer, ConsumerRecord, Ingest, Producer, TopicPartition, Transaction, aio
from lograft.errors import (
    ForkedClientError,
    IngestAbortedError,
    IngestConflictError,
    IngestFencedError,
    TransactionStateError,
    TransactionTopicsError,
    UnknownTopicError,
    UsageError,
)
from lograft.types import IngestKind, IngestState

MakeTopic = Callable[..., str]
Read = Callable[[str], list[ConsumerRecord]]


class Unwanted(Exception):
    """What an application raises in a transaction."""


def values(records: list[ConsumerRecord]) -> list[bytes]:
    """Return the values of records."""
    return [each.value for each in records]


def test_each_block_is_published_as_a_whole(
    bootstrap: str, admin: Admin, make_topic: MakeTopic, read: Read, ingest_id: str
) -> None:
    """Records of several topics, learnt as they come; a block with an error publishes nothing."""
    first, second = make_topic(2), make_topic(1)
    with Producer(bootstrap, linger_ms=0, acks="leader", idempotent=False) as producer:
        for number in range(3):
            with producer.transaction(ingest_id) as transaction:
                transaction.send(first, b"a%d" % number, key=b"k", headers=[("h", b"v")], timestamp_ms=number)
                transaction.send_many(second, [b"b%d" % number] * 2)
                transaction.send_arrow(second, pa.table({"value": [b"c%d" % number]}))
                assert len(read(first)) == number
            assert transaction.result is not None
            assert (transaction.result.round, transaction.result.records) == (number + 1, 4)
            with pytest.raises(TransactionStateError, match="outside of its block"):
                transaction.send(first, b"late")
        with pytest.raises(Unwanted), producer.transaction(ingest_id) as failed:
            failed.send(first, b"lost")
            raise Unwanted
        assert failed.result is None
        with producer.transaction(ingest_id) as last:
            last.send(first, b"last", partition=0)
        assert last.result is not None
        assert last.result.round == 4
        found = admin.describe_ingest(ingest_id)
        assert (found.kind, found.state, found.round) == (IngestKind.REPEATED, IngestState.OPEN, 5)
    assert sorted(values(read(first))) == [b"a0", b"a1", b"a2", b"last"]
    assert values(read(second)) == [b"b0", b"b0", b"c0", b"b1", b"b1", b"c1", b"b2", b"b2", b"c2"]


def test_nothing_sent_is_nothing_published(bootstrap: str, make_topic: MakeTopic, ingest_id: str) -> None:
    """Before and after a transaction that sends something."""
    topic = make_topic(1)
    with Producer(bootstrap) as producer:
        for send in (False, True, False):
            with producer.transaction(ingest_id) as transaction:
                if send:
                    transaction.send(topic, b"x")
            assert (transaction.result is not None) is send


def test_a_new_topic_is_learnt_in_the_middle(bootstrap: str, make_topic: MakeTopic, read: Read, ingest_id: str) -> None:
    """What was sent before is sent again, with what functions of the program made of it, in order and once."""
    topics = [make_topic(1) for _ in range(3)]
    calls: list[object] = []

    def serialize(value: str) -> bytes:
        calls.append(value)
        return value.encode()

    with Producer(bootstrap, value_serializer=serialize) as producer:
        changing = ["0"]
        with producer.transaction(ingest_id) as transaction:
            for topic in topics:
                transaction.send_many(topic, changing)
                changing[0] = str(int(changing[0]) + 1)
                transaction.send(topics[0], changing[0])
        assert transaction.result is not None
        assert transaction.result.records == 6
    assert calls == ["0", "1", "1", "2", "2", "3"]
    assert [values(read(topic)) for topic in topics] == [[b"0", b"1", b"2", b"3"], [b"1"], [b"2"]]


def test_a_large_transaction_meets_no_new_topic(
    bootstrap: str, make_topic: MakeTopic, read: Read, ingest_id: str
) -> None:
    """It is refused, and the next one may; naming the topics avoids it."""
    first, second = make_topic(1), make_topic(1)
    with Producer(bootstrap) as producer:

        def send_both(transaction: Transaction) -> None:
            with transaction:
                for _ in range(1_001):
                    transaction.send(first, b"a")
                transaction.send(second, b"b")

        with pytest.raises(TransactionTopicsError, match="name all topics"):
            send_both(producer.transaction(ingest_id))
        send_both(producer.transaction(ingest_id))
        send_both(producer.transaction(f"{ingest_id}/b", topics=[first, second]))
    assert (len(read(first)), len(read(second))) == (2_002, 2)


def test_a_topic_that_does_not_exist(bootstrap: str, make_topic: MakeTopic, read: Read, ingest_id: str) -> None:
    """A program that goes on although its earlier records are lost commits nothing; the next transaction is as any other."""
    topic = make_topic(1)
    with Producer(bootstrap) as producer:
        with pytest.raises(UnknownTopicError), producer.transaction(ingest_id) as transaction:
            transaction.send(topic, b"lost")
            with pytest.raises(UnknownTopicError):
                transaction.send("no-such-topic", b"x")
        assert transaction.result is None
        with producer.transaction(ingest_id) as again:
            again.send(topic, b"kept")
    assert values(read(topic)) == [b"kept"]


def test_threads_share_a_transaction(bootstrap: str, make_topic: MakeTopic, read: Read, ingest_id: str) -> None:
    """Also while topics are learnt, and while records are kept no longer."""
    topics = [make_topic(1) for _ in range(2)]
    with Producer(bootstrap) as producer:
        with producer.transaction(ingest_id) as transaction:

            def work(which: int) -> None:
                for number in range(1_000):
                    transaction.send(topics[which % 2], b"%d-%d" % (which, number))

            threads = [threading.Thread(target=work, args=(which,)) for which in range(4)]
            for thread in threads:
                thread.start()
                # One at a time learns its topic while another sends: the second topic may come too late otherwise.
                if not transaction_knows(transaction, topics[1]):
                    transaction.send(topics[1], b"first")
            for thread in threads:
                thread.join()
        assert transaction.result is not None
    got = [values(read(topic)) for topic in topics]
    assert sum(map(len, got)) == transaction.result.records
    for which in range(4):
        mine = [each for each in got[which % 2] if each.startswith(b"%d-" % which)]
        assert mine == [b"%d-%d" % (which, number) for number in range(1_000)]


def transaction_knows(transaction: Transaction, topic: str) -> bool:
    """True if the transaction has sent to a topic."""
    return topic in transaction._producers


def test_one_transaction_at_a_time_for_each_id(bootstrap: str, make_topic: MakeTopic, ingest_id: str) -> None:
    """Two ids go side by side, and an ended transaction does not begin again."""
    topic = make_topic(1)
    with Producer(bootstrap) as producer:
        with producer.transaction(ingest_id) as one, producer.transaction(f"{ingest_id}/b") as other:
            one.send(topic, b"1")
            other.send(topic, b"2")
            with pytest.raises(TransactionStateError, match="one at a time"), producer.transaction(ingest_id):
                pass
            one.send(topic, b"3")
        assert one.result is not None
        assert one.result.records == 2
        with pytest.raises(TransactionStateError, match="has ended"), one:
            pass


def test_a_newer_program_fences_the_older_one(
    bootstrap: str, make_topic: MakeTopic, read: Read, ingest_id: str
) -> None:
    """In the middle of a transaction. The older producer cannot use the id again, and others go on."""
    topic = make_topic(1)
    with Producer(bootstrap) as old, Producer(bootstrap) as new:
        transaction = old.transaction(ingest_id)
        with pytest.raises(IngestFencedError), transaction:
            transaction.send(topic, b"old")
            with new.transaction(ingest_id) as other:
                other.send(topic, b"new")
        with pytest.raises(IngestFencedError):
            old.transaction(ingest_id)
        with new.transaction(ingest_id) as other:
            other.send(topic, b"newer")
        with old.transaction(f"{ingest_id}/b") as fine:
            fine.send(topic, b"fine")
    assert values(read(topic)) == [b"new", b"newer", b"fine"]


def test_an_administrator_aborts_a_transaction(
    bootstrap: str, admin: Admin, make_topic: MakeTopic, read: Read, ingest_id: str
) -> None:
    """The program is told so, and its next transaction works."""
    topic = make_topic(1)
    with Producer(bootstrap) as producer:
        with pytest.raises(IngestAbortedError), producer.transaction(ingest_id) as transaction:
            transaction.send(topic, b"lost")
            admin.abort_ingest(ingest_id)
        with producer.transaction(ingest_id) as again:
            again.send(topic, b"kept")
    assert values(read(topic)) == [b"kept"]


def test_a_closed_producer_aborts_its_transaction(
    bootstrap: str, admin: Admin, make_topic: MakeTopic, read: Read, ingest_id: str
) -> None:
    """And the block says that the producer is closed."""
    topic = make_topic(1)
    producer = Producer(bootstrap)
    with pytest.raises(UsageError, match="closed"), producer.transaction(ingest_id) as transaction:
        transaction.send(topic, b"lost")
        producer.close()
        assert admin.describe_ingest(ingest_id).state is IngestState.ABORTED
        transaction.send(topic, b"late")
    with pytest.raises(UsageError, match="closed"):
        producer.transaction(ingest_id)
    assert read(topic) == []


def test_bad_arguments(bootstrap: str, ingest_id: str) -> None:
    """They are found before anything is asked."""
    with Producer(bootstrap) as producer:
        with pytest.raises(UsageError, match="1 to 255 bytes"):
            producer.transaction("")
        with pytest.raises(UsageError, match="1 to 100 topic names"):
            producer.transaction(ingest_id, topics="orders")
        with pytest.raises(UsageError, match="ttl_ms is 5"):
            producer.transaction(ingest_id, ttl_ms=5)


def test_an_id_of_an_ingest_is_none_of_transactions(bootstrap: str, make_topic: MakeTopic, ingest_id: str) -> None:
    """An id keeps its kind."""
    topic = make_topic(1)
    Ingest.open(bootstrap, ingest_id, topics=[topic]).close()
    with Producer(bootstrap) as producer:
        transaction = producer.transaction(ingest_id)
        with pytest.raises(IngestConflictError), transaction:
            transaction.send(topic, b"x")


def test_in_a_forked_child(bootstrap: str, make_topic: MakeTopic, read: Read, ingest_id: str) -> None:
    """The parent's transaction is not the child's."""
    topic = make_topic(1)
    with Producer(bootstrap) as producer, producer.transaction(ingest_id) as transaction:
        transaction.send(topic, b"1")
        pid = os.fork()
        if pid == 0:
            try:
                transaction.send(topic, b"child")
            except ForkedClientError:
                os._exit(7)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
        transaction.send(topic, b"2")
    assert values(read(topic)) == [b"1", b"2"]


# Offsets of a group.


def fill(bootstrap: str, topic: str, count: int) -> None:
    """Write numbers."""
    with Producer(bootstrap) as producer:
        producer.send_many(topic, [b"%d" % number for number in range(count)], partition=0)


def take(consumer: Consumer, count: int) -> list[ConsumerRecord]:
    """Read records."""
    got = consumer.consume(count, timeout_ms=30_000)
    assert len(got) == count
    return got


def test_offsets_count_if_the_transaction_does(
    bootstrap: str, make_topic: MakeTopic, read: Read, ingest_id: str, group: str
) -> None:
    """Consume, transform, produce: an aborted round moves nothing, and is read again after a seek."""
    source, sink = make_topic(1), make_topic(1)
    tp = TopicPartition(source, 0)
    fill(bootstrap, source, 10)
    with (
        Producer(bootstrap) as producer,
        Consumer(bootstrap, group=group, auto_commit=False) as consumer,
    ):
        consumer.subscribe([source])
        with producer.transaction(ingest_id) as transaction:
            for record in take(consumer, 4):
                transaction.send(sink, b"t" + record.value)
            transaction.send_offsets(consumer)
        committed = consumer.committed(tp)
        assert committed is not None
        assert committed.offset == 4
        with pytest.raises(Unwanted), producer.transaction(ingest_id) as failed:
            for _ in take(consumer, 3):
                failed.send(sink, b"lost")
            failed.send_offsets(consumer)
            raise Unwanted
        committed = consumer.committed(tp)
        assert committed is not None
        assert committed.offset == 4
        consumer.seek(tp, committed.offset)
        with producer.transaction(ingest_id) as transaction:
            for record in take(consumer, 6):
                transaction.send(sink, b"t" + record.value)
                transaction.send_offsets(consumer, record)
        # Offsets alone, and an ordinary commit after all that.
        with producer.transaction(ingest_id) as transaction:
            transaction.send_offsets(consumer, {tp: 7})
        assert transaction.result is not None
        committed = consumer.committed(tp)
        assert committed is not None
        assert committed.offset == 7
        consumer.commit()
        committed = consumer.committed(tp)
        assert committed is not None
        assert committed.offset == 10
    assert values(read(sink)) == [b"t%d" % number for number in range(10)]


def test_offsets_of_a_producer_that_never_sent(
    bootstrap: str, make_topic: MakeTopic, ingest_id: str, group: str
) -> None:
    """They are committed, without a topic to open an ingest for."""
    topic = make_topic(1)
    fill(bootstrap, topic, 3)
    with Producer(bootstrap) as producer, Consumer(bootstrap, group=group, auto_commit=False) as consumer:
        consumer.subscribe([topic])
        take(consumer, 3)
        with producer.transaction(ingest_id) as transaction:
            transaction.send_offsets(consumer)
        assert transaction.result is None
        committed = consumer.committed(TopicPartition(topic, 0))
        assert committed is not None
        assert committed.offset == 3


def test_which_consumers_send_offsets(bootstrap: str, make_topic: MakeTopic, ingest_id: str, group: str) -> None:
    """One with a group that does not commit by itself, and only one."""
    topic = make_topic(1)
    with (
        Producer(bootstrap) as producer,
        Consumer(bootstrap) as without,
        Consumer(bootstrap, group=group) as automatic,
        Consumer(bootstrap, group=group, auto_commit=False) as one,
        Consumer(bootstrap, group=group, auto_commit=False) as other,
        producer.transaction(ingest_id) as transaction,
    ):
        with pytest.raises(UsageError, match="no group"):
            transaction.send_offsets(without)
        with pytest.raises(UsageError, match="auto_commit=False"):
            transaction.send_offsets(automatic)
        transaction.send_offsets(one, {TopicPartition(topic, 0): 0})
        with pytest.raises(UsageError, match="of one consumer"):
            transaction.send_offsets(other, {TopicPartition(topic, 0): 0})


def test_asyncio(bootstrap: str, make_topic: MakeTopic, read: Read, ingest_id: str, group: str) -> None:
    """The same, awaited."""
    source, sink, audit = make_topic(1), make_topic(1), make_topic(1)
    fill(bootstrap, source, 5)
    tp = TopicPartition(source, 0)

    async def run() -> None:
        async with (
            aio.Producer(bootstrap) as producer,
            aio.Consumer(bootstrap, group=group, auto_commit=False) as consumer,
        ):
            await consumer.subscribe([source])
            got = await consumer.consume(5, timeout_ms=30_000)
            with pytest.raises(Unwanted):
                async with producer.transaction(ingest_id) as failed:
                    await failed.send(sink, b"lost")
                    raise Unwanted
            async with producer.transaction(ingest_id) as transaction:
                for record in got:
                    await transaction.send(sink, record.value)
                await transaction.send_many(audit, [b"a", b"b"])
                await transaction.send_arrow(audit, pa.table({"value": [b"c"]}))
                await transaction.send_offsets(consumer)
                with pytest.raises(TransactionStateError):
                    async with producer.transaction(ingest_id):
                        pass
            assert transaction.result is not None
            assert transaction.result.records == 8
            committed = await consumer.committed(tp)
            assert committed is not None
            assert committed.offset == 5
            async with aio.Producer(bootstrap) as newer, newer.transaction(ingest_id) as other:
                await other.send(sink, b"newer")
            with pytest.raises(IngestFencedError):
                async with producer.transaction(ingest_id) as zombie:
                    await zombie.send(sink, b"lost")
            with pytest.raises(IngestFencedError):
                producer.transaction(ingest_id)

    asyncio.run(run())
    assert values(read(sink)) == [*(b"%d" % number for number in range(5)), b"newer"]
    assert values(read(audit)) == [b"a", b"b", b"c"]
