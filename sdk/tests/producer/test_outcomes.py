# SPDX-License-Identifier: Apache-2.0
"""The outcome of a batch: which record has which result, and which calls run."""

from __future__ import annotations

from lograft._producer.accumulator import AddResult
from lograft._producer.outcomes import Outcome, Resolver
from lograft._producer.splitter import split_batch
from lograft.errors import ClientClosedError
from lograft.types import BatchReceipt, Durability
from lograft.wire.batch import compose_batch
from tests.producer.builders import make_accumulator


def _receipt(base_offset: int | None, count: int) -> BatchReceipt:
    return BatchReceipt(
        topic="t", partition=0, base_offset=base_offset, record_count=count, durability=Durability.REPLICATED
    )


def _outcome() -> Outcome:
    return Outcome("t", 0, [(0, 1_000), (4, 1_010)], Resolver())


def _offset(outcome: Outcome, index: int) -> int | None:
    found = outcome.find(index)
    return None if found is None else found[0]


def test_pieces_in_any_order_give_each_record_its_offset() -> None:
    """Until its piece is resolved a record has no result. A piece without an offset (acks="none") has a receipt all the same."""
    outcome = _outcome()
    outcome.resolve(3, _receipt(50, 2))
    assert [_offset(outcome, index) for index in range(6)] == [None, None, None, 50, 51, None]
    outcome.resolve(0, _receipt(7, 3))
    unknown = _receipt(None, 1)
    outcome.resolve(5, unknown)
    assert [_offset(outcome, index) for index in range(5)] == [7, 8, 9, 50, 51]
    assert outcome.find(5) == (None, unknown)
    assert outcome.find(6) is None


def test_calls_run_once_in_order_and_only_for_their_piece() -> None:
    """Calls for other records wait on. A call that was forgotten never runs, and one that comes too late is not kept."""
    outcome = _outcome()
    ran: list[str] = []
    assert outcome.wait(1, lambda: ran.append("a"))
    assert outcome.wait(3, lambda: ran.append("later"))
    forgotten = outcome.wait(1, lambda: ran.append("forgotten"))
    assert outcome.wait(0, lambda: ran.append("b"))
    assert forgotten is not None
    assert [outcome.forget(forgotten), outcome.forget(forgotten)] == [True, False]
    for call in outcome.resolve(0, _receipt(0, 2)):
        call()
    assert ran == ["a", "b"]
    assert outcome.wait(1, lambda: ran.append("too late")) is None
    for call in outcome.resolve(2, _receipt(2, 2)):
        call()
    assert ran == ["a", "b", "later"]


def test_end_gives_an_error_to_records_without_a_result_only() -> None:
    """A result that came before the end stays."""
    outcome = _outcome()
    error = ClientClosedError("closed")
    outcome.resolve(0, _receipt(9, 1))
    waiting = outcome.wait(1, lambda: None)
    assert waiting is not None
    assert outcome.end(error) == [waiting.call]
    assert _offset(outcome, 0) == 9
    assert outcome.find(1) == (None, error)


def test_time_marks_give_the_create_time() -> None:
    """The last mark at or before a record counts, as in the encoded batch."""
    assert [_outcome().timestamp_ms(index) for index in (0, 3, 4, 9)] == [1_000, 1_000, 1_010, 1_010]


def test_places_number_the_records_of_plain_and_rich_batches() -> None:
    """The outcome stays the same when a batch becomes rich; a record that brought a time, or got one of its own, has it."""
    accumulator = make_accumulator()
    buffers = accumulator.add_topic("t", 1, first_sticky=0)
    part = buffers.parts[0]

    def add(timestamp_ms: int | None) -> tuple[Outcome, int, int | None]:
        result = accumulator.add(part, b"v", None, timestamp_ms, None, now_ms=0, wall_ms=77)
        assert result is AddResult.ADDED
        return accumulator.last_place(part)

    first, number, time_ms = add(None)
    assert (number, time_ms) == (1, None)
    part.open += (b"v", None)  # the fast path
    assert add(None) == (first, 3, None)
    assert add(5) == (first, 4, 5)
    assert add(None) == (first, 5, 77)
    accumulator.seal(part)
    assert accumulator.sealed[0].outcome is first
    second, number, _ = add(None)
    assert second is not first
    assert number == 1


def test_pieces_of_pieces_know_their_first_record() -> None:
    """A batch that is split twice gives each record the offset of its own piece."""
    accumulator = make_accumulator()
    part = accumulator.add_topic("t", 1, first_sticky=0).parts[0]
    for _ in range(5):
        accumulator.add(part, b"v", None, None, None, now_ms=0, wall_ms=77)
    outcome = part.outcome
    accumulator.seal(part)
    whole = accumulator.sealed[0]
    whole.body = compose_batch([b"v"] * 5)
    low, high = split_batch(whole)
    middle, top = split_batch(high)
    assert [(piece.first_record, piece.record_count) for piece in (low, middle, top)] == [(0, 2), (2, 1), (3, 2)]
    assert {id(piece.outcome) for piece in (low, middle, top)} == {id(outcome)}
