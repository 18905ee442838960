# SPDX-License-Identifier: Apache-2.0
"""Publication of parts on one broker: once, in order, with every byte that the attempts staged, from wherever it stopped."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
from lograft.wire.batch import Codec, RecordBatch, check_batch
from lograft.wire.codes import ErrorCode
from lograft.wire.header import iter_batches

from brokerd.failure import RefusedError, refused
from brokerd.publishing import publisher as publisher_module
from brokerd.publishing.commits import wait_committed
from brokerd.publishing.limits import IN_FLIGHT_BYTES, PIECE_BYTES
from brokerd.publishing.parts import UNKNOWN_OFFSET, Part, PublishedPart, Slice
from brokerd.publishing.publisher import Publisher, RecordsLostError
from brokerd.replica.replica import Replica
from brokerd.tests.publishing.publishing_broker import (
    PUBLISHING,
    SEQUENCES,
    STAGING,
    PublishingBroker,
    append_foreign,
    part,
    values_of,
)
from brokerd.tests.replica.lone_broker import TOPIC_ID
from brokerd.tests.support import WAIT_S
from metaquorum.metadata.records import LeaderChange, PartitionChangeRecord, RemoveTopicRecord
from metaquorum.tests.quorum_cluster import until
from storage.errors import DiskReadError
from storage.log.flush import FlushWork
from storage.log.partition_log import PartitionLog
from storage.log.reader import ReadWork
from storage.maintenance.flusher import GroupFlusher, OnDone
from storage.testing.sim_disk import Refusal
from storage.types import HeadedBatch


@pytest.fixture
async def broker() -> AsyncIterator[PublishingBroker]:
    made = PublishingBroker()
    await made.start(segment_bytes="4096")
    yield made
    await made.publisher.close()
    await made.manager.stop()


async def staged(broker: PublishingBroker, *, batches: int = 20, sequence: int = 0) -> tuple[Part, list[bytes]]:
    """Stage the batches of two attempts in turns, and garbage between them. The second attempt comes first in the part."""
    first, second, garbage = [await broker.attempt(number, sequence=sequence) for number in (0, 1, 2)]
    for number in range(batches):
        first.stage(b"first %d" % number, b"and %d" % number)
        garbage.stage(b"garbage")
        second.stage(b"second %d" % number)
    one, values = await first.seal()
    two, more = await second.seal()
    return part(two, one), more + values


async def staged_later(broker: PublishingBroker) -> tuple[Part, list[bytes]]:
    """Stage the batches of another attempt."""
    attempt = await broker.attempt(5)
    for number in range(20):
        attempt.stage(b"later %d" % number, b"and %d" % number)
    made, values = await attempt.seal()
    return part(made), values


async def test_part_is_published_in_its_order(broker: PublishingBroker) -> None:
    """Slice after slice, each in its own order, below the high watermark; what is not named stays out."""
    target = await broker.target()
    append_foreign(target, b"before")
    wanted, values = await staged(broker)
    found = await broker.publisher.publish(wanted)
    assert found == PublishedPart(1, 1 + len(values))
    assert target.high_watermark >= found.end_offset
    assert values_of(target) == [b"before", *values]
    assert broker.published == [(TOPIC_ID, 0, False)]


class HeldCommits:
    """Holds back the first publication that waits for its commits, until `gate` is set.

    `waiting` has the offsets that all publications waited for, and `one_waits` is set once there is one.
    """

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.one_waits = asyncio.Event()
        self.waiting: list[int] = []

    async def wait(self, replica: Replica, end_offset: int, *, leader_epoch: int, timeout_ms: int) -> None:
        self.waiting.append(end_offset)
        self.one_waits.set()
        if len(self.waiting) == 1:
            await self.gate.wait()
        await wait_committed(replica, end_offset, leader_epoch=leader_epoch, timeout_ms=timeout_ms)


async def test_large_parts_take_turns(broker: PublishingBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next one begins when the one before waits for its followers for too long in its middle."""
    held = HeldCommits()
    for name, value in (("KEEP_BYTES", 100), ("IN_FLIGHT_BYTES", 300), ("TURN_WAIT_MS", 300)):
        monkeypatch.setattr(publisher_module, name, value)
    monkeypatch.setattr(publisher_module, "wait_committed", held.wait)
    target = await broker.target()
    first, values = await staged(broker)
    second, more = await staged_later(broker)
    one = asyncio.create_task(broker.publisher.publish(first))
    async with asyncio.timeout(WAIT_S):
        await held.one_waits.wait()
        end_offset = target.log_end_offset
        assert end_offset < len(values)
        two = asyncio.create_task(broker.publisher.publish(replace(second, producer_id=PUBLISHING + 1)))
        await asyncio.sleep(0.1)
        assert target.log_end_offset == end_offset, "it is not the second one's turn"
        await two
        assert not one.done()
        held.gate.set()
        await one
    assert broker.published == [(TOPIC_ID, 0, True), (TOPIC_ID, 0, True)]
    assert values_of(target) == [*values[:end_offset], *more, *values[end_offset:]]


async def test_a_large_part_begins_while_the_end_of_the_one_before_is_committed(
    broker: PublishingBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A part gives its turn to the next one after its last append; it does not keep it while it waits for the high watermark."""
    held = HeldCommits()
    for name, value in (("KEEP_BYTES", 100), ("TURN_WAIT_MS", WAIT_S * 2_000)):
        monkeypatch.setattr(publisher_module, name, value)
    monkeypatch.setattr(publisher_module, "wait_committed", held.wait)
    first, values = await staged(broker)
    second, more = await staged_later(broker)
    one = asyncio.create_task(broker.publisher.publish(first))
    async with asyncio.timeout(WAIT_S):
        await held.one_waits.wait()
        await broker.publisher.publish(replace(second, producer_id=PUBLISHING + 1))
        assert not one.done()
        held.gate.set()
        await one
    assert values_of(await broker.target()) == [*values, *more]


async def test_batches_keep_everything_but_their_producer(broker: PublishingBroker) -> None:
    """Payload, timestamps and codec are those that were staged; the header names the coordinator's producer, and the CRC fits."""
    attempt = await broker.attempt(0)
    attempt.stage(b"x" * 300, b"y" * 300, codec=Codec.ZSTD, timestamps_ms=[1_000, 2_000])
    attempt.stage(b"z", timestamps_ms=[5])
    made, _ = await attempt.seal()
    await broker.publisher.publish(part(made, base_sequence=SEQUENCES - 2))
    staging, target = await broker.staging(), await broker.target()
    before = memoryview(staging.read(0, 1 << 20, end_offset=3).data)
    after = memoryview(target.read(0, 1 << 20, end_offset=3).data)
    sequences: list[int] = []
    for (at, old), (to, new) in zip(iter_batches(before), iter_batches(after), strict=True):
        published = after[to : to + new.size_bytes]
        check_batch(published, max_bytes=1 << 20)
        assert published[61:] == before[at : at + old.size_bytes][61:]
        same = {
            "producer_id": 0,
            "producer_epoch": 0,
            "base_sequence": 0,
            "crc": 0,
            "base_offset": 0,
            "leader_epoch": 0,
        }
        assert old._replace(**same) == new._replace(**same)
        assert (new.producer_id, new.producer_epoch) == (PUBLISHING, 0)
        sequences.append(new.base_sequence)
        assert RecordBatch(published).timestamps_ms() == RecordBatch(before[at : at + old.size_bytes]).timestamps_ms()
    assert sequences == [SEQUENCES - 2, 0]


async def test_part_that_comes_twice_is_answered_with_its_first_offsets(broker: PublishingBroker) -> None:
    """At once, later, to another publisher, and long after others have written, through the search in the log."""
    target = await broker.target()
    wanted, values = await staged(broker)
    answers = await asyncio.gather(*(broker.publisher.publish(wanted) for _ in range(3)))
    for number in range(200):
        append_foreign(target, b"other %d" % number)
    answers.append(await broker.new_publisher().publish(wanted))
    assert set(answers) == {PublishedPart(0, len(values))}
    assert values_of(target)[: len(values)] == values
    assert target.log_end_offset == len(values) + 200
    assert target.log.segment_count > 3


async def test_old_part_is_found_behind_later_ones(broker: PublishingBroker) -> None:
    """Even if the producer state remembers nothing of it."""
    wanted, values = await staged(broker)
    first = await broker.publisher.publish(wanted)
    attempt = await broker.attempt(5)
    for number in range(40):
        attempt.stage(b"later %d" % number)
    later, more = await attempt.seal()
    second = await broker.publisher.publish(part(later, base_sequence=wanted.records))
    assert await broker.new_publisher().publish(wanted) == first == PublishedPart(0, len(values))
    assert second == PublishedPart(len(values), len(values) + len(more))


async def test_part_whose_records_were_deleted_since_says_so(broker: PublishingBroker) -> None:
    """The begin of it is unknown, and nothing is published again."""
    target = await broker.target()
    wanted, values = await staged(broker)
    await broker.publisher.publish(wanted)
    await target.delete_before(30, 0)
    found = await broker.new_publisher().publish(wanted)
    assert found == PublishedPart(UNKNOWN_OFFSET, len(values))
    assert target.log_end_offset == len(values)


async def test_publication_goes_on_where_it_stopped(broker: PublishingBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever number of batches was appended before the failure, and whoever wrote in between."""
    target = await broker.target()
    wanted, values = await staged(broker, sequence=SEQUENCES - 7)
    append = Replica.append_decided
    left = 0

    def append_some(replica: Replica, run: Sequence[HeadedBatch], **options: Any) -> object:
        nonlocal left
        if left == 0:
            raise refused(ErrorCode.NOT_ENOUGH_REPLICAS, "too few")
        appended = append(replica, run[:left], **options)
        left -= len(appended)
        return appended

    monkeypatch.setattr(Replica, "append_decided", append_some)
    others = 0
    for count in (0, 1, 3, 11, 2, 1):
        left = count
        with pytest.raises(RefusedError) as caught:
            await broker.new_publisher(max_batches=7).publish(wanted)
        assert caught.value.failure.code is ErrorCode.NOT_ENOUGH_REPLICAS
        append_foreign(target, b"other")
        others += 1
    left = 1_000
    found = await broker.new_publisher(max_batches=3).publish(wanted)
    assert [each for each in values_of(target) if each != b"other"] == values
    assert found.end_offset == target.log_end_offset == len(values) + others
    assert found.first_offset == 1, "the first attempt appended nothing, the second one appends behind one other record"


class Listener:
    """Hears of the high watermark."""

    def __init__(self) -> None:
        self.moved = asyncio.Event()

    def on_high_watermark(self, _high_watermark: int) -> None:
        self.moved.set()

    def on_service_end(self, _failure: object) -> None:
        self.moved.set()


async def test_restarted_broker_goes_on(broker: PublishingBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """The producer state comes back with the log."""
    wanted, values = await staged(broker)
    monkeypatch.setattr(publisher_module, "IN_FLIGHT_BYTES", 1_000)
    publishing = asyncio.create_task(broker.publisher.publish(wanted))
    target = await broker.target()
    listener = Listener()
    target.listeners.add_read(listener)
    async with asyncio.timeout(WAIT_S):
        while target.high_watermark < 10:
            listener.moved.clear()
            await listener.moved.wait()
    await broker.publisher.close()
    with pytest.raises(RefusedError) as caught:
        await publishing
    assert caught.value.failure.code is ErrorCode.SHUTTING_DOWN
    assert 10 <= target.log_end_offset < len(values)
    await broker.manager.stop()
    again = PublishingBroker(broker.disk)
    await again.start(segment_bytes="4096")
    try:
        assert await again.publisher.publish(wanted) == PublishedPart(0, len(values))
        assert values_of(await again.target()) == values
    finally:
        await again.publisher.close()
        await again.manager.stop()


@pytest.mark.parametrize("in_flight_bytes", [1, IN_FLIGHT_BYTES])
@pytest.mark.parametrize("at", [1, 12, 39])
async def test_publication_ends_with_its_leader_epoch(
    broker: PublishingBroker, monkeypatch: pytest.MonkeyPatch, at: int, in_flight_bytes: int
) -> None:
    """Even if the same broker leads on: in between, others may have led, and written other records at these offsets.

    A publication notices it before it appends, and, with little in flight, where it waits for the high watermark.
    """
    wanted, values = await staged(broker)
    target, append, appends = await broker.target(), Replica.append_decided, 0

    def append_and_move(replica: Replica, run: Sequence[HeadedBatch], **options: Any) -> object:
        nonlocal appends
        appended = append(replica, run[:1], **options)
        appends += 1
        if appends == at:
            broker.commit(PartitionChangeRecord(topic_id=TOPIC_ID, partition=0, leader=LeaderChange(leader_id=1)))
        return appended

    monkeypatch.setattr(publisher_module, "IN_FLIGHT_BYTES", in_flight_bytes)
    monkeypatch.setattr(Replica, "append_decided", append_and_move)
    assert await code_of(broker, wanted) is ErrorCode.LEADER_NOT_AVAILABLE
    assert target.leader_epoch == 1
    assert appends == at
    assert await broker.publisher.publish(wanted) == PublishedPart(0, len(values))
    assert values_of(target) == values


async def test_bytes_beyond_the_high_watermark_are_bounded(
    broker: PublishingBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A publication waits for the high watermark before it appends more."""
    target = await broker.target()
    wanted, values = await staged(broker, batches=60)
    monkeypatch.setattr(publisher_module, "IN_FLIGHT_BYTES", 500)
    append, beyond = Replica.append_decided, list[int]()

    def append_and_look(replica: Replica, run: Sequence[HeadedBatch], **options: Any) -> object:
        appended = append(replica, run, **options)
        beyond.append(replica.log_end_offset - replica.high_watermark)
        return appended

    monkeypatch.setattr(Replica, "append_decided", append_and_look)
    await broker.publisher.publish(wanted)
    assert values_of(target) == values
    # A batch has 76 bytes or more.
    assert 2 <= max(beyond) <= 12


async def flushes_of(publisher: Publisher, wanted: Part, target: Replica, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Publish a part as a large one; return the log end of its partition at each flush."""
    submit, flushed = GroupFlusher.submit, list[int]()

    def submit_and_look(flusher: GroupFlusher, log: PartitionLog, on_done: OnDone) -> FlushWork | None:
        if log is target.log:
            flushed.append(log.log_end_offset)
        return submit(flusher, log, on_done)

    monkeypatch.setattr(GroupFlusher, "submit", submit_and_look)
    monkeypatch.setattr(publisher_module, "KEEP_BYTES", 100)
    await publisher.publish(wanted)
    return flushed


async def test_large_part_is_flushed_a_piece_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where acknowledgements wait for the disk, one flush covers many batches, and the part ends flushed."""
    broker = PublishingBroker()
    await broker.start(flush_policy="ack")
    try:
        target = await broker.target()
        wanted, values = await staged(broker, batches=60)
        monkeypatch.setattr(publisher_module, "FLUSH_BYTES", 2_000)
        monkeypatch.setattr(publisher_module, "FLUSH_HOLD_MS", 60_000)
        flushed = await flushes_of(broker.publisher, wanted, target, monkeypatch)
        # 120 batches of some 90 bytes. While a flush is under way, more than one piece may come together for the next.
        assert 2 <= len(flushed) <= 8
        assert flushed[0] < len(values)
        assert target.log.flushed_offset == target.log_end_offset == len(values)
        assert values_of(target) == values
    finally:
        await broker.publisher.close()
        await broker.manager.stop()


async def test_flushes_are_held_for_a_limited_time_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """A publication that stands still, at a read from another broker for example, holds up no other producer."""
    broker = PublishingBroker()
    await broker.start(flush_policy="ack")
    gate, read = asyncio.Event(), broker.staged.read

    async def slow_read(topic_id: bytes, partition: int, offset: int, end_offset: int) -> bytes:
        if target.log_end_offset:
            await gate.wait()
        return await read(topic_id, partition, offset, end_offset)

    try:
        target = await broker.target()
        wanted, values = await staged(broker)
        monkeypatch.setattr(publisher_module, "KEEP_BYTES", 100)
        monkeypatch.setattr(publisher_module, "PIECE_BYTES", 1)
        monkeypatch.setattr(broker.staged, "begin", lambda *_: None)
        monkeypatch.setattr(broker.staged, "read", slow_read)
        publishing = asyncio.create_task(broker.publisher.publish(wanted))
        await until(lambda: target.log_end_offset > 0, what="the first batch")
        await until(lambda: target.log.flushed_offset == target.log_end_offset, what="the flush")
        assert not publishing.done()
        gate.set()
        await publishing
        assert values_of(target) == values
    finally:
        gate.set()
        await broker.publisher.close()
        await broker.manager.stop()


@pytest.mark.parametrize("piece_bytes", [1, 200, PIECE_BYTES])
async def test_large_part_reads_ahead(
    broker: PublishingBroker, monkeypatch: pytest.MonkeyPatch, piece_bytes: int
) -> None:
    """While a piece is appended, the next one is read in a thread; nothing is read in the event loop."""
    wanted, values = await staged(broker, batches=60)
    target = await broker.target()
    begin, begun, read = broker.staged.begin, list[int](), list[int]()

    def begin_and_look(topic_id: bytes, partition: int, offset: int, end_offset: int) -> ReadWork | None:
        begun.append(target.log_end_offset)
        return begin(topic_id, partition, offset, end_offset)

    monkeypatch.setattr(publisher_module, "KEEP_BYTES", 100)
    monkeypatch.setattr(publisher_module, "PIECE_BYTES", piece_bytes)
    monkeypatch.setattr(broker.staged, "begin", begin_and_look)
    looked = broker.staged.read

    async def read_and_note(topic_id: bytes, partition: int, offset: int, end_offset: int) -> bytes:
        read.append(offset)
        return await looked(topic_id, partition, offset, end_offset)

    monkeypatch.setattr(broker.staged, "read", read_and_note)
    await broker.publisher.publish(wanted)
    assert values_of(target) == values
    # The plan alone reads in the loop, its first piece.
    assert len(read) <= 1
    if piece_bytes == 1:
        # The second batch was asked for before the first was appended.
        assert begun[:3] == [0, 0, 1]


@pytest.mark.parametrize("lost", [None, b"", "error"])
async def test_read_ahead_that_fails_is_read_again(
    broker: PublishingBroker, monkeypatch: pytest.MonkeyPatch, lost: bytes | str | None
) -> None:
    """A segment that was closed in the meantime, for example: the ordinary read finds what is there, or says what is wrong."""
    wanted, values = await staged(broker, batches=60)
    target = await broker.target()
    run, runs = ReadWork.run, 0

    def run_and_lose(work: ReadWork) -> bytes | None:
        nonlocal runs
        runs += 1
        if runs % 3:
            return run(work)
        if isinstance(lost, str):
            raise DiskReadError("/data/x", "no")
        return lost

    monkeypatch.setattr(publisher_module, "KEEP_BYTES", 100)
    monkeypatch.setattr(publisher_module, "PIECE_BYTES", 300)
    monkeypatch.setattr(ReadWork, "run", run_and_lose)
    await broker.publisher.publish(wanted)
    assert runs > 3
    assert values_of(target) == values


async def test_several_coordinators_publish_at_once(broker: PublishingBroker) -> None:
    """Their batches may lie between each other's; each part is whole and in order."""
    target = await broker.target()
    parts: list[tuple[Part, list[bytes]]] = []
    for number in range(4):
        attempt = await broker.attempt(10 + number)
        for at in range(30):
            attempt.stage(b"%d: %d" % (number, at))
        made, values = await attempt.seal()
        parts.append((part(made, producer_id=PUBLISHING + number), values))
    await asyncio.gather(*(broker.publisher.publish(each) for each, _ in parts))
    everything = values_of(target)
    for number, (_, values) in enumerate(parts):
        assert [each for each in everything if each is not None and each.startswith(b"%d:" % number)] == values
    assert len(everything) == 120


async def test_parts_of_one_coordinator_wait_for_each_other(broker: PublishingBroker) -> None:
    """A part that is asked for while the one before is under way follows it."""
    first, values = await staged(broker)
    attempt = await broker.attempt(9)
    attempt.stage(b"next")
    made, _ = await attempt.seal()
    second = part(made, base_sequence=first.records)
    found = await asyncio.gather(broker.publisher.publish(first), broker.publisher.publish(second))
    assert found == [PublishedPart(0, len(values)), PublishedPart(len(values), len(values) + 1)]
    assert len(broker.publisher) == 0


async def test_caller_that_leaves_does_not_stop_a_publication(broker: PublishingBroker) -> None:
    """The next caller gets its answer."""
    wanted, values = await staged(broker)
    impatient = asyncio.create_task(broker.publisher.publish(wanted))
    await asyncio.sleep(0)
    assert len(broker.publisher) == 1
    impatient.cancel()
    assert await broker.publisher.publish(wanted) == PublishedPart(0, len(values))
    with pytest.raises(asyncio.CancelledError):
        await impatient


async def test_config_that_came_later_does_not_refuse_what_is_decided(broker: PublishingBroker) -> None:
    """The rules for records were asked when they were staged: keys of a compacted topic here."""
    wanted, values = await staged(broker)
    target = await broker.target()
    broker.commit(*broker.config(TOPIC_ID, cleanup_policy="compact"))
    assert target.is_compacted
    with pytest.raises(RefusedError):
        append_foreign(target, b"no key")
    await broker.publisher.publish(wanted)
    assert values_of(target) == values


async def code_of(broker: PublishingBroker, wanted: Part) -> ErrorCode:
    with pytest.raises(RefusedError) as caught:
        await broker.publisher.publish(wanted)
    return caught.value.failure.code


async def test_missing_records_publish_nothing(broker: PublishingBroker) -> None:
    """Not even those that are there: a part without them all is refused before its first append."""
    wanted, _ = await staged(broker)
    target, staging = await broker.target(), await broker.staging()
    last = wanted.slices[-1]
    beyond = last._replace(end_offset=staging.log_end_offset + 5, records=last.records + 5)
    wrong = last._replace(first_sequence=last.first_sequence + 1)
    stranger = last._replace(producer_id=STAGING + 77)
    for each in (beyond, wrong, stranger):
        assert await code_of(broker, part(wanted.slices[0], each)) is ErrorCode.INGEST_INCOMPLETE
    await staging.delete_before(5, 0)
    assert await code_of(broker, wanted) is ErrorCode.INGEST_INCOMPLETE
    assert target.log_end_offset == 0


async def test_log_that_lost_earlier_parts_goes_on_once_the_loss_is_noted(broker: PublishingBroker) -> None:
    """The leader says what its log lacks, and leaves out exactly what its coordinator knows of; then parts follow each other again."""
    wanted, values = await staged(broker)
    await broker.publisher.publish(wanted)
    target = await broker.target()
    following, more = await staged_later(broker)
    after_loss = replace(following, base_sequence=wanted.records + 3)
    for noted in (0, 2, 4):
        with pytest.raises(RecordsLostError) as caught:
            await broker.publisher.publish(replace(after_loss, lost_records=noted))
        assert caught.value.records == 3
        assert caught.value.failure.code is ErrorCode.DATA_LOSS
    broker.is_session_lost = True
    noted_loss = replace(after_loss, lost_records=3)
    assert await code_of(broker, noted_loss) is ErrorCode.LEADER_NOT_AVAILABLE
    broker.is_session_lost = False
    assert target.log_end_offset == wanted.records
    found = await broker.publisher.publish(noted_loss)
    assert found == PublishedPart(wanted.records, wanted.records + len(more))
    for again in (after_loss, noted_loss):
        assert await broker.new_publisher().publish(again) == found
    attempt = await broker.attempt(9)
    attempt.stage(b"next")
    made, _ = await attempt.seal()
    assert await code_of(broker, part(made, base_sequence=wanted.records + 4 + len(more))) is ErrorCode.DATA_LOSS
    await broker.publisher.publish(part(made, base_sequence=wanted.records + 3 + len(more)))
    assert values_of(target) == [*values, *more, b"next"]


async def test_part_after_a_loss_goes_on_after_a_crash(
    broker: PublishingBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log that was recovered takes the hole in the sequences as it is, and the rest of the part is published once."""
    wanted, values = await staged(broker)
    await broker.publisher.publish(wanted)
    following, more = await staged_later(broker)
    noted_loss = replace(following, base_sequence=wanted.records + 3, lost_records=3)
    append, left = Replica.append_decided, [7]

    def failing(replica: Replica, run: Sequence[HeadedBatch], **fields: Any) -> Any:
        left[0] -= 1
        if left[0] < 0:
            raise refused(ErrorCode.STORAGE_FAILED, "no more")
        return append(replica, run[:1], **fields)

    with monkeypatch.context() as patched:
        patched.setattr(Replica, "append_decided", failing)
        assert await code_of(broker, noted_loss) is ErrorCode.STORAGE_FAILED
    end_offset = (await broker.target()).log_end_offset
    assert wanted.records < end_offset < wanted.records + len(more)
    await broker.publisher.close()
    await broker.manager.stop()
    again = PublishingBroker(broker.disk)
    await again.start(segment_bytes="4096")
    assert await again.publisher.publish(noted_loss) == PublishedPart(wanted.records, wanted.records + len(more))
    assert values_of(await again.target()) == [*values, *more]
    await again.publisher.close()
    await again.manager.stop()


async def test_absurd_part_and_foreign_partitions_are_refused(broker: PublishingBroker) -> None:
    """Each with its code; a topic that is only not known yet is not taken for a deleted one."""
    wanted, _ = await staged(broker)
    absurd = part(Slice(5, 0, 1, 0, 1))
    assert await code_of(broker, absurd) is ErrorCode.INVALID_REQUEST
    unknown = replace(wanted, topic_id=b"u" * 16)
    assert await code_of(broker, unknown) is ErrorCode.METADATA_NOT_REACHED
    assert await code_of(broker, replace(wanted, partition=9)) is ErrorCode.METADATA_NOT_REACHED
    broker.commit(RemoveTopicRecord(topic_id=TOPIC_ID))
    assert await code_of(broker, wanted) is ErrorCode.UNKNOWN_TOPIC


async def test_full_disk_stops_a_publication_and_free_space_lets_it_go_on(broker: PublishingBroker) -> None:
    """The failure is typed, and nothing is doubled."""
    wanted, values = await staged(broker)
    broker.disk.refuse("append", TOPIC_ID.hex(), Refusal.FULL)
    assert await code_of(broker, wanted) is ErrorCode.STORAGE_FAILED
    broker.disk.forgive()
    await broker.publisher.publish(wanted)
    assert values_of(await broker.target()) == values


async def test_too_many_parts_are_refused_and_close_ends_all(
    broker: PublishingBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OVERLOADED comes at once, with advice; after the close nothing is published any more."""
    monkeypatch.setattr(publisher_module, "PUBLICATIONS_MAX", 1)
    first, _ = await staged(broker)
    publishing = asyncio.create_task(broker.publisher.publish(first))
    await asyncio.sleep(0)
    assert await code_of(broker, replace(first, producer_id=PUBLISHING + 1)) is ErrorCode.OVERLOADED
    following = asyncio.create_task(code_of(broker, replace(first, base_sequence=5)))
    await asyncio.sleep(0)
    assert await code_of(broker, replace(first, base_sequence=6)) is ErrorCode.OVERLOADED
    await broker.publisher.close()
    with pytest.raises(RefusedError) as caught:
        await publishing
    assert caught.value.failure.code is ErrorCode.SHUTTING_DOWN
    assert await following is ErrorCode.SHUTTING_DOWN
    assert await code_of(broker, first) is ErrorCode.SHUTTING_DOWN
    assert len(broker.publisher) == 0
