# SPDX-License-Identifier: Apache-2.0
"""What is not worth a record: sessions of members, timers, numbers of messages, and work that waits for the next tick.

Owns all of it; it is lost with the leadership. A new coordinator gives every member a whole session, because it cannot know when the
old one last heard from it. Decisions note what they have heard here, whether or not their records are appended: a number that was used
up for an answer that nobody got makes the next beat ask again, and does no harm.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from enum import IntEnum
from typing import Generic, NamedTuple, TypeVar

from brokerd.groups.assignment.specs import Assignment


class TimerKind(IntEnum):
    """What is due."""

    SESSION = 0
    """The session of a member ends."""
    REVOCATION = 1
    """A member has had its time to confirm a revocation."""
    ASSIGNMENT = 2
    """A target assignment is to be computed, or computed again because no result came."""


class Timer(NamedTuple):
    """Names a timer. The member id of a group's timer is empty."""

    kind: TimerKind
    group_id: str
    member_id: str = ""


class OutcomeTimer(NamedTuple):
    """Names the timer of pending offsets: then the outcome of their ingest is asked for."""

    group_id: str
    ingest_id: str
    round: int


TimerT = TypeVar("TimerT", bound=tuple[object, ...])


class Timers(Generic[TimerT]):
    """Timers by name; setting one again moves it."""

    def __init__(self) -> None:
        self._deadlines: dict[TimerT, int] = {}
        self._heap: list[tuple[int, TimerT]] = []

    def set(self, timer: TimerT, deadline_ms: int) -> None:
        """Set or move a timer."""
        self._deadlines[timer] = deadline_ms
        heapq.heappush(self._heap, (deadline_ms, timer))
        if len(self._heap) > 4 * len(self._deadlines) + 64:
            self._heap = [(each_ms, each) for each, each_ms in self._deadlines.items()]
            heapq.heapify(self._heap)

    def cancel(self, timer: TimerT) -> None:
        """Remove a timer, if it is set."""
        self._deadlines.pop(timer, None)

    def deadline_of(self, timer: TimerT) -> int | None:
        """Return when a timer is due, in milliseconds; None if it is not set."""
        return self._deadlines.get(timer)

    def next_ms(self) -> int | None:
        """Return when the first timer is due, in milliseconds."""
        while self._heap:
            deadline_ms, timer = self._heap[0]
            if self._deadlines.get(timer) == deadline_ms:
                return deadline_ms
            heapq.heappop(self._heap)
        return None

    def take_due(self, now_ms: int) -> TimerT | None:
        """Remove the first timer that is due, and return it; None: none is."""
        first_ms = self.next_ms()
        if first_ms is None or first_ms > now_ms:
            return None
        _, timer = heapq.heappop(self._heap)
        del self._deadlines[timer]
        return timer

    def due(self, now_ms: int) -> list[TimerT]:
        """Return the timers that are due, by deadline. They stay set until they are moved or cancelled."""
        first_ms = self.next_ms()
        if first_ms is None or first_ms > now_ms:
            return []
        found = sorted((each_ms, each) for each, each_ms in self._deadlines.items() if each_ms <= now_ms)
        return [each for _, each in found]


@dataclass(slots=True)
class Session:
    """What was heard from a member, and told to it, during this leadership.

    Attributes:
        stream: number of its heartbeat stream; None: none yet, or unary calls.
        is_stream_open: True while that stream is open.
        beat_number: highest number of its joins, beats and leaves.
        commit_number: highest number of its commits.
        sent_number: number of the last assignment that was sent to it; None: none by this coordinator.
        echoed_number: number of the assignment that its last beat had taken over.
    """

    stream: int | None = None
    is_stream_open: bool = False
    beat_number: int = 0
    commit_number: int = 0
    sent_number: int | None = None
    echoed_number: int = 0

    @property
    def is_settled(self) -> bool:
        """True if no assignment is under way to the member that its last beat did not know."""
        return self.sent_number is not None and self.echoed_number == self.sent_number

    def next_number(self) -> int:
        """Return the number of the assignment that is sent now. It is above all that the member has seen."""
        self.sent_number = max(self.sent_number or 0, self.echoed_number) + 1
        return self.sent_number


@dataclass(frozen=True, slots=True)
class PendingTarget:
    """A target that is being written, a part at a time."""

    group_epoch: int
    assignment: Assignment


class Sessions:
    """Soft state of all groups of a coordinator.

    Attributes:
        now_ms: the time of the last decision or tick, in milliseconds; None before the first.
        timers: sessions, revocations and assignments.
        outcomes: pending offsets whose outcome is asked for.
        waiting: members, by group, whose assignment may be able to move on.
        changed_topics: groups whose topics may have changed.
        deleted_topics: topics whose offsets are to be deleted.
        computing: group epochs of the computations under way, by group.
        pending: targets that are being written, by group.
        next_sweep_ms: when the next sweep for expired offsets begins; None before the first tick.
        sweep: groups that the present sweep has still to look at, the next one last.
    """

    def __init__(self) -> None:
        self.now_ms: int | None = None
        self.timers = Timers[Timer]()
        self.outcomes = Timers[OutcomeTimer]()
        self.waiting: dict[str, dict[str, None]] = {}
        self.changed_topics: dict[str, None] = {}
        self.deleted_topics: dict[bytes, None] = {}
        self.computing: dict[str, int] = {}
        self.pending: dict[str, PendingTarget] = {}
        self.next_sweep_ms: int | None = None
        self.sweep: list[str] = []
        self._sessions: dict[tuple[str, str], Session] = {}
        self._departed: tuple[dict[tuple[str, str], Session], dict[tuple[str, str], Session]] = ({}, {})
        self._streams: dict[int, dict[tuple[str, str], None]] = {}
        self._resolved: tuple[dict[tuple[str, str], tuple[int, int]], dict[tuple[str, str], tuple[int, int]]] = ({}, {})

    def get(self, group_id: str, member_id: str) -> Session:
        """Return the session of a member, to look at. If nothing was heard from it, it is empty but for a former member's numbers."""
        key = (group_id, member_id)
        newer, older = self._departed
        former = self._sessions.get(key) or newer.get(key) or older.get(key)
        if former is None or key in self._sessions:
            return former or Session()
        return Session(beat_number=former.beat_number, commit_number=former.commit_number)

    def of(self, group_id: str, member_id: str) -> Session:
        """Return the session of a member, to change."""
        return self._sessions.setdefault((group_id, member_id), self.get(group_id, member_id))

    def hear(self, group_id: str, member_id: str, *, expires_ms: int, beat_number: int, stream: int | None) -> Session:
        """Note a sign of life, and return the session."""
        key = (group_id, member_id)
        session = self.of(group_id, member_id)
        session.beat_number = max(session.beat_number, beat_number)
        if stream != session.stream:
            self._leave_stream(key, session)
            session.stream = stream
        if stream is not None:
            session.is_stream_open = True
            self._streams.setdefault(stream, {})[key] = None
        self.timers.set(Timer(TimerKind.SESSION, group_id, member_id), expires_ms)
        return session

    def drop(self, group_id: str, member_id: str) -> None:
        """Forget a member, except the numbers of its requests: a late copy of its join must not bring it back."""
        key = (group_id, member_id)
        session = self._sessions.pop(key, None)
        if session is not None:
            self._leave_stream(key, session)
            self._departed[0][key] = session
        self.timers.cancel(Timer(TimerKind.SESSION, group_id, member_id))
        self.timers.cancel(Timer(TimerKind.REVOCATION, group_id, member_id))
        waiting = self.waiting.get(group_id)
        if waiting is not None:
            waiting.pop(member_id, None)
            if not waiting:
                del self.waiting[group_id]

    def forget_departed(self) -> None:
        """Forget the numbers of members that were gone at the last call already."""
        self._departed = ({}, self._departed[0])

    def note_resolved(self, group_id: str, ingest_id: str, *, epoch: int, number: int) -> None:
        """Note that the outcome of a round of an ingest is known, at an epoch of the ingest."""
        key = (group_id, ingest_id)
        self._resolved[0][key] = max((number, epoch), self._last_resolved(key))

    def is_resolved(self, group_id: str, ingest_id: str, *, epoch: int, number: int) -> bool:
        """Return True if the outcome of the round, or of a later one, was heard a while ago at most: a prepare of it is a late copy."""
        return (number, epoch) <= self._last_resolved((group_id, ingest_id))

    def forget_resolved(self) -> None:
        """Forget the outcomes that were known at the last call already.

        That must be sooner than an ingest is forgotten, whose id begins anew at the first epoch and round.
        """
        self._resolved = ({}, self._resolved[0])

    def _last_resolved(self, key: tuple[str, str]) -> tuple[int, int]:
        newer, older = self._resolved
        return newer.get(key) or older.get(key) or (0, 0)

    def detach(self, group_id: str, member_id: str) -> None:
        """Note that a member has left its stream, which may stay open for others."""
        key = (group_id, member_id)
        session = self._sessions.get(key)
        if session is not None:
            self._leave_stream(key, session)

    def close_stream(self, stream: int) -> None:
        """Note that a stream has ended."""
        for key in self._streams.pop(stream, {}):
            self._sessions[key].is_stream_open = False

    def wait(self, group_id: str, member_ids: tuple[str, ...]) -> None:
        """Note members that may be able to move on."""
        if member_ids:
            self.waiting.setdefault(group_id, {}).update(dict.fromkeys(member_ids))

    def has_work(self) -> bool:
        """Return True if a tick has something to do at once."""
        return bool(self.waiting or self.changed_topics or self.deleted_topics or self.pending or self.sweep)

    def _leave_stream(self, key: tuple[str, str], session: Session) -> None:
        members = self._streams.get(session.stream) if session.stream is not None else None
        if members is not None:
            members.pop(key, None)
            if not members and session.stream is not None:
                del self._streams[session.stream]
        session.stream = None
        session.is_stream_open = False
