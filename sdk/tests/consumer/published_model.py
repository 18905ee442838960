# SPDX-License-Identifier: Apache-2.0
"""A model of partitions, coordinators and fetches around a `HoldingCollector`, with random events.

It plays the brokers, the engine and the asker, one random event after another, and keeps the laws of the reader:

1. When a batch is handed out, every partition of its decision has its whole part.
2. Each partition is handed out in order, without a gap and without a repetition, but for seeks.
3. What is kept never exceeds its room.
4. Bytes that were received are given back, once.
5. When everything is complete, everything is handed out, whatever happened before.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from dataclasses import dataclass, field

from lograft._consumer.fetch_buffer import Chunk, Cursor
from lograft._consumer.holding_collector import KEPT_SHARE, HoldingCollector
from lograft._consumer.together import FIRST_PUBLISHING_PRODUCER_ID, SEQUENCE_MODULUS, Answer, Question, Watermark
from lograft.errors import CoordinatorNotAvailableError, IsolationTimeoutError
from lograft.settings import ConsumerSettings
from lograft.types import TopicPartition
from lograft.wire.batch import encode_batch

TOPIC_ID = bytes(range(16))
PARTITIONS = 4
COORDINATORS = 2
PREFETCH_BYTES = 4_096


@dataclass(eq=False)
class Decision:
    """A decision: the records of each partition, and those that are not published yet."""

    records: dict[int, int]
    left: dict[int, int] = field(default_factory=dict[int, int])

    @property
    def is_complete(self) -> bool:
        """True if every partition has its part."""
        return not any(self.left.values())


@dataclass
class Part:
    """What a coordinator has decided for one partition."""

    decision: Decision
    base_sequence: int


@dataclass
class Log:
    """A partition: its batches, and of which decision they are."""

    batches: list[tuple[int, bytes]] = field(default_factory=list[tuple[int, bytes]])
    decisions: dict[int, Decision] = field(default_factory=dict[int, Decision])
    end: int = 0

    def append(self, count: int, decision: Decision | None, producer_id: int, sequence: int) -> None:
        """Append a batch."""
        batch = encode_batch(
            [b"%d" % (self.end + each) for each in range(count)],
            producer_id=producer_id,
            producer_epoch=-1 if producer_id < 0 else 0,
            base_sequence=sequence,
            base_offset=self.end,
        )
        self.batches.append((self.end, bytes(batch)))
        if decision is not None:
            self.decisions[self.end] = decision
        self.end += count


@dataclass
class Fetch:
    """A fetch that the engine carries on."""

    cursor: Cursor
    generation: int
    offset: int


class Walk:
    """One run of random events."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.now_ms = 0
        self.counts: Counter[str] = Counter()
        self.logs = [Log() for _ in range(PARTITIONS)]
        first = self.rng.choice((0, SEQUENCE_MODULUS - 20))
        self.next_sequence = {(c, p): first for c in range(COORDINATORS) for p in range(PARTITIONS)}
        self.parts: dict[tuple[int, int], deque[Part]] = {each: deque() for each in self.next_sequence}
        self.old_answers: dict[tuple[int, int], Watermark] = {}
        settings = ConsumerSettings(
            prefetch_bytes=PREFETCH_BYTES,
            isolation="committed-together",
            isolation_timeout_ms=self.rng.choice((100, 10**6)),
        )
        self.received_bytes = 0
        self.given_back_bytes = 0
        self.collector = HoldingCollector(settings, self._give_back, lambda: None)
        self.fetches: dict[TopicPartition, Fetch] = {}
        self.asked: list[tuple[Question, list[Answer]]] = []
        self.tps = [TopicPartition("t", number) for number in range(PARTITIONS)]
        self.paused: set[TopicPartition] = set()
        self._start(self.collector.assign(dict.fromkeys(self.tps, 0)))

    def clock(self) -> int:
        """Return the time, for the collector."""
        return self.now_ms

    def run(self, steps: int) -> None:
        """Do some events, and then let everything complete and be read."""
        events = (
            *[self._decide] * 2,
            *[self._publish] * 6,
            self._append,
            *[self._arrive] * 8,
            *[self._read] * 8,
            *[self._ask] * 3,
            *[self._answer] * 3,
            self._seek,
            self._pause,
        )
        for _ in range(steps):
            self.now_ms += self.rng.randint(0, 60)
            self.rng.choice(events)()
            self._check_room()
        self._finish()

    # -- the cluster

    def _decide(self) -> None:
        coordinator = self.rng.randrange(COORDINATORS)
        partitions = self.rng.sample(range(PARTITIONS), self.rng.randint(1, PARTITIONS))
        decision = Decision({number: self.rng.randint(1, 5) for number in partitions})
        decision.left = dict(decision.records)
        for number, count in decision.records.items():
            key = (coordinator, number)
            self.parts[key].append(Part(decision, self.next_sequence[key]))
            self.next_sequence[key] = (self.next_sequence[key] + count) % SEQUENCE_MODULUS

    def _publish(self) -> None:
        waiting = [key for key, parts in self.parts.items() if any(each.decision.left[key[1]] for each in parts)]
        if waiting:
            self._publish_some(*self.rng.choice(waiting))

    def _publish_some(self, coordinator: int, number: int) -> None:
        part = next(each for each in self.parts[coordinator, number] if each.decision.left[number])
        left = part.decision.left[number]
        count = self.rng.randint(1, left)
        done = part.decision.records[number] - left
        sequence = (part.base_sequence + done) % SEQUENCE_MODULUS
        self.logs[number].append(count, part.decision, FIRST_PUBLISHING_PRODUCER_ID + coordinator, sequence)
        part.decision.left[number] -= count

    def _append(self) -> None:
        self.rng.choice(self.logs).append(self.rng.randint(1, 3), None, -1, -1)

    def _watermark(self, coordinator: int, number: int) -> Watermark:
        parts = self.parts[coordinator, number]
        while parts and parts[0].decision.is_complete:
            parts.popleft()
        end = self.next_sequence[coordinator, number]
        incomplete = [each for each in parts if not each.decision.is_complete]
        return Watermark(incomplete[0].base_sequence if incomplete else end, end)

    # -- the engine

    def _start(self, cursors: list[Cursor]) -> None:
        for cursor in cursors:
            if cursor.tp not in self.paused:
                self.fetches[cursor.tp] = Fetch(cursor, cursor.generation, cursor.position)

    def _arrive(self) -> None:
        if self.fetches:
            self._arrive_of(self.rng.choice(list(self.fetches)))

    def _arrive_of(self, tp: TopicPartition) -> None:
        fetch, log = self.fetches[tp], self.logs[tp.partition]
        at = [each for each, (offset, batch) in enumerate(log.batches) if self._ends_after(log, each, fetch.offset)]
        some = [log.batches[each] for each in at[: self.rng.randint(0, 3)]]
        body = b"".join(batch for _, batch in some)
        if some:
            last = log.batches.index(some[-1])
            fetch.offset = log.batches[last + 1][0] if last + 1 < len(log.batches) else log.end
        self.received_bytes += len(body)
        self.collector.put(
            Chunk(
                cursor=fetch.cursor,
                generation=fetch.generation,
                body=body,
                next_offset=fetch.offset,
                high_watermark=log.end,
                source=self,
                topic_id=TOPIC_ID if body else b"",
            )
        )

    @staticmethod
    def _ends_after(log: Log, at: int, offset: int) -> bool:
        return (log.batches[at + 1][0] if at + 1 < len(log.batches) else log.end) > offset

    def _give_back(self, source: object, size_bytes: int) -> None:
        assert source is not None, "a chunk without a source"
        if source is self:
            self.given_back_bytes += size_bytes
        assert self.given_back_bytes <= self.received_bytes, "4: bytes are given back twice"

    def _stop(self) -> None:
        for tp in self.collector.take_stops():
            self.fetches.pop(tp, None)
            self.counts["dropped"] += 1

    # -- the application

    def _read(self) -> None:
        before = {tp: self.collector.cursor(tp).position for tp in self.tps}
        got: list[tuple[TopicPartition, list[int]]]
        try:
            if self.rng.random() < 0.5:
                batch = self.collector.next_batch()
                got = [] if batch is None else [(TopicPartition("t", batch.partition), list(batch.offsets()))]
            else:
                records = self.collector.next_records(self.rng.randint(1, 6))
                got = [(TopicPartition("t", each.partition), [each.offset]) for each in records]
        except IsolationTimeoutError:
            self.counts["told"] += 1
            return
        for tp, offsets in got:
            log = self.logs[tp.partition]
            for offset in offsets:
                assert offset == before[tp], f"2: {tp} has a gap before {offset}"
                before[tp] += 1
                base = max(each for each, _ in log.batches if each <= offset)
                decision = log.decisions.get(base)
                assert decision is None or decision.is_complete, f"1: {tp} gives a part of a decision at {offset}"
                self.counts["published"] += decision is not None
        self._stop()

    def _seek(self) -> None:
        if self.rng.random() < 0.3:
            tp = self.rng.choice(self.tps)
            self._start([self.collector.seek(tp, self.rng.randint(0, self.logs[tp.partition].end))])
            self.counts["sought"] += 1

    def _pause(self) -> None:
        if self.rng.random() < 0.3:
            tp = self.rng.choice(self.tps)
            if tp in self.paused:
                self._resume(tp)
            else:
                self.paused.add(tp)
                self.collector.retire([tp])
                self.fetches.pop(tp, None)

    def _resume(self, tp: TopicPartition) -> None:
        self.paused.discard(tp)
        self._start([self.collector.cursor(tp)])

    # -- the asker

    def _ask(self) -> None:
        self.collector.expire()
        self._stop()
        for question in self.collector.questions():
            self.counts["asked"] += 1
            self.asked.append((question, [self._answer_to(place.producer_id, tp) for tp, place in question.places]))

    def _answer_to(self, producer_id: int, tp: TopicPartition) -> Answer:
        key = (producer_id - FIRST_PUBLISHING_PRODUCER_ID, tp.partition)
        dice = self.rng.random()
        if dice < 0.1:
            return CoordinatorNotAvailableError("loading", retry_after_ms=self.rng.choice((None, 50)))
        if dice < 0.3 and key in self.old_answers:
            # A coordinator that was replaced and does not know it.
            return self.old_answers[key]
        found = self._watermark(*key)
        if self.rng.random() < 0.5:
            self.old_answers[key] = found
        return found

    def _answer(self) -> None:
        if self.asked:
            question, answers = self.asked.pop(self.rng.randrange(len(self.asked)))
            self._start(self.collector.answered(question, answers))

    # -- the end

    def _check_room(self) -> None:
        kept = self.collector.kept_bytes
        assert 0 <= kept <= PREFETCH_BYTES // KEPT_SHARE, f"3: {kept} bytes are kept"
        self.counts["kept"] += kept > 0

    def _finish(self) -> None:
        for key in self.parts:
            while any(each.decision.left[key[1]] for each in self.parts[key]):
                self._publish_some(*key)
        for tp in list(self.paused):
            self._resume(tp)
        for _ in range(3_000):
            self.now_ms += 100
            for tp in list(self.fetches):
                self._arrive_of(tp)
            self._read()
            self._ask()
            self._answer()
            self._check_room()
            if all(self.collector.cursor(tp).position == self.logs[tp.partition].end for tp in self.tps):
                break
        else:
            raise AssertionError("5: a partition stands still")
        self.fetches.clear()
        assert self.collector.next_records(1) == []
        assert self.collector.kept_bytes == 0
        assert self.given_back_bytes == self.received_bytes, "4: bytes are lost"
