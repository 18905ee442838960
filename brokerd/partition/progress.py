# SPDX-License-Identifier: Apache-2.0
"""The progress of one follower, as its leader knows it: subscription, log offsets, and when it had last caught up.

Theory of operation. A follower *has caught up* to a time if it now holds everything that the leader's log had at that
time. At the log end, that time is now. Behind it, a *mark* remembers one log end and its time. The acknowledgement that
reaches the mark moves *caught up* to the mark's time and sets the next mark. So a follower that is always a little
behind under load counts as caught up as of one round trip ago, without a history of log ends.

Law: within one session offsets never go back.
Source: Kafka, Replica.updateFetchState; KIP-903 for the broker epoch.
"""

from __future__ import annotations

from brokerd.partition.leader_events import FollowerAcked, FollowerLost, FollowerSubscribed


class FollowerProgress:
    """One follower in one leadership.

    Attributes:
        node_id: the follower.
        broker_epoch: broker epoch of the process that subscribed last; None: none has.
        session: number of its last subscription; None: none.
        is_subscribed: True while that subscription is open.
        appended_offset: end of its log (exclusive); None: unknown.
        flushed_offset: end of what it has on stable storage (exclusive); None: unknown.
        caught_up_ms: when it had last caught up, if it is not at the log end; None: never in this leadership.
        grace_ms: start of its lag time, as a new member, or under a new leader or process.
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
        """Note a subscription; if it is accepted, the follower's log is a prefix of the leader's."""
        self.broker_epoch, self.session = event.broker_epoch, event.session
        self.forget()
        if is_accepted:
            self.is_subscribed = True
            self.appended_offset, self.flushed_offset = event.log_end_offset, event.flushed_offset

    def is_of(self, event: FollowerAcked | FollowerLost) -> bool:
        """Tell whether an event belongs to the present subscription."""
        return (event.broker_epoch, event.session) == (self.broker_epoch, self.session)

    def acknowledge(self, event: FollowerAcked) -> None:
        """Note an acknowledgement of the present session; a late one changes nothing."""
        self.appended_offset = max(self.appended_offset or 0, event.appended_offset)
        self.flushed_offset = max(self.flushed_offset or 0, event.flushed_offset)

    def forget(self) -> None:
        """Forget its offsets: the process that reported them is gone, or its log turned out to differ."""
        self.is_subscribed = False
        self.appended_offset = self.flushed_offset = None

    def counted_offset(self, *, is_flush_counted: bool) -> int | None:
        """Return the counted offset (exclusive); None: unknown."""
        return self.flushed_offset if is_flush_counted else self.appended_offset

    def note_counted(self, counted: int, *, log_end_offset: int, now_ms: int) -> None:
        """Note the counted offset of the follower, together with the leader's log end."""
        if counted >= log_end_offset:
            self.caught_up_ms = now_ms
        elif counted >= self._mark_end_offset:
            self.caught_up_ms = self._mark_ms
        else:
            return
        self._mark_ms, self._mark_end_offset = now_ms, log_end_offset

    def note_log_growth(self, counted: int | None, *, old_end_offset: int, log_end_offset: int, now_ms: int) -> None:
        """Note that the leader's log has grown; a follower at the old end has caught up until now."""
        if counted is not None and counted >= old_end_offset:
            self.caught_up_ms = now_ms
            self._mark_ms, self._mark_end_offset = now_ms, log_end_offset

    @property
    def behind_since_ms(self) -> int:
        """Time since which a member that is not at the log end counts as lagging."""
        return self.grace_ms if self.caught_up_ms is None else max(self.grace_ms, self.caught_up_ms)

    def has_caught_up(self, counted: int, *, log_end_offset: int, since_ms: int) -> bool:
        """Tell whether it is at the log end, or had caught up at `since_ms` (inclusive) or later."""
        if counted >= log_end_offset:
            return True
        return self.caught_up_ms is not None and self.caught_up_ms >= since_ms
