# SPDX-License-Identifier: Apache-2.0
"""Collecting records into batches."""

from __future__ import annotations

from lograft._producer.accumulator import (
    BATCH_OVERHEAD_BYTES,
    MARK_INTERVAL_MS,
    MAX_BATCH_RECORDS,
    Accumulator,
    AddResult,
)
from lograft._producer.buffers import CLOSED, PartitionBuffer
from lograft._producer.record_columns import RECORD_OVERHEAD_BYTES
from lograft.types import Headers
from lograft.wire.batch import EncodedBatch
from tests.producer.builders import Encoder, append_fast, make_accumulator


def add(
    accumulator: Accumulator,
    part: PartitionBuffer,
    value: bytes | None,
    key: bytes | None = None,
    timestamp_ms: int | None = None,
    headers: Headers | None = None,
    *,
    now_ms: int = 0,
    wall_ms: int = 1_000,
) -> AddResult:
    """Add a record through `add`."""
    return accumulator.add(part, value, key, timestamp_ms, headers, now_ms=now_ms, wall_ms=wall_ms)


def test_batch_is_sealed_when_the_next_record_would_pass_the_limit() -> None:
    """A batch never takes a record that would exceed its size. That record opens the next batch."""
    encoder = Encoder()
    accumulator = make_accumulator(encoder, batch_bytes=1_000)
    part = accumulator.add_topic("t", 1, first_sticky=0).parts[0]
    for _ in range(3):
        assert add(accumulator, part, b"x" * 300) is AddResult.ADDED
    assert [len(call[0]) for call in encoder.calls] == [2]
    assert part.record_count == 1
    assert accumulator.sealed[0].reserved_bytes == BATCH_OVERHEAD_BYTES + 2 * (300 + RECORD_OVERHEAD_BYTES)


def test_record_over_the_batch_size_travels_alone_up_to_the_record_limit() -> None:
    """A single record may be larger than a batch, but not than the topic's limit."""
    accumulator = make_accumulator(batch_bytes=1_000, max_record_bytes=5_000)
    part = accumulator.add_topic("t", 1, first_sticky=0).parts[0]
    assert add(accumulator, part, b"a") is AddResult.ADDED
    assert add(accumulator, part, b"x" * 4_000) is AddResult.ADDED
    assert add(accumulator, part, b"b") is AddResult.ADDED
    assert [batch.record_count for batch in accumulator.sealed] == [1, 1]
    before = accumulator.reserved_bytes
    assert add(accumulator, part, b"x" * 5_000) is AddResult.TOO_LARGE
    assert accumulator.reserved_bytes == before


def test_learned_limit_bounds_batches_and_records() -> None:
    """Once the topic's limit is known, batches and records stay within it. A higher limit does not make batches larger."""
    accumulator = make_accumulator(batch_bytes=1_000, max_record_bytes=5_000)
    part = accumulator.add_topic("t", 1, first_sticky=0).parts[0]
    accumulator.limit_batches(part, 700)
    assert (part.size_limit, part.max_record_bytes) == (700, 700)
    assert add(accumulator, part, b"x" * 600) is AddResult.TOO_LARGE
    accumulator.limit_batches(part, 1 << 20)
    assert (part.size_limit, part.max_record_bytes) == (1_000, 5_000)


def test_full_buffer_refuses_and_changes_nothing() -> None:
    """At the memory bound a record is refused, and neither the open batch nor the count changes."""
    accumulator = make_accumulator(batch_bytes=1_000, buffer_bytes=2_000)
    part = accumulator.add_topic("t", 1, first_sticky=0).parts[0]
    count = 0
    while add(accumulator, part, b"x" * 100) is AddResult.ADDED:
        count += 1
    state = (accumulator.reserved_bytes, part.record_count, len(accumulator.sealed))
    assert add(accumulator, part, b"x" * 100) is AddResult.BUFFER_FULL
    assert state == (accumulator.reserved_bytes, part.record_count, len(accumulator.sealed))
    assert count == 2 * ((1_000 - BATCH_OVERHEAD_BYTES) // 116) + 1 or accumulator.reserved_bytes <= 2_000


def test_record_that_can_never_fit_the_buffer_is_too_large() -> None:
    """A record larger than the whole buffer is refused for good, because waiting would not help."""
    accumulator = make_accumulator(batch_bytes=1_000, buffer_bytes=2_000, max_record_bytes=5_000)
    part = accumulator.add_topic("t", 1, first_sticky=0).parts[0]
    assert add(accumulator, part, b"x" * 2_000) is AddResult.TOO_LARGE


def test_relieve_seals_only_when_nothing_is_under_way() -> None:
    """A full buffer seals open batches early, but not while a sealed one will free memory."""
    accumulator = make_accumulator()
    parts = accumulator.add_topic("t", 2, first_sticky=0).parts
    for part in parts:
        add(accumulator, part, b"v")
    accumulator.relieve()
    assert len(accumulator.sealed) == 2
    add(accumulator, parts[0], b"v")
    accumulator.relieve()
    assert len(accumulator.sealed) == 2


def test_linger_seals_in_order_of_opening_and_not_before() -> None:
    """A batch is sealed once it has lingered, the oldest first."""
    accumulator = make_accumulator(linger_ms=5)
    parts = accumulator.add_topic("t", 2, first_sticky=0).parts
    assert accumulator.deadline_ms() is None
    add(accumulator, parts[1], b"v", now_ms=10)
    add(accumulator, parts[0], b"v", now_ms=12)
    assert accumulator.deadline_ms() == 15
    accumulator.expire(now_ms=14, wall_ms=0)
    assert not accumulator.sealed
    accumulator.expire(now_ms=15, wall_ms=0)
    assert [batch.partition for batch in accumulator.sealed] == [1]
    assert accumulator.deadline_ms() == 17
    accumulator.seal(parts[0])
    assert accumulator.deadline_ms() is None


def test_batch_lingers_on_with_time_marks_while_the_pipeline_is_full() -> None:
    """With a full pipeline the open batch goes on filling, and later records get later timestamps."""
    encoder = Encoder()
    accumulator = make_accumulator(encoder, linger_ms=0, max_in_flight=1)
    part = accumulator.add_topic("t", 1, first_sticky=0).parts[0]
    add(accumulator, part, b"a", wall_ms=1_000)
    accumulator.expire(now_ms=0, wall_ms=1_000)
    first = accumulator.sealed.popleft()
    add(accumulator, part, b"b", now_ms=1, wall_ms=1_001)
    accumulator.expire(now_ms=1, wall_ms=1_001)
    assert accumulator.deadline_ms() == 1 + MARK_INTERVAL_MS
    accumulator.expire(now_ms=1 + MARK_INTERVAL_MS, wall_ms=1_050)
    add(accumulator, part, b"c", now_ms=20, wall_ms=1_060)
    assert not accumulator.sealed
    accumulator.release(first, part, now_ms=30)
    assert encoder.calls[1][2] == [1_001, 1_050]
    assert accumulator.deadline_ms() is None


def test_release_leaves_a_batch_that_has_not_lingered() -> None:
    """Room in the pipeline does not shorten the linger."""
    accumulator = make_accumulator(linger_ms=50, max_in_flight=1)
    part = accumulator.add_topic("t", 1, first_sticky=0).parts[0]
    add(accumulator, part, b"a")
    accumulator.seal_all()
    first = accumulator.sealed.popleft()
    add(accumulator, part, b"b", now_ms=10)
    accumulator.release(first, part, now_ms=20)
    assert not accumulator.sealed
    assert accumulator.reserved_bytes > 0


def test_own_timestamps_and_headers_fill_up_the_columns() -> None:
    """Records around one with its own timestamp or headers get the batch's time and no headers."""
    encoder = Encoder()
    accumulator = make_accumulator(encoder)
    part = accumulator.add_topic("t", 1, first_sticky=0).parts[0]
    add(accumulator, part, b"a", b"k", wall_ms=1_000)
    add(accumulator, part, b"b", None, 5, wall_ms=1_001)
    assert part.open is CLOSED
    assert part.room == part.rich_room
    add(accumulator, part, None, None, None, [("h", None)], wall_ms=1_002)
    add(accumulator, part, b"d", wall_ms=1_003)
    assert accumulator.extend(part, [b"e"], None, None, now_ms=0, wall_ms=1_004) is AddResult.ADDED
    accumulator.seal_all()
    assert encoder.calls == [
        (
            [b"a", b"b", None, b"d", b"e"],
            [b"k", None, None, None, None],
            [1_000, 5, 1_002, 1_003, 1_004],
            [(), (), [("h", None)], (), ()],
        )
    ]
    assert (part.room, part.record_count, part.is_open) == (0, 0, False)


def test_keyless_batches_have_no_key_column() -> None:
    """A batch without any key is encoded without keys."""
    encoder = Encoder()
    accumulator = make_accumulator(encoder)
    part = accumulator.add_topic("t", 1, first_sticky=0).parts[0]
    add(accumulator, part, b"a")
    add(accumulator, part, b"b")
    accumulator.seal_all()
    add(accumulator, part, b"c")
    add(accumulator, part, b"d", b"k")
    accumulator.seal_all()
    assert [call[1] for call in encoder.calls] == [None, [None, b"k"]]


def test_extend_takes_columns_and_refuses_what_one_batch_cannot_hold() -> None:
    """Many records go in at once with their keys and times. The caller gets back more than one batch can hold."""
    encoder = Encoder()
    accumulator = make_accumulator(encoder, batch_bytes=1_000)
    part = accumulator.add_topic("t", 1, first_sticky=0).parts[0]
    many = [b"x" * 100] * 5
    assert accumulator.extend(part, many, [b"k"] * 5, [1, 2, 3, 4, 5], now_ms=0, wall_ms=0) is AddResult.ADDED
    assert accumulator.extend(part, many, None, None, now_ms=0, wall_ms=7) is AddResult.ADDED
    assert encoder.calls == [(many, [b"k"] * 5, [1, 2, 3, 4, 5], None)]
    assert accumulator.extend(part, many * 2, None, None, now_ms=0, wall_ms=0) is AddResult.TOO_LARGE
    full = make_accumulator(batch_bytes=1_000, buffer_bytes=1_000)
    part = full.add_topic("t", 1, first_sticky=0).parts[0]
    assert full.extend(part, many, None, None, now_ms=0, wall_ms=0) is AddResult.ADDED
    assert full.extend(part, many, None, None, now_ms=0, wall_ms=0) is AddResult.BUFFER_FULL


def test_batch_never_holds_more_records_than_the_format_allows() -> None:
    """A batch takes at most the format's number of records, even of empty ones, on every path."""
    encoder = Encoder()
    accumulator = make_accumulator(encoder, batch_bytes=8 << 20, buffer_bytes=64 << 20)
    part = accumulator.add_topic("t", 1, first_sticky=0).parts[0]
    for _ in range(150_000):
        if not append_fast(accumulator, part, b"", None):
            assert add(accumulator, part, b"") is AddResult.ADDED
    for _ in range(5):
        assert accumulator.extend(part, [b""] * 40_000, None, None, now_ms=0, wall_ms=0) is AddResult.ADDED
    accumulator.seal_all()
    counts = [len(call[0]) for call in encoder.calls]
    assert sum(counts) == 350_000
    assert max(counts) <= MAX_BATCH_RECORDS
    assert accumulator.extend(part, [b""] * 60_000, None, None, now_ms=0, wall_ms=0) is AddResult.TOO_LARGE


def test_encoded_batch_seals_what_came_before_it() -> None:
    """A batch that the caller encoded keeps its position after the records sent before."""
    accumulator = make_accumulator(buffer_bytes=20_000, max_record_bytes=15_000)
    part = accumulator.add_topic("t", 1, first_sticky=0).parts[0]
    add(accumulator, part, b"a")
    assert add_encoded(accumulator, part, 8_000, 7) is AddResult.ADDED
    assert [batch.record_count for batch in accumulator.sealed] == [1, 7]
    assert accumulator.sealed[1].deadline_ms == 1_003
    assert add_encoded(accumulator, part, 15_001, 7) is AddResult.TOO_LARGE
    assert add_encoded(accumulator, part, 15_000, 7) is AddResult.BUFFER_FULL
    assert add_encoded(accumulator, part, 100, 1) is AddResult.ADDED


def test_encoded_batch_over_the_topics_limit_is_refused_unless_it_may_be_split() -> None:
    """The producer may split batches that it encoded. A single record or a caller's batch cannot be split."""
    accumulator = make_accumulator(buffer_bytes=100_000, max_record_bytes=15_000)
    part = accumulator.add_topic("t", 1, first_sticky=0).parts[0]
    accumulator.limit_batches(part, 5_000)
    assert add_encoded(accumulator, part, 5_001, 2) is AddResult.TOO_LARGE
    assert add_encoded(accumulator, part, 5_001, 1, may_split=True) is AddResult.TOO_LARGE
    assert add_encoded(accumulator, part, 15_001, 2, may_split=True) is AddResult.TOO_LARGE
    assert add_encoded(accumulator, part, 15_000, 2, may_split=True) is AddResult.ADDED
    assert add_encoded(accumulator, part, 5_000, 1) is AddResult.ADDED


def add_encoded(
    accumulator: Accumulator, part: PartitionBuffer, size_bytes: int, count: int, *, may_split: bool = False
) -> AddResult:
    """Add an encoded batch of a size."""
    body = EncodedBatch.wrap(bytearray(size_bytes))
    return accumulator.add_encoded(part, body, count, may_split=may_split, now_ms=3)


def test_those_who_wait_are_woken_when_there_is_something_for_them() -> None:
    """Callers wake for room when a quarter of the buffer is free, and for a flush when its mark is reached."""
    accumulator = make_accumulator(buffer_bytes=10_000)
    buffers = accumulator.add_topic("t", 1, first_sticky=0)
    part = buffers.parts[0]
    for _ in range(10):
        assert add_encoded(accumulator, part, 1_000, 2) is AddResult.ADDED
    mark = accumulator.flush_mark()
    batches = list(accumulator.sealed)
    for released in range(10):
        assert accumulator.should_wake(2, [mark]) is (released >= 3)
        assert accumulator.should_wake(1, [mark]) is False
        accumulator.release(batches[released], part, now_ms=4)
    assert accumulator.should_wake(1, [mark]) is True
    assert accumulator.should_wake(1, []) is True
    big = make_accumulator(buffer_bytes=1_000)
    alone = big.add_topic("t", 1, first_sticky=0).parts[0]
    add(big, alone, bytes(800))
    assert big.should_wake(1, []) is True, "nothing under way would free the rest"


def test_sticky_partition_moves_when_its_batch_is_sealed() -> None:
    """Records without a key fill one batch of one partition, then go to the next. Batches of other partitions do not matter."""
    accumulator = make_accumulator()
    buffers = accumulator.add_topic("t", 3, first_sticky=5)
    assert buffers.sticky == 2
    add(accumulator, buffers.parts[1], b"keyed")
    accumulator.seal_all()
    assert buffers.sticky == 2
    add(accumulator, buffers.parts[2], b"sticky")
    accumulator.seal_all()
    assert buffers.sticky == 0
    accumulator.grow_topic(buffers, 5)
    accumulator.grow_topic(buffers, 2)
    assert [part.partition for part in buffers.parts] == [0, 1, 2, 3, 4]


def test_flush_mark_is_reached_when_everything_before_it_is_resolved() -> None:
    """A flush waits for all records sent before it, in any order of their results, and for no later ones."""
    accumulator = make_accumulator(linger_ms=10)
    part = accumulator.add_topic("t", 1, first_sticky=0).parts[0]
    assert accumulator.has_reached(accumulator.flush_mark())
    add(accumulator, part, b"a")
    accumulator.seal_all()
    add(accumulator, part, b"b")
    mark = accumulator.flush_mark()
    add(accumulator, part, b"c")
    accumulator.seal_all()
    first, second, third = accumulator.sealed
    accumulator.release(second, part, now_ms=0)
    assert not accumulator.has_reached(mark)
    accumulator.release(first, part, now_ms=0)
    assert accumulator.has_reached(mark)
    assert not accumulator.has_reached(accumulator.flush_mark())
    accumulator.release(third, part, now_ms=0)
    assert accumulator.reserved_bytes == 0
    assert repr(third).startswith("SealedBatch(t-0, ordinal=2")


def test_record_appended_to_a_closing_batch_is_taken_in_again() -> None:
    """A record that the fast path appends after the batch was copied is not lost: it opens the next batch, in order."""
    encoder = Encoder()
    accumulator = make_accumulator(encoder, buffer_bytes=10_000)
    part = accumulator.add_topic("t", 1, first_sticky=0).parts[0]
    add(accumulator, part, b"1")
    batch = part.open
    accumulator.seal(part)
    batch += (b"2", b"k", b"3", None)
    assert part.open is not batch
    accumulator.take_late(part, batch, now_ms=7, wall_ms=8)
    accumulator.take_late(part, batch, now_ms=7, wall_ms=8)
    assert batch == []
    accumulator.seal_all()
    assert [call[:3] for call in encoder.calls] == [([b"1"], None, 1_000), ([b"2", b"3"], [b"k", None], 8)]
    assert CLOSED == []


def test_late_records_fit_even_into_a_full_buffer_and_a_rich_batch() -> None:
    """A late record was already accepted, so it is added despite the memory bound and in a rich batch."""
    encoder = Encoder()
    accumulator = make_accumulator(encoder, batch_bytes=1_000, buffer_bytes=1_000)
    part = accumulator.add_topic("t", 1, first_sticky=0).parts[0]
    add(accumulator, part, b"1")
    batch = part.open
    assert add(accumulator, part, b"2", None, 5, [("h", None)]) is AddResult.ADDED
    assert part.open is CLOSED
    batch += (b"late", b"k")
    accumulator.take_late(part, batch, now_ms=0, wall_ms=9)
    accumulator.seal_all()
    assert encoder.calls[0] == (
        [b"1", b"2", b"late"],
        [None, None, b"k"],
        [1_000, 5, 9],
        [(), [("h", None)], ()],
    )
    full = make_accumulator(batch_bytes=1_000, buffer_bytes=1_000)
    part = full.add_topic("t", 1, first_sticky=0).parts[0]
    add(full, part, b"x" * 700)
    batch = part.open
    full.seal_all()
    assert add(full, part, b"x" * 700) is AddResult.BUFFER_FULL
    batch += (b"y" * 700, None)
    full.take_late(part, batch, now_ms=0, wall_ms=0)
    assert full.reserved_bytes > 1_000


def test_batch_behind_a_full_pipeline_is_no_reason_to_send() -> None:
    """The sender learns of a batch when its pipeline has room, and of the next one when room is there again."""
    accumulator = make_accumulator(max_in_flight=2)
    part, other = accumulator.add_topic("t", 2, first_sticky=0).parts

    def seal_one(into: PartitionBuffer) -> bool:
        accumulator.is_send_due = False
        assert add(accumulator, into, b"x") is AddResult.ADDED
        accumulator.seal(into)
        return accumulator.is_send_due

    assert [seal_one(part) for _ in range(4)] == [True, True, False, False]
    assert seal_one(other)
    for _ in range(3):
        accumulator.release(accumulator.sealed.popleft(), part, now_ms=0)
    assert seal_one(part)


def test_records_of_one_length_need_no_count() -> None:
    """The encoder learns the lengths of a uniform batch, and memory is granted and accounted for as for any other."""
    encoder = Encoder()
    accumulator = make_accumulator(encoder, batch_bytes=200_000, buffer_bytes=300_000)
    part = accumulator.add_topic("t", 1, first_sticky=0).parts[0]
    count = 1_500
    add(accumulator, part, b"x" * 100, b"k")
    assert part.open.lengths == (100, 1)
    for number in range(2, count + 1):
        assert append_fast(accumulator, part, b"x" * 100, b"k")
        assert part.record_count == number
        assert part.granted - part.room == BATCH_OVERHEAD_BYTES + number * (101 + RECORD_OVERHEAD_BYTES)
        assert part.room >= 0
        assert accumulator.reserved_bytes == part.granted <= 200_000
    accumulator.seal_all()
    assert encoder.lengths == [(100, 1)]
    assert accumulator.sealed[0].reserved_bytes == BATCH_OVERHEAD_BYTES + count * (101 + RECORD_OVERHEAD_BYTES)


def test_full_uniform_batch_takes_no_further_record() -> None:
    """At its limit the batch gets no more memory, so the next record comes to `add`, which seals it."""
    encoder = Encoder()
    accumulator = make_accumulator(encoder, batch_bytes=BATCH_OVERHEAD_BYTES + 3 * (10 + RECORD_OVERHEAD_BYTES))
    part = accumulator.add_topic("t", 1, first_sticky=0).parts[0]
    add(accumulator, part, b"x" * 10)
    assert append_fast(accumulator, part, b"y" * 10, None)
    assert append_fast(accumulator, part, b"z" * 10, None)
    assert not append_fast(accumulator, part, b"z" * 10, None)
    assert not append_fast(accumulator, part, b"", None)
    add(accumulator, part, b"a" * 10)
    assert [len(call[0]) for call in encoder.calls] == [3]


def test_uniform_batch_in_a_full_buffer_takes_no_further_record() -> None:
    """Where no memory can be granted, the caller of `add` waits."""
    accumulator = make_accumulator(batch_bytes=2_000, buffer_bytes=1_000)
    part = accumulator.add_topic("t", 1, first_sticky=0).parts[0]
    add(accumulator, part, b"x" * 84)
    for _ in range(7):
        assert append_fast(accumulator, part, b"x" * 84, None)
    assert not append_fast(accumulator, part, b"x" * 84, None)
    assert add(accumulator, part, b"x" * 84) is AddResult.BUFFER_FULL
    assert accumulator.reserved_bytes <= 1_000


def test_record_of_another_length_ends_a_uniform_batch() -> None:
    """From then on its bytes are counted. Neither value, nor key, nor a missing key may differ before."""
    for value, key in ((b"12", b"k"), (b"1", b"kk"), (b"1", None)):
        encoder = Encoder()
        accumulator = make_accumulator(encoder)
        part = accumulator.add_topic("t", 1, first_sticky=0).parts[0]
        add(accumulator, part, b"1", b"k")
        assert append_fast(accumulator, part, b"2", b"l")
        assert not append_fast(accumulator, part, value, key)
        room = part.room
        assert add(accumulator, part, value, key) is AddResult.ADDED
        assert part.open.lengths is None
        assert part.room == room - len(value) - len(key or b"") - RECORD_OVERHEAD_BYTES
        assert append_fast(accumulator, part, b"123", b"m")
        accumulator.seal_all()
        assert encoder.calls[0][0] == [b"1", b"2", value, b"123"]
        assert encoder.lengths == [None]


def test_null_and_many_records_at_once_open_a_counted_batch() -> None:
    """A null has no length, and `extend` does not compare lengths."""
    encoder = Encoder()
    accumulator = make_accumulator(encoder)
    part = accumulator.add_topic("t", 1, first_sticky=0).parts[0]
    add(accumulator, part, None, b"k")
    assert append_fast(accumulator, part, b"1", b"k")
    accumulator.seal_all()
    assert accumulator.extend(part, [b"1", b"1"], None, None, now_ms=0, wall_ms=0) is AddResult.ADDED
    assert append_fast(accumulator, part, b"1", None)
    accumulator.seal_all()
    assert encoder.lengths == [None, None]
    assert [call[0] for call in encoder.calls] == [[None, b"1"], [b"1", b"1", b"1"]]
