# SPDX-License-Identifier: Apache-2.0
"""Cursors, credit and the queue of arrivals."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from lograft._consumer.fetch_buffer import Chunk, CreditLedger, Cursor, Failure, FetchBuffer, PrefetchBudget, Reset
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


LARGEST = 400
"""Bytes of the largest chunk of these tests."""


@given(
    limit=st.integers(1, 2_000),
    steps=st.lists(
        st.tuples(
            st.sampled_from(("open", "end", "send", "send", "send", "consume", "consume")),
            st.integers(0, 5),
            st.integers(1, LARGEST),
        ),
        max_size=120,
    ),
)
def test_prefetch_of_all_streams_is_bounded_and_none_stalls(limit: int, steps: list[tuple[str, int, int]]) -> None:
    """What all streams hold and may still get stays within the limit, except by a larger batch of each.

    Once everything is consumed, each broker has credit, whatever the other streams do, and what ended streams sent is free again.
    """
    budget = PrefetchBudget(limit)
    brokers: dict[CreditLedger, int] = {}
    held: list[tuple[CreditLedger, int]] = []

    def grant() -> None:
        for each in brokers:
            brokers[each] += each.take_grant()

    for step, which, size in steps:
        ledger = list(brokers)[which % len(brokers)] if brokers else None
        if step == "open" and len(brokers) < 6:
            new = budget.add_stream()
            brokers[new] = new.begin()
        elif step == "end" and ledger is not None:
            ledger.end()
            del brokers[ledger]
            grant()
        elif step == "send" and ledger is not None and brokers[ledger] > 0:
            # Like a broker: it sends a single larger batch whole.
            brokers[ledger] -= size
            ledger.receive(size)
            held.append((ledger, size))
        elif step == "consume" and held:
            source, size = held.pop(0)
            source.consume(size)
            grant()
        held_bytes = sum(size for _, size in held)
        assert all(each.open_bytes == credit for each, credit in brokers.items())
        assert budget.free_bytes == limit - held_bytes - sum(max(0, credit) for credit in brokers.values())
        # A first credit of 1 byte, and a last batch, may be above the limit for each stream that is or was open.
        assert budget.free_bytes >= -(LARGEST + 1) * (len(brokers) + len({source for source, _ in held}))
    for source, size in held:
        source.consume(size)
    grant()
    assert all(credit > 0 for credit in brokers.values())
    for each in list(brokers):
        each.end()
    assert budget.free_bytes == limit


def test_streams_that_open_together_get_equal_shares() -> None:
    """One share stays free for a stream that comes later; it begins with half of what is free."""
    budget = PrefetchBudget(4_000)
    first, second, third = (budget.add_stream() for _ in range(3))
    assert [each.begin() for each in (first, second, third)] == [1_000, 1_000, 1_000]
    late = budget.add_stream()
    assert late.begin() == 500
    # The others have more than their new share of 800. What they use goes to the late stream first.
    first.receive(1_000)
    assert (first.take_grant(), late.take_grant()) == (0, 300)
    first.consume(1_000)
    assert (first.take_grant(), late.take_grant()) == (800, 0)
    assert budget.free_bytes == 4_000 - 1_000 - 1_000 - 800 - 800
