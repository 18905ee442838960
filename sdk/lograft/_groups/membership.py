# SPDX-License-Identifier: Apache-2.0
"""One member of a group: when it sends what, what it holds, and what the application must be told next.

It owns the state of the membership. It has no clock, sends nothing and calls nobody: its methods get the monotonic time, `request`
says what to send, and `next_step` says what the application must be told.

Theory of operation. The coordinator says what the member may use (`_target`). The application knows what it was told (`_held`). The
difference is work for the application: partitions to give up first, then partitions to take over. So nothing queues up while the
application is busy, and a partition that comes and goes meanwhile is never told. A partition that is held and not in the target is
named in every beat until the application has given it up (`gave_up`). Only then may the coordinator hand it to another member.

Laws:
* A partition is held only after the coordinator has assigned it, and until the application was told of its end.
* A revoked partition is named as owned in every beat until `gave_up`. A lost one is never named again unless it is assigned again.
* Two attempts of anything that failed are at least `RETRY_FLOOR_MS` apart.
* The numbers of requests rise. One request is under way at a time.
* The end of a stream changes nothing of what the member holds; only the coordinator and the end of the session do.
* A join after a loss names the epoch that was lost, until it is answered: the coordinator may not know of the loss.
Source: docs/groups.md, "What a client does"; KIP-848.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from lograft._client.backoff import Backoff, Rng
from lograft._groups.steps import Ended, Left, Lost, Partition, Revoked, Step, Unassigned
from lograft.wire.codes import ErrorCode

RETRY_FLOOR_MS: Final = 100
"""Least milliseconds between two attempts of anything that failed."""

RETRY_LIMIT_MS: Final = 5_000
"""Most milliseconds between two attempts, unless the coordinator asks for more."""

ADVICE_LIMIT_MS: Final = 60_000
"""Most milliseconds that the member waits because the coordinator asks for it."""

ANSWER_TIMEOUT_MS: Final = 5_000
"""Milliseconds after which a request without an answer counts as lost."""

DEFAULT_BEAT_MS: Final = 5_000
"""Milliseconds between two beats before the coordinator has said how many."""

DEFAULT_SESSION_MS: Final = 45_000
"""Milliseconds of a session before the coordinator has said how many."""

LEASE_PERCENT: Final = 90
"""Percent of a session after which a member without an answer gives everything up. The coordinator counts the session by another
clock, which may run faster by a tenth; it must not be the first to see the end."""

DEFAULT_PROCESSING_LIMIT_MS: Final = 300_000
"""Milliseconds that the application may take between two requests for records, unless it sets another time."""

NEVER_MS: Final = 1 << 62
"""A monotonic time that never comes."""

JOIN, LEAVE, WILL_BE_BACK = 0, -1, -2
"""Epochs in requests that are no beats."""

_LOSING: Final = frozenset(
    {ErrorCode.UNKNOWN_MEMBER, ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.PROCESSING_LIMIT_EXCEEDED}
)
"""Refusals that mean: all partitions are lost, and the member may join again."""

_ENDING: Final = frozenset(
    {
        ErrorCode.INSTANCE_FENCED,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.INVALID_PATTERN,
        ErrorCode.UNKNOWN_ASSIGNOR,
        ErrorCode.WRONG_CLUSTER,
    }
)
"""Refusals that another attempt cannot change."""


@dataclass(frozen=True, slots=True)
class Subscription:
    """What a member wants: topics by name, and topics whose whole name matches an RE2 expression (empty: none)."""

    topics: tuple[str, ...] = ()
    pattern: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A join, beat or leave to send.

    Attributes:
        member_epoch: `JOIN`, `LEAVE`, `WILL_BE_BACK`, or the epoch that the member knows.
        beat_number: number of the request, rising.
        assignment_number: number of the last assignment that was taken over.
        idle_ms: milliseconds since the application last asked for records.
        owned: all partitions that the member uses or has not given up, ascending; None in a join or leave.
        subscription: what the member wants; None: as before.
        lost_epoch: in a join, the epoch at which everything was lost; 0: the member had none.
    """

    member_epoch: int
    beat_number: int
    assignment_number: int = 0
    idle_ms: int = 0
    owned: tuple[Partition, ...] | None = None
    subscription: Subscription | None = None
    lost_epoch: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """A refusal by the coordinator; `retry_after_ms` 0: no advice."""

    code: ErrorCode
    message: str
    retry_after_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """What the coordinator says about the member.

    Attributes:
        member_epoch: its epoch.
        assignment_number: number of the last assignment that was sent.
        assignment: all partitions that the member may use; None: as before.
        heartbeat_interval_ms: milliseconds between two beats.
        session_timeout_ms: milliseconds without a beat after which the member is removed.
    """

    member_epoch: int
    assignment_number: int = 0
    assignment: frozenset[Partition] | None = None
    heartbeat_interval_ms: int = DEFAULT_BEAT_MS
    session_timeout_ms: int = DEFAULT_SESSION_MS


class Phase(Enum):
    """Where a member is."""

    JOINING = "joining"
    """It asks the coordinator for its membership."""
    MEMBER = "member"
    """It is a member."""
    LEAVING = "leaving"
    """It has given everything up and tells the coordinator."""
    ENDED = "ended"
    """It has left, or an error has ended it."""


class Membership:
    """One member of a group in one process.

    Attributes:
        phase: where it is. Only this object writes it.
        epoch: epoch of the member; 0 while it joins.
        error: the refusal that has ended it; None otherwise.
    """

    def __init__(
        self,
        subscription: Subscription,
        *,
        rng: Rng,
        processing_limit_ms: int = DEFAULT_PROCESSING_LIMIT_MS,
        is_static: bool = False,
    ) -> None:
        """Start to join.

        Args:
            subscription: what the member wants.
            rng: draws the jitter of pauses.
            processing_limit_ms: milliseconds that the application may take between two requests for records.
            is_static: True for a member with an instance id.
        """
        self.phase = Phase.JOINING
        self.epoch = 0
        self.error: Refused | None = None
        self._subscription = subscription
        self._limit_ms = processing_limit_ms
        self._is_static = is_static
        # Its epoch when it lost everything last, for the joins after that; 0: it has not joined yet, or is a member.
        self._lost_epoch = 0
        # Its delays lie in [half the base, limit].
        self._backoff = Backoff(base_ms=2 * RETRY_FLOOR_MS, limit_ms=RETRY_LIMIT_MS, rng=rng)
        self._beat_number = 0
        self._number = 0
        self._under_way: tuple[int, int] | None = None
        self._must_tell = True
        self._next_beat_ms = 0
        self._not_before_ms = 0
        self._beat_ms = DEFAULT_BEAT_MS
        self._session_ms = DEFAULT_SESSION_MS
        self._answered_sent_ms = 0
        # The number of the first request that has the present subscription; None: none has it yet.
        self._subscription_number: int | None = None
        self._is_subscription_known = False
        self._held: set[Partition] = set()
        self._target: set[Partition] = set()
        self._giving_up: set[Partition] = set()
        self._lost: set[Partition] = set()
        self._lost_why: Refused | None = None
        # When (in arrivals) each partition of the target came.
        self._came: dict[Partition, int] = {}
        self._arrivals = 0
        self._must_leave = False
        self._will_be_back = False
        self._is_end_told = False
        self._over_limit_ms: int | None = None
        # Since when the coordinator waits, as far as the member knows, for something to be given up; None: it does not.
        self._revoked_ms: int | None = None

    # -- what the application wants

    @property
    def subscription(self) -> Subscription:
        """What the member wants."""
        return self._subscription

    def subscribe(self, subscription: Subscription) -> None:
        """Want other topics from now on. Beats repeat it until the coordinator has answered one of them."""
        if subscription == self._subscription:
            return
        self._subscription = subscription
        self._subscription_number = None
        self._is_subscription_known = False
        self._must_tell = True

    def leave(self, *, will_be_back: bool = False) -> None:
        """Give everything up, then leave.

        Args:
            will_be_back: True for a static member whose next process takes the partitions over within the session.
        """
        if not self._must_leave and self.phase is not Phase.ENDED:
            self._must_leave = True
            self._will_be_back = will_be_back and self._is_static
            self._forget_target()

    # -- what the application holds

    @property
    def held(self) -> tuple[Partition, ...]:
        """Partitions that the application was told of and has not given up, ascending."""
        return tuple(sorted(self._held))

    @property
    def owned(self) -> tuple[Partition, ...]:
        """Everything that beats name: what is assigned, and what is not given up yet, ascending."""
        return tuple(sorted(self._held | self._target))

    @property
    def lease_end_ms(self) -> int:
        """Monotonic time at which everything is lost, unless a beat is answered before; `NEVER_MS`: it is no member."""
        if self.phase is not Phase.MEMBER:
            return NEVER_MS
        return self._answered_sent_ms + self._session_ms * LEASE_PERCENT // 100

    @property
    def wanted(self) -> tuple[Partition, ...]:
        """Assigned partitions whose first offset must be found, because the application does not hold them yet, ascending."""
        return tuple(sorted(self._target - self._held - self._lost))

    @property
    def has_step(self) -> bool:
        """True if `next_step` returns something other than `Unassigned`."""
        is_ended = self.phase is Phase.ENDED and not self._is_end_told
        return bool(self._lost) or is_ended or bool(self._held - self._target - self._giving_up)

    def mark(self) -> int:
        """Return a mark for `is_fresh`: now."""
        return self._arrivals

    def is_fresh(self, partition: Partition, mark: int) -> bool:
        """Return True if a partition is wanted and was assigned already at the mark.

        An answer about committed offsets to a request from before that may be too old: another member may have committed more.
        """
        came = self._came.get(partition)
        return came is not None and came <= mark and partition in self._target and partition not in self._held

    def next_step(self) -> Step | None:
        """Return what the application must be told now; None: nothing. `Unassigned` partitions wait for `take`.

        Partitions of `Revoked` stay owned until `gave_up`. Those of `Lost` are gone already.
        """
        if self._lost:
            lost, why = tuple(sorted(self._lost)), self._lost_why
            self._lost.clear()
            self._lost_why = None
            return Lost(lost, None if why is None else why.code, "" if why is None else why.message)
        gone = tuple(sorted(self._held - self._target - self._giving_up))
        if gone:
            self._giving_up.update(gone)
            return Revoked(gone)
        if self.phase is Phase.ENDED:
            if self._is_end_told:
                return None
            self._is_end_told = True
            return Left() if self.error is None else Ended(self.error.code, self.error.message)
        wanted = self.wanted
        return Unassigned(wanted) if wanted and not self._giving_up else None

    def take(self, partition: Partition) -> bool:
        """Note that the application now holds a wanted partition. Return False if it is not assigned any more."""
        if partition not in self._target or partition in self._held:
            return False
        self._held.add(partition)
        return True

    def gave_up(self, partitions: tuple[Partition, ...]) -> None:
        """Note that the application has given revoked partitions up. The next beat says so, at once."""
        for each in partitions:
            if each in self._giving_up:
                self._giving_up.discard(each)
                self._held.discard(each)
                self._must_tell = True
                if each in self._target:
                    # It was assigned again meanwhile. It counts as having come now, so that its offset is looked up afterwards.
                    self._note_arrival(each)
        if self._held <= self._target:
            self._revoked_ms = None

    # -- the way to the coordinator

    def request(self, now_ms: int, idle_ms: int) -> Request | None:
        """Return what must be sent now; None: nothing. The caller sends it on the stream to the coordinator.

        Args:
            now_ms: monotonic time.
            idle_ms: milliseconds since the application last asked for records.
        """
        self.tick(now_ms, idle_ms)
        if self.phase is Phase.ENDED or self._under_way is not None or now_ms < self._not_before_ms:
            return None
        is_due = self._must_tell or now_ms >= self._next_beat_ms
        if self.phase is Phase.MEMBER and not is_due:
            return None
        if self.phase is Phase.JOINING and (idle_ms > self._limit_ms or self._over_limit_ms is not None):
            return None
        self._beat_number += 1
        self._under_way = (self._beat_number, now_ms)
        self._must_tell = False
        self._next_beat_ms = now_ms + self._beat_ms
        if self.phase is Phase.LEAVING:
            epoch = WILL_BE_BACK if self._will_be_back else LEAVE
            return Request(member_epoch=epoch, beat_number=self._beat_number)
        if self._subscription_number is None:
            self._subscription_number = self._beat_number
        if self.phase is Phase.JOINING:
            return Request(
                member_epoch=JOIN,
                beat_number=self._beat_number,
                subscription=self._subscription,
                lost_epoch=self._lost_epoch,
            )
        return Request(
            member_epoch=self.epoch,
            beat_number=self._beat_number,
            assignment_number=self._number,
            idle_ms=max(idle_ms, self._over_limit_ms or 0),
            owned=self.owned,
            subscription=None if self._is_subscription_known else self._subscription,
        )

    def hear(self, beat_number: int, told: State | Refused, now_ms: int) -> None:
        """Take the answer to a request, or (number 0) what the coordinator pushes."""
        if self.phase is Phase.ENDED:
            return
        sent_ms: int | None = None
        if beat_number:
            if self._under_way is None or self._under_way[0] != beat_number:
                return
            sent_ms, self._under_way = self._under_way[1], None
        elif self.phase is not Phase.MEMBER:
            return
        if isinstance(told, Refused):
            self._refused(told, now_ms)
        elif self.phase is Phase.LEAVING:
            self.phase = Phase.ENDED
        else:
            if self._subscription_number is not None and beat_number >= self._subscription_number:
                # Only the answer to a request that had the subscription shows that the coordinator knows it.
                self._is_subscription_known = True
            self._told(told, sent_ms, now_ms)

    def disconnected(self) -> None:
        """Note that the way to the coordinator is broken: what was under way gets no answer. Nothing is lost by that."""
        self._under_way = None
        self._must_tell = True

    def fail(self, why: Refused) -> None:
        """Note that no coordinator will ever serve this client: everything is lost, and the membership ends."""
        if self.phase is not Phase.ENDED:
            self._drop_held(why)
            self.error = None if self.phase is Phase.LEAVING else why
            self.phase = Phase.ENDED

    def tick(self, now_ms: int, idle_ms: int) -> None:
        """Let time pass: the end of the session, of a wait for an answer, and of the processing limit."""
        if self._under_way is not None and now_ms >= self._under_way[1] + ANSWER_TIMEOUT_MS:
            self._under_way = None
            self._must_tell = True
        if now_ms >= self.lease_end_ms:
            text = f"the coordinator answered nothing for the session of {self._session_ms} ms"
            self._lose(Refused(code=ErrorCode.UNKNOWN_MEMBER, message=text), now_ms)
        self._watch_limit(now_ms, idle_ms)
        if self._must_leave and self.phase in (Phase.JOINING, Phase.MEMBER) and not self._held:
            self._under_way = None
            # Without a request, the coordinator has never heard of the member.
            self.phase = Phase.LEAVING if self._beat_number else Phase.ENDED
            self._not_before_ms = min(self._not_before_ms, now_ms)

    def deadline_ms(self, idle_ms: int, now_ms: int) -> int | None:
        """Return the monotonic time at which `tick` or `request` has something to do, if nothing happens; None: never."""
        if self.phase is Phase.ENDED:
            return None
        due: list[int] = []
        if self._under_way is not None:
            due.append(self._under_way[1] + ANSWER_TIMEOUT_MS)
        elif self.phase is not Phase.JOINING or (idle_ms <= self._limit_ms and self._over_limit_ms is None):
            is_waiting = self.phase is Phase.MEMBER and not self._must_tell
            due.append(max(self._not_before_ms, self._next_beat_ms if is_waiting else 0))
        if self.phase is Phase.MEMBER:
            due.append(self.lease_end_ms)
            if self._over_limit_ms is None and not self._must_leave:
                due.append(now_ms + max(0, self._limit_ms - self._busy_ms(now_ms, idle_ms)) + 1)
        return min(due, default=None)

    # -- inside

    def _told(self, state: State, sent_ms: int | None, now_ms: int) -> None:
        if self.phase is Phase.JOINING:
            # Numbers begin anew with each join: `_lose` has set the last one to 0.
            self.phase = Phase.MEMBER
            self._lost_epoch = 0
        if sent_ms is not None:
            self._backoff.reset()
            self._answered_sent_ms = sent_ms
            self._beat_ms = max(RETRY_FLOOR_MS, state.heartbeat_interval_ms)
            self._session_ms = max(self._beat_ms, state.session_timeout_ms)
            self._next_beat_ms = min(self._next_beat_ms, sent_ms + self._beat_ms)
        if state.assignment is None:
            self.epoch = state.member_epoch
            return
        if state.assignment_number <= self._number:
            return
        self.epoch = state.member_epoch
        self._number = state.assignment_number
        self._must_tell = True
        if self._over_limit_ms is not None or self._must_leave:
            # What it gets now is not used: the next beat says why.
            return
        new = set(state.assignment)
        for each in sorted(self._target - new):
            del self._came[each]
        for each in sorted(new - self._target):
            self._note_arrival(each)
        self._target = new
        if self._held <= new:
            self._revoked_ms = None
        elif self._revoked_ms is None:
            self._revoked_ms = now_ms

    def _note_arrival(self, partition: Partition) -> None:
        self._arrivals += 1
        self._came[partition] = self._arrivals

    def _refused(self, refused: Refused, now_ms: int) -> None:
        code = refused.code
        if self.phase is Phase.LEAVING:
            if code in _LOSING or code in _ENDING:
                self.phase = Phase.ENDED
            else:
                self._must_tell = True
                self._pause(now_ms, refused.retry_after_ms)
        elif code in _LOSING:
            self._lose(refused, now_ms)
        elif code in _ENDING:
            self._lose(refused, now_ms)
            self.error = refused
            self.phase = Phase.ENDED
        else:
            self._must_tell = True
            self._pause(now_ms, refused.retry_after_ms)

    def _pause(self, now_ms: int, advice_ms: int) -> None:
        delay_ms = max(RETRY_FLOOR_MS, self._backoff.next_delay_ms(), min(advice_ms, ADVICE_LIMIT_MS))
        self._not_before_ms = max(self._not_before_ms, now_ms + delay_ms)

    def _lose(self, why: Refused, now_ms: int) -> None:
        """All partitions are gone; join again after a pause."""
        self._drop_held(why)
        self._over_limit_ms = None
        self.phase = Phase.JOINING
        self._lost_epoch = self.epoch or self._lost_epoch
        self.epoch, self._number = 0, 0
        self._under_way = None
        self._must_tell, self._is_subscription_known, self._subscription_number = True, False, None
        self._pause(now_ms, why.retry_after_ms)

    def _drop_held(self, why: Refused) -> None:
        if self._held:
            self._lost |= self._held
            self._lost_why = why
        self._held.clear()
        self._giving_up.clear()
        self._revoked_ms = None
        self._forget_target()

    def _forget_target(self) -> None:
        self._target.clear()
        self._came.clear()

    def _watch_limit(self, now_ms: int, idle_ms: int) -> None:
        """Give everything up over the processing limit, and say so in each beat until it is refused."""
        busy_ms = self._busy_ms(now_ms, idle_ms)
        if self.phase is not Phase.MEMBER or self._over_limit_ms is not None or busy_ms <= self._limit_ms:
            return
        what = "asked for no records" if busy_ms == idle_ms else "did not give up what was revoked"
        text = f"the application {what} for {busy_ms} ms; its processing limit is {self._limit_ms} ms"
        self._drop_held(Refused(code=ErrorCode.PROCESSING_LIMIT_EXCEEDED, message=text))
        self._over_limit_ms = busy_ms
        self._must_tell = True

    def _busy_ms(self, now_ms: int, idle_ms: int) -> int:
        """Return for how many milliseconds the application has not asked for records, or has not given up what was revoked.

        The coordinator removes a member that does not give up. The member must stop before, even if it does not hear of that.
        """
        revoked_ms = 0 if self._revoked_ms is None or self._must_leave else now_ms - self._revoked_ms
        return max(idle_ms, revoked_ms)
