# SPDX-License-Identifier: Apache-2.0
"""What a leader knows of one follower: its subscription, how far its log goes, when it had caught up last.

Theory of operation. A follower *has caught up* at a time if by now it holds everything that the leader's log had then.
While it is at the log end, that time is now. Behind it, a *mark* remembers one log end and its time; the acknowledgement
that reaches the mark moves the time up to it and sets the next mark. So a follower that is always a little behind under
load counts as caught up as of a round trip ago, and no history of log ends is kept.

Law: within one session offsets never go back.
Source: Kafka, Replica.updateFetchState; KIP-903 for the broker epoch.
"""

from __future__ import annotations

from brokerd.partition.leader_events import FollowerAcked, FollowerLost, FollowerSubscribed


class FollowerProgress:
    """One follower of one leadership.

    Attributes:
        node_id: the follower.
        broker_epoch: epoch of the process that subscribed last; None before.
        session: its last subscription; None before.
        is_subscribed: True while that subscription is open.
        appended_offset: end of its log (exclusive); None while it is not known.
        flushed_offset: how much of that is on stable storage (exclusive); None while it is not known.
        caught_up_ms: when it had caught up last, if it is not at the log end; None: never in this leadership.
        grace_ms: since when it is expected to catch up, as a member that is new, or whose leader or process is.
    """

    __slots__ = (
        "_mark_end_offset",
        "_mark_ms",
        "appended_offset",
        "broker_epoch",
        "caught_up_ms",
        "flushed_offset",
        "grace_ms",
        "is_subscribed",
        "node_id",
        "session",
    )

    def __init__(self, node_id: int, *, now_ms: int, log_end_offset: int) -> None:
        self.node_id = node_id
        self.session: int | None = None
        self.is_subscribed = False
        self.broker_epoch: int | None = None
        self.appended_offset: int | None = None
        self.flushed_offset: int | None = None
        self.caught_up_ms: int | None = None
        self.grace_ms = now_ms
        self._mark_ms, self._mark_end_offset = now_ms, log_end_offset

    def begin(self, event: FollowerSubscribed, *, is_accepted: bool) -> None:
        """Take over a subscription; if it is accepted, the log is a prefix of the leader's up to its own end."""
        self.broker_epoch, self.session = event.broker_epoch, event.session
        self.forget()
        if is_accepted:
            self.is_subscribed = True
            self.appended_offset, self.flushed_offset = event.log_end_offset, event.flushed_offset

    def is_of(self, event: FollowerAcked | FollowerLost) -> bool:
        """Tell whether an event belongs to the present subscription."""
        return (event.broker_epoch, event.session) == (self.broker_epoch, self.session)

    def acknowledge(self, event: FollowerAcked) -> None:
        """Take over an acknowledgement of the present session; a late one changes nothing."""
        self.appended_offset = max(self.appended_offset or 0, event.appended_offset)
        self.flushed_offset = max(self.flushed_offset or 0, event.flushed_offset)

    def forget(self) -> None:
        """Forget what it holds: the process that said so is gone, or its log was found to be another one."""
        self.is_subscribed = False
        self.appended_offset = self.flushed_offset = None

    def counted_offset(self, *, is_flush_counted: bool) -> int | None:
        """Return the end (exclusive) of what it may be counted with; None: unknown."""
        return self.flushed_offset if is_flush_counted else self.appended_offset

    def note_counted(self, counted: int, *, log_end_offset: int, now_ms: int) -> None:
        """Learn that the follower is counted up to an offset, and where the leader's log ends now."""
        if counted >= log_end_offset:
            self.caught_up_ms = now_ms
        elif counted >= self._mark_end_offset:
            self.caught_up_ms = self._mark_ms
        else:
            return
        self._mark_ms, self._mark_end_offset = now_ms, log_end_offset

    def note_log_growth(self, counted: int | None, *, old_end_offset: int, log_end_offset: int, now_ms: int) -> None:
        """Learn that the leader's log grew: who was at its end has caught up until now."""
        if counted is not None and counted >= old_end_offset:
            self.caught_up_ms = now_ms
            self._mark_ms, self._mark_end_offset = now_ms, log_end_offset

    @property
    def behind_since_ms(self) -> int:
        """Since when it is behind, as a member that is not at the log end is to be judged."""
        return self.grace_ms if self.caught_up_ms is None else max(self.grace_ms, self.caught_up_ms)

    def has_caught_up(self, counted: int, *, log_end_offset: int, since_ms: int) -> bool:
        """Tell whether it is at the log end, or has caught up at `since_ms` (inclusive) or later."""
        if counted >= log_end_offset:
            return True
        return self.caught_up_ms is not None and self.caught_up_ms >= since_ms
