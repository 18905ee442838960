# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: PT012 - a whole block is what must raise
"""Ingests against a real broker: both kinds of client, each verb."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import pickle
import threading
import time
from collections.abc import Callable

import pyarrow as pa
import pytest
from lograft import Admin, ConsumerRecord, Ingest, IngestState, Producer, SealedAttempt, aio
from lograft.errors import (
    ClientClosedError,
    DeliveryError,
    ForkedClientError,
    IngestAbortedError,
    IngestCommittedError,
    IngestConflictError,
    IngestFencedError,
    IngestIncompleteError,
    IngestNotFoundError,
    InvalidSettingError,
    TransactionStateError,
    UnknownPartitionError,
    UnknownTopicError,
    UsageError,
)
from lograft.types import PublishedRange
from lograft.wire.batch import encode_batch

MakeTopic = Callable[..., str]
Read = Callable[[str], list[ConsumerRecord]]


def test_an_ingest_publishes_what_its_manifest_names_once(
    bootstrap: str, make_topic: MakeTopic, read: Read, ingest_id: str
) -> None:
    """Nothing is read before the commit. After it everything is, in the order of tasks; another commit changes nothing."""
    first, second = make_topic(3), make_topic(1)
    with Ingest.open(bootstrap, ingest_id, topics=[first, second]) as ingest:
        assert (ingest.state, ingest.epoch, ingest.result) == (IngestState.OPEN, 1, None)
        assert sorted(ingest.topics) == sorted([first, second])
        sealed: list[SealedAttempt] = []
        for task in (1, 0):
            with ingest.attempt(task, codec="zstd") as attempt:
                attempt.send(first, b"%d" % task, key=b"key", headers=[("h", b"v")], timestamp_ms=1_000 + task)
                attempt.send_many(second, [b"%d-%d" % (task, number) for number in range(500)])
            assert attempt.sealed is not None
            assert (attempt.sealed.task, attempt.sealed.records) == (task, 501)
            sealed.append(pickle.loads(pickle.dumps(attempt.sealed)))  # noqa: S301 - our own bytes
        with ingest.attempt(0) as dropped:
            dropped.send(first, b"dropped")
        assert read(first) == []
        assert read(second) == []
        result = ingest.commit(sealed)
        assert (result.records, result.dropped_attempts, result.round, result.was_committed) == (1_002, 1, 1, False)
        assert PublishedRange(topic=second, partition=0, records=1_000, first_offset=0, end_offset=1_000) in (
            result.partitions
        )
        assert (ingest.state, ingest.result) == (IngestState.COMMITTED, result)
        again = ingest.commit(reversed(sealed))
        assert again.was_committed
        assert again.partitions == result.partitions
        with pytest.raises(IngestConflictError):
            ingest.commit(sealed[:1])
        with pytest.raises(IngestCommittedError):
            ingest.abort()
        with pytest.raises(IngestCommittedError):
            ingest.attempt(2)
    got = read(first)
    assert [(each.value, each.key, each.timestamp_ms) for each in got] == [
        (b"0", b"key", 1_000),
        (b"1", b"key", 1_001),
    ]
    assert list(got[0].headers) == [("h", b"v")]
    assert [each.value for each in read(second)] == [b"%d-%d" % (task, n) for task in (0, 1) for n in range(500)]
    with Ingest.open(bootstrap, ingest_id, topics=[first, second]) as rerun:
        assert rerun.state is IngestState.COMMITTED
        assert rerun.result is not None
        assert rerun.result.records == 1_002


def test_every_way_to_send(bootstrap: str, make_topic: MakeTopic, read: Read, ingest_id: str) -> None:
    """Partitions are those of the topic; functions of the program see the topic's own name."""
    topic = make_topic(4)
    seen: list[tuple[str, int]] = []

    def choose(name: str, key: bytes, count: int) -> int:
        seen.append((name, count))
        return len(key) % count

    with Ingest.open(bootstrap, ingest_id, topics=[topic]) as ingest:
        with ingest.attempt(0, partitioner=choose, value_serializer=str.encode) as attempt:
            attempt.send(topic, "one", key=b"k")
            attempt.send_many(topic, ["two"], keys=[b"kk"])
        with ingest.attempt(1) as other:
            other.send_arrow(topic, pa.table({"value": [b"three"]}), partition=3)
            other.send_batch(topic, 0, encode_batch([b"four", b"five"]), 2)
            with pytest.raises(UnknownPartitionError, match="partitions 0 to 3"):
                other.send(topic, b"x", partition=4)
            with pytest.raises(UsageError, match=f"publishes to {topic}, not to 'elsewhere'"):
                other.send("elsewhere", b"x")
        assert attempt.sealed is not None
        assert other.sealed is not None
        ingest.commit([attempt.sealed, other.sealed])
    assert [(each.partition, each.value) for each in read(topic)] == [
        (0, b"four"),
        (0, b"five"),
        (1, b"one"),
        (2, b"two"),
        (3, b"three"),
    ]
    assert seen == [(topic, 4)] * 2


def test_an_attempt_that_fails_in_its_block_is_abandoned(
    bootstrap: str, make_topic: MakeTopic, read: Read, ingest_id: str
) -> None:
    """It is not sealed, cannot be used any more, and an ingest that is committed without it does not publish it."""
    topic = make_topic(1)
    with Ingest.open(bootstrap, ingest_id, topics=[topic]) as ingest:
        with pytest.raises(RuntimeError), ingest.attempt(0) as attempt:
            attempt.send(topic, b"lost")
            raise RuntimeError
        assert attempt.sealed is None
        for use in (lambda: attempt.send(topic, b"late"), attempt.seal):
            with pytest.raises(TransactionStateError, match="task 0 has ended"):
                use()
        attempt.abandon()
        with pytest.raises(IngestIncompleteError):
            ingest.commit([SealedAttempt(0, attempt.attempt_id, 1)])
        with ingest.attempt(0, attempt_id=b"second") as again:
            again.send(topic, b"kept")
        assert again.sealed == SealedAttempt(0, b"second", 1)
        assert again.seal() == again.sealed
        ingest.commit([again.sealed])
    assert [each.value for each in read(topic)] == [b"kept"]


def test_records_that_are_not_staged_fail_the_attempt(
    bootstrap: str, admin: Admin, make_topic: MakeTopic, ingest_id: str
) -> None:
    """The topic is deleted under it: the seal says what failed, and nothing is sealed."""
    topic = make_topic(1)
    with Ingest.open(bootstrap, ingest_id, topics=[topic]) as ingest:
        attempt = ingest.attempt(0, delivery_timeout_ms=2_000)
        attempt.send(topic, b"staged")
        admin.delete_topic(topic)
        attempt.send(topic, b"x" * 100, headers=[("h", None)])
        with pytest.raises(DeliveryError):
            attempt.seal()
        assert attempt.sealed is None


def test_an_abort_ends_everything_and_frees_the_id(
    bootstrap: str, make_topic: MakeTopic, read: Read, ingest_id: str
) -> None:
    """Also that of a block which is left with an error, and by an administrator."""
    topic = make_topic(1)
    with Ingest.open(bootstrap, ingest_id, topics=[topic]) as ingest:
        with ingest.attempt(0) as attempt:
            attempt.send(topic, b"lost")
        ingest.abort()
        assert ingest.state is IngestState.ABORTED
        assert attempt.sealed is not None
        with pytest.raises(IngestAbortedError):
            ingest.commit([attempt.sealed])
    with pytest.raises(RuntimeError), Ingest.open(bootstrap, ingest_id, topics=[topic]) as ingest:
        assert ingest.epoch == 2
        raise RuntimeError
    with Ingest.open(bootstrap, ingest_id, topics=[topic]) as ingest, Admin(bootstrap) as admin:
        assert ingest.epoch == 3
        admin.abort_ingest(ingest_id)
        assert ingest.describe().state is IngestState.ABORTED
        with pytest.raises(IngestAbortedError):
            ingest.attempt(0)
    assert read(topic) == []


def test_a_later_open_fences_the_earlier_one(bootstrap: str, make_topic: MakeTopic, read: Read, ingest_id: str) -> None:
    """An attempt that it had sealed counts no more."""
    topic = make_topic(1)
    with Ingest.open(bootstrap, ingest_id, topics=[topic]) as old:
        with old.attempt(0) as attempt:
            attempt.send(topic, b"old")
        with Ingest.open(bootstrap, ingest_id, topics=[topic]) as new:
            assert attempt.sealed is not None
            with pytest.raises(IngestFencedError):
                old.commit([attempt.sealed])
            with pytest.raises(IngestFencedError):
                old.attempt(1)
            with pytest.raises(IngestFencedError):
                Ingest.attach(bootstrap, ingest_id, epoch=old.epoch, topics=[topic])
            with pytest.raises(IngestIncompleteError):
                new.commit([attempt.sealed])
            assert new.commit([]).records == 0
    assert read(topic) == []


def _stage_elsewhere(bootstrap: str, ingest_id: str, epoch: int, topics: dict[str, bytes], task: int) -> SealedAttempt:
    with Ingest.attach(bootstrap, ingest_id, epoch=epoch, topics=topics) as ingest, ingest.attempt(task) as attempt:
        for topic in topics:
            attempt.send_many(topic, [b"%d" % task] * 10)
    assert attempt.sealed is not None
    return attempt.sealed


@pytest.mark.process
def test_other_processes_stage(bootstrap: str, make_topic: MakeTopic, read: Read, ingest_id: str) -> None:
    """They need id, epoch and topics alone, and what they return travels back."""
    topic = make_topic(1)
    with Ingest.open(bootstrap, ingest_id, topics=[topic]) as ingest:
        with multiprocessing.get_context("spawn").Pool(2) as pool:
            tasks = [(bootstrap, ingest_id, ingest.epoch, ingest.topics, task) for task in range(3)]
            sealed = pool.starmap(_stage_elsewhere, tasks)
        assert ingest.commit(sealed).records == 30
    assert [each.value for each in read(topic)] == [b"%d" % task for task in range(3) for _ in range(10)]


def test_attached_by_names(bootstrap: str, make_topic: MakeTopic, ingest_id: str) -> None:
    """The coordinator knows the ids; it also knows which topics and ingests there are."""
    topic, other = make_topic(1), make_topic(1)
    with Ingest.open(bootstrap, ingest_id, topics=[topic]) as ingest:
        with pytest.raises(UsageError, match=f"publishes to {topic}, not to '{other}'"):
            Ingest.attach(bootstrap, ingest_id, epoch=ingest.epoch, topics=[other])
        with Ingest.attach(bootstrap, ingest_id, epoch=ingest.epoch, topics=[topic]) as attached:
            assert attached.topics == ingest.topics
    with pytest.raises(IngestNotFoundError):
        Ingest.attach(bootstrap, "none", epoch=1, topics=[topic])


def test_threads_share_an_ingest(bootstrap: str, make_topic: MakeTopic, read: Read, ingest_id: str) -> None:
    """Each with an attempt of its own."""
    topic = make_topic(2)
    sealed: list[SealedAttempt] = []
    with Ingest.open(bootstrap, ingest_id, topics=[topic]) as ingest:

        def work(task: int) -> None:
            with ingest.attempt(task) as attempt:
                for number in range(200):
                    attempt.send(topic, b"%d" % number, key=b"%d" % number)
            assert attempt.sealed is not None
            sealed.append(attempt.sealed)

        threads = [threading.Thread(target=work, args=(task,)) for task in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert ingest.commit(sealed).records == 800
    assert len(read(topic)) == 800


def test_it_is_kept_alive(bootstrap: str, make_topic: MakeTopic, ingest_id: str) -> None:
    """Every third of its time to live, without a call of the program."""
    with Ingest.open(bootstrap, ingest_id, topics=[make_topic(1)], ttl_ms=10_000) as ingest:
        began = ingest.describe()
        assert began.ttl_ms == 10_000
        deadline_s = time.monotonic() + 9
        # Each question takes its time, and does not count as a call of the client.
        while ingest.describe().touched_ms == began.touched_ms:
            assert time.monotonic() < deadline_s, "nobody touched it"
        assert ingest.state is IngestState.OPEN


def test_an_open_attempt_keeps_an_attached_ingest_alive(bootstrap: str, make_topic: MakeTopic, ingest_id: str) -> None:
    """The opener is gone. The process of an open attempt touches the ingest every third of its time to live, and not after that."""
    topic = make_topic(1)
    with Ingest.open(bootstrap, ingest_id, topics=[topic], ttl_ms=10_000) as opener:
        epoch, topics = opener.epoch, opener.topics
    with Ingest.attach(bootstrap, ingest_id, epoch=epoch, topics=topics) as ingest:
        first, second = ingest.attempt(0), ingest.attempt(1)
        first.seal()
        began = ingest.describe()
        deadline_s = time.monotonic() + 30
        while ingest.describe().touched_ms == began.touched_ms:
            assert time.monotonic() < deadline_s, "nobody touched it"
            threading.Event().wait(0.1)
        session = ingest._session
        assert session._touches is not None
        second.abandon()
        second.abandon()
        assert session._touches is None
        ingest.attempt(2).seal()
        assert session._touches is None
        failing = ingest.attempt(3)
        failing.send(topic, b"x" * 3_000_000)
        with pytest.raises(DeliveryError):
            failing.seal()
        assert session._touches is None


def test_processes_of_one_owner_join(bootstrap: str, make_topic: MakeTopic, read: Read, ingest_id: str) -> None:
    """Each opens the ingest, none fences another, and any of them commits. Another owner takes it over for good."""
    topic = make_topic(1)
    sealed: list[SealedAttempt] = []
    for task in range(3):
        with Ingest.open(bootstrap, ingest_id, topics=[topic], owner=b"one") as ingest:
            assert ingest.epoch == 1
            with ingest.attempt(task) as attempt:
                attempt.send(topic, b"%d" % task)
            assert attempt.sealed is not None
            sealed.append(attempt.sealed)
    with pytest.raises(IngestConflictError, match="other topics"):
        Ingest.open(bootstrap, ingest_id, topics=[make_topic(1)], owner=b"one")
    with Ingest.open(bootstrap, ingest_id, topics=[topic], owner=b"two") as ingest:
        assert ingest.epoch == 2
        with pytest.raises(IngestFencedError):
            Ingest.open(bootstrap, ingest_id, topics=[topic], owner=b"one")
        with pytest.raises(IngestIncompleteError):
            ingest.commit(sealed)

    async def through() -> None:
        for expected in (IngestState.OPEN, IngestState.COMMITTED):
            async with await aio.Ingest.open(bootstrap, ingest_id, topics=[topic], owner=b"two") as joined:
                assert (joined.epoch, joined.state) == (2, expected)
                if expected is IngestState.OPEN:
                    async with await joined.attempt(0) as attempt:
                        await attempt.send(topic, b"new")
                    assert attempt.sealed is not None
                    await joined.commit([attempt.sealed])

    asyncio.run(through())
    assert [each.value for each in read(topic)] == [b"new"]
    # What is committed is known to everybody.
    assert Ingest.open(bootstrap, ingest_id, topics=[topic], owner=b"one").state is IngestState.COMMITTED


def test_bad_arguments(bootstrap: str, make_topic: MakeTopic) -> None:
    """They are found before anything is asked, or named by the coordinator."""
    topic = make_topic(1)
    for ingest_id in ("", "x" * 256, 7):
        with pytest.raises(UsageError, match="1 to 255 bytes"):
            Ingest.open(bootstrap, ingest_id, topics=[topic])  # type: ignore[arg-type]
    for topics in ([], "orders", [7], [f"t{number}" for number in range(101)]):
        with pytest.raises(UsageError, match="1 to 100 topic names"):
            Ingest.open(bootstrap, "bad", topics=topics)  # type: ignore[arg-type]
    with pytest.raises(InvalidSettingError, match="ttl_ms is 9999"):
        Ingest.open(bootstrap, "bad", topics=[topic], ttl_ms=9_999)
    with pytest.raises(UnknownTopicError):
        Ingest.open(bootstrap, "bad", topics=["no-such-topic"])


def test_after_close_and_in_a_forked_child(bootstrap: str, make_topic: MakeTopic, ingest_id: str) -> None:
    """Both are told, and the child disturbs nobody."""
    ingest = Ingest.open(bootstrap, ingest_id, topics=[make_topic(1)])
    pid = os.fork()
    if pid == 0:
        try:
            ingest.describe()
        except ForkedClientError:
            os._exit(7)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    assert ingest.describe().state is IngestState.OPEN
    ingest.close()
    ingest.close()
    with pytest.raises(ClientClosedError):
        ingest.describe()


def test_an_open_attempt_keeps_no_reader_and_no_producer_waiting(
    bootstrap: str, make_topic: MakeTopic, read: Read, ingest_id: str
) -> None:
    """What others send meanwhile is there at once."""
    topic = make_topic(1)
    with Ingest.open(bootstrap, ingest_id, topics=[topic]) as ingest, Producer(bootstrap) as producer:
        with ingest.attempt(0) as attempt:
            attempt.send(topic, b"later")
            producer.send(topic, b"at once")
            producer.flush()
            assert [each.value for each in read(topic)] == [b"at once"]
        assert attempt.sealed is not None
        ingest.commit([attempt.sealed])
    assert [each.value for each in read(topic)] == [b"at once", b"later"]


def test_asyncio(bootstrap: str, make_topic: MakeTopic, read: Read, ingest_id: str) -> None:
    """The same verbs, awaited."""
    topic = make_topic(2)

    async def run() -> None:
        async with await aio.Ingest.open(bootstrap, ingest_id, topics=[topic]) as ingest:
            async with (
                await aio.Ingest.attach(bootstrap, ingest_id, epoch=ingest.epoch, topics=ingest.topics) as attached,
                await attached.attempt(0) as attempt,
            ):
                await attempt.send(topic, b"one", partition=0)
                await attempt.send_many(topic, [b"two", b"three"], partition=0)
                await attempt.send_arrow(topic, pa.table({"value": [b"four"]}), partition=1)
                await attempt.send_batch(topic, 1, encode_batch([b"five"]), 1)
            assert attempt.sealed == SealedAttempt(0, attempt.attempt_id, 5)
            with pytest.raises(RuntimeError):
                async with await ingest.attempt(1) as lost:
                    await lost.send(topic, b"lost")
                    raise RuntimeError
            with pytest.raises(TransactionStateError):
                await lost.send(topic, b"late")
            assert (await ingest.describe()).sealed_records == 5
            result = await ingest.commit([attempt.sealed])
            assert (result.records, ingest.state, ingest.result) == (5, IngestState.COMMITTED, result)
        with pytest.raises(ClientClosedError):
            await ingest.describe()
        with pytest.raises(RuntimeError):
            async with await aio.Ingest.open(bootstrap, f"{ingest_id}/b", topics=[topic]) as second:
                raise RuntimeError
        assert second.state is IngestState.ABORTED

    asyncio.run(run())
    assert [each.value for each in read(topic)] == [b"one", b"two", b"three", b"four", b"five"]
