# SPDX-License-Identifier: Apache-2.0
"""The machine of one coordinator partition: its state, its turns, and the commands and answers that wait.

Pure. The shell (`partition.py`) reads the log, appends and listens; it calls the methods here and afterwards takes the answers with
`take_answers` and what went wrong with `take_faults`. Only the methods here write the state.

Theory of operation. A leadership begins with `lead`: the state is *loading*, and a fresh core takes records by `load`. Once
everything below the load end is replayed and committed, the state is *active*. `begin_turn` decides commands from the front of
the queue and returns the records to append. The shell appends them as one batch at once and calls `accept_turn` or `refuse_turn`.
The log accepted them: they are replayed, and their answers wait for the high watermark. It refused them: nothing has changed.
Two commands share a turn only if their scopes differ, because `decide` must see everything that was appended before it.

Laws
    Between turns the core has replayed everything in the log. An append elsewhere than at the replayed end shows another
    writer, and the partition fails.
    Each token gets exactly one answer, or is dropped.
    An answer waits until everything that its decision has seen or written is committed.
    The queue and the waiting answers are bounded in number and bytes.
Source: `docs/coordinator.md`; Kafka, CoordinatorRuntime.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Generic, NamedTuple

from brokerd.coordinator.core import Command, Core, Decision, Rec, Record, RecordCodec, Response
from brokerd.coordinator.limits import (
    LOAD_RETRY_MAX_MS,
    LOAD_RETRY_MS,
    MAX_DECISION_BYTES,
    MAX_QUEUED_BYTES,
    MAX_QUEUED_COMMANDS,
    MAX_TURN_BYTES,
    MAX_TURN_COMMANDS,
    MAX_TURN_RECORDS,
    MAX_UNCOMMITTED_BYTES,
    MAX_WAITING_ANSWERS,
    RECORD_OVERHEAD_BYTES,
    TICK_FLOOR_MS,
    TICK_RETRY_MS,
)
from brokerd.coordinator.prefix import LogPiece
from brokerd.coordinator.unserved import (
    Unserved,
    UnservedReason,
    failed,
    loading,
    no_coordinator,
    outcome_unknown,
    overloaded,
    timed_out,
    too_large,
)
from brokerd.failure import Failure


class State(Enum):
    """The state of a partition's coordinator on this broker."""

    INACTIVE = "inactive"
    LOADING = "loading"
    ACTIVE = "active"
    FAILED = "failed"


class Answer(NamedTuple, Generic[Response]):
    """What a command gets.

    Attributes:
        token: the command; None: the response of a tick.
        response: the answer of the core, if it was served.
        unserved: why it was not; None: it was.
    """

    token: int | None
    response: Response | None
    unserved: Unserved | None


class Fault(NamedTuple):
    """A mistake that the log of the broker must show.

    Attributes:
        what: what happened.
        error: the exception, if there was one.
    """

    what: str
    error: Exception | None


@dataclass(slots=True)
class _Queued(Generic[Command]):
    """A command that waits for its decision."""

    token: int
    command: Command
    size_bytes: int
    is_dropped: bool = False


@dataclass(slots=True)
class _Waiting(Generic[Response]):
    """A decision that waits for the high watermark; token None: it is of a tick, or its caller has given up."""

    token: int | None
    response: Response
    wait_offset: int
    size_bytes: int
    is_tick: bool
    has_records: bool


@dataclass(slots=True)
class _Decided(Generic[Response, Rec]):
    """A decision of a turn."""

    token: int | None
    decision: Decision[Response, Rec]
    size_bytes: int
    is_tick: bool


@dataclass(slots=True)
class _Turn(Generic[Response, Rec]):
    """What a turn has decided."""

    decided: list[_Decided[Response, Rec]] = field(default_factory=list["_Decided[Response, Rec]"])
    records: list[Record] = field(default_factory=list[Record])
    size_bytes: int = 0
    scopes: set[Hashable] = field(default_factory=set[Hashable])
    is_closed: bool = False

    def add(self, decided: _Decided[Response, Rec], records: Sequence[Record], scope: Hashable) -> None:
        self.decided.append(decided)
        self.records += records
        self.size_bytes += decided.size_bytes
        if records:
            self.scopes.add(scope)
            # Without a scope, the next command may depend on these records.
            self.is_closed = scope is None

    def would_pass(self, record_count: int, size_bytes: int) -> bool:
        """Tell whether a further decision would make the append too large."""
        return bool(self.records) and (
            len(self.records) + record_count > MAX_TURN_RECORDS or self.size_bytes + size_bytes > MAX_TURN_BYTES
        )


class PartitionMachine(Generic[Command, Response, Rec]):
    """The coordinator of one partition on one broker.

    Args:
        partition: its name, for texts.
        new_core: makes an empty core.
        codec: translates the core's records.
        scope_of: returns the part of the state that a command sees and changes, such as a group; commands of different scopes may
            share a turn. None, and a scope of None: it may depend on every other command.

    Attributes:
        state: the state.
        leader_epoch: the epoch of the present leadership, or of the last one; -1: none yet.
        load_end: log end when the leadership began (exclusive).
        replayed_end: end of what the core has replayed (exclusive).
        high_watermark: end of what is committed (exclusive), during a leadership.
        failures: failures in a row, for the time until the next loading.
    """

    def __init__(
        self,
        partition: str,
        *,
        new_core: Callable[[], Core[Command, Response, Rec]],
        codec: RecordCodec[Rec],
        scope_of: Callable[[Command], Hashable] | None = None,
    ) -> None:
        self._partition = partition
        self._new_core = new_core
        self._codec = codec
        self._scope_of = scope_of
        self.state = State.INACTIVE
        self.leader_epoch = -1
        self.load_end = self.replayed_end = self.high_watermark = 0
        self.failures = 0
        self._core: Core[Command, Response, Rec] | None = None
        self._needs_whole = False
        self._is_loaded = False
        self._queue: deque[_Queued[Command]] = deque()
        self._queued_bytes = 0
        self._queued_by_token: dict[int, _Queued[Command]] = {}
        self._turn: _Turn[Response, Rec] | None = None
        self._waiting: deque[_Waiting[Response]] = deque()
        self._waiting_by_token: dict[int, _Waiting[Response]] = {}
        self._waiting_bytes = 0
        self._tick_not_before_ms: int | None = None
        self._answers: list[Answer[Response]] = []
        self._faults: list[Fault] = []

    # ------------------------------------------------------------------------------------------------------------------
    # Leadership.

    def lead(self, *, leader_epoch: int, log_end_offset: int, high_watermark: int) -> None:
        """Begin a leadership: everything in the log must be loaded. No other broker appends in this epoch.

        Args:
            leader_epoch: its leader epoch.
            log_end_offset: the log end now (exclusive).
            high_watermark: end of what is known to be committed (exclusive).
        """
        assert self.state is State.INACTIVE, f"{self._partition} leads in epoch {self.leader_epoch} already"
        self.leader_epoch = leader_epoch
        self.high_watermark = high_watermark
        self.load_end = log_end_offset
        self.failures = 0
        self.state = State.LOADING

    def resign(self, unserved: Unserved) -> None:
        """End the leadership: drop the core, and answer everything that waits.

        Args:
            unserved: the answer to commands of which nothing was appended.
        """
        self._end(unserved)
        self.state = State.INACTIVE

    def fail(self, what: str, error: Exception | None = None) -> None:
        """Stop serving because the state cannot be loaded or is wrong; `reload` begins again."""
        self.failures += 1
        self._faults.append(Fault(what, error))
        self._end(self._failed())
        self.state = State.FAILED

    def reload(self, *, log_end_offset: int, high_watermark: int) -> None:
        """Begin to load again after a failure."""
        assert self.state is State.FAILED, f"{self._partition} is {self.state.value}"
        self.high_watermark = high_watermark
        self.load_end = log_end_offset
        self.state = State.LOADING

    @property
    def retry_ms(self) -> int:
        """Milliseconds from a failure to the next loading."""
        return min(LOAD_RETRY_MS << min(self.failures - 1, 10), LOAD_RETRY_MAX_MS)

    def _failed(self) -> Unserved:
        return failed(self._partition, "cannot serve its state; it will load it again", retry_after_ms=self.retry_ms)

    def _end(self, unserved: Unserved) -> None:
        self._core = None
        self._is_loaded = False
        unknown = outcome_unknown(self._partition, leader=unserved.failure.leader)
        for waiting in self._waiting:
            self._refuse(waiting.token, unknown if waiting.has_records else unserved)
        if self._turn is not None:
            # The append is under way. It may have reached the disk although it fails.
            for decided in self._turn.decided:
                self._refuse(decided.token, unknown if decided.decision.records else unserved)
        for queued in self._queue:
            self._refuse(None if queued.is_dropped else queued.token, unserved)
        self._turn = None
        self._waiting.clear()
        self._waiting_by_token.clear()
        self._waiting_bytes = 0
        self._queue.clear()
        self._queued_by_token.clear()
        self._queued_bytes = 0

    # ------------------------------------------------------------------------------------------------------------------
    # Loading.

    def begin_load(self, from_offset: int, *, is_snapshot: bool) -> None:
        """Begin to fill a fresh core.

        Args:
            from_offset: where the log is read from (inclusive): the end of a snapshot, or the log start.
            is_snapshot: True if the records of a snapshot come first, so that the log must have no gap.
        """
        assert self.state is State.LOADING, f"{self._partition} is {self.state.value}"
        self._core = self._new_core()
        self._is_loaded = False
        self._needs_whole = is_snapshot
        self.replayed_end = from_offset

    def load(self, records: Sequence[Record]) -> bool:
        """Replay records while loading, in their order; return False if that failed."""
        core = self._core
        assert self.state is State.LOADING, f"{self._partition} is {self.state.value}"
        assert core is not None, f"{self._partition}: a load that has not begun"
        decode = self._codec.decode
        try:
            for record in records:
                core.replay(decode(record))
        except Exception as error:
            self.fail("could not replay a record of its log", error)
            return False
        return True

    def takes(self, piece: LogPiece) -> bool:
        """Tell whether the next piece of log continues what was loaded; False: it has a gap, and the snapshot must not be used."""
        return not self._needs_whole or piece.is_whole_from(self.replayed_end)

    def note_loaded(self, next_offset: int) -> None:
        """Note that everything below an offset (exclusive) is replayed; at the load end the partition may become active."""
        self.replayed_end = max(self.replayed_end, next_offset)
        if self.replayed_end >= self.load_end:
            self._is_loaded = True
            self._try_activate()

    def _try_activate(self) -> None:
        if self.state is State.LOADING and self._is_loaded and self.high_watermark >= self.load_end:
            self.state = State.ACTIVE
            # The first call of an active core is a tick, at once.
            self._tick_not_before_ms = None

    # ------------------------------------------------------------------------------------------------------------------
    # Commands.

    def submit(self, token: int, command: Command, *, size_bytes: int = 0) -> Unserved | None:
        """Queue a command; return why not, if it is refused at once.

        Args:
            token: names it in its answer.
            command: the command.
            size_bytes: bytes that it holds, about.
        """
        if self.state is State.INACTIVE:
            return no_coordinator(self._partition)
        if self.state is State.LOADING:
            return loading(self._partition)
        if self.state is State.FAILED:
            return self._failed()
        if len(self._queue) >= MAX_QUEUED_COMMANDS:
            return overloaded(self._partition, f"{MAX_QUEUED_COMMANDS} commands")
        if self._queue and self._queued_bytes + size_bytes > MAX_QUEUED_BYTES:
            return overloaded(self._partition, f"commands of {MAX_QUEUED_BYTES} bytes")
        queued = _Queued(token, command, size_bytes)
        self._queue.append(queued)
        self._queued_by_token[token] = queued
        self._queued_bytes += size_bytes
        return None

    def drop(self, token: int) -> Unserved | None:
        """Forget who waits for a command; return what it gets, or None if it has its answer.

        The command may still take effect only if that is OUTCOME_UNKNOWN.
        """
        queued = self._queued_by_token.pop(token, None)
        if queued is not None:
            # Its place in the queue counts until its turn, so that the bound holds.
            queued.is_dropped = True
            return timed_out(self._partition)
        waiting = self._waiting_by_token.pop(token, None)
        if waiting is None:
            return None
        waiting.token = None
        return outcome_unknown(self._partition) if waiting.has_records else timed_out(self._partition)

    # ------------------------------------------------------------------------------------------------------------------
    # Turns.

    @property
    def has_work(self) -> bool:
        """True if a turn would decide a command."""
        return self.state is State.ACTIVE and bool(self._queue) and self._has_room

    @property
    def _has_room(self) -> bool:
        return len(self._waiting) < MAX_WAITING_ANSWERS and self._waiting_bytes < MAX_UNCOMMITTED_BYTES

    def tick_due_ms(self, now_ms: int) -> int | None:
        """Return the monotonic time in milliseconds at which a turn has a tick to decide; None: no tick is due."""
        if self.state is not State.ACTIVE or self._core is None or not self._has_room:
            return None
        if self._tick_not_before_ms is None:
            return now_ms
        deadline_ms = self._core.deadline_ms()
        return None if deadline_ms is None else max(deadline_ms, self._tick_not_before_ms)

    def hold_tick(self, until_ms: int) -> None:
        """Decide no tick before a monotonic time in milliseconds, because this process was paused and has not heard everybody yet."""
        if self._tick_not_before_ms is not None:
            self._tick_not_before_ms = max(self._tick_not_before_ms, until_ms)

    def begin_turn(self, now_ms: int) -> Sequence[Record]:
        """Decide a due tick, or commands from the front of the queue; return the records to append as one batch at once.

        The caller then calls `accept_turn` or `refuse_turn`, with nothing but the append in between. If there are no records, the turn
        is complete.
        """
        assert self._turn is None, f"{self._partition}: a turn within a turn"
        core = self._core
        if self.state is not State.ACTIVE or core is None or not self._has_room:
            return ()
        turn = self._turn = _Turn[Response, Rec]()
        due_ms = self.tick_due_ms(now_ms)
        if due_ms is not None and due_ms <= now_ms:
            self._tick_not_before_ms = now_ms + TICK_FLOOR_MS
            self._decide_tick(core, turn, now_ms)
        else:
            self._decide_commands(core, turn, now_ms)
        if self._turn is not turn:
            return ()
        if not turn.records:
            self._end_turn(turn, self.replayed_end)
        return turn.records

    def _decide_tick(self, core: Core[Command, Response, Rec], turn: _Turn[Response, Rec], now_ms: int) -> None:
        try:
            decision = core.tick(now_ms)
            records = [] if decision is None else list(map(self._codec.encode, decision.records))
        except Exception as error:
            self.fail("could not decide a tick", error)
            return
        if decision is None:
            return
        size_bytes = _size_bytes(records)
        if size_bytes > MAX_DECISION_BYTES or len(records) > MAX_TURN_RECORDS:
            self.fail(f"made {len(records)} records of {size_bytes} bytes in one tick: a core must slice its work")
            return
        turn.add(_Decided(None, decision, size_bytes, is_tick=True), records, None)

    def _decide_commands(self, core: Core[Command, Response, Rec], turn: _Turn[Response, Rec], now_ms: int) -> None:
        queue = self._queue
        for _ in range(MAX_TURN_COMMANDS):
            if not queue or turn.is_closed or len(self._waiting) + len(turn.decided) >= MAX_WAITING_ANSWERS:
                return
            queued = queue[0]
            if queued.is_dropped:
                self._pop_queued()
                continue
            scope = None if self._scope_of is None else self._scope_of(queued.command)
            if turn.records and (scope is None or scope in turn.scopes):
                return
            try:
                decision = core.decide(queued.command, now_ms)
                records = list(map(self._codec.encode, decision.records))
            except Exception as error:
                self._faults.append(Fault("could not decide a command", error))
                self._pop_queued()
                unserved = failed(self._partition, "could not decide the command", retry_after_ms=0)
                self._refuse(queued.token, unserved)
                continue
            size_bytes = _size_bytes(records)
            if turn.would_pass(len(records), size_bytes):
                return
            self._pop_queued()
            if size_bytes > MAX_DECISION_BYTES or len(records) > MAX_TURN_RECORDS:
                what = f"{len(records)} records of {size_bytes} bytes"
                self._refuse(queued.token, too_large(self._partition, what))
                continue
            turn.add(_Decided(queued.token, decision, size_bytes, is_tick=False), records, scope)

    def _pop_queued(self) -> None:
        queued = self._queue.popleft()
        self._queued_by_token.pop(queued.token, None)
        self._queued_bytes -= queued.size_bytes

    def accept_turn(self, base_offset: int) -> None:
        """Note that the log has the records of the turn from `base_offset` on; does nothing if the leadership ended meanwhile."""
        turn, core = self._turn, self._core
        if turn is None or core is None:
            return
        if base_offset != self.replayed_end:
            self.fail(f"found another writer: the log gave offset {base_offset}, and {self.replayed_end} is replayed")
            return
        try:
            for decided in turn.decided:
                for record in decided.decision.records:
                    core.replay(record)
        except Exception as error:
            self.fail("could not replay what it has appended", error)
            return
        self.replayed_end = base_offset + len(turn.records)
        self._end_turn(turn, base_offset)

    def _end_turn(self, turn: _Turn[Response, Rec], seen_end: int) -> None:
        """Let the answers wait: those without records for `seen_end`, the others for the replayed end."""
        self._turn = None
        # The wait offsets never go back, so that one queue is enough.
        for decided in sorted(turn.decided, key=lambda each: bool(each.decision.records)):
            has_records = bool(decided.decision.records)
            waiting = _Waiting(
                decided.token,
                decided.decision.response,
                self.replayed_end if has_records else seen_end,
                decided.size_bytes,
                decided.is_tick,
                has_records,
            )
            self._waiting.append(waiting)
            self._waiting_bytes += waiting.size_bytes
            if waiting.token is not None:
                self._waiting_by_token[waiting.token] = waiting
        self._settle()

    def refuse_turn(self, failure: Failure, now_ms: int) -> None:
        """Note that the log took nothing of the turn; does nothing if the leadership ended meanwhile."""
        turn = self._turn
        if turn is None:
            return
        refused = Unserved(UnservedReason.REFUSED, failure)
        kept: list[_Decided[Response, Rec]] = []
        for decided in turn.decided:
            if not decided.decision.records:
                kept.append(decided)
            elif decided.is_tick:
                self._tick_not_before_ms = now_ms + TICK_RETRY_MS
            else:
                self._refuse(decided.token, refused)
        self._end_turn(_Turn(decided=kept), self.replayed_end)

    def advance(self, high_watermark: int) -> None:
        """Note that everything below `high_watermark` (exclusive) is committed; also during an append."""
        self.high_watermark = max(self.high_watermark, high_watermark)
        self._try_activate()
        self._settle()

    def _settle(self) -> None:
        waiting = self._waiting
        while waiting and waiting[0].wait_offset <= self.high_watermark:
            first = waiting.popleft()
            self._waiting_bytes -= first.size_bytes
            if first.token is not None:
                del self._waiting_by_token[first.token]
                self._answers.append(Answer(first.token, first.response, None))
            elif first.is_tick:
                self._answers.append(Answer(None, first.response, None))
            # A failure in a row ends with an answer.
            self.failures = 0

    # ------------------------------------------------------------------------------------------------------------------
    # What the shell takes.

    def _refuse(self, token: int | None, unserved: Unserved) -> None:
        if token is not None:
            self._answers.append(Answer(token, None, unserved))

    def take_answers(self) -> list[Answer[Response]]:
        """Return the answers since the last call, in order."""
        answers, self._answers = self._answers, []
        return answers

    def take_faults(self) -> list[Fault]:
        """Return what went wrong since the last call."""
        faults, self._faults = self._faults, []
        return faults

    @property
    def queued_count(self) -> int:
        """Commands in the queue, dropped ones included."""
        return len(self._queue)

    @property
    def waiting_count(self) -> int:
        """Answers that wait for the high watermark, dropped ones included."""
        return len(self._waiting)

    @property
    def core(self) -> Core[Command, Response, Rec] | None:
        """The core of an active partition, for reading; None: it is not active."""
        return self._core if self.state is State.ACTIVE else None


def _size_bytes(records: Sequence[Record]) -> int:
    return sum(len(key) + len(value or b"") + RECORD_OVERHEAD_BYTES for key, value in records)
