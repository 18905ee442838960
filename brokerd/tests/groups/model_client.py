# SPDX-License-Identifier: Apache-2.0
"""A client of groups that behaves as `docs/groups.md` says ("What a client does"): the reference for every other one.

It owns no clock and no network. `step` says what it sends now; `hear`, `hear_commit` and `hear_offsets` take what comes back.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from brokerd.groups.answers import FetchedOffsets, MemberState, OffsetResults, Outcome, Refusal, Refused
from brokerd.groups.commands import Beat, Command, CommitOffsets, FetchOffsets, Join, Leave, OffsetCommit
from brokerd.groups.records import Partitions, Subscription

RETRY_FLOOR_MS = 100
"""Milliseconds between two attempts of anything that failed."""

REQUEST_TIMEOUT_MS = 1_000
"""Milliseconds after which a request counts as lost."""

Key = tuple[bytes, int]

LOST = (Refusal.UNKNOWN_MEMBER, Refusal.FENCED_MEMBER_EPOCH, Refusal.PROCESSING_LIMIT_EXCEEDED)


class Phase(Enum):
    """Where a client is."""

    JOINING = "joining"
    MEMBER = "member"
    LEAVING = "leaving"
    ENDED = "ended"


@dataclass(slots=True)
class ModelClient:
    """One member in one process.

    Attributes:
        group_id: group.
        member_id: made for this process.
        subscription: topics that the application wants.
        instance_id: name of a static member.
        stream: number of its open heartbeat stream; None: unary calls, or no stream at the moment.
        uses_stream: True: it beats only while it has a stream.
        callback_ms: milliseconds that its revocation callback takes.
        watches_callback: False: the client of somebody who has not read the page: it waits for its callback for as long as that takes.
        owned: what it delivers: next offset by partition; None until the committed offset was answered.
        giving_up: what it does not deliver any more, and when the callback ends.
        log: what the application has seen, for tests: "assigned", "revoked", "lost" with partitions.
    """

    group_id: str
    member_id: str
    subscription: Subscription
    instance_id: str | None = None
    processing_limit_ms: int = 30_000
    uses_stream: bool = False
    stream: int | None = None
    callback_ms: int = 0
    watches_callback: bool = True
    phase: Phase = Phase.JOINING
    epoch: int = 0
    owned: dict[Key, int | None] = field(default_factory=dict[Key, "int | None"])
    giving_up: dict[Key, int] = field(default_factory=dict[Key, int])
    log: list[tuple[str, tuple[Key, ...]]] = field(default_factory=list[tuple[str, "tuple[Key, ...]"]])
    error: Refusal | None = None
    is_application_stalled: bool = False
    beat_count: int = 0
    last_ask_ms: int = 0
    must_leave: bool = False
    will_be_back: bool = False
    _lost_epoch: int = 0
    _beat_number: int = 0
    _commit_number: int = 0
    _number: int = 0
    _under_way: tuple[int, int] | None = None
    _has_news: bool = True
    _subscription_answered: bool = False
    _subscription_number: int | None = None
    _next_beat_ms: int = 0
    _not_before_ms: int = 0
    _heartbeat_ms: int = 5_000
    _session_ms: int = 45_000
    _answered_sent_ms: int = 0
    _fetch_sent_ms: int = -REQUEST_TIMEOUT_MS
    _is_over_limit: bool = False
    _revoked_ms: int | None = None
    _fetches: list[FetchOffsets] = field(default_factory=list[FetchOffsets])

    @property
    def held(self) -> tuple[Key, ...]:
        """Everything that it has not given up."""
        return tuple(sorted({*self.owned, *self.giving_up}))

    @property
    def request_number(self) -> int | None:
        """Number of the join, beat or leave under way."""
        return None if self._under_way is None else self._under_way[0]

    def start(self, now_ms: int) -> None:
        """The application begins to ask for records."""
        self.last_ask_ms = now_ms

    def resubscribe(self, subscription: Subscription) -> None:
        """The application wants other topics."""
        self.subscription = subscription
        self._subscription_answered = False
        self._subscription_number = None
        self._has_news = True

    def leave(self, *, will_be_back: bool) -> None:
        """The application closes the consumer."""
        self.must_leave, self.will_be_back = True, will_be_back

    def lose_stream(self) -> None:
        """The stream has broken: no loss, nothing that was under way is answered."""
        self.stream = None
        self._under_way = None
        self._has_news = True

    def step(self, now_ms: int) -> list[Command]:
        """Return what it sends now."""
        if self.phase is Phase.ENDED:
            return []
        if not self.is_application_stalled and not (self._is_over_limit and self.phase is Phase.MEMBER):
            # Once over the limit, it says so until the coordinator has heard it: its partitions are lost already.
            self.last_ask_ms = now_ms
        self._watch_session(now_ms)
        self._watch_limit(now_ms)
        for key in [each for each, end_ms in self.giving_up.items() if end_ms <= now_ms]:
            del self.giving_up[key]
            self._has_news = True
        if not self.giving_up:
            self._revoked_ms = None
        sent: list[Command] = []
        if self.must_leave and self.phase is not Phase.LEAVING and not self._finish(now_ms):
            return sent
        unknown = tuple(sorted(key for key, position in self.owned.items() if position is None))
        if unknown and now_ms >= self._fetch_sent_ms + RETRY_FLOOR_MS:
            self._fetch_sent_ms = now_ms
            self._fetches.append(FetchOffsets(group_id=self.group_id, partitions=unknown))
            sent.append(self._fetches[-1])
        request = self._request(now_ms)
        return sent if request is None else [*sent, request]

    def hear(self, beat_number: int, outcome: Outcome, now_ms: int) -> None:
        """Take the answer to a join, beat or leave, or (number 0) a pushed state."""
        if self.phase is Phase.ENDED:
            return
        sent_ms: int | None = None
        if beat_number:
            if self._under_way is None or self._under_way[0] != beat_number:
                return
            sent_ms, self._under_way = self._under_way[1], None
        elif self.phase is not Phase.MEMBER:
            return
        if self.phase is Phase.LEAVING:
            if not isinstance(outcome, Refused) or outcome.code in (*LOST, Refusal.INSTANCE_FENCED):
                self.phase = Phase.ENDED
            else:
                self._not_before_ms = now_ms + max(RETRY_FLOOR_MS, outcome.retry_after_ms)
            return
        if isinstance(outcome, Refused):
            self._refused(outcome, now_ms)
        elif isinstance(outcome, MemberState):
            # Only the answer to a request that had the subscription shows that the coordinator knows it.
            if self._subscription_number is not None and beat_number >= self._subscription_number:
                self._subscription_answered = True
            self._told(outcome, sent_ms, now_ms)

    def no_answer(self, beat_number: int, now_ms: int) -> None:
        """The request failed: the coordinator is loading, or is another one."""
        if self._under_way is not None and self._under_way[0] == beat_number:
            self._under_way = None
            self._has_news = True
            self._not_before_ms = now_ms + RETRY_FLOOR_MS

    def hear_offsets(self, request: FetchOffsets, outcome: FetchedOffsets) -> None:
        """Take committed offsets. Only a positive "no offset" leads to the reset policy: the beginning.

        An answer to a request from before the last assignment is dropped: another member may have committed more since.
        """
        if not any(each is request for each in self._fetches):
            return
        for each in outcome.offsets:
            key = (each.topic_id, each.partition)
            if key in self.owned and self.owned[key] is None and each.refused is None:
                self.owned[key] = 0 if each.value is None else each.value.offset

    def deliver(self, key: Key) -> int | None:
        """Hand the next record of a partition to the application. Return its offset; None: nothing may be delivered."""
        position = self.owned.get(key)
        if position is None or self.is_application_stalled or self.phase is not Phase.MEMBER:
            return None
        self.owned[key] = position + 1
        return position

    def commit(self) -> CommitOffsets | None:
        """Return a commit of all positions."""
        offsets = tuple(
            OffsetCommit(topic_id=key[0], partition=key[1], offset=position)
            for key, position in sorted(self.owned.items())
            if position is not None
        )
        if not offsets or self.phase is not Phase.MEMBER:
            return None
        self._commit_number += 1
        return CommitOffsets(
            group_id=self.group_id,
            member_id=self.member_id,
            member_epoch=self.epoch,
            offsets=offsets,
            commit_number=self._commit_number,
        )

    def hear_commit(self, outcome: Outcome) -> None:
        """Take the result of a commit. A refused partition is another's now; beats will say so."""
        assert isinstance(outcome, OffsetResults | Refused), outcome

    def _request(self, now_ms: int) -> Command | None:
        if self._under_way is not None:
            if now_ms < self._under_way[1] + REQUEST_TIMEOUT_MS:
                return None
            self._under_way = None
            self._has_news = True
        if now_ms < self._not_before_ms or (self.uses_stream and self.stream is None):
            return None
        if self.phase is Phase.MEMBER and not self._has_news and now_ms < self._next_beat_ms:
            return None
        if self.phase is Phase.JOINING and (self._is_over_limit or self.is_application_stalled):
            return None
        self._beat_number += 1
        self.beat_count += 1
        self._under_way = (self._beat_number, now_ms)
        self._has_news = False
        self._next_beat_ms = now_ms + self._heartbeat_ms
        if self._subscription_number is None:
            self._subscription_number = self._beat_number
        if self.phase is Phase.LEAVING:
            return Leave(
                group_id=self.group_id,
                member_id=self.member_id,
                instance_id=self.instance_id,
                will_be_back=self.will_be_back,
                beat_number=self._beat_number,
            )
        if self.phase is Phase.JOINING:
            return Join(
                group_id=self.group_id,
                member_id=self.member_id,
                subscription=self.subscription,
                instance_id=self.instance_id,
                processing_limit_ms=self.processing_limit_ms,
                beat_number=self._beat_number,
                stream=self.stream,
                lost_epoch=self._lost_epoch,
            )
        return Beat(
            group_id=self.group_id,
            member_id=self.member_id,
            member_epoch=self.epoch,
            instance_id=self.instance_id,
            owned=by_topic(self.held),
            assignment_number=self._number,
            idle_ms=now_ms - self.last_ask_ms,
            subscription=None if self._subscription_answered else self.subscription,
            beat_number=self._beat_number,
            stream=self.stream,
        )

    def _told(self, state: MemberState, sent_ms: int | None, now_ms: int) -> None:
        if self.phase is Phase.JOINING:
            self.phase = Phase.MEMBER
            self._number = 0
            self._lost_epoch = 0
        if sent_ms is not None:
            self._answered_sent_ms = sent_ms
            self._heartbeat_ms, self._session_ms = state.heartbeat_interval_ms, state.session_timeout_ms
            self._next_beat_ms = min(self._next_beat_ms, sent_ms + self._heartbeat_ms)
        if state.assignment is None:
            self.epoch = state.member_epoch
            return
        if state.assignment_number <= self._number:
            return
        self.epoch = state.member_epoch
        self._number = state.assignment_number
        self._has_news = True
        new = {(topic_id, number) for topic_id, numbers in state.assignment.items() for number in numbers}
        gone = tuple(sorted(set(self.owned) - new))
        for key in gone:
            # Delivery ends before the callback begins, and the callback before the beat that confirms.
            del self.owned[key]
            self.giving_up[key] = now_ms + self.callback_ms
        if gone:
            self.log.append(("revoked", gone))
            self._revoked_ms = now_ms if self._revoked_ms is None else self._revoked_ms
        come = tuple(sorted(new - set(self.owned) - set(self.giving_up)))
        self.owned.update(dict.fromkeys(come))
        if come:
            self._fetches.clear()
            self.log.append(("assigned", come))

    def _refused(self, refused: Refused, now_ms: int) -> None:
        self._not_before_ms = now_ms + max(RETRY_FLOOR_MS, refused.retry_after_ms)
        if refused.code in LOST:
            self._lose(now_ms)
        elif refused.code in (Refusal.INSTANCE_IN_USE, Refusal.SUPERSEDED, Refusal.LIMIT_EXCEEDED):
            self._has_news = True
        else:
            self._lose(now_ms)
            self.error = refused.code
            self.phase = Phase.ENDED

    def _lose(self, now_ms: int) -> None:
        lost = tuple(sorted(self.owned))
        self.owned.clear()
        self.giving_up.clear()
        if lost:
            self.log.append(("lost", lost))
        if self.phase is Phase.MEMBER:
            self.phase = Phase.JOINING
            self._lost_epoch = self.epoch or self._lost_epoch
            self.epoch, self._number = 0, 0
            self._under_way = None
            self._has_news, self._subscription_answered, self._subscription_number = True, False, None
            self._not_before_ms = max(self._not_before_ms, now_ms + RETRY_FLOOR_MS)

    def _watch_session(self, now_ms: int) -> None:
        if self.phase is Phase.MEMBER and now_ms >= self._answered_sent_ms + self._session_ms:
            self._lose(now_ms)

    def _watch_limit(self, now_ms: int) -> None:
        """Stop delivery over the processing limit, and say so with the next beat; join again with the application.

        What was revoked must be given up within the same limit: the coordinator removes a member that does not, and it may not hear so.
        """
        if (
            self.watches_callback
            and self._revoked_ms is not None
            and now_ms - self._revoked_ms > self.processing_limit_ms
        ):
            self.last_ask_ms = min(self.last_ask_ms, self._revoked_ms)
        if now_ms - self.last_ask_ms <= self.processing_limit_ms:
            self._is_over_limit = False
        elif not self._is_over_limit:
            self._is_over_limit = True
            lost = tuple(sorted(self.owned))
            self.owned.clear()
            self.giving_up.clear()
            self._revoked_ms = None
            self._has_news = True
            if lost:
                self.log.append(("lost", lost))

    def _finish(self, now_ms: int) -> bool:
        """Give everything up, and leave after the callback. Return True if it may leave."""
        gone = tuple(sorted(self.owned))
        for key in gone:
            del self.owned[key]
            self.giving_up[key] = now_ms + self.callback_ms
        if gone:
            self.log.append(("revoked", gone))
        if self.giving_up:
            return False
        if self.phase is Phase.JOINING and self._beat_number == 0:
            self.phase = Phase.ENDED
            return False
        self.phase = Phase.LEAVING
        self._under_way = None
        return True


def by_topic(keys: tuple[Key, ...]) -> Partitions:
    """Return partitions by topic id."""
    found: dict[bytes, tuple[int, ...]] = {}
    for topic_id, number in sorted(keys):
        found[topic_id] = (*found.get(topic_id, ()), number)
    return found
