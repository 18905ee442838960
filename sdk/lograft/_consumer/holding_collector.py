# SPDX-License-Identifier: Apache-2.0
"""The collector of a consumer with `isolation="committed-together"`: it hands out a decision only when all of it is published.

It owns what is kept of held partitions, and the room for that; the gate (`together.py`) owns why, and until when. It knows no lock, no
loop and no broker: `asker.py` carries out what it returns.

Theory of operation. A published batch that the gate does not let pass leaves the buffer with everything of its partition that has
arrived, and later arrivals follow it. Kept bytes leave the credit of the fetch streams at once, so a held partition takes nothing from
others. They have room of their own. A partition that does not fit is dropped and not fetched until it is let go. Let go, the arrivals
go back to the front of the buffer, and their batches are looked at anew.

Laws: a partition is in the buffer or kept, never both. The kept bytes never exceed their room, and count until they are consumed.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from lograft._client.clock import monotonic_ms
from lograft._consumer.collector import FetchCollector, OpenChunk
from lograft._consumer.fetch_buffer import Arrival, Chunk, Cursor, Failure
from lograft._consumer.together import FIRST_PUBLISHING_PRODUCER_ID, Answer, Gate, Place, Question
from lograft.errors import IsolationTimeoutError, LograftError, UnknownTopicError
from lograft.fetched import FetchedBatch
from lograft.settings import ConsumerSettings
from lograft.types import ConsumerRecord, TopicPartition
from lograft.wire.batch import RecordBatch, read_header
from lograft.wire.errors import BatchError
from lograft.wire.limits import HEADER_BYTES

KEPT_SHARE: Final = 4
"""A consumer keeps up to `prefetch_bytes` divided by this of held partitions, besides what it fetches ahead."""

_PRODUCER_ID: Final = struct.Struct(">q")
_PRODUCER_ID_AT: Final = 43

_KEPT: Final = object()
"""The source of chunks whose bytes count as kept, and not against the credit of a stream."""


@dataclass(slots=True, eq=False)
class _Kept:
    """What has come of a held partition.

    Attributes:
        cursor: its cursor.
        generation: generation of the cursor that it belongs to.
        arrivals: what is kept, in order; nothing once it is dropped.
        is_dropped: True if it did not fit, so that the partition has to be fetched again.
        is_fetched: False once the fetching of a dropped partition is stopped.
    """

    cursor: Cursor
    generation: int
    arrivals: deque[Arrival] = field(default_factory=deque[Arrival])
    is_dropped: bool = False
    is_fetched: bool = True

    @property
    def is_stale(self) -> bool:
        """True if the partition was sought, paused or given up since."""
        return self.generation != self.cursor.generation


class HoldingCollector(FetchCollector):
    """Hands out batches as `FetchCollector` does, and holds partitions whose next batch has to wait."""

    def __init__(
        self,
        settings: ConsumerSettings,
        give_back: Callable[[object, int], None],
        on_change: Callable[[], None],
    ) -> None:
        """Start without partitions.

        Args:
            settings: the consumer's settings.
            give_back: gets the source and the number of bytes that the application has consumed.
            on_change: called when there is something to ask, to stop or to time: `expire`, `take_stops` and `questions` say what.
        """
        super().__init__(settings, give_back)
        self._gate = Gate(settings.isolation_timeout_ms)
        self._on_change = on_change
        self._kept: dict[TopicPartition, _Kept] = {}
        self._kept_bytes = 0
        self._room_bytes = settings.prefetch_bytes // KEPT_SHARE
        self._failed_fetches: list[Cursor] = []

    # -- assignment

    def assign(
        self, positions: Mapping[TopicPartition, int], topic_ids: Mapping[str, bytes] | None = None
    ) -> list[Cursor]:
        """Replace the assignment; see `FetchCollector.assign`."""
        old = list(self.cursors)
        cursors = super().assign(positions, topic_ids)
        self._drop_stale()
        self._gate.forget(old)
        return cursors

    def remove(self, tps: Sequence[TopicPartition]) -> None:
        """Take partitions out of the assignment."""
        super().remove(tps)
        self._gate.forget(tps)

    # -- arrivals

    def put(self, arrival: Arrival) -> None:
        """Take an arrival from the engine."""
        kept = self._kept.get(arrival.cursor.tp)
        if kept is None or arrival.cursor is not kept.cursor or arrival.generation != kept.generation or kept.is_stale:
            super().put(arrival)
        elif isinstance(arrival, Failure) and isinstance(arrival.error, UnknownTopicError):
            # Nothing says any more whether the rest is published.
            self._drop(kept)
            super().put(arrival)
        else:
            if isinstance(arrival, Chunk):
                kept.cursor.log_end = arrival.high_watermark
            self._keep(kept, arrival)

    @property
    def has_arrivals(self) -> bool:
        """True when `next_batch` may return a batch or raise an error."""
        return super().has_arrivals or self._gate.is_overdue

    def next_batch(self) -> FetchedBatch | None:
        """Return the next batch; see `FetchCollector.next_batch`.

        Raises:
            IsolationTimeoutError: a partition is held for too long. It is raised once for each term.
            LograftError: as `FetchCollector.next_batch`.
        """
        try:
            return super().next_batch()
        except IsolationTimeoutError as error:
            self._told(error)
            raise

    def next_records(self, max_records: int) -> list[ConsumerRecord]:
        """Return records; see `FetchCollector.next_records`. Raises as `next_batch`."""
        try:
            return super().next_records(max_records)
        except IsolationTimeoutError as error:
            self._told(error)
            raise

    def tell_again(self, error: LograftError) -> None:
        """See `FetchCollector.tell_again`."""
        if isinstance(error, IsolationTimeoutError):
            self._gate.tell_again(TopicPartition(error.topic, error.partition), error.offset)

    @property
    def kept_bytes(self) -> int:
        """Bytes of held partitions, and of those that were let go and not consumed yet."""
        return self._kept_bytes

    @property
    def kept_arrivals(self) -> int:
        """Number of arrivals of held partitions that are kept."""
        return sum(len(kept.arrivals) for kept in self._kept.values())

    def held_ms(self) -> dict[TopicPartition, int]:
        """See `FetchCollector.held_ms`."""
        return self._gate.held_ms(monotonic_ms())

    # -- for the asker

    def expire(self) -> bool:
        """End the terms that are over. Return True if the application has to hear of one."""
        return self._gate.expire(monotonic_ms())

    def take_stops(self) -> list[TopicPartition]:
        """Return the partitions that are to be fetched no longer, once."""
        stops = [cursor.tp for cursor in self._failed_fetches if self.cursors.get(cursor.tp) is cursor and cursor.error]
        self._failed_fetches.clear()
        for tp, kept in self._kept.items():
            if kept.is_dropped and kept.is_fetched and not kept.is_stale:
                kept.is_fetched = False
                stops.append(tp)
        return stops

    def questions(self) -> list[Question]:
        """Return what has to be asked now; see `Gate.questions`."""
        return self._gate.questions(monotonic_ms())

    def answered(self, question: Question, answers: Sequence[Answer]) -> list[Cursor]:
        """Take the answers to a question, and return the partitions that are to be fetched again."""
        outcome = self._gate.answered(question, answers, monotonic_ms())
        again: list[Cursor] = []
        for tp in outcome.let_go:
            kept = self._kept.pop(tp)
            if kept.is_dropped:
                again.append(kept.cursor)
            else:
                self._buffer.put_first(kept.arrivals)
        for tp, error in outcome.failed.items():
            cursor = self._kept[tp].cursor
            cursor.retire()
            cursor.error = self._failed[tp] = error
            self._failed_fetches.append(cursor)
        self._drop_stale()
        return again

    def next_ms(self) -> int | None:
        """Return the monotonic time at which there is something to do; None: nothing by itself."""
        return self._gate.next_ms()

    # -- inside

    def _take_batch(self, opened: OpenChunk) -> FetchedBatch | None:
        if self._must_wait(opened):
            return None
        return super()._take_batch(opened)

    def _must_wait(self, opened: OpenChunk) -> bool:
        """Hold the partition if the next batch must wait."""
        chunk, at = opened.chunk, opened.position
        body, cursor = chunk.body, chunk.cursor
        if len(body) - at < HEADER_BYTES:
            return False
        (producer_id,) = _PRODUCER_ID.unpack_from(body, at + _PRODUCER_ID_AT)
        if producer_id < FIRST_PUBLISHING_PRODUCER_ID:
            return False
        header = read_header(body, at)
        if header.next_offset <= cursor.position or header.is_control or header.is_filler:
            return False
        tp = cursor.tp
        place = Place(producer_id, chunk.topic_id, tp.partition)
        records_behind = (cursor.log_end or 0) - header.base_offset
        if self._gate.may_pass(tp, place, header.base_sequence, records_behind):
            return False
        if self._settings.check_crcs:
            try:
                RecordBatch(body, at, verify_crc=True)
            except BatchError:
                # The header means nothing then. The collector says so.
                return False
        self._hold(opened)
        self._gate.hold(
            tp,
            place,
            header.base_sequence,
            offset=max(header.base_offset, cursor.position),
            records_behind=records_behind,
            now_ms=monotonic_ms(),
        )
        self._on_change()
        return True

    def _hold(self, opened: OpenChunk) -> None:
        """Keep the rest of a chunk, and what has arrived of its partition after it."""
        chunk = opened.chunk
        kept = self._kept[chunk.cursor.tp] = _Kept(chunk.cursor, chunk.generation)
        # A copy, so that what was handed out of the chunk takes no room.
        rest = replace(chunk, body=bytes(memoryview(chunk.body)[opened.position :]), source=_KEPT)
        self._open = None
        self._use(chunk)
        self._put_aside(kept, rest)
        for arrival in self._buffer.take_all_of(chunk.cursor, chunk.generation):
            self._keep(kept, arrival)

    def _keep(self, kept: _Kept, arrival: Arrival) -> None:
        """Keep an arrival. The credit for its bytes goes back."""
        if isinstance(arrival, Chunk):
            self._use(arrival)
            self._put_aside(kept, replace(arrival, source=_KEPT))
        elif not kept.is_dropped:
            kept.arrivals.append(arrival)

    def _put_aside(self, kept: _Kept, chunk: Chunk) -> None:
        """Keep a chunk, or drop everything of the partition if it does not fit."""
        if kept.is_dropped:
            return
        size_bytes = len(chunk.body)
        if self._kept_bytes + size_bytes > self._room_bytes:
            self._free(kept)
            kept.is_dropped = True
            self._on_change()
            return
        last = kept.arrivals[-1] if kept.arrivals else None
        if size_bytes == 0 and isinstance(last, Chunk) and not last.body:
            # Marks of an idle partition come for ever, and the newest says everything.
            kept.arrivals.pop()
        self._kept_bytes += size_bytes
        kept.arrivals.append(chunk)

    def _use(self, chunk: Chunk) -> None:
        if chunk.source is _KEPT:
            self._kept_bytes -= len(chunk.body)
        else:
            super()._use(chunk)

    def _drop(self, kept: _Kept) -> None:
        """End the hold of a partition, and forget what is kept of it."""
        tp = kept.cursor.tp
        del self._kept[tp]
        self._free(kept)
        self._gate.drop(tp)

    def _free(self, kept: _Kept) -> None:
        for arrival in kept.arrivals:
            if isinstance(arrival, Chunk):
                self._use(arrival)
        kept.arrivals.clear()

    def _drop_stale(self) -> None:
        super()._drop_stale()
        for kept in [each for each in self._kept.values() if each.is_stale]:
            self._drop(kept)

    def _raise_failure(self) -> None:
        super()._raise_failure()
        if self._gate.is_overdue:
            error = self._gate.overdue(monotonic_ms())
            if error is not None:
                raise error

    def _told(self, error: IsolationTimeoutError) -> None:
        self._gate.told(TopicPartition(error.topic, error.partition), monotonic_ms())
        self._on_change()
