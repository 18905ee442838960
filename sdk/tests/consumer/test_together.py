# SPDX-License-Identifier: Apache-2.0
"""The gate of `isolation="committed-together"`: what passes, what is asked, and when the application hears of it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lograft._consumer.together import (
    ASK_AGAIN_MAX_MS,
    ASK_AGAIN_MS,
    ASKED_PLACES_MAX,
    FIRST_PUBLISHING_PRODUCER_ID,
    HALF,
    RETRY_AFTER_MAX_MS,
    SEQUENCE_MODULUS,
    Gate,
    Place,
    Question,
    Verdict,
    Watermark,
    judge,
)
from lograft.errors import InvalidRequestError, RequestTimeoutError
from lograft.types import TopicPartition

TOPIC_ID = bytes(range(16))
TIMEOUT_MS = 30_000


def tp(number: int) -> TopicPartition:
    """Return a partition."""
    return TopicPartition("t", number)


def place(number: int, coordinator: int = 0, topic_id: bytes = TOPIC_ID) -> Place:
    """Return the place of a partition."""
    return Place(FIRST_PUBLISHING_PRODUCER_ID + coordinator, topic_id, number)


def hold(gate: Gate, number: int = 0, *, sequence: int = 0, coordinator: int = 0, now_ms: int = 0) -> None:
    """Hold a partition at offset 100."""
    gate.hold(tp(number), place(number, coordinator), sequence, offset=100, records_behind=1, now_ms=now_ms)


def asked(gate: Gate, now_ms: int) -> Question:
    """Return the only question that is due."""
    (question,) = gate.questions(now_ms)
    return question


@given(
    first=st.integers(0, SEQUENCE_MODULUS - 1),
    up_to=st.integers(0, HALF - 1),
    width=st.integers(0, HALF - 1),
    batch=st.integers(0, HALF),
    behind=st.integers(0, HALF - 1),
)
def test_a_verdict_is_right_wherever_the_sequences_wrap(
    first: int, up_to: int, width: int, batch: int, behind: int
) -> None:
    """`first` is any point of the ring. The decisions from `up_to` on are not complete, those from `up_to + width` on not known."""
    known = Watermark((first + up_to) % SEQUENCE_MODULUS, (first + up_to + width) % SEQUENCE_MODULUS)
    verdict = judge((first + batch) % SEQUENCE_MODULUS, known, behind)
    if batch < up_to:
        assert verdict is Verdict.COMPLETE
    elif batch < up_to + width:
        assert verdict is Verdict.INCOMPLETE
    else:
        assert verdict is Verdict.UNKNOWN


@given(age=st.integers(HALF, SEQUENCE_MODULUS - 1), start=st.integers(0, SEQUENCE_MODULUS - 1))
def test_a_batch_that_lies_2_to_30_back_passes(age: int, start: int) -> None:
    """Its sequence looks newer than the answer. The offsets behind it tell the two cases apart."""
    known = Watermark((start + age) % SEQUENCE_MODULUS, (start + age) % SEQUENCE_MODULUS)
    assert judge(start, known, HALF) is Verdict.COMPLETE
    assert judge(start, known, HALF - 1) is Verdict.UNKNOWN


def test_nothing_passes_without_an_answer() -> None:
    """However old the batch is."""
    assert judge(0, None, SEQUENCE_MODULUS) is Verdict.UNKNOWN
    assert not Gate(TIMEOUT_MS).may_pass(tp(0), place(0), 0, SEQUENCE_MODULUS)


def test_an_answer_lets_everything_before_it_pass() -> None:
    """Also batches that were not held. What lies behind it is held and asked for again."""
    gate = Gate(TIMEOUT_MS)
    hold(gate, sequence=3)
    question = asked(gate, 0)
    assert question == Question(place(0).producer_id, ((tp(0), place(0)),))
    assert gate.answered(question, [Watermark(7, 9)], 1).let_go == (tp(0),)
    assert [gate.may_pass(tp(0), place(0), each, 1) for each in (3, 6, 7, 9)] == [True, True, False, False]
    assert not gate.may_pass(tp(0), place(0, topic_id=bytes(16)), 3, 1), "another topic of this name"
    assert not gate.may_pass(tp(0), place(0, coordinator=1), 3, 1), "another coordinator"
    assert gate.next_ms() is None
    gate.forget([tp(0)])
    assert not gate.may_pass(tp(0), place(0), 3, 1)


def test_a_stale_coordinator_lets_nothing_go() -> None:
    """It says that everything is complete that it knows of, and it does not know of the batch."""
    gate = Gate(TIMEOUT_MS)
    hold(gate, sequence=5)
    assert gate.answered(asked(gate, 0), [Watermark(5, 5)], 1).let_go == ()
    assert gate.answered(asked(gate, 100), [Watermark(6, 6)], 101).let_go == (tp(0),)


def test_questions_come_at_once_and_then_at_growing_distances() -> None:
    """A new hold is asked for at once; a coordinator that is asked is not asked twice at a time."""
    gate = Gate(TIMEOUT_MS)
    hold(gate, 0, now_ms=5)
    assert gate.next_ms() == 5
    question = asked(gate, 5)
    assert gate.questions(5_000) == []
    hold(gate, 1, now_ms=10)
    assert gate.questions(10) == [], "its coordinator is being asked"
    hold(gate, 2, coordinator=3, now_ms=10)
    (other,) = gate.questions(10)
    assert other.producer_id == place(0, 3).producer_id
    gate.answered(question, [Watermark(0, 1)], 20)
    both = asked(gate, 20)
    assert [each for each, _ in both.places] == [tp(1), tp(0)], "who was never asked comes first"
    now_ms, waits = 20, list[int]()
    for _ in range(8):
        gate.answered(both, [Watermark(0, 1)] * 2, now_ms)
        next_ms = gate.next_ms()
        assert next_ms is not None
        waits.append(next_ms - now_ms)
        assert gate.questions(next_ms - 1) == []
        now_ms = next_ms
        both = asked(gate, now_ms)
    assert waits[0] == 2 * ASK_AGAIN_MS
    assert waits[-1] == ASK_AGAIN_MAX_MS
    assert waits == sorted(waits)
    assert gate.answered(both, [Watermark(1, 1), Watermark(0, 1)], now_ms).let_go == (both.places[0][0],)
    assert asked(gate, now_ms + ASK_AGAIN_MS).places == (both.places[1],), "progress makes it quick again"


def test_more_partitions_than_a_question_takes_come_in_turns() -> None:
    """Those that were asked about longest ago come first, so that each gets its turn."""
    gate = Gate(TIMEOUT_MS)
    for number in range(ASKED_PLACES_MAX + 5):
        hold(gate, number)
    first = asked(gate, 0)
    assert len(first.places) == ASKED_PLACES_MAX
    gate.answered(first, [Watermark(0, 1)] * ASKED_PLACES_MAX, 1)
    second = asked(gate, 1)
    assert [each for each, _ in second.places[:5]] == [tp(ASKED_PLACES_MAX + number) for number in range(5)]


def test_failures_that_pass_are_asked_again_and_others_fail_the_partition() -> None:
    """The pause is what the broker asks for, within bounds."""
    gate = Gate(TIMEOUT_MS)
    for number in range(3):
        hold(gate, number)
    answers = [RequestTimeoutError("slow", retry_after_ms=900), InvalidRequestError("no"), Watermark(1, 1)]
    outcome = gate.answered(asked(gate, 0), answers, 10)
    assert (outcome.let_go, outcome.failed) == ((tp(2),), {tp(1): answers[1]})
    assert gate.next_ms() == 910
    gate.answered(asked(gate, 910), [RequestTimeoutError("slow", retry_after_ms=10**9)], 910)
    assert gate.next_ms() == 910 + RETRY_AFTER_MAX_MS
    assert gate.expire(TIMEOUT_MS)
    error = gate.overdue(TIMEOUT_MS)
    assert error is not None
    assert "slow" in str(error)
    assert (error.topic, error.partition, error.offset) == ("t", 0, 100)


def test_an_answer_to_a_dropped_hold_counts_for_nothing() -> None:
    """A seek ends the hold. The new one has its own question, whatever the old one brings."""
    gate = Gate(TIMEOUT_MS)
    hold(gate)
    old = asked(gate, 0)
    gate.drop(tp(0))
    hold(gate, sequence=9, now_ms=1)
    assert gate.answered(old, [InvalidRequestError("old")], 2).failed == {}
    assert gate.answered(asked(gate, 2), [Watermark(10, 10)], 3).let_go == (tp(0),)
    assert gate.questions(10**6) == []


def test_the_application_hears_once_for_each_term() -> None:
    """Then the hold goes on. If records preceded the error, it comes again."""
    gate = Gate(100)
    hold(gate)
    assert gate.next_ms() == 0
    asked(gate, 0)
    assert gate.next_ms() == 100
    assert not gate.expire(99)
    assert gate.overdue(99) is None
    assert gate.expire(100)
    assert gate.next_ms() is None, "nothing happens by itself until the application was told"
    assert gate.overdue(150) is not None
    gate.told(tp(0), 150)
    assert gate.overdue(150) is None
    assert not gate.is_overdue
    gate.tell_again(tp(0), 7)
    assert not gate.is_overdue, "that was another hold"
    gate.tell_again(tp(0), 100)
    assert gate.overdue(151) is not None
    gate.told(tp(0), 151)
    assert gate.next_ms() == 251
    gate.drop(tp(0))
    assert not gate.expire(10**6)


def test_a_partition_is_held_once() -> None:
    """The collector keeps the order of a partition by that."""
    gate = Gate(TIMEOUT_MS)
    hold(gate)
    with pytest.raises(AssertionError):
        hold(gate)
