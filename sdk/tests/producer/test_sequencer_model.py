# SPDX-License-Identifier: Apache-2.0
"""The sequencer against a partition log that drops duplicates and refuses gaps, with lost connections and refusals."""

from __future__ import annotations

from collections import deque

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from lograft._producer.batches import Doubt, SealedBatch
from lograft._producer.sequencer import PartitionSequencer
from lograft.wire.codes import ErrorCode
from tests.producer.builders import sealed


class Log:
    """A leader's log with the producer state of one partition. It counts what it appended."""

    def __init__(self) -> None:
        self.ordinals: list[int] = []
        self.window: dict[int, deque[tuple[int, int, int]]] = {}
        self.next_sequence: dict[int, int] = {}

    def append(self, identity: int, batch: SealedBatch) -> tuple[int, bool] | ErrorCode:
        """Append a batch, recognise it (offset, duplicate), or refuse it."""
        assert batch.base_sequence is not None
        for base_sequence, count, offset in self.window.get(identity, ()):
            if (base_sequence, count) == (batch.base_sequence, batch.record_count):
                return offset, True
        if batch.base_sequence != self.next_sequence.get(identity, 0):
            return ErrorCode.OUT_OF_ORDER_SEQUENCE
        offset = len(self.ordinals)
        self.ordinals.append(batch.ordinal)
        self.window.setdefault(identity, deque(maxlen=16)).append((batch.base_sequence, batch.record_count, offset))
        self.next_sequence[identity] = batch.base_sequence + batch.record_count
        return offset, False


class SequencerMachine(RuleBasedStateMachine):
    """Sends through a connection that breaks at any point. Some batches are poison that the broker refuses."""

    def __init__(self) -> None:
        super().__init__()
        self.sequencer = PartitionSequencer(is_numbered=True)
        self.log = Log()
        self.identity = 0
        self.next_ordinal = 0
        self.poison: set[int] = set()
        self.wire: deque[SealedBatch] = deque()
        self.unanswered: deque[tuple[int, bool]] = deque()
        self.answered_numbers = 0
        self.acknowledged: dict[int, int] = {}
        self.failed_for_sure: set[int] = set()
        self.failed_unknown: set[int] = set()
        self.submitted: list[int] = []

    @rule(record_count=st.integers(1, 5), is_poison=st.sampled_from([False, False, False, True]))
    def submit(self, record_count: int, is_poison: bool) -> None:
        """A batch is sealed."""
        if is_poison:
            self.poison.add(self.next_ordinal)
        self.submitted.append(self.next_ordinal)
        self.sequencer.enqueue(sealed(self.next_ordinal, record_count=record_count))
        self.next_ordinal += 1

    @rule(window=st.integers(1, 4))
    @precondition(lambda self: not self.sequencer.is_bound)
    def bind(self, window: int) -> None:
        """A route is opened."""
        if self.sequencer.needs_identity:
            self.identity += 1
            self.sequencer.renew()
        self.wire.clear()
        self.unanswered.clear()
        self.answered_numbers = 0
        self.sequencer.bind(window=window)

    @rule()
    @precondition(lambda self: self.sequencer.can_send())
    def send(self) -> None:
        """A batch is put on the wire."""
        self.wire.append(self.sequencer.take())

    @rule()
    @precondition(lambda self: self.sequencer.is_bound and self.wire)
    def arrive(self) -> None:
        """The broker gets a batch and appends it, or refuses it and ends the route."""
        batch = self.wire.popleft()
        outcome = ErrorCode.INVALID_BATCH if batch.ordinal in self.poison else self.log.append(self.identity, batch)
        if not isinstance(outcome, ErrorCode):
            self.unanswered.append(outcome)
            return
        # Like a real broker: while earlier batches are unanswered, it cannot say which batch it refused.
        self.give_up(self.sequencer.end_route(outcome, outcome_unknown=bool(self.unanswered)))

    @rule(count=st.integers(1, 4))
    @precondition(lambda self: self.sequencer.is_bound and self.unanswered)
    def answer(self, count: int) -> None:
        """A receipt comes through."""
        some = [self.unanswered.popleft() for _ in range(min(count, len(self.unanswered)))]
        self.answered_numbers += len(some)
        duplicates = [index for index, (_, duplicate) in enumerate(some) if duplicate]
        for each in self.sequencer.acknowledge(self.answered_numbers, [offset for offset, _ in some], duplicates):
            self.acknowledged[each.batch.ordinal] = each.base_offset

    @rule()
    @precondition(lambda self: self.sequencer.is_bound)
    def break_connection(self) -> None:
        """The connection breaks. Batches on the wire may or may not have arrived."""
        self.sequencer.unbind(Doubt.LOST)

    @rule()
    @precondition(lambda self: self.sequencer.is_bound)
    def move_leader(self) -> None:
        """The broker loses its leadership of the partition."""
        self.give_up(self.sequencer.end_route(ErrorCode.NOT_LEADER, outcome_unknown=bool(self.unanswered)))

    @rule()
    @precondition(lambda self: not self.sequencer.is_empty)
    def expire(self) -> None:
        """The first batch is past its deadline."""
        self.sequencer.unbind(Doubt.LOST)
        self.give_up(self.sequencer.give_up())

    def give_up(self, given_up: object) -> None:
        """Note the failed batches."""
        from lograft._producer.sequencer import GivenUp

        if isinstance(given_up, GivenUp):
            known = self.failed_unknown if given_up.refused_is_ambiguous else self.failed_for_sure
            known.add(given_up.refused.ordinal)
            self.failed_unknown.update(batch.ordinal for batch in given_up.followers)

    @invariant()
    def log_holds_each_batch_at_most_once_and_in_order(self) -> None:
        """Resends make no duplicates, and the order is that of sealing."""
        assert self.log.ordinals == sorted(set(self.log.ordinals))

    @invariant()
    def acknowledged_batches_are_where_the_receipt_says(self) -> None:
        """An acknowledged batch is in the log at its offset."""
        for ordinal, offset in self.acknowledged.items():
            assert self.log.ordinals[offset] == ordinal

    @invariant()
    def failures_are_honest(self) -> None:
        """A batch that failed with certainty is not in the log, and no batch has two results."""
        assert not self.failed_for_sure & set(self.log.ordinals)
        assert not (self.failed_for_sure | self.failed_unknown) & set(self.acknowledged)
        assert not self.failed_for_sure & self.failed_unknown

    @invariant()
    def every_batch_has_a_fate_or_is_still_here(self) -> None:
        """No batch is forgotten."""
        here = [batch.ordinal for batch in (*self.sequencer.in_flight, *self.sequencer.queue)]
        assert here == sorted(here)
        resolved = set(self.acknowledged) | self.failed_for_sure | self.failed_unknown
        assert sorted([*here, *resolved]) == self.submitted


SequencerMachine.TestCase.settings = settings(max_examples=100, stateful_step_count=50, deadline=None)
TestSequencerModel = SequencerMachine.TestCase
