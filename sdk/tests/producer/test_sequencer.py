# SPDX-License-Identifier: Apache-2.0
"""Order, sequences and resends of one partition's batches."""

from __future__ import annotations

import pytest
from lograft._producer.batches import Doubt, SealedBatch
from lograft._producer.sequencer import SEQUENCE_MASK, PartitionSequencer, ReceiptError
from lograft.wire.codes import ErrorCode
from tests.producer.builders import sealed


def bound(*record_counts: int, window: int = 3, is_numbered: bool = True) -> PartitionSequencer:
    """Return a bound sequencer with waiting batches."""
    sequencer = PartitionSequencer(is_numbered=is_numbered)
    for ordinal, record_count in enumerate(record_counts):
        sequencer.enqueue(sealed(ordinal, record_count=record_count))
    sequencer.bind(window=window)
    return sequencer


def send_all(sequencer: PartitionSequencer) -> list[SealedBatch]:
    """Take as many batches as the window allows."""
    taken: list[SealedBatch] = []
    while sequencer.can_send():
        taken.append(sequencer.take())
    return taken


def test_sequences_count_records_and_batch_numbers_count_batches() -> None:
    """Sequences advance by record counts, batch numbers by one, and at most the window is in flight."""
    sequencer = bound(5, 7, 1, 2)
    batches = send_all(sequencer)
    assert [batch.base_sequence for batch in batches] == [0, 5, 12]
    assert [batch.batch_number for batch in batches] == [1, 2, 3]
    done = sequencer.acknowledge(2, [100, 105], [1])
    assert [(each.batch.ordinal, each.base_offset, each.duplicate) for each in done] == [
        (0, 100, False),
        (1, 105, True),
    ]
    assert [batch.base_sequence for batch in send_all(sequencer)] == [13]
    assert not sequencer.is_empty
    sequencer.acknowledge(4, [112, 113], [])
    assert sequencer.is_empty


def test_sequence_wraps_to_zero() -> None:
    """After 2,147,483,647 comes 0."""
    sequencer = bound(SEQUENCE_MASK, 3, 1)
    assert [batch.base_sequence for batch in send_all(sequencer)] == [0, SEQUENCE_MASK, 2]


@pytest.mark.parametrize(
    ("last", "offsets"),
    [(1, []), (3, [1, 2]), (1, [1, 2]), (4, [1, 2, 3, 4])],
    ids=["empty", "ahead", "behind", "more"],
)
def test_receipt_that_does_not_match_is_refused_and_changes_nothing(last: int, offsets: list[int]) -> None:
    """A receipt must start with the first batch in flight and end within the batches in flight."""
    sequencer = bound(1, 1, 1)
    send_all(sequencer)
    with pytest.raises(ReceiptError):
        sequencer.acknowledge(last, offsets, [])
    assert len(sequencer.in_flight) == 3


def test_receipt_without_batches_in_flight_is_refused() -> None:
    """A batch that was not sent cannot be acknowledged."""
    with pytest.raises(ReceiptError):
        bound(1).acknowledge(1, [0], [])


def test_lost_connection_resends_in_order_with_the_same_sequences() -> None:
    """Batches that were in flight go first again, with the same sequences, and new batch numbers of the new route."""
    sequencer = bound(5, 7, 1, 2)
    first = send_all(sequencer)
    sequencer.unbind(Doubt.LOST)
    assert not sequencer.can_send()
    assert sequencer.has_sent
    sequencer.bind(window=4)
    again = send_all(sequencer)
    assert again[:3] == first
    assert [(batch.base_sequence, batch.batch_number) for batch in again] == [(0, 1), (5, 2), (12, 3), (13, 4)]
    assert [batch.doubt for batch in again] == [Doubt.LOST] * 3 + [Doubt.NONE]


def test_retriable_end_fails_nothing() -> None:
    """A moved leader costs no batch."""
    sequencer = bound(1, 1)
    send_all(sequencer)
    assert sequencer.end_route(ErrorCode.NOT_LEADER, outcome_unknown=False) is None
    assert sequencer.end_route(ErrorCode.UNKNOWN_TOPIC, outcome_unknown=True) is None
    assert [batch.ordinal for batch in sequencer.queue] == [0, 1]


@pytest.mark.parametrize("is_numbered", [True, False])
def test_too_few_replicas_before_the_append_leave_no_doubt(is_numbered: bool) -> None:
    """NOT_ENOUGH_REPLICAS means that nothing was appended: all batches are resent, and can still fail with certainty."""
    sequencer = bound(5, 7, is_numbered=is_numbered)
    send_all(sequencer)
    assert sequencer.end_route(ErrorCode.NOT_ENOUGH_REPLICAS, outcome_unknown=False) is None
    assert [(batch.ordinal, batch.doubt) for batch in sequencer.queue] == [(0, Doubt.NONE), (1, Doubt.NONE)]
    given_up = sequencer.give_up()
    assert (given_up.refused.ordinal, given_up.refused_is_ambiguous, given_up.followers) == (0, False, ())
    assert not sequencer.needs_identity


@pytest.mark.parametrize("outcome_unknown", [True, False])
def test_too_few_replicas_after_the_append_resend_the_same_sequences(outcome_unknown: bool) -> None:
    """NOT_ENOUGH_REPLICAS_AFTER_APPEND is an unknown outcome for any value of the flag. The whole window is used at once."""
    sequencer = bound(5, 7, 1)
    first = send_all(sequencer)
    assert sequencer.end_route(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, outcome_unknown=outcome_unknown) is None
    assert [batch.doubt for batch in sequencer.queue] == [Doubt.LOST] * 3
    sequencer.bind(window=3)
    assert send_all(sequencer) == first
    assert [(batch.base_sequence, batch.batch_number) for batch in first] == [(0, 1), (5, 2), (12, 3)]
    sequencer.unbind(Doubt.NONE)
    assert sequencer.give_up().refused_is_ambiguous


def test_without_sequences_batches_left_in_the_log_are_not_sent_again() -> None:
    """A resend would append them twice: batches in flight fail with an unknown outcome, waiting ones continue."""
    sequencer = bound(1, 1, 1, window=2, is_numbered=False)
    send_all(sequencer)
    given_up = sequencer.end_route(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, outcome_unknown=True)
    assert given_up is not None
    assert (given_up.refused.ordinal, given_up.refused_is_ambiguous) == (0, True)
    assert [batch.ordinal for batch in given_up.followers] == [1]
    assert [(batch.ordinal, batch.doubt) for batch in sequencer.queue] == [(2, Doubt.NONE)]
    assert not sequencer.needs_identity
    assert sequencer.end_route(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, outcome_unknown=True) is None


def test_refused_batch_fails_alone_and_frees_its_sequences() -> None:
    """When the broker names the refused batch, the later ones get new sequences and continue."""
    sequencer = bound(5, 7, 1)
    sequencer.acknowledge(send_all(sequencer)[0].batch_number or 0, [0], [])
    given_up = sequencer.end_route(ErrorCode.MESSAGE_TOO_LARGE, outcome_unknown=False)
    assert given_up is not None
    assert (given_up.refused.ordinal, given_up.refused_is_ambiguous, given_up.followers) == (1, False, ())
    assert not sequencer.needs_identity
    sequencer.bind(window=3)
    assert [(batch.ordinal, batch.base_sequence) for batch in send_all(sequencer)] == [(2, 5)]


def test_refusal_of_an_unknown_batch_probes_one_at_a_time() -> None:
    """When batches before the refused one may be in the log, nothing fails until the refused one is alone in flight."""
    sequencer = bound(1, 1, 1, 1)
    send_all(sequencer)
    assert sequencer.end_route(ErrorCode.INVALID_BATCH, outcome_unknown=True) is None
    sequencer.bind(window=3)
    assert [batch.ordinal for batch in send_all(sequencer)] == [0]
    sequencer.acknowledge(1, [0], [0])
    assert [batch.ordinal for batch in send_all(sequencer)] == [1]
    given_up = sequencer.end_route(ErrorCode.INVALID_BATCH, outcome_unknown=False)
    assert given_up is not None
    assert (given_up.refused.ordinal, given_up.refused_is_ambiguous, given_up.followers) == (1, False, ())
    assert not sequencer.needs_identity
    sequencer.bind(window=3)
    assert [(batch.ordinal, batch.base_sequence) for batch in send_all(sequencer)] == [(2, 1), (3, 2)]


@pytest.mark.parametrize(
    ("code", "outcome_unknown"), [(ErrorCode.MESSAGE_TOO_LARGE, False), (ErrorCode.INVALID_BATCH, True)]
)
def test_doubtful_refusal_fails_the_followers_that_may_be_in_the_log(code: ErrorCode, outcome_unknown: bool) -> None:
    """If the batch may be in the log from before a limit shrank, or the outcome is unknown, its followers cannot continue."""
    sequencer = bound(1, 1, 1)
    send_all(sequencer)
    sequencer.end_route(ErrorCode.INVALID_BATCH, outcome_unknown=True)
    sequencer.bind(window=3)
    send_all(sequencer)
    given_up = sequencer.end_route(code, outcome_unknown=outcome_unknown)
    assert given_up is not None
    assert (given_up.refused.ordinal, given_up.refused_is_ambiguous) == (0, True)
    assert [batch.ordinal for batch in given_up.followers] == [1, 2]
    assert sequencer.needs_identity


def test_probing_ends_with_the_last_ambiguous_batch() -> None:
    """When no batch is left that may be in the log, the whole window is used again."""
    sequencer = bound(1, 1, 1, 1, window=2)
    send_all(sequencer)
    sequencer.end_route(ErrorCode.INVALID_BATCH, outcome_unknown=True)
    sequencer.bind(window=2)
    for number in (1, 2):
        assert len(send_all(sequencer)) == 1
        sequencer.acknowledge(number, [number], [0])
    assert len(send_all(sequencer)) == 2


@pytest.mark.parametrize("code", [ErrorCode.OUT_OF_ORDER_SEQUENCE, ErrorCode.PRODUCER_FENCED])
def test_lost_identity_asks_for_another_and_keeps_what_was_not_appended(code: ErrorCode) -> None:
    """When the broker accepts no further sequence, the refused batch fails and the rest continues from 0 elsewhere."""
    sequencer = bound(5, 7, 1)
    send_all(sequencer)
    given_up = sequencer.end_route(code, outcome_unknown=False)
    assert given_up is not None
    assert (given_up.refused.ordinal, given_up.followers) == (0, ())
    assert sequencer.needs_identity
    sequencer.renew()
    sequencer.bind(window=3)
    assert [(batch.ordinal, batch.base_sequence) for batch in send_all(sequencer)] == [(1, 0), (2, 7)]


def test_giving_up_a_batch_that_may_be_in_the_log_fails_its_followers_that_may_be_too() -> None:
    """Under another identity they could be in the log twice. Batches that were never sent continue."""
    sequencer = bound(1, 1, 1, 1, window=2)
    send_all(sequencer)
    sequencer.unbind(Doubt.LOST)
    given_up = sequencer.give_up()
    assert given_up.refused_is_ambiguous
    assert [batch.ordinal for batch in given_up.followers] == [1]
    assert sequencer.needs_identity
    sequencer.bind(window=2)
    assert not sequencer.can_send()
    sequencer.renew()
    assert [(batch.ordinal, batch.base_sequence) for batch in send_all(sequencer)] == [(2, 0), (3, 1)]


def test_batch_that_was_never_sent_can_be_given_up_alone() -> None:
    """It leaves no gap, at the front of the queue or behind batches in flight."""
    sequencer = bound(1, 2, 3, window=1)
    send_all(sequencer)
    assert sequencer.drop_unsent().refused.ordinal == 1
    sequencer.acknowledge(1, [0], [])
    sequencer.unbind(Doubt.LOST)
    assert sequencer.give_up().refused.ordinal == 2
    assert not sequencer.needs_identity
    assert not sequencer.has_sent


def test_pieces_take_the_place_of_a_split_batch() -> None:
    """A split keeps the order."""
    sequencer = bound(4, 1)
    sequencer.replace_head([sealed(7, record_count=2), sealed(8, record_count=2)])
    assert [(batch.ordinal, batch.base_sequence) for batch in send_all(sequencer)] == [(7, 0), (8, 2), (1, 4)]


def test_unnumbered_batches_are_resent_without_sequences() -> None:
    """Without idempotence batches have no sequence, and a failure concerns one batch only."""
    sequencer = bound(1, 1, 1, is_numbered=False)
    assert [batch.base_sequence for batch in send_all(sequencer)] == [None, None, None]
    sequencer.unbind(Doubt.LOST)
    given_up = sequencer.give_up()
    assert given_up.refused_is_ambiguous
    assert given_up.followers == ()
    assert not sequencer.needs_identity


def test_without_acknowledgements_nothing_stays_in_flight() -> None:
    """With acks="none" a batch is done when it is sent, for any window."""
    sequencer = bound(1, 1, 1, window=1, is_numbered=False)
    assert [sequencer.take_unacknowledged().batch_number for _ in range(3)] == [1, 2, 3]
    assert sequencer.is_empty


def test_overdue_looks_at_the_oldest_batch() -> None:
    """The deadline that counts is that of the first unresolved batch, sent or not."""
    sequencer = PartitionSequencer(is_numbered=True)
    assert not sequencer.is_overdue(10**9)
    sequencer.enqueue(sealed(0, deadline_ms=10))
    sequencer.enqueue(sealed(1, deadline_ms=20))
    assert (sequencer.is_overdue(9), sequencer.is_overdue(10)) == (False, True)
    sequencer.bind(window=1)
    sequencer.take()
    assert (sequencer.is_overdue(9), sequencer.is_overdue(10)) == (False, True)


def test_refused_binding_fails_nothing() -> None:
    """The end of a route on which nothing was sent concerns no batch."""
    sequencer = PartitionSequencer(is_numbered=True)
    sequencer.enqueue(sealed(0))
    assert sequencer.end_route(ErrorCode.INVALID_REQUEST, outcome_unknown=False) is None
    assert not sequencer.is_empty
