# SPDX-License-Identifier: Apache-2.0
"""Groups under faults, by seed: model clients, a lossy network, a coordinator whose log is committed late and that fails over.

Unary requests and answers are lost, doubled and reordered; streams break, with what is under way on them. Processes crash, pause, stall
and are replaced; topics come, grow, go and come back; a failover loses uncommitted records and loads a compacted log. Some commits go
with an ingest, whose program dies, or whose coordinator decides and tells the group late, or never unless it is asked.
`group_laws` says what must hold after every step.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from brokerd.coordinator.core import Decision
from brokerd.groups.answers import (
    Answer,
    FetchedOffsets,
    OffsetResults,
    OffsetsPrepared,
    OffsetsResolved,
    Outcome,
    Refusal,
    Refused,
)
from brokerd.groups.codec import decode, encode
from brokerd.groups.commands import (
    AlterOffsets,
    AssignmentComputed,
    Beat,
    Command,
    CommitOffsets,
    FetchOffsets,
    Join,
    Leave,
    OffsetCommit,
    PrepareOffsets,
    ResolveOffsets,
    StreamClosed,
    TopicsChanged,
)
from brokerd.groups.core import GroupCore
from brokerd.groups.effects import (
    AskOutcome,
    ComputeAssignment,
    Effect,
    GroupExpired,
    MemberRemoved,
    OffsetsExpired,
    PushAssignment,
)
from brokerd.groups.records import GroupLogRecord, Subscription
from brokerd.groups.settings import GroupConfig
from brokerd.groups.subscriptions import Topic
from brokerd.tests.groups.coordinator_host import (
    UNIX_OFFSET_MS,
    Batch,
    assign,
    compacted,
    compiler,
    indexes,
    loaded,
    topic,
)
from brokerd.tests.groups.group_laws import RETENTION_MS, Laws, RoundKey, round_of
from brokerd.tests.groups.model_client import ModelClient, Phase

GROUPS = ("g", "h")
NAMES = ("t0", "t1", "t2", "x0")
SUBSCRIPTIONS = (
    Subscription(("t0",)),
    Subscription(("t0", "t1")),
    Subscription(("t1", "x0")),
    Subscription((), "t.*"),
    Subscription(("nowhere",)),
)
CONFIG = GroupConfig(session_timeout_ms=6_000, heartbeat_interval_ms=1_000)
object.__setattr__(CONFIG, "offsets_retention_ms", RETENTION_MS)
PROCESSING_LIMIT_MS = 8_000
CALLBACKS_MS = (0, 50, 1_000)
"""How long the revocation callbacks of healthy applications take."""

LONG_CALLBACK_MS = 4 * PROCESSING_LIMIT_MS
"""How long a callback takes that makes its member exceed the limit."""

QUIET_MS = 5_000
"""Milliseconds in which a change of the topics alone must have reached every member."""

PREPARE_RETRY_MS = 800
"""Milliseconds without an answer after which a prepare is repeated."""

MAX_PREPARES = 3
"""Attempts of a prepare; then its ingest is aborted."""

RESOLVE_RETRY_MS = 700
"""Milliseconds between two attempts of the coordinator of an ingest to tell a group the outcome."""

HEAL_MS = 45_000
"""A session, a processing limit, and what follows: detection by the clients, a computation, and several beats."""


@dataclass(slots=True)
class Ingest:
    """A repeated ingest, as its coordinator knows it."""

    epoch: int = 0
    round: int = 1
    owner: str = ""


@dataclass(slots=True)
class Preparing:
    """A prepare under way."""

    command: PrepareOffsets
    count: int
    next_ms: int


@dataclass(slots=True)
class Process:
    """A client process and what the world does to it."""

    client: ModelClient
    paused_until_ms: int = 0
    stall_until_ms: int = 0
    is_killed: bool = False
    began_ms: int = 0
    outbox: list[tuple[int, Command]] = field(default_factory=list[tuple[int, Command]])
    preparing: Preparing | None = None
    inbox: list[Callable[[], None]] = field(default_factory=list[Callable[[], None]])
    """What has arrived while the process was paused. It reads that in order when it goes on: a stream does not reorder."""


@dataclass(slots=True)
class Waiting:
    """An answer that waits until the log is committed up to its end."""

    end: int
    give: Callable[[], None]


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
        self.now_ms = 1_000
        self.laws = Laws()
        self.topics: dict[str, Topic] = {}
        self.processes: list[Process] = []
        self._metadata_offset = 0
        self._generation = 0
        self._topic_number = 0
        self._process_number = 0
        self._stream_number = 0
        self._faults = True
        self._log: list[Batch] = []
        self._committed = 0
        self._waiting: list[Waiting] = []
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._event_number = 0
        self._stream_clear_ms: dict[tuple[int, str], int] = {}
        self._open_streams: dict[int, Process] = {}
        self._serving_from_ms = 0
        self._next_tick_ms = 0
        self._ingests = {name: Ingest() for name in ("i1", "i2", "i3", "i4")}
        self._idle_number = 0
        self._untold: dict[RoundKey, int] = {}
        self.core = self._new_core()
        self.core.tick(self.now_ms)
        for name in NAMES[:3]:
            self._create(name)
        self._tell_topics()

    # The run

    def run(self, steps: int) -> None:
        """Take steps with faults."""
        for _ in range(steps):
            self.step()
            if self.rng.random() < 0.06:
                self._incident()

    def heal(self) -> None:
        """End all faults. Everything must be stable within the bound, and every partition used by its owner."""
        self._faults = False
        for process in self.processes:
            process.paused_until_ms = process.stall_until_ms = 0
            process.client.is_application_stalled = False
        end_ms = self.now_ms + HEAL_MS
        while self.now_ms < end_ms - QUIET_MS - LONG_CALLBACK_MS:
            self.step()
        for process in self.processes:
            process.client.callback_ms = min(process.client.callback_ms, CALLBACKS_MS[-1])
        while self.now_ms < end_ms - QUIET_MS:
            self.step()
        # Nothing but the topics changes any more.
        for name in NAMES:
            if name in self.topics:
                self._grow(self.topics[name])
        self._tell_topics()
        while self.now_ms < end_ms:
            self.step()
        alive = [each.client for each in self.processes if not each.is_killed and each.client.phase is not Phase.ENDED]
        self.laws.check_stable(self.core, alive, self.topics.values())
        self.laws.check_outcomes(self.core)
        self.counts["stable at the end"] += 1

    def step(self) -> None:
        """Let a little time pass, and everything that is due happen."""
        self.now_ms += self.rng.randint(1, 60)
        while self._events and min(self._events, key=lambda each: each[:2])[0] <= self.now_ms:
            event = min(self._events, key=lambda each: each[:2])
            self._events.remove(event)
            event[2]()
        for process in self.processes:
            self._step_process(process)
        for key, next_ms in list(self._untold.items()):
            if next_ms <= self.now_ms:
                self._untold[key] = self.now_ms + RESOLVE_RETRY_MS
                self._tell_outcome(key)
        if self.is_serving:
            self._tick()
        if not self._faults or self.rng.random() < 0.7:
            self._commit(len(self._log) if not self._faults else self.rng.randint(self._committed, len(self._log)))
        clients = [each.client for each in self.processes if not each.is_killed]
        self.laws.check_state(self.core, clients, self.is_serving)

    @property
    def log(self) -> list[Batch]:
        """Batches of the log."""
        return self._log

    @property
    def is_serving(self) -> bool:
        """False while a new coordinator loads."""
        return self.now_ms >= self._serving_from_ms

    # The coordinator

    def _new_core(self) -> GroupCore:
        return GroupCore(compiler, defaults=CONFIG, unix_offset_ms=UNIX_OFFSET_MS)

    def _decide(self, command: Command, give: Callable[[Outcome], None]) -> None:
        decision = self.core.decide(command, self.now_ms)
        self._append(command, decision, give)

    def _tick(self) -> None:
        deadline_ms = self.core.deadline_ms()
        if deadline_ms is None or deadline_ms > self.now_ms or self.now_ms < self._next_tick_ms:
            return
        self._next_tick_ms = self.now_ms + 20
        decision = self.core.tick(self.now_ms)
        if decision is not None:
            self._append(None, decision, lambda outcome: None)

    def _append(
        self,
        command: Command | None,
        decision: Decision[Answer, GroupLogRecord],
        give: Callable[[Outcome], None],
    ) -> None:
        if decision.records and self._faults and self.rng.random() < 0.02:
            self.counts["refused append"] += 1
            return
        self.laws.check_decision(self.core, command, decision.records, self.now_ms)
        coded = tuple(map(encode, decision.records))
        for record in coded:
            self.core.replay(decode(record))
        if coded:
            self._log.append(Batch(command, coded))
        answer, end = decision.response, len(self._log)
        self._note_removals(answer.effects)

        def answered() -> None:
            if command is not None:
                self.laws.check_answer(command, answer.outcome, end)
            give(answer.outcome)
            for effect in answer.effects:
                self._carry_out(effect)

        self._waiting.append(Waiting(end, answered))

    def _note_removals(self, effects: tuple[Effect, ...]) -> None:
        for effect in effects:
            if isinstance(effect, MemberRemoved):
                self.counts[f"removed: {effect.reason.name}"] += 1
                for process in self.processes:
                    client = process.client
                    is_it = (client.group_id, client.member_id) == (effect.group_id, effect.member_id)
                    if is_it and not process.is_killed and process.paused_until_ms <= self.now_ms:
                        self.laws.check_removal(client, effect, self.now_ms)

    def _commit(self, end: int) -> None:
        for index in range(self._committed, end):
            self.laws.note_committed(self._log[index], index)
        self._committed = end
        ready = [each for each in self._waiting if each.end <= end]
        self._waiting = [each for each in self._waiting if each.end > end]
        for each in ready:
            each.give()

    def fail_over(self) -> None:
        """Lose the coordinator, and perhaps what was not committed. Load another one from a compacted log."""
        self.counts["failover"] += 1
        self._generation += 1
        kept = self.rng.randint(self._committed, len(self._log))
        self.counts["lost batches"] += len(self._log) - kept
        self._log = self._log[:kept]
        self._waiting = []
        self._events = []
        for stream in list(self._open_streams):
            self._break(stream)
        for process in self.processes:
            process.outbox.clear()
        self._commit(kept)
        self.core = loaded(self._new_core(), compacted(self._log, self.rng))
        whole = loaded(self._new_core(), [record for batch in self._log for record in batch.records])
        assert list(self.core.records()) == list(whole.records()), "P7: a compacted log gives another state"
        assert indexes(self.core) == indexes(whole), "P7: a compacted log gives other indexes"
        self._serving_from_ms = self.now_ms + self.rng.randint(0, 2_000)
        generation = self._generation

        def serve() -> None:
            if generation == self._generation:
                self.core.tick(self.now_ms)
                self._later(self.rng.choice((0, 0, 300)), self._tell_topics)

        self._later(self._serving_from_ms - self.now_ms, serve)

    def _tell_topics(self, *deleted: bytes) -> None:
        gone = [each for each in self.core.topics_with_offsets() if each not in self._ids()]
        command = TopicsChanged(
            metadata_offset=self._metadata_offset,
            topics=tuple(self.topics.values()),
            deleted=(*deleted, *gone),
            is_complete=True,
        )
        self._decide(command, lambda outcome: None)

    def _ids(self) -> frozenset[bytes]:
        return frozenset(each.topic_id for each in self.topics.values())

    def _carry_out(self, effect: Effect) -> None:
        self.counts[type(effect).__name__] += 1
        match effect:
            case ComputeAssignment():
                if self._faults and self.rng.random() < 0.1:
                    self.counts["lost computation"] += 1
                    return
                command = AssignmentComputed(
                    group_id=effect.group_id, group_epoch=effect.group_epoch, assignment=assign(effect)
                )
                self._later(self.rng.randint(0, 400), lambda: self._decide(command, self._count_refusal))
                if self._faults and self.rng.random() < 0.2:
                    self._later(self.rng.randint(0, 6_000), lambda: self._decide(command, self._count_refusal))
            case PushAssignment():
                state = self.laws.pushed(effect)
                self._to_stream(effect.stream, effect.member_id, lambda client: client.hear(0, state, self.now_ms))
            case MemberRemoved():
                if effect.stream is not None:
                    refused = Refused(code=Refusal.UNKNOWN_MEMBER, message="removed")
                    self._to_stream(
                        effect.stream, effect.member_id, lambda client: client.hear(0, refused, self.now_ms)
                    )
            case AskOutcome():
                key = (effect.group_id, effect.ingest_id, effect.ingest_epoch, effect.round)
                self.laws.decide(key, False)
                self._tell_outcome(key)
            case OffsetsExpired() | GroupExpired():
                pass

    def _count_refusal(self, outcome: Outcome) -> None:
        if isinstance(outcome, Refused):
            self.counts[outcome.code.name] += 1
        each_refused: tuple[Refused | None, ...] = ()
        if isinstance(outcome, FetchedOffsets):
            each_refused = tuple(each.refused for each in outcome.offsets)
        elif isinstance(outcome, OffsetResults):
            each_refused = tuple(each.refused for each in outcome.results)
        for refused in each_refused:
            if refused is not None:
                self.counts[f"{type(outcome).__name__}: {refused.code.name}"] += 1

    # Ingests

    def _prepare(self, process: Process, commit: CommitOffsets) -> None:
        """Let the offsets of a commit go with the next round of an ingest. A process that takes it over fences the former one."""
        name = self.rng.choice(sorted(self._ingests))
        ingest = self._ingests[name]
        present = (commit.group_id, name, ingest.epoch, ingest.round)
        if any(key[1] == name for key in self._untold):
            # The last round is not published yet.
            return
        if ingest.owner != commit.member_id or self.laws.outcome_of(present) is not None:
            for group_id in GROUPS:
                self.laws.decide((group_id, *present[1:]), False)
            ingest.epoch += 1
            ingest.owner = commit.member_id
        command = PrepareOffsets(
            group_id=commit.group_id,
            ingest_id=name,
            ingest_epoch=ingest.epoch,
            round=ingest.round,
            offsets=commit.offsets,
            member_id=commit.member_id,
            member_epoch=commit.member_epoch,
            commit_number=commit.commit_number,
        )
        self.laws.prepare(command)
        process.preparing = Preparing(command, 0, self.now_ms)

    def _step_prepare(self, process: Process, preparing: Preparing) -> None:
        if self.laws.outcome_of(round_of(preparing.command)) is not None:
            process.preparing = None
        elif preparing.next_ms <= self.now_ms:
            if preparing.count == MAX_PREPARES:
                self._decide_round(preparing.command, is_committed=False)
                return
            preparing.count += 1
            preparing.next_ms = self.now_ms + PREPARE_RETRY_MS
            self._send(process, preparing.command)

    def _hear_prepared(self, command: PrepareOffsets, outcome: Outcome) -> None:
        """The coordinator of the ingest hears the group: it decides, or dies before it does."""
        if isinstance(outcome, OffsetsPrepared):
            self.counts["prepared"] += 1
            if self.rng.random() < 0.8:
                self._decide_round(command, is_committed=True)
        elif isinstance(outcome, Refused) and outcome.code is not Refusal.OFFSETS_PENDING:
            self._decide_round(command, is_committed=False)

    def _decide_round(self, command: PrepareOffsets, *, is_committed: bool) -> None:
        key = round_of(command)
        if not self.laws.decide(key, is_committed):
            return
        self.counts["committed round" if is_committed else "aborted round"] += 1
        ingest = self._ingests.get(command.ingest_id)
        if ingest is not None and is_committed:
            ingest.round += 1
        if is_committed or self.rng.random() < 0.5:
            self._untold[key] = self.now_ms + self.rng.choice((0, 0, 0, 3_000))

    def _tell_outcome(self, key: RoundKey) -> None:
        group_id, ingest_id, epoch, number = key
        outcome = self.laws.outcome_of(key)
        assert outcome is not None
        command = ResolveOffsets(
            group_id=group_id, ingest_id=ingest_id, ingest_epoch=epoch, round=number, is_committed=outcome
        )

        def give(outcome: Outcome) -> None:
            assert isinstance(outcome, OffsetsResolved)
            self._untold.pop(key, None)

        def arrive() -> None:
            if self.is_serving:
                self._decide(command, give)

        for _ in range(self.rng.choices((0, 1, 2), (10, 80, 10))[0] if self._faults else 1):
            self._later(self.rng.randint(1, 1_500 if self._faults and self.rng.random() < 0.1 else 60), arrive)

    # The network

    def _later(self, delay_ms: int, happen: Callable[[], None]) -> None:
        self._event_number += 1
        self._events.append((self.now_ms + delay_ms, self._event_number, happen))

    def _to_stream(self, stream: int, member_id: str, happen: Callable[[ModelClient], None]) -> None:
        """Send to the client of a stream, in order."""
        process = self._open_streams.get(stream)
        if process is None or process.client.member_id != member_id:
            return
        at_ms = max(self._stream_clear_ms.get((stream, "down"), 0), self.now_ms + self.rng.randint(1, 80))
        self._stream_clear_ms[stream, "down"] = at_ms

        def arrive() -> None:
            if process.client.stream == stream and not process.is_killed:
                self._when_awake(process, lambda: happen(process.client))

        self._later(at_ms - self.now_ms, arrive)

    def _when_awake(self, process: Process, happen: Callable[[], None]) -> None:
        process.inbox.append(happen)
        self._read_inbox(process)

    def _read_inbox(self, process: Process) -> None:
        while process.inbox and process.paused_until_ms <= self.now_ms:
            process.inbox.pop(0)()

    def _break(self, stream: int, *, is_silent: bool = False) -> None:
        process = self._open_streams.pop(stream, None)
        if process is not None and process.client.stream == stream:
            process.client.lose_stream()
        if not is_silent and self.is_serving:
            self._decide(StreamClosed(stream=stream), lambda outcome: None)

    def _send(self, process: Process, command: Command) -> None:
        client = process.client
        stream = client.stream
        if isinstance(command, FetchOffsets | CommitOffsets | PrepareOffsets) or stream is None:
            copies = 1
            if self._faults:
                copies = self.rng.choices((0, 1, 2), (8, 84, 8))[0]
            # The outcomes of rounds are remembered for two seconds here, since sweeps come often.
            late_ms = 1_500 if isinstance(command, PrepareOffsets) else 3_000
            for _ in range(copies):
                longest_ms = 60 if not self._faults or self.rng.random() < 0.9 else late_ms
                self._later(self.rng.randint(1, longest_ms), lambda: self._arrive(process, command, None))
            return
        at_ms = max(self._stream_clear_ms.get((stream, "up"), 0), self.now_ms + self.rng.randint(1, 80))
        self._stream_clear_ms[stream, "up"] = at_ms
        # What was sent may still be read after the stream has broken.
        self._later(at_ms - self.now_ms, lambda: self._arrive(process, command, stream))

    def _arrive(self, process: Process, command: Command, stream: int | None) -> None:
        if stream is not None and stream not in self._open_streams and self.rng.random() < 0.5:
            return
        client = process.client
        if not self.is_serving:
            if isinstance(command, Join | Beat | Leave):
                number = command.beat_number
                self._later(30, lambda: self._when_awake(process, lambda: client.no_answer(number, self.now_ms)))
            return
        if stream is not None and stream not in self._open_streams and isinstance(command, Join | Beat):
            # The shell hands in nothing of a stream that it has closed.
            return

        def give(outcome: Outcome) -> None:
            self._count_refusal(outcome)
            if not process.is_killed:
                self.laws.check_refusal(client, command, outcome)
            if stream is None and self._faults and self.rng.random() < 0.08:
                return
            if stream is not None:
                if isinstance(command, Join | Beat | Leave):
                    number = command.beat_number
                    self._to_stream(stream, client.member_id, lambda each: each.hear(number, outcome, self.now_ms))
                return
            self._later(self.rng.randint(1, 60), lambda: self._when_awake(process, lambda: hear(outcome)))

        def hear(outcome: Outcome) -> None:
            if process.is_killed:
                return
            if isinstance(command, Join | Beat | Leave):
                client.hear(command.beat_number, outcome, self.now_ms)
            elif isinstance(command, FetchOffsets) and isinstance(outcome, FetchedOffsets):
                client.hear_offsets(command, outcome)
            elif isinstance(command, PrepareOffsets):
                self._hear_prepared(command, outcome)
            elif isinstance(outcome, OffsetResults):
                client.hear_commit(outcome)
                self.counts["acknowledged commit"] += 1

        self._decide(command, give)

    # Processes

    def _step_process(self, process: Process) -> None:
        client = process.client
        if process.is_killed or process.paused_until_ms > self.now_ms or client.phase is Phase.ENDED:
            return
        self._read_inbox(process)
        client.is_application_stalled = process.stall_until_ms > self.now_ms
        if client.uses_stream and client.stream is None and self.is_serving and self.rng.random() < 0.3:
            self._stream_number += 1
            client.stream = self._stream_number
            self._open_streams[client.stream] = process
        for command in client.step(self.now_ms):
            self._send(process, command)
        for key in list(client.owned):
            if self.rng.random() < 0.5:
                offset = client.deliver(key)
                if offset is not None:
                    self.laws.delivered(client, key, offset)
                    self.counts["delivered"] += 1
        if process.preparing is not None:
            self._step_prepare(process, process.preparing)
        elif self.rng.random() < 0.15:
            commit = client.commit()
            if commit is not None and self._faults and self.rng.random() < 0.4:
                self._prepare(process, commit)
            elif commit is not None:
                self._send(process, commit)
        self.laws.check_client(client, self.now_ms - process.began_ms)

    def _start(self, instance_id: str | None = None, group_id: str | None = None) -> None:
        self._process_number += 1
        client = ModelClient(
            group_id=group_id or self.rng.choice(GROUPS),
            member_id=f"m{self._process_number:03d}",
            subscription=self.rng.choice(SUBSCRIPTIONS),
            instance_id=instance_id,
            processing_limit_ms=PROCESSING_LIMIT_MS,
            uses_stream=self.rng.random() < 0.6,
            callback_ms=self.rng.choice(CALLBACKS_MS),
            watches_callback=self._process_number % 2 == 0,
        )
        client.start(self.now_ms)
        self.processes.append(Process(client, began_ms=self.now_ms))
        self.counts["start"] += 1

    def _incident(self) -> None:
        alive = [each for each in self.processes if not each.is_killed and each.client.phase is not Phase.ENDED]
        kinds: tuple[tuple[int, Callable[[list[Process]], None]], ...] = (
            (14 if len(alive) < 7 else 1, self._incident_start),
            (4, self._incident_leave),
            (5, self._incident_kill),
            (5, self._incident_pause),
            (3, self._incident_stall),
            (6, self._incident_break),
            (4, self._incident_topics),
            (4, self._incident_resubscribe),
            (3, lambda alive: self.fail_over()),
            (2, self._incident_alter),
            (2, self._incident_prepare),
        )
        self.rng.choices([each[1] for each in kinds], [each[0] for each in kinds])[0](alive)

    def _incident_start(self, alive: list[Process]) -> None:
        taken = {each.client.instance_id for each in alive}
        free = [each for each in ("i1", "i2") if each not in taken]
        if free and self.rng.random() < 0.4:
            self._start(free[0], GROUPS[0])
        else:
            self._start()

    def _incident_leave(self, alive: list[Process]) -> None:
        for process in self.rng.sample(alive, min(1, len(alive))):
            process.client.leave(will_be_back=process.client.instance_id is not None and self.rng.random() < 0.7)
            self.counts["leave"] += 1

    def _incident_kill(self, alive: list[Process]) -> None:
        for process in self.rng.sample(alive, min(1, len(alive))):
            process.is_killed = True
            self.counts["kill"] += 1
            if process.client.stream is not None:
                self._break(process.client.stream, is_silent=self.rng.random() < 0.5)

    def _incident_pause(self, alive: list[Process]) -> None:
        for process in self.rng.sample(alive, min(1, len(alive))):
            process.paused_until_ms = self.now_ms + self.rng.randint(100, 12_000)
            self.counts["pause"] += 1

    def _incident_stall(self, alive: list[Process]) -> None:
        for process in self.rng.sample(alive, min(1, len(alive))):
            process.stall_until_ms = self.now_ms + self.rng.randint(1_000, 2 * PROCESSING_LIMIT_MS)
            process.client.callback_ms = self.rng.choice((0, 50, LONG_CALLBACK_MS))
            self.counts["stall"] += 1

    def _incident_break(self, alive: list[Process]) -> None:
        streams = [each.client.stream for each in alive if each.client.stream is not None]
        if streams:
            self._break(self.rng.choice(streams))
            self.counts["broken stream"] += 1

    def _incident_resubscribe(self, alive: list[Process]) -> None:
        for process in self.rng.sample(alive, min(1, len(alive))):
            process.client.resubscribe(self.rng.choice(SUBSCRIPTIONS))
            self.counts["resubscribe"] += 1

    def _incident_topics(self, alive: list[Process]) -> None:
        name = self.rng.choice(NAMES)
        old = self.topics.get(name)
        deleted: tuple[bytes, ...] = ()
        if old is None:
            self._create(name)
        elif self.rng.random() < 0.5 and old.partition_count < 8:
            self._grow(old)
        else:
            deleted = (old.topic_id,)
            del self.topics[name]
            self._metadata_offset += 1
            if self.rng.random() < 0.5:
                self._create(name)
        self.counts["topics"] += 1
        self.laws.deleted(deleted)
        if self.is_serving:
            self._tell_topics(*deleted)

    def _incident_alter(self, alive: list[Process]) -> None:
        if not self.is_serving or not self.topics:
            return
        some = self.rng.choice(list(self.topics.values()))
        reset = (OffsetCommit(topic_id=some.topic_id, partition=0, offset=self.rng.randint(0, 5)),)
        group_id = self.rng.choice((*GROUPS, "idle"))
        self._decide(AlterOffsets(group_id=group_id, offsets=reset), self._count_refusal)
        self.counts["alter"] += 1

    def _incident_prepare(self, alive: list[Process]) -> None:
        """An ingest of its own prepares offsets of a group without members."""
        if not self.is_serving or not self.topics:
            return
        self._idle_number += 1
        some = self.rng.choice(list(self.topics.values()))
        offsets = tuple(
            OffsetCommit(topic_id=some.topic_id, partition=each, offset=100 + self._idle_number)
            for each in range(self.rng.randint(1, some.partition_count))
        )
        command = PrepareOffsets(
            group_id="idle", ingest_id=f"idle{self._idle_number}", ingest_epoch=1, round=1, offsets=offsets
        )
        self.laws.prepare(command)
        self._decide(command, lambda outcome: self._hear_prepared(command, outcome))

    def _grow(self, old: Topic) -> None:
        self.topics[old.name] = Topic(topic_id=old.topic_id, name=old.name, partition_count=old.partition_count + 1)
        self._metadata_offset += 1

    def _create(self, name: str) -> None:
        self._topic_number += 1
        self.topics[name] = topic(name, self.rng.randint(1, 5), self._topic_number)
        self._metadata_offset += 1
