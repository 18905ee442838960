# SPDX-License-Identifier: Apache-2.0
"""Cursors, credit and the queue of arrivals."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from lograft._consumer.fetch_buffer import Chunk, CreditLedger, Cursor, Failure, FetchBuffer, Reset
from lograft.errors import DataLossError
from lograft.types import TopicPartition

TP = TopicPartition("t", 0)


def chunk(cursor: Cursor, generation: int, next_offset: int) -> Chunk:
    """Return a chunk that ends before `next_offset`."""
    return Chunk(
        cursor=cursor, generation=generation, body=b"x", next_offset=next_offset, high_watermark=100, source=None
    )


def test_position_only_advances_within_a_generation() -> None:
    """Consuming moves the position forward, never back. A seek may do both."""
    cursor = Cursor(TP, 10)
    cursor.advance(15)
    cursor.advance(12)
    assert cursor.position == 15
    cursor.seek(3)
    assert (cursor.position, cursor.generation) == (3, 1)


def test_old_generations_are_dropped_in_passing() -> None:
    """Chunks, resets and failures from before a seek do not count. The bytes of the chunks are given back, in order."""
    cursor = Cursor(TP, 0)
    queue = FetchBuffer()
    old = [chunk(cursor, 0, 5), chunk(cursor, 0, 9)]
    cursor.seek(50)
    wanted = chunk(cursor, 1, 60)
    for arrival in (
        old[0],
        Reset(cursor=cursor, generation=0, offset=7),
        Failure(cursor=cursor, generation=0, error=DataLossError("old")),
        old[1],
        wanted,
    ):
        queue.put(arrival)
    dropped: list[Chunk] = []
    assert queue
    assert queue.take(dropped) is wanted
    assert dropped == old
    assert (cursor.position, cursor.high_watermark, cursor.error) == (50, 100, None)
    assert not queue
    assert queue.take(dropped) is None


def test_reset_and_failure_take_effect_in_their_turn() -> None:
    """A reset moves the position after the arrivals before it. A failure stops the partition until the next seek."""
    cursor = Cursor(TP, 20)
    queue = FetchBuffer()
    error = DataLossError("gone")
    first = chunk(cursor, 0, 30)
    queue.put(first)
    queue.put(Reset(cursor=cursor, generation=0, offset=5))
    queue.put(Failure(cursor=cursor, generation=0, error=error))
    assert queue.take([]) is first
    assert cursor.position == 20
    assert queue.take([]) is None
    assert (cursor.position, cursor.error) == (5, error)
    cursor.seek(6)
    assert cursor.error is None
    cursor.retire()
    queue.put(chunk(cursor, 1, 9))
    dropped: list[Chunk] = []
    assert queue.take(dropped) is None
    assert len(dropped) == 1


@given(
    limit=st.integers(1, 1_000),
    steps=st.lists(st.tuples(st.booleans(), st.integers(1, 400)), max_size=60),
)
def test_credit_is_bounded_and_never_stalls(limit: int, steps: list[tuple[bool, int]]) -> None:
    """Held plus open bytes stay within the limit, except by one large batch. An idle stream always has credit."""
    ledger = CreditLedger(limit)
    server_credit = limit
    held: list[int] = []
    for is_chunk, size in steps:
        if is_chunk and server_credit > 0:
            # Like a broker: it cuts a chunk to the credit, but sends a single larger batch whole.
            server_credit -= size
            ledger.receive(size)
            held.append(size)
        elif held:
            ledger.consume(held.pop(0))
        server_credit += ledger.take_grant()
        assert ledger.open_bytes == server_credit
        assert ledger.held_bytes == sum(held)
        assert ledger.held_bytes + max(0, ledger.open_bytes) <= limit + 400
        if not held:
            assert server_credit > 0
