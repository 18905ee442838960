# SPDX-License-Identifier: Apache-2.0
"""Held partitions: what is kept, what goes on, and how much room it takes. `published_model.py` has the laws."""

from __future__ import annotations

from collections import Counter

import pytest
from lograft._consumer import holding_collector
from lograft._consumer.fetch_buffer import Chunk, Cursor, Failure, Reset
from lograft._consumer.holding_collector import HoldingCollector
from lograft._consumer.together import FIRST_PUBLISHING_PRODUCER_ID, Watermark
from lograft.errors import (
    CorruptDataError,
    DataLossError,
    InvalidRequestError,
    IsolationTimeoutError,
    UnknownTopicError,
)
from lograft.settings import ConsumerSettings
from lograft.types import TopicPartition
from lograft.wire.batch import encode_batch
from tests.consumer.published_model import TOPIC_ID, Walk

TPS = [TopicPartition("t", 0), TopicPartition("t", 1)]
SEEDS = 150


class Consumer:
    """A collector of two partitions, its clock, and its credit."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, *, prefetch_bytes: int = 65_536, timeout_ms: int = 1_000
    ) -> None:
        self.now_ms = 0
        self.given_back = Counter[object]()
        self.changes = 0
        monkeypatch.setattr(holding_collector, "monotonic_ms", lambda: self.now_ms)
        settings = ConsumerSettings(
            prefetch_bytes=prefetch_bytes, isolation="committed-together", isolation_timeout_ms=timeout_ms
        )
        self.collector = HoldingCollector(settings, self._give_back, self._on_change)
        self.cursors = {cursor.tp: cursor for cursor in self.collector.assign(dict.fromkeys(TPS, 0))}

    def cursor(self, number: int) -> Cursor:
        """Return the cursor of a partition."""
        return self.cursors[TPS[number]]

    def arrive(self, number: int, *bodies: bytes, next_offset: int) -> int:
        """Have a chunk arrive, and return its size in bytes."""
        body = b"".join(bodies)
        cursor = self.cursor(number)
        self.collector.put(
            Chunk(
                cursor=cursor,
                generation=cursor.generation,
                body=body,
                next_offset=next_offset,
                high_watermark=next_offset,
                source="stream",
                topic_id=TOPIC_ID,
            )
        )
        return len(body)

    def answer(self, *answers: object) -> list[Cursor]:
        """Answer the only question that is due."""
        (question,) = self.collector.questions()
        return self.collector.answered(question, answers)  # type: ignore[arg-type]

    def read(self) -> list[tuple[int, int]]:
        """Return partition and offset of all records that are there."""
        return [(each.partition, each.offset) for each in self.collector.next_records(1_000)]

    def _give_back(self, source: object, size_bytes: int) -> None:
        self.given_back[source] += size_bytes

    def _on_change(self) -> None:
        self.changes += 1


def plain(offset: int, count: int = 1) -> bytes:
    """Return a batch that nobody published."""
    return bytes(encode_batch([b"v"] * count, base_offset=offset))


def published(offset: int, sequence: int, count: int = 1, *, coordinator: int = 0, size_bytes: int = 1) -> bytes:
    """Return a published batch."""
    return bytes(
        encode_batch(
            [b"v" * size_bytes] * count,
            base_offset=offset,
            producer_id=FIRST_PUBLISHING_PRODUCER_ID + coordinator,
            producer_epoch=0,
            base_sequence=sequence,
        )
    )


@pytest.fixture
def consumer(monkeypatch: pytest.MonkeyPatch) -> Consumer:
    """A consumer."""
    return Consumer(monkeypatch)


@pytest.mark.parametrize("block", range(3))
def test_laws_hold_in_random_runs(monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    """The runs do everything that they are for."""
    counts = Counter[str]()
    for seed in range(block * SEEDS, (block + 1) * SEEDS):
        walk = Walk(seed)
        monkeypatch.setattr(holding_collector, "monotonic_ms", walk.clock)
        walk.run(200)
        counts += walk.counts
    assert min(counts[each] for each in ("published", "kept", "dropped", "asked", "told", "sought")) > SEEDS // 4, (
        counts
    )


def test_a_partition_waits_and_the_other_goes_on(consumer: Consumer) -> None:
    """Records before the batch are handed out, also those of its chunk. The credit for all of it is back at once."""
    size_bytes = consumer.arrive(0, plain(0, 2), published(2, 0), plain(3), next_offset=4)
    consumer.arrive(0, plain(4), next_offset=5)
    other_bytes = consumer.arrive(1, plain(0), next_offset=1)
    assert consumer.read() == [(0, 0), (0, 1), (1, 0)]
    assert consumer.cursor(0).position == 2
    assert not consumer.collector.has_arrivals
    assert consumer.changes == 1
    consumer.arrive(0, plain(5), next_offset=6)
    consumer.arrive(1, plain(1), next_offset=2)
    assert consumer.read() == [(1, 1)]
    assert consumer.given_back["stream"] > size_bytes + other_bytes
    assert consumer.collector.kept_bytes == len(published(2, 0) + plain(3) + plain(4) + plain(5))
    consumer.arrive(1, plain(2), next_offset=3)
    assert consumer.answer(Watermark(1, 1)) == []
    assert consumer.collector.has_arrivals
    assert consumer.read() == [(0, 2), (0, 3), (0, 4), (0, 5), (1, 2)]
    assert consumer.collector.kept_bytes == 0
    assert consumer.collector.questions() == []


def test_everything_that_an_answer_covers_passes_without_a_question(consumer: Consumer) -> None:
    """Only what was decided after it is asked for."""
    consumer.arrive(0, published(0, 0), published(1, 1), published(2, 2), next_offset=3)
    assert consumer.read() == []
    consumer.answer(Watermark(2, 3))
    assert consumer.read() == [(0, 0), (0, 1)]
    consumer.now_ms += 10
    consumer.answer(Watermark(3, 3))
    assert consumer.read() == [(0, 2)]


def test_a_partition_that_does_not_fit_is_fetched_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is dropped, and its fetch is stopped once. Late chunks of that fetch count for nothing."""
    consumer = Consumer(monkeypatch, prefetch_bytes=4_096)
    cursor = consumer.cursor(0)
    first_bytes = consumer.arrive(0, published(0, 0, size_bytes=600), next_offset=1)
    assert consumer.read() == []
    assert consumer.collector.take_stops() == []
    before = consumer.changes
    more_bytes = consumer.arrive(0, published(1, 1, size_bytes=600), next_offset=2)
    assert consumer.changes == before + 1
    assert consumer.collector.kept_bytes == 0
    consumer.collector.put(
        Chunk(
            cursor=cursor,
            generation=0,
            body=plain(2),
            next_offset=3,
            high_watermark=3,
            source="stream",
            topic_id=TOPIC_ID,
        )
    )
    assert consumer.collector.take_stops() == [TPS[0]]
    assert consumer.collector.take_stops() == []
    assert consumer.read() == []
    assert consumer.given_back["stream"] == first_bytes + more_bytes + len(plain(2))
    assert consumer.answer(Watermark(2, 2)) == [cursor]
    assert cursor.position == 0
    consumer.arrive(0, published(0, 0, size_bytes=600), published(1, 1, size_bytes=600), next_offset=2)
    assert consumer.read() == [(0, 0), (0, 1)]


def test_marks_of_a_held_partition_take_no_room_for_ever(consumer: Consumer) -> None:
    """A broker sends one every few seconds. The last one moves the position."""
    consumer.arrive(0, published(0, 0), next_offset=1)
    consumer.read()
    for _ in range(1_000):
        consumer.arrive(0, next_offset=5)
    assert consumer.collector.kept_arrivals == 2
    consumer.answer(Watermark(1, 1))
    assert consumer.read() == [(0, 0)]
    assert consumer.cursor(0).position == 5


@pytest.mark.parametrize("action", ["seek", "pause", "remove", "assign"])
def test_a_hold_ends_with_what_the_application_does(consumer: Consumer, action: str) -> None:
    """What was kept is dropped, the question counts for nothing, and the room is free."""
    consumer.arrive(0, published(0, 0), next_offset=1)
    consumer.read()
    (question,) = consumer.collector.questions()
    match action:
        case "seek":
            consumer.collector.seek(TPS[0], 0)
        case "pause":
            consumer.collector.retire([TPS[0]])
        case "remove":
            consumer.collector.remove([TPS[0]])
        case _:
            consumer.collector.assign({TPS[1]: 0})
    assert consumer.collector.kept_bytes == 0
    assert consumer.collector.answered(question, [Watermark(1, 1)]) == []
    assert consumer.read() == []
    consumer.now_ms = 10**6
    assert not consumer.collector.expire()
    assert consumer.collector.questions() == []
    if action == "seek":
        consumer.arrive(0, published(0, 0), next_offset=1)
        assert consumer.read() == []
        consumer.answer(Watermark(1, 1))
        assert consumer.read() == [(0, 0)]


def test_a_wait_that_is_too_long_is_told_before_anything_else(consumer: Consumer) -> None:
    """Once for each term. Records that precede the error in one call come first, and the error then."""
    consumer.arrive(0, published(0, 0), next_offset=1)
    consumer.read()
    consumer.now_ms = 1_000
    assert consumer.collector.expire()
    assert consumer.collector.has_arrivals
    consumer.arrive(1, plain(0), next_offset=1)
    with pytest.raises(IsolationTimeoutError, match=r"t-0: .*offset 0 .*no broker has answered") as raised:
        consumer.collector.next_batch()
    assert (raised.value.topic, raised.value.partition, raised.value.offset) == ("t", 0, 0)
    assert consumer.read() == [(1, 0)]
    consumer.collector.tell_again(raised.value)
    with pytest.raises(IsolationTimeoutError):
        consumer.read()
    assert consumer.read() == []
    consumer.now_ms = 1_999
    assert not consumer.collector.expire()
    consumer.now_ms = 2_000
    assert consumer.collector.expire()
    consumer.answer(Watermark(1, 1))
    assert consumer.read() == [(0, 0)], "it is over before it was told"


def test_a_failure_that_stays_fails_the_partition_until_a_seek(consumer: Consumer) -> None:
    """Its fetch is stopped, and the others go on."""
    error = InvalidRequestError("no publishing producer id")
    consumer.arrive(0, published(0, 0), next_offset=1)
    consumer.read()
    consumer.answer(error)
    assert consumer.collector.take_stops() == [TPS[0]]
    for _ in range(2):
        with pytest.raises(InvalidRequestError):
            consumer.read()
    consumer.collector.seek(TPS[0], 1)
    consumer.arrive(0, plain(1), next_offset=2)
    assert consumer.read() == [(0, 1)]
    assert consumer.collector.take_stops() == []


def test_a_deleted_topic_ends_the_hold_and_other_failures_wait_for_their_turn(consumer: Consumer) -> None:
    """A failure behind held records is theirs only if nothing can tell any more whether they are complete."""
    lost = DataLossError("gone")
    consumer.arrive(0, published(0, 0), next_offset=1)
    consumer.arrive(1, published(0, 0), next_offset=1)
    consumer.read()
    consumer.collector.put(Failure(cursor=consumer.cursor(0), generation=0, error=lost))
    assert consumer.read() == []
    gone = Failure(cursor=consumer.cursor(1), generation=0, error=UnknownTopicError("deleted"))
    consumer.collector.put(gone)
    with pytest.raises(UnknownTopicError):
        consumer.read()
    consumer.collector.remove([TPS[1]])
    consumer.answer(Watermark(1, 1))
    assert consumer.read() == [(0, 0)]
    with pytest.raises(DataLossError):
        consumer.read()


def test_a_reset_waits_for_its_turn(consumer: Consumer) -> None:
    """The position moves after the held records."""
    consumer.arrive(0, published(0, 0), next_offset=1)
    consumer.read()
    consumer.collector.put(Reset(cursor=consumer.cursor(0), generation=0, offset=70))
    consumer.arrive(0, plain(70), next_offset=71)
    assert consumer.cursor(0).position == 0
    consumer.answer(Watermark(1, 1))
    assert consumer.read() == [(0, 0), (0, 70)]


def test_a_damaged_batch_is_damaged_whatever_its_header_says(consumer: Consumer) -> None:
    """A producer id that is not true asks nobody."""
    damaged = bytearray(published(0, 0))
    damaged[-1] ^= 1
    consumer.arrive(0, bytes(damaged), next_offset=1)
    with pytest.raises(CorruptDataError):
        consumer.read()
    assert consumer.collector.questions() == []


def test_batches_that_hand_out_nothing_hold_nothing(consumer: Consumer) -> None:
    """Records before the position are not the application's."""
    consumer.collector.seek(TPS[0], 2)
    consumer.arrive(0, published(0, 0, 2), plain(2), next_offset=3)
    assert consumer.read() == [(0, 2)]
    assert consumer.collector.questions() == []
