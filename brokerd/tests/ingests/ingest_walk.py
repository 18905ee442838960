# SPDX-License-Identifier: Apache-2.0
"""Ingests under faults, by seed: clients, leaders, a group, and a coordinator whose log is committed late and that fails over.

Requests, answers and effects are lost, doubled and late. Clients crash, and others take over; clocks move; topics are deleted. Leaders
and the group are away for a while. A failover loses uncommitted records, loads a compacted log, and has another clock. A deposed
coordinator goes on answering for a while.
`ingest_laws` says what must hold.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass

from brokerd.coordinator.core import Record
from brokerd.ingests.answers import (
    AttemptOpened,
    Committed,
    Decided,
    IngestDecision,
    LiveSequences,
    Opened,
    Outcome,
    OutcomeKnown,
    Planned,
    Refusal,
    Refused,
    Sealed,
    StagedCheck,
)
from brokerd.ingests.codec import decode, encode
from brokerd.ingests.commands import (
    AbortIngest,
    Command,
    DecideCommit,
    DecideOutcome,
    GroupOffset,
    GroupOffsets,
    LiveAttempts,
    ManifestEntry,
    NoteLostRecords,
    OffsetsResolved,
    OpenAttempt,
    OpenIngest,
    PartPublished,
    PlanCommit,
    PublishedUpTo,
    SealAttempt,
    TopicsDeleted,
    TouchIngest,
    scope_of,
)
from brokerd.ingests.commits import offsets_digest
from brokerd.ingests.core import IngestCore
from brokerd.ingests.effects import Effect, IngestCompleted, IngestExpired, Publish, RecordsLost, ResolveOffsets
from brokerd.ingests.limits import LOADED_GRACE_MS
from brokerd.ingests.records import (
    NO_OFFSET,
    IngestKind,
    IngestRecord,
    IngestState,
    IngestTopic,
    SequencesRecord,
    StagedPart,
    TopicPartition,
)
from brokerd.ingests.sequences import advanced
from brokerd.tests.ingests.ingest_laws import Laws
from brokerd.tests.ingests.ingest_world import GROUP, NEAR_THE_END, PENDING_MS, Pending, World

PARTITION = 3
UNIX_MS = 1_700_000_000_000
SKEW_MS = 2_000
SINGLES = ("s0", "s1", "s2")
REPEATED = ("r0", "r1", "r2")
CLIENTS = 5
TTLS = (10_000, 20_000)
FINAL = (Refusal.INGEST_FENCED, Refusal.INGEST_ABORTED, Refusal.INGEST_COMMITTED, Refusal.INGEST_NOT_FOUND)


@dataclass(slots=True)
class Entry:
    """A decision in the log: the command that led to it (None: a tick), and its records."""

    command: Command | None
    records: tuple[Record, ...]


Batch = list[Entry]
"""Decisions of one turn: all of them are in the log, or none."""


@dataclass(slots=True)
class Waiting:
    """An answer that waits until the log is committed up to its end."""

    end: int
    give: Callable[[], None]


@dataclass(slots=True)
class Queued:
    """A command that waits for its turn, with its receiver: None says that there will be no answer."""

    command: Command
    give: Callable[[Outcome | None], None]


@dataclass(frozen=True, slots=True)
class Pause:
    """A client does nothing for a while."""

    milliseconds: int


Program = Generator[Command | Pause, Outcome | None, None]
Step = Generator[Command | Pause, Outcome | None, Outcome | None]


@dataclass(slots=True)
class Client:
    """A client, with the request that it waits for, by number."""

    program: Program
    ingest_id: str
    request: int = 0
    is_dead: bool = False


def compacted(entries: Sequence[Entry], rng: random.Random) -> list[Record]:
    """Return what a compaction at any moment may have left of a log: the last record of each key, and any of the earlier ones.

    A tombstone may be gone when nothing older of its key is left.
    """
    whole = [record for entry in entries for record in entry.records]
    last = {record.key: index for index, record in enumerate(whole)}
    kept = {index for index in range(len(whole)) if rng.random() < 0.3} | set(last.values())
    oldest: dict[bytes, int] = {}
    for index in sorted(kept):
        oldest.setdefault(whole[index].key, index)
    for key in sorted(last):
        if oldest[key] == last[key] and whole[last[key]].value is None and rng.random() < 0.5:
            kept.discard(last[key])
    return [whole[index] for index in sorted(kept)]


class Walk:
    """One run.

    Args:
        seed: decides about everything.

    Attributes:
        counts: what has occurred, for the tests.
    """

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.counts = Counter[str]()
        self.now_ms = 1_000_000
        self.world = World(self.rng, self.counts)
        self.laws = Laws(self.world, self.counts)
        self._faults = True
        self._log: list[Batch] = []
        self._committed = 0
        self._lives = Counter[str]()
        self._waiting: list[Waiting] = []
        self._queue: deque[Queued] = deque()
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._event_number = 0
        self._next_tick_ms = 0
        self._begun_ms = 0
        self._generation = 0
        self._stale: tuple[IngestCore, int, int] | None = None
        self._leaders_back_ms = 0
        self._group_back_ms = 0
        self._manifests: dict[str, list[ManifestEntry]] = {}
        self._heard_ms: dict[str, int] = {}
        self._clients: list[Client] = []
        self._client_number = 0
        self._shift_ms = 0
        for count in (2, 1):
            topic_id = self.world.create(count, NEAR_THE_END)
            first = SequencesRecord(topic_id, 0, (NEAR_THE_END,) * count)
            self._log.append([Entry(None, (encode(first),))])
        self.core = self._load()
        self._commit(len(self._log))
        while len(self._clients) < CLIENTS:
            self._start_client()

    # ------------------------------------------------------------------------------------------------------------------
    # The run.

    def run(self, steps: int) -> None:
        """Take steps with faults."""
        for _ in range(steps):
            self.step()
            if self.rng.random() < 0.015:
                self._incident()

    def step(self) -> None:
        """Let a little time pass, and everything that is due happen."""
        self.now_ms += self.rng.randint(1, 60)
        while self._events and min(self._events, key=lambda each: each[:2])[0] <= self.now_ms:
            event = min(self._events, key=lambda each: each[:2])
            self._events.remove(event)
            event[2]()
        self._ask_outcomes()
        if self.rng.random() < 0.15:
            self._sweep_staging()
        if self.rng.random() < 0.1:
            where = self.rng.choice(self.world.partitions())
            self._enqueue(PublishedUpTo(topic_partition=where), lambda outcome: None)
        self._tick()
        self._turn()
        if not self._faults or self.rng.random() < 0.7:
            self._commit(len(self._log) if not self._faults else self.rng.randint(self._committed, len(self._log)))

    def heal(self) -> None:
        """End all faults and all clients. Everything decided is published then, and nothing is left after the times to keep."""
        self._faults = False
        for client in self._clients:
            client.is_dead = True
        self._clients = []
        self._tell_deleted()
        for _ in range(600):
            self.step()
        for ingest in self.core.state.ingests.values():
            assert ingest.value is None or ingest.value.state is not IngestState.DECIDED, (
                "3: a decision is never complete"
            )
        self.laws.check_everything_published()
        self.laws.check_offsets()
        for where in self.world.partitions():
            self._enqueue(PublishedUpTo(topic_partition=where), self._check_no_watermark)
        for _ in range(60):
            self.now_ms += 60_000
            for _ in range(30):
                self.step()
        left = [each for each in self.core.state.ingests if self.core.state.ingests[each].value is not None]
        assert not left, "9: an ingest that nobody touches never ends"
        assert not self.core.state.ingests, "8: something of a forgotten ingest is left"
        assert self.core.deadline_ms() is None, "work without end"
        for where in self.world.partitions():
            for _ in range(3):
                self._sweep_staging(where)
                self.step()
            assert not self.world.staging[where].records, "8: staged records are left"
        assert (self.core.state.attempt_count, self.core.state.slice_count) == (0, 0), "wrong counts"
        assert (self.core.state.active_count, self.core.state.part_count) == (0, 0), "wrong counts"
        assert set(self.core.topics()) <= set(self.world.topics), "sequences of a deleted topic are left"
        self.counts["nothing left"] += 1

    def _check_no_watermark(self, outcome: Outcome | None) -> None:
        assert getattr(outcome, "sequence", 0) is None, "everything is complete, and readers wait"

    def _incident(self) -> None:
        dice = self.rng.random()
        if dice < 0.35:
            self.fail_over()
        elif dice < 0.50:
            self._kill_client()
        elif dice < 0.65:
            self.now_ms += self.rng.randint(1_000, 12_000)
        elif dice < 0.72:
            self.now_ms += self.rng.randint(20_000, 150_000)
        elif dice < 0.84:
            self._leaders_back_ms = self.now_ms + self.rng.randint(1_000, 6_000)
        elif dice < 0.92:
            log = self.world.published[self.rng.choice(self.world.partitions())]
            log.lose(self.rng.randint(1, 12))
            self.counts["records lost"] += 1
        elif dice < 0.97:
            self._group_back_ms = self.now_ms + self.rng.choice((3_000, 10_000, 120_000))
        else:
            self._delete_topic()

    def _delete_topic(self) -> None:
        topic_id = self.rng.choice(sorted(self.world.topics))
        self.world.delete(topic_id)
        self.world.create(self.rng.randint(1, 2))
        self.counts["deleted topic"] += 1
        if self.rng.random() < 0.5:
            self._enqueue(TopicsDeleted(topic_ids=(topic_id,)), lambda outcome: None)

    # ------------------------------------------------------------------------------------------------------------------
    # The coordinator.

    def _load(self) -> IngestCore:
        """Return a core that has loaded the log, on a broker with another clock."""
        self._shift_ms = self.rng.randint(-900_000, 900_000)
        skew_ms = self.rng.randint(-SKEW_MS, SKEW_MS)
        entries = [entry for batch in self._log for entry in batch]
        core = self._new_core(skew_ms)
        for record in compacted(entries, self.rng):
            core.replay(decode(record))
        whole = self._new_core(skew_ms)
        for entry in entries:
            for record in entry.records:
                whole.replay(decode(record))
        assert list(core.records()) == list(whole.records()), "a compacted log gives another state"
        core.tick(self._core_ms)
        whole.tick(self._core_ms)
        assert derived(core, self.world) == derived(whole, self.world), "a compacted log gives other indexes"
        self._begun_ms = self.now_ms
        self._lives = Counter(
            record.ingest_id
            for entry in entries
            for record in map(decode, entry.records)
            if isinstance(record, IngestRecord) and record.value is None
        )
        return core

    def _new_core(self, skew_ms: int) -> IngestCore:
        return IngestCore(PARTITION, unix_offset_ms=UNIX_MS - self._shift_ms + skew_ms)

    @property
    def _core_ms(self) -> int:
        return self.now_ms + self._shift_ms

    def _enqueue(self, command: Command, give: Callable[[Outcome | None], None]) -> None:
        self._queue.append(Queued(command, give))

    def _tick(self) -> None:
        deadline_ms = self.core.deadline_ms()
        if deadline_ms is None or deadline_ms > self._core_ms or self.now_ms < self._next_tick_ms:
            return
        self._next_tick_ms = self.now_ms + 20
        decision = self.core.tick(self._core_ms)
        if decision is None:
            return
        self._check_expiry(decision)
        if not self._append([(None, decision, lambda outcome: None)]):
            self._next_tick_ms = self.now_ms + 250

    def _check_expiry(self, decision: IngestDecision) -> None:
        """An ingest is aborted by time only if nobody could be heard for its time to live."""
        for record in decision.records:
            if (
                not isinstance(record, IngestRecord)
                or record.value is None
                or record.value.state is not IngestState.ABORTED
            ):
                continue
            ttl_ms = record.value.ttl_ms
            assert self.now_ms - self._begun_ms >= min(ttl_ms, LOADED_GRACE_MS), "aborted at once after loading"
            heard_ms = self._heard_ms.get(record.ingest_id, 0)
            assert heard_ms < self._begun_ms or self.now_ms - heard_ms >= ttl_ms, "aborted although it was touched"

    def _turn(self) -> None:
        """Decide commands as the runtime does: those of one turn do not see each other's records."""
        decided: list[tuple[Command | None, IngestDecision, Callable[[Outcome | None], None]]] = []
        scopes: dict[str, None] = {}
        for _ in range(4):
            if not self._queue:
                break
            queued = self._queue[0]
            scope = scope_of(queued.command)
            if scopes and (scope is None or scope in scopes):
                break
            self._queue.popleft()
            before = list(self.core.records()) if self.rng.random() < 0.02 else None
            decision = self.core.decide(queued.command, self._core_ms)
            assert before is None or before == list(self.core.records()), "a decision has changed the state"
            decided.append((queued.command, decision, queued.give))
            if decision.records:
                if scope is None:
                    break
                scopes[scope] = None
        self._append(decided)

    def _note_heard(self, command: Command, decision: IngestDecision) -> None:
        is_client = isinstance(
            command, OpenIngest | OpenAttempt | SealAttempt | PlanCommit | DecideCommit | TouchIngest
        )
        known = self.core.state.value_of(command.ingest_id) if is_client else None
        is_present = known is not None and getattr(command, "ingest_epoch", 0) in (0, known[1].ingest_epoch)
        if is_client and is_present and not isinstance(decision.response.outcome, Refused):
            self._heard_ms[command.ingest_id] = self.now_ms

    def _append(
        self, decided: Sequence[tuple[Command | None, IngestDecision, Callable[[Outcome | None], None]]]
    ) -> bool:
        seen_end = len(self._log)
        is_refused = self._faults and self.rng.random() < 0.04
        batch: Batch = []
        for command, decision, _ in decided:
            coded = tuple(map(encode, decision.records))
            assert tuple(map(decode, coded)) == decision.records
            if coded:
                batch.append(Entry(command, coded))
        if batch and not is_refused:
            self._log.append(batch)
        lives = dict(self._lives)
        if not is_refused:
            for entry in batch:
                for record in entry.records:
                    known = decode(record)
                    self._lives[getattr(known, "ingest_id", "")] += (
                        isinstance(known, IngestRecord) and known.value is None
                    )
                    self.core.replay(known)
        for command, decision, give in decided:
            if is_refused and decision.records:
                self.counts["refused append"] += 1
                give(None)
                continue
            end = len(self._log) if decision.records else seen_end
            if command is not None:
                self._note_heard(command, decision)
            self._wait(command, decision, give, end, seen_end, lives)
        return not (batch and is_refused)

    def _wait(
        self,
        command: Command | None,
        decision: IngestDecision,
        give: Callable[[Outcome | None], None],
        end: int,
        seen_end: int,
        lives: dict[str, int],
    ) -> None:
        answer = decision.response

        def answered() -> None:
            if command is not None:
                life = lives.get(getattr(command, "ingest_id", ""), 0)
                self.laws.check_answer(command, answer.outcome, life, seen_end)
            give(answer.outcome)
            for effect in answer.effects:
                self._carry_out(effect)

        self._waiting.append(Waiting(end, answered))

    def _commit(self, end: int) -> None:
        for index in range(self._committed, end):
            for entry in self._log[index]:
                self.laws.note_committed(entry.command, tuple(map(decode, entry.records)), index)
        self._committed = max(self._committed, end)
        ready = [each for each in self._waiting if each.end <= self._committed]
        self._waiting = [each for each in self._waiting if each.end > self._committed]
        for each in ready:
            each.give()

    def fail_over(self) -> None:
        """Lose the coordinator, and perhaps what was not committed. Load another one from a compacted log."""
        self.counts["failover"] += 1
        kept = self.rng.randint(self._committed, len(self._log))
        self.counts["lost batches"] += len(self._log) - kept
        if kept == len(self._log):
            # It answers questions about what is committed until it hears that it leads no more.
            self._stale = (self.core, self._shift_ms, self.now_ms + self.rng.randint(0, 8_000))
        self._log = self._log[:kept]
        self._waiting = []
        lost, self._queue = self._queue, deque[Queued]()
        self._commit(kept)
        self.core = self._load()
        self._tell_deleted()
        for queued in lost:
            queued.give(None)

    def _tell_deleted(self) -> None:
        gone = tuple(each for each in self.core.topics() if each in self.world.deleted)
        self._enqueue(TopicsDeleted(topic_ids=gone), lambda outcome: None)

    # ------------------------------------------------------------------------------------------------------------------
    # Leaders and the group.

    def _later(self, delay_ms: int, happen: Callable[[], None]) -> None:
        self._event_number += 1
        self._events.append((self.now_ms + delay_ms, self._event_number, happen))

    def _carry_out(self, effect: Effect) -> None:
        self.counts[type(effect).__name__] += 1
        match effect:
            case Publish():
                self.laws.check_publish(effect)
                for delay_ms in self._deliveries():
                    self._later(delay_ms, lambda: self._publish(effect))
            case ResolveOffsets():
                for delay_ms in self._deliveries():
                    self._later(delay_ms, lambda: self._resolve(effect))
            case IngestCompleted() | IngestExpired() | RecordsLost():
                pass

    def _deliveries(self) -> list[int]:
        copies = self.rng.choices((0, 1, 2), (8, 84, 8))[0] if self._faults else 1
        longest_ms = 60 if self.rng.random() < 0.9 or not self._faults else 3_000
        return [self.rng.randint(1, longest_ms) for _ in range(copies)]

    def _publish(self, effect: Publish) -> None:
        part = effect.part
        if self._faults and self.now_ms < self._leaders_back_ms:
            return
        offsets = self.world.publish(part, is_cut=self._faults and self.rng.random() < 0.15)
        if offsets is None:
            return
        if isinstance(offsets, int):
            lost = NoteLostRecords(
                ingest_id=effect.ingest_id,
                round=effect.round,
                topic_id=part.topic_id,
                partition=part.partition,
                base_sequence=part.base_sequence,
                records=offsets,
            )
            for delay_ms in self._deliveries():
                self._later(delay_ms, lambda: self._enqueue(lost, self._expect_no_refusal))
            return
        command = PartPublished(
            ingest_id=effect.ingest_id,
            round=effect.round,
            topic_id=part.topic_id,
            partition=part.partition,
            base_sequence=part.base_sequence,
            first_offset=offsets[0],
            end_offset=offsets[1],
            is_topic_gone=NO_OFFSET in offsets,
        )
        for delay_ms in self._deliveries():
            self._later(delay_ms, lambda: self._enqueue(command, self._expect_no_refusal))

    def _expect_no_refusal(self, outcome: Outcome | None) -> None:
        assert not isinstance(outcome, Refused), outcome

    def _resolve(self, effect: ResolveOffsets) -> None:
        key = (effect.ingest_id, effect.ingest_epoch, effect.round)
        if self._faults and self.now_ms < self._group_back_ms:
            return
        self._settle_group(key, digest=effect.offsets_digest if effect.is_committed else None)
        command = OffsetsResolved(ingest_id=effect.ingest_id, ingest_epoch=effect.ingest_epoch, round=effect.round)
        for delay_ms in self._deliveries():
            self._later(delay_ms, lambda: self._enqueue(command, lambda outcome: None))

    def _settle_group(self, key: tuple[str, int, int], *, digest: bytes | None) -> None:
        """Let the group apply the pending offsets of a round with this digest, and drop others; None: no offsets count."""
        pending = self.world.pending.pop(key, None)
        if pending is not None and pending.digest == digest:
            self.laws.check_applied(key, pending.offset)
            self.world.applied.append((key, pending.offset))

    def _ask_outcomes(self) -> None:
        if self._faults and self.now_ms < self._group_back_ms:
            return
        for key, pending in list(self.world.pending.items()):
            if self.now_ms - pending.asked_ms < PENDING_MS:
                continue
            pending.asked_ms = self.now_ms
            if self._faults and self.rng.random() < 0.4:
                continue

            def hear(outcome: Outcome | None, key: tuple[str, int, int] = key, pending: Pending = pending) -> None:
                is_it = self.world.pending.get(key) is pending
                if isinstance(outcome, OutcomeKnown) and is_it and (not self._faults or self.rng.random() < 0.8):
                    self._settle_group(key, digest=pending.digest if outcome.is_committed else None)

            ingest_id, ingest_epoch, number = key
            command = DecideOutcome(
                ingest_id=ingest_id, ingest_epoch=ingest_epoch, round=number, offsets_digest=pending.digest
            )
            self._enqueue(command, hear)

    def _sweep_staging(self, where: TopicPartition | None = None) -> None:
        where = where or self.rng.choice(self.world.partitions())
        producers = tuple(self.world.staging[where].records)
        command = LiveAttempts(topic_partition=where, producer_ids=producers)
        if self._stale is not None and self._stale[2] < self.now_ms:
            self._stale = None
        if self._stale is not None and self.rng.random() < 0.5:
            core, shift_ms, _ = self._stale
            self.counts["asked a deposed coordinator"] += 1
            self._free(command, core.decide(command, self.now_ms + shift_ms).response.outcome)
        else:
            self._enqueue(command, lambda outcome: self._free(command, outcome))

    def _free(self, command: LiveAttempts, outcome: Outcome | None) -> None:
        if not isinstance(outcome, LiveSequences):
            assert outcome is None, outcome
            return
        staging = self.world.staging[command.topic_partition]
        for producer_id, sequence in zip(command.producer_ids, outcome.sequences, strict=True):
            before = len(staging.records.get(producer_id, ()))
            staging.free(producer_id, sequence)
            self.counts["freed"] += before - len(staging.records.get(producer_id, ()))

    # ------------------------------------------------------------------------------------------------------------------
    # Clients.

    def _start_client(self) -> None:
        self._client_number += 1
        ids = SINGLES + REPEATED
        free = [each for each in ids if all(each != client.ingest_id for client in self._clients)]
        # Most often nobody is disturbed, so that there are many rounds in one epoch.
        ingest_id = self.rng.choice(free if free and self.rng.random() < 0.8 else ids)
        kind = IngestKind.SINGLE if ingest_id in SINGLES else IngestKind.REPEATED
        client = Client(self._program(ingest_id, kind), ingest_id)
        self._clients.append(client)
        self._later(self.rng.randint(0, 1_000), lambda: self._advance(client, None, client.request))

    def _kill_client(self) -> None:
        client = self.rng.choice(self._clients)
        client.is_dead = True
        self._clients.remove(client)
        self._start_client()
        self.counts["killed client"] += 1

    def _advance(self, client: Client, outcome: Outcome | None, request: int) -> None:
        if client.is_dead or client.request != request:
            return
        client.request += 1
        try:
            step = client.program.send(outcome)
        except StopIteration:
            self._clients.remove(client)
            self._start_client()
            return
        request = client.request
        if isinstance(step, Pause):
            self._later(step.milliseconds, lambda: self._advance(client, None, request))
            return
        copies = self.rng.choices((0, 1, 2), (5, 88, 7))[0]
        for _ in range(copies):
            longest_ms = 30 if self.rng.random() < 0.95 else 4_000
            is_heard = self.rng.random() < 0.94
            receive = self._receiver(client, request) if is_heard else _ignore
            self._later(self.rng.randint(1, longest_ms), lambda receive=receive: self._enqueue(step, receive))
        self._later(1_500, lambda: self._advance(client, None, request))

    def _receiver(self, client: Client, request: int) -> Callable[[Outcome | None], None]:
        return lambda outcome: self._later(1, lambda: self._advance(client, outcome, request))

    def _call(self, command: Command) -> Step:
        """Send a command until it is answered."""
        for _ in range(12):
            outcome = yield command
            if outcome is None or (isinstance(outcome, Refused) and outcome.code is Refusal.INGEST_PUBLISHING):
                yield Pause(self.rng.randint(10, 300))
                continue
            return outcome
        return None

    def _program(self, ingest_id: str, kind: IngestKind) -> Program:
        """Open, then stage and commit some rounds; now and then stop in the middle."""
        rng = self.rng
        topics = tuple(IngestTopic(each, each.decode()) for each in self.world.topics)
        partitions = self.world.partitions()
        opened = yield from self._call(
            OpenIngest(ingest_id=ingest_id, kind=kind, topics=topics, ttl_ms=rng.choice(TTLS))
        )
        if not isinstance(opened, Opened) or opened.state is not IngestState.OPEN:
            return
        epoch, number = opened.ingest_epoch, opened.round
        sequences: dict[tuple[int, TopicPartition], int] = {}
        for _ in range(rng.randint(1, 10)):
            manifest = yield from self._stage(ingest_id, epoch, number, partitions, sequences)
            if manifest is None:
                return
            if rng.random() < 0.2:
                yield TouchIngest(ingest_id=ingest_id, ingest_epoch=epoch)
                yield Pause(rng.randint(0, 4_000))
            dice = rng.random()
            if dice < 0.06:
                return
            if dice < 0.12:
                yield from self._call(AbortIngest(ingest_id=ingest_id, ingest_epoch=epoch, round=number))
                return
            offsets = self._offsets() if rng.random() < 0.5 else None
            outcome = yield from self._commit_ingest(ingest_id, epoch, number, manifest, offsets)
            if not isinstance(outcome, Committed):
                return
            if rng.random() < 0.3:
                yield from self._commit_again(ingest_id, epoch, number, manifest, offsets)
            if kind is IngestKind.SINGLE:
                return
            number += 1

    def _offsets(self) -> GroupOffsets:
        offset = self.rng.randrange(1_000_000)
        return GroupOffsets(group_id=GROUP, offsets=(GroupOffset(topic_id=b"i" * 16, partition=0, offset=offset),))

    def _stage(
        self,
        ingest_id: str,
        epoch: int,
        number: int,
        partitions: Sequence[TopicPartition],
        sequences: dict[tuple[int, TopicPartition], int],
    ) -> Generator[Command | Pause, Outcome | None, list[ManifestEntry] | None]:
        """Stage and seal some attempts. Return the manifest; None: the client gives up."""
        rng = self.rng
        manifest: list[ManifestEntry] = []
        for task in range(rng.choice((0, 1, 1, 2, 3))):
            for attempt in range(rng.choice((1, 1, 2))):
                attempt_id = b"a%d" % attempt
                opened = yield from self._call(
                    OpenAttempt(ingest_id=ingest_id, ingest_epoch=epoch, task=task, attempt_id=attempt_id)
                )
                if not isinstance(opened, AttemptOpened):
                    assert opened is None or (isinstance(opened, Refused) and opened.code in FINAL), opened
                    return None
                parts: list[StagedPart] = []
                for where in rng.sample(partitions, rng.randint(0, min(2, len(partitions)))):
                    first = sequences.get((opened.producer_id, where), 0)
                    part = self.world.stage(opened.producer_id, where, first, rng.randint(1, 4))
                    sequences[opened.producer_id, where] = advanced(first, part.records)
                    parts.append(part)
                if rng.random() < 0.3:
                    yield Pause(rng.randint(0, 1_500))
                if rng.random() < 0.1:
                    if rng.random() < 0.3 and all(each.task != task for each in manifest):
                        # A program that does not know what it does names an attempt that is not sealed.
                        manifest.append(ManifestEntry(task=task, attempt_id=attempt_id, records=0))
                    continue
                sealed = yield from self._call(
                    SealAttempt(
                        ingest_id=ingest_id,
                        ingest_epoch=epoch,
                        task=task,
                        attempt_id=attempt_id,
                        parts=tuple(parts),
                        round=number,
                    )
                )
                if not isinstance(sealed, Sealed):
                    assert sealed is None or (isinstance(sealed, Refused) and sealed.code in FINAL), sealed
                    return None
                manifest = [each for each in manifest if each.task != task]
                if rng.random() < 0.1:
                    # It forgets what it has staged, and names what an earlier round or client has.
                    manifest += [each for each in self._manifests.get(ingest_id, ()) if each.task == task]
                    continue
                records = sum(each.records for each in parts)
                manifest.append(ManifestEntry(task=task, attempt_id=attempt_id, records=records))
        if rng.random() < 0.1:
            known = {each.task for each in manifest}
            manifest += [each for each in self._manifests.get(ingest_id, ()) if each.task not in known]
        self._manifests[ingest_id] = manifest
        return manifest

    def _commit_again(
        self,
        ingest_id: str,
        epoch: int,
        number: int,
        manifest: list[ManifestEntry],
        offsets: GroupOffsets | None,
    ) -> Step:
        """Commit the same once more, or something else under the same round. A copy may come much later."""
        if self.rng.random() < 0.5:
            manifest = [*manifest, ManifestEntry(task=77, attempt_id=b"other", records=1)]
        command = PlanCommit(
            ingest_id=ingest_id, ingest_epoch=epoch, round=number, manifest=tuple(manifest), offsets=offsets
        )
        if self.rng.random() < 0.5:
            self._later(self.rng.randint(1_000, 20_000), lambda: self._enqueue(command, _ignore))
        return (yield from self._call(command))

    def _commit_ingest(
        self,
        ingest_id: str,
        epoch: int,
        number: int,
        manifest: Sequence[ManifestEntry],
        offsets: GroupOffsets | None,
    ) -> Step:
        """Do what the shell does for a commit, again and again until there is an answer."""
        for _ in range(15):
            outcome = yield PlanCommit(
                ingest_id=ingest_id, ingest_epoch=epoch, round=number, manifest=tuple(manifest), offsets=offsets
            )
            if isinstance(outcome, Planned):
                if not all(self._is_there(each, ingest_id, epoch, number) for each in outcome.checks):
                    return None
                if offsets is not None:
                    key, digest = (ingest_id, epoch, number), offsets_digest(offsets)
                    known = self.world.pending.setdefault(key, Pending(offsets.offsets[0].offset, digest, self.now_ms))
                    if self.rng.random() < 0.6:
                        late = self.rng.choice((offsets, self._offsets()))
                        self._later(
                            self.rng.randint(500, 20_000), lambda key=key, late=late: self._prepare_late(key, late)
                        )
                    if known.digest != digest:
                        self.counts["prepare: conflict"] += 1
                        return None
                    if self.rng.random() < 0.1:
                        return None
                if self.rng.random() < 0.3:
                    yield Pause(self.rng.randint(0, 3_000))
                outcome = yield DecideCommit(
                    ingest_id=ingest_id, ingest_epoch=epoch, round=number, manifest=tuple(manifest), offsets=offsets
                )
            if isinstance(outcome, Committed):
                return outcome
            if isinstance(outcome, Refused) and outcome.code is not Refusal.INGEST_PUBLISHING:
                self.counts[f"commit: {outcome.code.name}"] += 1
                return outcome
            assert outcome is None or isinstance(outcome, Refused | Decided), outcome
            yield Pause(self.rng.randint(10, 400))
        return None

    def _prepare_late(self, key: tuple[str, int, int], offsets: GroupOffsets) -> None:
        """Bring the group a prepare that was long on its way: a copy of one that was answered, or one with other offsets.

        The coordinator of the group has changed, and remembers nothing. Before the outcome is confirmed it has not changed yet.
        """
        if (
            not self._faults
            or key in self.world.pending
            or (self.laws.has_applied(key) and not self.laws.has_confirmed(key))
        ):
            return
        self.counts["late prepare"] += 1
        self.counts["late prepare of what was applied"] += self.laws.has_applied(key)
        self.world.pending[key] = Pending(offsets.offsets[0].offset, offsets_digest(offsets), self.now_ms)

    def _is_there(self, check: StagedCheck, ingest_id: str, epoch: int, number: int) -> bool:
        where = check.topic_partition
        is_whole = all(self.world.has(where, each) for each in check.slices)
        known = self.core.state.value_of(ingest_id)
        # It may have ended since the answer was given.
        is_open = known is not None and (known[1].ingest_epoch, known[1].round) == (epoch, number)
        is_open = is_open and known is not None and known[1].state is IngestState.OPEN
        assert is_whole or not is_open or where.topic_id in self.world.deleted, (
            "staged records of an open attempt were freed"
        )
        return is_whole


def _ignore(outcome: Outcome | None) -> None:
    """Lose an answer."""


def derived(core: IngestCore, world: World) -> list[object]:
    """Return everything that is derived of the records, in a form that can be compared."""
    state = core.state
    found: list[object] = [state.attempt_count, state.slice_count, state.part_count, state.active_count, core.topics()]
    for ingest_id in sorted(state.ingests):
        ingest = state.ingests[ingest_id]
        found += [ingest_id, ingest.slice_count]
        found += [(number, ingest.unpublished(number)) for number in sorted(ingest.plans)]
        for key in sorted(ingest.attempts):
            found += [key, ingest.is_live(key)]
            found += [ingest.needed_from(key, where) for where in sorted(world.staging)]
    for where in sorted(world.staging):
        found += [where, state.incomplete_parts(where), state.first_unpublished(where)]
    return found
