# SPDX-License-Identifier: Apache-2.0
"""Rewrites of one batch: any records, and any subset that stays."""

from __future__ import annotations

from itertools import compress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lograft.wire.batch import Codec, RecordBatch, check_batch, encode_batch, read_header
from lograft.wire.errors import BatchTooLargeError
from lograft.wire.filler import MAX_FILLER_OFFSETS, encode_filler
from lograft.wire.limits import MAX_BATCH_BYTES

from storage.compaction.rewrite import GapFiller, memory_filler, rewrite_batch

HORIZON_MS = 9_000

items = st.one_of(st.none(), st.binary(max_size=5), st.just(b"same"))
equal_items = st.binary(min_size=3, max_size=3)
pairs = st.lists(st.tuples(st.sampled_from(["a", "b"]), st.one_of(st.none(), st.binary(max_size=3))), max_size=2)
flags = st.one_of(st.just(True), st.just(False), st.booleans())


@st.composite
def batches(draw: st.DrawFn) -> tuple[bytes, list[bool], list[bool]]:
    """A batch with all optional parts, and two decisions about its records."""
    count = draw(st.integers(1, 12))

    def columns(of: st.SearchStrategy) -> st.SearchStrategy:
        return st.lists(of, min_size=count, max_size=count)

    has_producer = draw(st.booleans())
    batch = encode_batch(
        draw(st.one_of(columns(items), columns(equal_items))),
        keys=draw(st.one_of(st.none(), columns(items), columns(equal_items))),
        timestamps_ms=draw(st.one_of(st.integers(0, 20_000), columns(st.integers(0, 20_000)))),
        headers=draw(st.one_of(st.none(), columns(pairs))),
        codec=draw(st.sampled_from(Codec)),
        producer_id=7 if has_producer else -1,
        producer_epoch=2 if has_producer else -1,
        base_sequence=2**31 - 3 if has_producer else -1,
        base_offset=draw(st.integers(0, 2**40)),
        leader_epoch=draw(st.integers(0, 9)),
    )
    return bytes(batch), draw(columns(st.booleans())), draw(columns(st.booleans()))


def rewrite(batch: bytes, stays: list[bool], horizon_ms: int | None = None) -> bytes:
    reader = RecordBatch(batch)
    rewritten = rewrite_batch(reader.header, reader.payload, bytearray(stays), delete_horizon_ms=horizon_ms)
    return bytes(batch if rewritten is None else rewritten.join())


@settings(max_examples=150, deadline=None, derandomize=True, database=None)
@given(batches(), st.sampled_from([None, HORIZON_MS]), st.sampled_from([None, HORIZON_MS]))
def test_what_stays_is_unchanged(
    drawn: tuple[bytes, list[bool], list[bool]], first_ms: int | None, second_ms: int | None
) -> None:
    """After two rewrites every remaining record has its offset, timestamp, key, value and headers, and the batch its place."""
    batch, *decisions = drawn
    for stays, horizon_ms in zip(decisions, (first_ms, second_ms), strict=True):
        before = RecordBatch(batch)
        stays = stays[: before.record_count]
        if not any(stays):
            continue
        batch = rewrite(batch, stays, horizon_ms)
        header = check_batch(batch, max_bytes=MAX_BATCH_BYTES, allow_compacted=True)
        after = RecordBatch(batch)
        assert after.records() == list(compress(before.records(), stays))
        assert header.max_timestamp_ms == max(after.timestamps_ms())
        assert header.delete_horizon_ms == horizon_ms
        kept = ("base_offset", "leader_epoch", "magic", "last_offset_delta", "producer_id", "producer_epoch")
        for name in (*kept, "base_sequence", "codec", "next_offset", "last_sequence"):
            assert getattr(header, name) == getattr(before.header, name), name


def test_a_batch_that_loses_nothing_is_not_rewritten() -> None:
    """No byte is touched, not even copied."""
    batch = encode_batch([b"a", b"b"], keys=[b"1", b"2"], timestamps_ms=[1, 2])
    reader = RecordBatch(batch)
    assert rewrite_batch(reader.header, reader.payload, bytearray([1, 1]), delete_horizon_ms=None) is None
    marked = rewrite(batch, [True, True], HORIZON_MS)
    again = RecordBatch(marked)
    assert rewrite_batch(again.header, again.payload, bytearray([1, 1]), delete_horizon_ms=HORIZON_MS) is None
    assert not again.payload.offset_deltas


def test_a_lost_horizon_leaves_the_timestamps() -> None:
    """When no tombstone is left, the bit is cleared and every timestamp stays the same."""
    marked = rewrite(bytes(encode_batch([None, b"b"], keys=[b"1", b"2"], timestamps_ms=[1, 2])), [True, True], 7)
    cleared = RecordBatch(rewrite(marked, [False, True]))
    assert cleared.header.delete_horizon_ms is None
    assert cleared.timestamps_ms() == [2]
    assert cleared.header.attributes == 0


def test_an_equal_timestamp_needs_no_column() -> None:
    """If the horizon equals all timestamps, there is no column of deltas."""
    marked = RecordBatch(rewrite(bytes(encode_batch([None], keys=[b"1"], timestamps_ms=7)), [True], 7))
    assert not marked.payload.timestamp_deltas_ms
    assert marked.timestamps_ms() == [7]


def test_a_column_of_zeros_is_left_out() -> None:
    """This also holds if a removed record had another timestamp."""
    batch = bytes(encode_batch([b"a", b"b", b"c"], keys=[b"1", b"2", b"3"], timestamps_ms=[5, 9, 5]))
    left = RecordBatch(rewrite(batch, [True, False, True]))
    assert not left.payload.timestamp_deltas_ms
    assert left.timestamps_ms() == [5, 5]
    assert left.header.max_timestamp_ms == 5


def test_gaps_that_do_not_fit_are_refused() -> None:
    """A batch at the size limit may have no room for the offsets of its records; that raises an error."""
    count = 100_000
    values = [b"x" * 83] * count
    batch = bytes(encode_batch(values, timestamps_ms=1))
    with pytest.raises(BatchTooLargeError):
        rewrite(batch, [False, *[True] * (count - 1)])


@pytest.mark.parametrize("stays", [[True], [False, False]])
def test_decisions_must_fit_the_batch(stays: list[bool]) -> None:
    """There must be one decision for each record, and one record must stay; anything else is a bug of the caller."""
    with pytest.raises(AssertionError):
        rewrite(bytes(encode_batch([b"a", b"b"])), stays)


def gap(base_offset: int, count: int = 1, *, leader_epoch: int = 0, timestamp_ms: int = 0) -> bytes:
    return bytes(
        encode_filler(
            base_offset=base_offset,
            last_offset_delta=count - 1,
            leader_epoch=leader_epoch,
            timestamp_ms=timestamp_ms,
        )
    )


def test_neighbouring_gaps_become_one_filler() -> None:
    """One filler covers neighbouring emptied batches and fillers of one leader epoch; other neighbours get their own."""
    gaps = GapFiller()
    assert gaps.take() is None
    batch = read_header(encode_batch([b"a"] * 3, base_offset=10, producer_id=1, producer_epoch=0, base_sequence=5))
    assert gaps.add(batch) is None
    assert gaps.add(read_header(gap(13, 7))) is None
    filled = gaps.add(read_header(gap(20, 5, leader_epoch=1)))
    assert filled is not None
    assert (bytes(filled.filler), filled.is_unchanged) == (gap(10, 10), False)
    filled = gaps.take()
    assert filled is not None
    assert (bytes(filled.filler), filled.is_unchanged) == (gap(20, 5, leader_epoch=1), True)
    assert gaps.take() is None


def test_a_filler_covers_no_more_than_its_limit() -> None:
    """Two fillers whose offsets do not fit one stay two."""
    gaps = GapFiller()
    first, second = gap(0, MAX_FILLER_OFFSETS - 1), gap(MAX_FILLER_OFFSETS - 1, 2)
    assert gaps.add(read_header(first)) is None
    filled = gaps.add(read_header(second))
    assert filled is not None
    assert bytes(filled.filler) == first
    last = gaps.take()
    assert last is not None
    assert bytes(last.filler) == second


def test_a_filler_that_was_a_memory_is_not_unchanged() -> None:
    """A filler that lost its producer, or kept a timestamp, is written again."""
    for header in (
        read_header(gap(5, timestamp_ms=4)),
        read_header(
            encode_filler(
                base_offset=5, last_offset_delta=0, leader_epoch=0, producer_id=1, producer_epoch=0, base_sequence=0
            )
        ),
        read_header(encode_batch([b"x"], base_offset=5)),
    ):
        gaps = GapFiller()
        gaps.add(header)
        filled = gaps.take()
        assert filled is not None
        assert (bytes(filled.filler), filled.is_unchanged) == (gap(5), False)


def test_gaps_must_join() -> None:
    """An offset between two gaps would be lost."""
    gaps = GapFiller()
    gaps.add(read_header(gap(5)))
    with pytest.raises(AssertionError, match="7 after 6"):
        gaps.add(read_header(gap(7)))


def test_a_memory_keeps_producer_and_time() -> None:
    """The filler has everything that the producer state and its expiry need."""
    batch = encode_batch(
        [b"a"] * 3,
        timestamps_ms=[1, 9, 4],
        base_offset=10,
        leader_epoch=2,
        producer_id=1,
        producer_epoch=3,
        base_sequence=5,
        codec=Codec.ZSTD,
    )
    before = read_header(batch)
    filler = memory_filler(before)
    header = check_batch(filler, max_bytes=100, allow_compacted=True)
    assert header._replace(crc=0) == before._replace(
        batch_length=49, crc=0, attributes=0, base_timestamp_ms=9, record_count=0
    )
