# SPDX-License-Identifier: Apache-2.0
"""Order and identity of the batches of one partition.

This module owns which batches wait and which are on the wire, their sequences and batch numbers, and which batches may be
resent. It must not send, encode or wait.

Theory of operation. Batches wait in `queue` and are on the wire in `in_flight`. Both are in the order of sealing, and every
batch in flight precedes every waiting one. A batch gets its sequence when it is first taken for the wire. It keeps the sequence
for every resend, so the broker recognises it. When the route ends or the connection breaks, the batches in flight return to the
front of the queue.

A failed batch leaves a gap in the sequences. If it is certainly not in the log, the later batches get new sequences. Otherwise
the later batches that may be in the log fail too, because under another identity they could be in the log twice. The remaining
batches need a new identity.

A refusal names its batch only if that is the first one without a receipt (`outcome_unknown` is false). Otherwise no batch
fails. The partition continues with one batch at a time (`_is_probing`), and the next refusal names its batch. If the broker
then refuses that batch for its content, it refused the same batch the first time: otherwise it would have recognised the batch.

A route may end because its batches are in the leader's log but on too few replicas (`LEFT_IN_LOG`). This is not a refusal.
Batches with sequences are resent, as after a lost connection. Without sequences a resend would certainly append them twice, so
they fail with an unknown outcome.

Laws: each batch is acknowledged or failed exactly once. The batches of one partition reach the log in the order of sealing. At
most `window` batches are in flight. Once a batch may be in the log, its sequence is not reused for other records under the same
identity.
Source: KIP-98 and KIP-360 for the sequences; docs/glossary.md, "producer state", for the window of 16.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from lograft._producer.batches import Doubt, SealedBatch
from lograft.wire.codes import ErrorCode

SEQUENCE_MASK: Final = 0x7FFF_FFFF
"""Sequences wrap from 2,147,483,647 to 0."""
LOST_IDENTITY: Final = frozenset({ErrorCode.OUT_OF_ORDER_SEQUENCE, ErrorCode.PRODUCER_FENCED})
"""Refusals after which the broker accepts no further sequence of the same identity."""
REFUSED_CONTENT: Final = frozenset({ErrorCode.INVALID_BATCH, ErrorCode.UNSUPPORTED_FORMAT})
"""Refusals that depend only on the bytes of the batch, not on configs or on damage in transit."""

LEFT_IN_LOG: Final = frozenset({ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND})
"""Route ends that leave appended batches in the leader's log. They may be committed later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Acknowledged:
    """A batch is in the log. `base_offset` is the offset of its first record."""

    batch: SealedBatch
    base_offset: int
    duplicate: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenUp:
    """Batches that failed.

    Attributes:
        refused: the batch that caused the failure. It is not in the log unless `refused_is_ambiguous`.
        refused_is_ambiguous: True when an earlier attempt may have appended `refused`.
        followers: batches that were sent after it and fail with it. They may be in the log.
    """

    refused: SealedBatch
    refused_is_ambiguous: bool
    followers: tuple[SealedBatch, ...] = ()


class ReceiptError(Exception):
    """A receipt does not match the batches in flight: the broker broke the protocol."""


class PartitionSequencer:
    """Keeps the order, the sequences and the outcome of one partition's batches. The engine and the stream drive it."""

    __slots__ = (
        "_is_numbered",
        "_is_probing",
        "_next_batch_number",
        "_next_sequence",
        "_window",
        "in_flight",
        "is_bound",
        "needs_identity",
        "queue",
    )

    def __init__(self, *, is_numbered: bool) -> None:
        """Start without batches.

        Args:
            is_numbered: True when batches carry sequences (an idempotent producer).
        """
        self._is_numbered = is_numbered
        self._is_probing = False
        self._window = 0
        self._next_sequence = 0
        self._next_batch_number = 1
        self.is_bound = False
        self.needs_identity = False
        self.queue: deque[SealedBatch] = deque()
        self.in_flight: deque[SealedBatch] = deque()

    @property
    def is_empty(self) -> bool:
        """True when no batch waits or is in flight."""
        return not self.queue and not self.in_flight

    @property
    def has_sent(self) -> bool:
        """True when an unresolved batch may be in the log under the current identity."""
        return bool(self.in_flight) or (bool(self.queue) and self.queue[0].base_sequence is not None)

    def enqueue(self, batch: SealedBatch) -> None:
        """Add the next sealed batch of the partition."""
        self.queue.append(batch)

    def replace_head(self, pieces: Sequence[SealedBatch]) -> None:
        """Replace the first waiting batch, which was never sent, by its pieces."""
        head = self.queue.popleft()
        assert head.base_sequence is None, f"{head} was sent, it cannot be split"
        self.queue.extendleft(reversed(pieces))

    def drop_unsent(self) -> GivenUp:
        """Fail the first waiting batch, which was never sent. Batches in flight are not affected."""
        batch = self.queue.popleft()
        assert batch.base_sequence is None, f"{batch} was sent, the next one depends on it"
        return GivenUp(refused=batch, refused_is_ambiguous=batch.doubt > Doubt.NONE)

    def bind(self, *, window: int) -> None:
        """Start to use an open route, with at most `window` batches in flight."""
        assert not self.is_bound, "bound twice"
        assert not self.in_flight, "batches are in flight"
        assert window >= 1, f"window {window}"
        self.is_bound = True
        self._window = window
        self._next_batch_number = 1

    def can_send(self) -> bool:
        """True when `take` would return a batch."""
        window = 1 if self._is_probing else self._window
        return self.is_bound and not self.needs_identity and bool(self.queue) and len(self.in_flight) < window

    def take(self) -> SealedBatch:
        """Move the first waiting batch to the wire, and give it a batch number and a sequence."""
        assert self.can_send(), "nothing to send"
        batch = self.queue.popleft()
        if self._is_numbered and batch.base_sequence is None:
            batch.base_sequence = self._next_sequence
            self._next_sequence = (self._next_sequence + batch.record_count) & SEQUENCE_MASK
        batch.batch_number = self._next_batch_number
        self._next_batch_number += 1
        self.in_flight.append(batch)
        return batch

    def take_unacknowledged(self) -> SealedBatch:
        """Do what `take` does, for acks="none": the batch is done when it is sent."""
        batch = self.take()
        self.in_flight.pop()
        return batch

    def acknowledge(
        self, last_batch_number: int, base_offsets: Sequence[int], duplicates: Sequence[int]
    ) -> list[Acknowledged]:
        """Take a receipt.

        Args:
            last_batch_number: number of the last batch that the receipt covers, inclusive.
            base_offsets: base offset of every batch that it covers, in order.
            duplicates: indexes of the duplicates in `base_offsets`.

        Raises:
            ReceiptError: the receipt does not start with the first batch in flight, or ends after the last one. The state is
                unchanged.
        """
        count = len(base_offsets)
        if count == 0 or count > len(self.in_flight):
            raise ReceiptError(f"a receipt covers {count} batches where {len(self.in_flight)} are in flight")
        first = self.in_flight[0].batch_number
        if first is None or first + count - 1 != last_batch_number:
            raise ReceiptError(f"a receipt of {count} batches ends with {last_batch_number} where {first} is the first")
        duplicate_indexes = set(duplicates)
        done: list[Acknowledged] = []
        for index, base_offset in enumerate(base_offsets):
            batch = self.in_flight.popleft()
            batch.batch_number = None
            done.append(Acknowledged(batch=batch, base_offset=base_offset, duplicate=index in duplicate_indexes))
        if not self.in_flight:
            self._is_probing = self._is_probing and bool(self.queue) and self.queue[0].doubt > Doubt.NONE
        return done

    def unbind(self, doubt: Doubt) -> None:
        """Stop using the route. The batches in flight wait again, in order.

        Args:
            doubt: whether batches in flight may have been appended.
        """
        self.is_bound = False
        while self.in_flight:
            batch = self.in_flight.pop()
            batch.batch_number = None
            batch.doubt = max(batch.doubt, doubt)
            self.queue.appendleft(batch)

    def end_route(self, code: ErrorCode, *, outcome_unknown: bool) -> GivenUp | None:
        """Take the end of the route that the broker reports for its batches or its partition.

        Args:
            code: the reason.
            outcome_unknown: True when batches in flight may have been appended.

        Returns:
            The batches that failed; None if all batches in flight will be resent.
        """
        in_flight_count = len(self.in_flight)
        is_refusal = code.fatal
        outcome_unknown = outcome_unknown or code in LEFT_IN_LOG
        if not outcome_unknown:
            self.unbind(Doubt.NONE)
        else:
            self.unbind(Doubt.NEAR_REFUSAL if is_refusal else Doubt.LOST)
        if in_flight_count and code in LEFT_IN_LOG and not self._is_numbered:
            refused, *followers = (self.queue.popleft() for _ in range(in_flight_count))
            return GivenUp(refused=refused, refused_is_ambiguous=True, followers=tuple(followers))
        if not in_flight_count or not is_refusal:
            return None
        if outcome_unknown and not self._is_probing:
            self._is_probing = True
            return None
        head = self.queue[0]
        if not outcome_unknown and code in REFUSED_CONTENT and head.doubt is Doubt.NEAR_REFUSAL:
            head.doubt = Doubt.NONE
        return self.give_up(lost_identity=code in LOST_IDENTITY)

    def give_up(self, *, lost_identity: bool = False) -> GivenUp:
        """Fail the first waiting batch, and the later ones whose outcome cannot be known without it.

        Args:
            lost_identity: True when the broker accepts no further sequence of this identity.
        """
        assert not self.in_flight, "only the first waiting batch can be given up"
        assert self.queue, "nothing waits"
        batch = self.queue.popleft()
        self._is_probing = False
        if batch.base_sequence is None:
            return GivenUp(refused=batch, refused_is_ambiguous=batch.doubt > Doubt.NONE)
        if batch.doubt is Doubt.NONE and not lost_identity:
            # Batches reach the log in order, so neither this batch nor a later one is in it. Their sequences are free again.
            self._next_sequence = batch.base_sequence
            for later in self.queue:
                later.base_sequence = None
                later.doubt = Doubt.NONE
            return GivenUp(refused=batch, refused_is_ambiguous=False)
        followers: list[SealedBatch] = []
        while self.queue and self.queue[0].doubt > Doubt.NONE:
            followers.append(self.queue.popleft())
        self.needs_identity = True
        return GivenUp(refused=batch, refused_is_ambiguous=batch.doubt > Doubt.NONE, followers=tuple(followers))

    def is_overdue(self, now_ms: int) -> bool:
        """True when the oldest unresolved batch is past its deadline."""
        first = self.in_flight[0] if self.in_flight else self.queue[0] if self.queue else None
        return first is not None and first.deadline_ms <= now_ms

    def renew(self) -> None:
        """Start again with sequence 0, because the partition has a new identity or its topic was recreated."""
        assert not self.in_flight, "batches are in flight under the old identity"
        self.needs_identity = False
        self._next_sequence = 0
        for batch in self.queue:
            batch.base_sequence = None
            batch.doubt = Doubt.NONE
