# SPDX-License-Identifier: Apache-2.0
"""What a consumer with `isolation="committed-together"` holds, what it asks, and when it lets go. Pure.

`Gate` owns the last answers of the coordinators, the holds, their terms, and the times of questions. It must not keep records, ask
anybody, or read a clock: times are monotonic milliseconds that the caller gives.

Theory of operation. Published batches name their coordinator by their producer id, and their place among its decisions by their
sequence. A coordinator says up to which sequence every decision is complete, and where its next one begins. So one answer lets
everything before it pass. A batch that is not covered holds its partition.

Laws: a batch passes only if an answer covers it, or if it lies so far back that nothing incomplete can. A hold ends by an answer, a
failure that stays, or because the caller drops it; never by time. Each hold has one question under way at most.
Source: docs/ingest.md, "Readers".
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from lograft.errors import FatalError, IsolationTimeoutError, LograftError
from lograft.types import TopicPartition

FIRST_PUBLISHING_PRODUCER_ID: Final = 2**62
"""Batches with this producer id or a larger one were published by a decision."""

SEQUENCE_MODULUS: Final = 2**31
"""Sequences are below it, and begin with 0 again."""

HALF: Final = 2**30
"""More records than a partition has in incomplete decisions. Of two sequences less than that apart, it is known which is older."""

ASKED_PLACES_MAX: Final = 1_000
"""Partitions of one question."""

ASK_AGAIN_MS: Final = 10
"""Milliseconds from an answer to the next question. Each answer that lets nothing go doubles it."""

ASK_AGAIN_MAX_MS: Final = 500
"""Most milliseconds from an answer to the next question, unless the broker asks for more."""

RETRY_AFTER_MAX_MS: Final = 5_000
"""Most milliseconds that a broker can ask a reader to wait before the next question."""


class Place(NamedTuple):
    """Where batches are and who published them.

    Attributes:
        producer_id: publishing producer id. It names the coordinator.
        topic_id: topic id, 16 bytes.
        partition: partition.
    """

    producer_id: int
    topic_id: bytes
    partition: int


class Watermark(NamedTuple):
    """What a coordinator says about a place. Sequences are modulo 2^31.

    Attributes:
        up_to: every decision with records below it is complete in all its partitions.
        end: where the next decision begins. Of records from there on, the coordinator does not know.
    """

    up_to: int
    end: int


class Verdict(enum.Enum):
    """Whether the decision of a batch is complete in all its partitions."""

    COMPLETE = "complete"
    INCOMPLETE = "not published in all its partitions"
    UNKNOWN = "not known to its coordinator yet"


def judge(sequence: int, known: Watermark | None, records_behind: int) -> Verdict:
    """Judge the decision of a batch.

    Args:
        sequence: publishing sequence of its first record.
        known: the last answer about its place; None: none.
        records_behind: number of offsets in the partition from the batch on, as far as is known.
    """
    if known is None:
        return Verdict.UNKNOWN
    if 0 < (known.up_to - sequence) % SEQUENCE_MODULUS < HALF:
        return Verdict.COMPLETE
    if (sequence - known.up_to) % SEQUENCE_MODULUS < (known.end - known.up_to) % SEQUENCE_MODULUS:
        return Verdict.INCOMPLETE
    # Either so old that its sequence looks new, or newer than the answer.
    return Verdict.COMPLETE if records_behind >= HALF else Verdict.UNKNOWN


@dataclass(slots=True)
class _Hold:
    """A partition that waits.

    Attributes:
        place: place of the batch.
        sequence: sequence of the batch.
        offset: offset of the batch.
        records_behind: see `judge`.
        since_ms: when it began.
        deadline_ms: when its term ends.
        asked_ms: when its last question was asked; None: it has not been asked.
        is_asking: True while a question about it is under way.
        is_overdue: True once its term has ended, until the application was told.
        reason: what the last answer was.
    """

    place: Place
    sequence: int
    offset: int
    records_behind: int
    since_ms: int
    deadline_ms: int
    asked_ms: int | None = None
    is_asking: bool = False
    is_overdue: bool = False
    reason: str = "no broker has answered yet"


@dataclass(slots=True)
class _Pace:
    """When a coordinator is asked again."""

    due_ms: int
    delay_ms: int = ASK_AGAIN_MS
    is_asking: bool = False


@dataclass(frozen=True, slots=True)
class Question:
    """A question about partitions of one coordinator.

    Attributes:
        producer_id: the publishing producer id that names the coordinator.
        places: what is asked, at most `ASKED_PLACES_MAX`.
    """

    producer_id: int
    places: tuple[tuple[TopicPartition, Place], ...]


Answer = Watermark | LograftError
"""What came for one place."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What an answer has changed.

    Attributes:
        let_go: partitions that may go on.
        failed: partitions that can never, with the reasons.
    """

    let_go: tuple[TopicPartition, ...]
    failed: dict[TopicPartition, LograftError]


class Gate:
    """Decides which batches must wait. Only its own methods write its state.

    Args:
        timeout_ms: milliseconds of a hold after which the application is told.
    """

    __slots__ = ("_holds", "_known", "_paces", "_timeout_ms")

    def __init__(self, timeout_ms: int) -> None:
        self._timeout_ms = timeout_ms
        self._holds: dict[TopicPartition, _Hold] = {}
        self._known: dict[TopicPartition, dict[int, tuple[bytes, Watermark]]] = {}
        self._paces: dict[int, _Pace] = {}

    def may_pass(self, tp: TopicPartition, place: Place, sequence: int, records_behind: int) -> bool:
        """Return True if a batch may be handed out now."""
        return judge(sequence, self._watermark(tp, place), records_behind) is Verdict.COMPLETE

    def hold(
        self, tp: TopicPartition, place: Place, sequence: int, *, offset: int, records_behind: int, now_ms: int
    ) -> None:
        """Hold a partition at a batch, and have the coordinator asked at once."""
        assert tp not in self._holds, f"{tp} is held"
        self._holds[tp] = _Hold(place, sequence, offset, records_behind, now_ms, now_ms + self._timeout_ms)
        pace = self._paces.setdefault(place.producer_id, _Pace(now_ms))
        pace.due_ms = min(pace.due_ms, now_ms)
        pace.delay_ms = ASK_AGAIN_MS

    def drop(self, tp: TopicPartition) -> None:
        """End the hold of a partition, if it has one. An answer that is on its way does not concern it any more."""
        self._holds.pop(tp, None)

    def forget(self, tps: Iterable[TopicPartition]) -> None:
        """Forget everything about partitions that are no longer assigned."""
        for tp in tps:
            self.drop(tp)
            self._known.pop(tp, None)

    # -- questions

    def questions(self, now_ms: int) -> list[Question]:
        """Return what has to be asked now. `answered` is to be called for each of them."""
        by_coordinator: dict[int, list[TopicPartition]] = {}
        for tp, hold in self._holds.items():
            by_coordinator.setdefault(hold.place.producer_id, []).append(tp)
        for producer_id in [each for each, pace in self._paces.items() if not pace.is_asking]:
            if producer_id not in by_coordinator:
                del self._paces[producer_id]
        found: list[Question] = []
        for producer_id, tps in by_coordinator.items():
            pace = self._paces[producer_id]
            if pace.is_asking or now_ms < pace.due_ms:
                continue
            # Those that were never asked first, then those whose last question is the oldest.
            tps.sort(key=self._asked_ms)
            asked = tps[:ASKED_PLACES_MAX]
            pace.is_asking = True
            for tp in asked:
                self._holds[tp].asked_ms = now_ms
                self._holds[tp].is_asking = True
            found.append(Question(producer_id, tuple((tp, self._holds[tp].place) for tp in asked)))
        return found

    def answered(self, question: Question, answers: Sequence[Answer], now_ms: int) -> Outcome:
        """Take the answers to a question, one for each of its places."""
        pace = self._paces[question.producer_id]
        pace.is_asking = False
        let_go: list[TopicPartition] = []
        failed: dict[TopicPartition, LograftError] = {}
        retry_after_ms = 0
        for (tp, place), answer in zip(question.places, answers, strict=True):
            hold = self._holds.get(tp)
            if hold is None or hold.place != place or not hold.is_asking:
                # It has ended meanwhile, and what was learnt may be of another topic.
                continue
            hold.is_asking = False
            if isinstance(answer, Watermark):
                self._known.setdefault(tp, {})[place.producer_id] = (place.topic_id, answer)
                verdict = judge(hold.sequence, answer, hold.records_behind)
                if verdict is Verdict.COMPLETE:
                    let_go.append(tp)
                    del self._holds[tp]
                else:
                    hold.reason = f"it is {verdict.value}"
            elif isinstance(answer, FatalError):
                failed[tp] = answer
                del self._holds[tp]
            else:
                hold.reason = str(answer)
                retry_after_ms = max(retry_after_ms, answer.retry_after_ms or 0)
        delay_ms = ASK_AGAIN_MS if let_go else pace.delay_ms
        pace.delay_ms = min(2 * delay_ms, ASK_AGAIN_MAX_MS)
        is_new = any(
            hold.asked_ms is None for hold in self._holds.values() if hold.place.producer_id == question.producer_id
        )
        wait_ms = max(delay_ms, min(retry_after_ms, RETRY_AFTER_MAX_MS))
        pace.due_ms = now_ms + (0 if is_new else wait_ms)
        return Outcome(tuple(let_go), failed)

    # -- terms

    def expire(self, now_ms: int) -> bool:
        """End the terms that are over. Return True if there is something to tell the application."""
        for hold in self._holds.values():
            if now_ms >= hold.deadline_ms:
                hold.is_overdue = True
        return self.is_overdue

    @property
    def is_overdue(self) -> bool:
        """True if the application has to be told of a hold whose term is over."""
        return any(hold.is_overdue for hold in self._holds.values())

    def overdue(self, now_ms: int) -> IsolationTimeoutError | None:
        """Return what to tell the application; None: nothing. `told` follows when it has been told."""
        for tp, hold in self._holds.items():
            if hold.is_overdue:
                return IsolationTimeoutError(
                    f"{tp}: the records from offset {hold.offset} on have waited {now_ms - hold.since_ms} ms for the rest of their "
                    f"decision ({hold.reason}); `lograft ingest list --state decided` says which ingest, and "
                    "`lograft doctor` which partition has no leader; poll again to wait on, or read with "
                    'isolation="committed" to do without the rest',
                    topic=tp.topic,
                    partition=tp.partition,
                    offset=hold.offset,
                )
        return None

    def told(self, tp: TopicPartition, now_ms: int) -> None:
        """Give a hold a new term: the application knows."""
        hold = self._holds.get(tp)
        if hold is not None:
            hold.is_overdue = False
            hold.deadline_ms = now_ms + self._timeout_ms

    def tell_again(self, tp: TopicPartition, offset: int) -> None:
        """Note that the application was not told after all."""
        hold = self._holds.get(tp)
        if hold is not None and hold.offset == offset:
            hold.is_overdue = True

    def held_ms(self, now_ms: int) -> dict[TopicPartition, int]:
        """Return for how many milliseconds partitions are held."""
        return {tp: now_ms - hold.since_ms for tp, hold in list(self._holds.items())}

    def next_ms(self) -> int | None:
        """Return when there is something to do: a question, or a term that ends. None: nothing by itself."""
        times = [hold.deadline_ms for hold in self._holds.values() if not hold.is_overdue]
        coordinators = {hold.place.producer_id for hold in self._holds.values()}
        times += [pace.due_ms for each, pace in self._paces.items() if each in coordinators and not pace.is_asking]
        return min(times, default=None)

    # -- inside

    def _watermark(self, tp: TopicPartition, place: Place) -> Watermark | None:
        found = self._known.get(tp, {}).get(place.producer_id)
        return found[1] if found is not None and found[0] == place.topic_id else None

    def _asked_ms(self, tp: TopicPartition) -> int:
        asked_ms = self._holds[tp].asked_ms
        return -1 if asked_ms is None else asked_ms
