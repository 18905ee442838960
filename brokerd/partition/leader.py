# SPDX-License-Identifier: Apache-2.0
"""The leader's side of one partition with several replicas, for one leader epoch.

Owns the progress of the followers, who is in sync, and what is committed. Knows neither acknowledgements nor readers
(`replica.py` does).

Laws
    Nothing is committed above the smallest counted offset of the maximal in-sync replicas. Nothing is committed while
    fewer than `min.insync.replicas` (of those that are not being added) are in sync.
    A follower joins when it holds everything that may be committed: up to the high watermark, and up to the start of
    this leader epoch, because an earlier leader may have committed that much.
    The leader accepts a subscription only from a replica, and only from the process that the metadata has registered.
    An acknowledgement counts only in its own session, and only while that process is registered. A refused subscription
    changes nothing.
    A leader resigns only where it can commit nothing and no acknowledged record can be lost by it (`cut_off.py`).
Source: KIP-497; KIP-841; KIP-903; KIP-966 "Strict min ISR"; Kafka, Partition.scala.
"""

from __future__ import annotations

from collections.abc import Iterable

from brokerd.partition.cut_off import CutOff
from brokerd.partition.effects import (
    AcceptSubscription,
    DivergeSubscription,
    Effect,
    EndSubscription,
    ProposedMember,
    Resign,
)
from brokerd.partition.events import BrokerState
from brokerd.partition.isr_state import IsrState
from brokerd.partition.leader_events import FollowerAcked, FollowerLost, FollowerSubscribed
from brokerd.partition.log_state import LogState
from brokerd.partition.progress import FollowerProgress
from brokerd.partition.reconciliation import SubscriptionError, compared
from metaquorum.metadata.state import PartitionImage


class Leadership:
    """One leadership of this replica.

    Args:
        node_id: this broker.
        partition: the state that made it the leader.
        min_isr: the topic's `min.insync.replicas`.
        brokers: the brokers of the replicas.
        log: the own log.
        lag_max_ms: how long an in-sync replica may lag.
        proposal_count: number of the last proposal of an earlier leadership.
        now_ms: monotonic time in milliseconds.

    Attributes:
        isr: the in-sync replicas.
        followers: the progress of each other replica; read-only for others.
        epoch_start_offset: log end when the leadership began; everything that an earlier leader committed is below it.
    """

    __slots__ = (
        "_brokers",
        "_cut_off",
        "_lag_max_ms",
        "_log",
        "_node_id",
        "epoch_start_offset",
        "followers",
        "isr",
    )

    def __init__(
        self,
        *,
        node_id: int,
        partition: PartitionImage,
        min_isr: int,
        brokers: Iterable[BrokerState],
        log: LogState,
        lag_max_ms: int,
        proposal_count: int,
        now_ms: int,
    ) -> None:
        self._node_id = node_id
        self._log = log
        self._lag_max_ms = lag_max_ms
        self.epoch_start_offset = log.log_end_offset
        self.isr = IsrState(partition, min_isr=min_isr, proposal_count=proposal_count)
        self._brokers = {broker.node_id: broker for broker in brokers}
        self.followers: dict[int, FollowerProgress] = {}
        self._follow_replicas(now_ms)
        self._cut_off = CutOff()
        self._note_company(now_ms)

    def take_state(
        self, partition: PartitionImage, *, min_isr: int, brokers: Iterable[BrokerState], now_ms: int
    ) -> list[Effect]:
        """Apply a newer state of the same leadership."""
        before = self.isr.partition.isr
        self.isr.take_state(partition, min_isr=min_isr)
        gone = [node_id for node_id in self.followers if node_id not in partition.replicas]
        effects: list[Effect] = []
        for node_id in gone:
            effects += self._end(self.followers.pop(node_id), SubscriptionError.NOT_A_REPLICA)
        self._follow_replicas(now_ms)
        for follower in self.followers.values():
            if follower.node_id in partition.isr and follower.node_id not in before:
                follower.grace_ms = (
                    now_ms  # a member that joined at the high watermark has the whole lag time from here on
                )
        for broker in brokers:
            effects += self.note_broker(broker, now_ms)
        self._note_company(now_ms)
        return effects

    def note_broker(self, broker: BrokerState, now_ms: int) -> list[Effect]:
        """Note the state of a broker in the metadata; offsets of its earlier process no longer count."""
        known = self._brokers.get(broker.node_id)
        if known is not None and broker.broker_epoch < known.broker_epoch:
            return []
        self._brokers[broker.node_id] = broker
        self.isr.note_broker_epoch(broker.node_id, broker.broker_epoch)
        follower = self.followers.get(broker.node_id)
        effects: list[Effect] = []
        if follower is not None and follower.broker_epoch is not None and follower.broker_epoch < broker.broker_epoch:
            effects = self._end(follower, SubscriptionError.STALE_BROKER_EPOCH)
            follower.forget()
            follower.grace_ms = now_ms  # the new process has the whole lag time to subscribe
        self._note_company(now_ms)
        return effects

    def note_log_growth(self, *, old_end_offset: int, now_ms: int) -> None:
        """Note that the own log has grown."""
        for follower in self.followers.values():
            follower.note_log_growth(
                self._counted(follower),
                old_end_offset=old_end_offset,
                log_end_offset=self._log.log_end_offset,
                now_ms=now_ms,
            )

    def subscribe(self, event: FollowerSubscribed, now_ms: int) -> list[Effect]:
        """Answer a subscription."""
        follower = self.followers.get(event.node_id)
        error = self._fence(event, follower)
        if error is not None or follower is None:
            refusal = error or SubscriptionError.NOT_A_REPLICA
            return [_refused(event, refusal)]
        parting = compared(
            last_epoch=event.last_epoch,
            follower_end_offset=event.log_end_offset,
            epoch_end=event.epoch_end,
            hidden_from=event.hidden_from,
            log_start_offset=event.log_start_offset,
            log_end_offset=self._log.log_end_offset,
        )
        follower.begin(event, is_accepted=parting is None)
        self._note_company(now_ms)
        if isinstance(parting, SubscriptionError):
            return [_refused(event, parting)]
        node_id, broker_epoch, session = event.node_id, event.broker_epoch, event.session
        if parting is not None:
            return [
                DivergeSubscription(node_id=node_id, broker_epoch=broker_epoch, session=session, leader_end=parting)
            ]
        self._note_counted(follower, now_ms)
        return [
            AcceptSubscription(
                node_id=node_id, broker_epoch=broker_epoch, session=session, high_watermark=self._log.high_watermark
            )
        ]

    def acknowledge(self, event: FollowerAcked, now_ms: int) -> list[Effect]:
        """Count an acknowledgement."""
        follower = self.followers.get(event.node_id)
        if follower is None or not follower.is_of(event) or not follower.is_subscribed:
            return []
        if not event.flushed_offset <= event.appended_offset <= self._log.log_end_offset:
            effects = self._end(follower, SubscriptionError.INVALID_ACK)
            follower.forget()
            self._note_company(now_ms)
            return effects
        follower.acknowledge(event)
        self._note_counted(follower, now_ms)
        return []

    def lose(self, event: FollowerLost, now_ms: int) -> None:
        """Note the end of a subscription; the follower's offsets stay valid."""
        follower = self.followers.get(event.node_id)
        if follower is not None and follower.is_of(event):
            follower.is_subscribed = False
            self._note_company(now_ms)

    def committed_end(self) -> int | None:
        """Return the end (exclusive) of what is committed; None: the high watermark does not move."""
        if self.isr.is_below_min:
            return None
        return self._least(self._log.counted_offset, is_flush_counted=self._log.is_flush_counted)

    def flushed_end(self) -> int | None:
        """Return the end (exclusive) of what all maximal in-sync replicas have on stable storage; None: unknown."""
        return self._least(self._log.flushed_offset, is_flush_counted=True)

    def is_in_sync(self, node_id: int) -> bool:
        """Tell whether a follower is among the maximal in-sync replicas; traffic to others is catch-up traffic."""
        return node_id in self.isr.maximal

    def broker_epoch_of(self, node_id: int) -> int | None:
        """Return the broker epoch of a broker in the metadata; None: it is not registered."""
        broker = self._brokers.get(node_id)
        return None if broker is None else broker.broker_epoch

    def deadline_ms(self) -> int | None:
        """Return when time alone may change who should be in sync, or make the leader resign."""
        if self.isr.is_proposing or self.isr.is_waiting:
            return None
        due_ms, resign_ms = self.isr.deadline_ms(), self._resign_ms()
        if due_ms is None:
            lags = [
                follower.behind_since_ms + self._lag_max_ms + 1
                for follower in self.followers.values()
                if follower.node_id in self.isr.partition.isr and self._counted(follower) != self._log.log_end_offset
            ]
            due_ms = min(lags, default=None)
        return min((at_ms for at_ms in (due_ms, resign_ms) if at_ms is not None), default=None)

    def propose(self, now_ms: int) -> list[Effect]:
        """Propose other in-sync replicas if some lag or others have caught up, and no proposal is under way."""
        if not self.isr.may_propose(now_ms):
            return []
        committed = self.isr.partition.isr
        since_ms = now_ms - self._lag_max_ms
        leaving = [follower.node_id for follower in self.followers.values() if self._lags(follower, since_ms)]
        joining = [follower.node_id for follower in self.followers.values() if self._may_join(follower, since_ms)]
        if not leaving and not joining:
            return []
        members = tuple(
            ProposedMember(node_id=node_id, broker_epoch=self.broker_epoch_of(node_id))
            for node_id in self.isr.partition.replicas
            if node_id == self._node_id
            or node_id in joining
            or (node_id in committed and node_id not in leaving and self._is_fit(node_id))
        )
        return [self.isr.propose(members)]

    def resign(self, now_ms: int) -> list[Effect]:
        """Resign if this leader is isolated, can commit nothing, and no acknowledged record can be lost."""
        due_ms = self._resign_ms()
        if due_ms is None or now_ms < due_ms:
            return []
        self._cut_off.note_asked(now_ms)
        return [Resign(leader_epoch=self.isr.partition.leader_epoch)]

    @property
    def has_committed_all(self) -> bool:
        """True if everything is committed that this leader, or perhaps an earlier one, has acknowledged."""
        return self._log.high_watermark >= max(self.epoch_start_offset, self._log.acknowledged_end)

    def end(self, error: SubscriptionError) -> list[Effect]:
        """End all subscriptions, because the leadership is over."""
        return [effect for follower in self.followers.values() for effect in self._end(follower, error)]

    def _resign_ms(self) -> int | None:
        """Return when the leader resigns; None: not in the present state."""
        isr = self.isr
        if self._cut_off.since_ms is None or not isr.is_below_min or isr.is_proposing or isr.is_waiting:
            return None
        if not self.has_committed_all:
            return None
        return self._cut_off.due_ms()

    def _note_company(self, now_ms: int) -> None:
        """Note whether enough replicas are subscribed, and whether one without a subscription could lead instead."""
        partition, company = self.isr.partition, 1
        is_heir_away = False
        for follower in self.followers.values():
            if follower.is_subscribed:
                company += 1
            elif follower.node_id in partition.isr or follower.node_id in partition.elr:
                is_heir_away = is_heir_away or self._is_fit(follower.node_id)
        is_short = company < self.isr.needed
        if not is_short:
            self._cut_off.had_company = True
        self._cut_off.note(is_isolated=is_short and is_heir_away, now_ms=now_ms)

    def _follow_replicas(self, now_ms: int) -> None:
        """Begin to follow the progress of new replicas; in-sync ones have the whole lag time to show it."""
        for node_id in self.isr.partition.replicas:
            if node_id != self._node_id and node_id not in self.followers:
                self.followers[node_id] = FollowerProgress(
                    node_id, now_ms=now_ms, log_end_offset=self._log.log_end_offset
                )

    def _fence(self, event: FollowerSubscribed, follower: FollowerProgress | None) -> SubscriptionError | None:
        leader_epoch = self.isr.partition.leader_epoch
        if event.leader_epoch != leader_epoch:
            is_old = event.leader_epoch < leader_epoch
            return SubscriptionError.FENCED_LEADER_EPOCH if is_old else SubscriptionError.UNKNOWN_LEADER_EPOCH
        if follower is None:
            return SubscriptionError.NOT_A_REPLICA
        registered = self._brokers.get(event.node_id)
        if registered is None or event.broker_epoch > registered.broker_epoch:
            return SubscriptionError.UNKNOWN_BROKER_EPOCH
        if event.broker_epoch < registered.broker_epoch:
            return SubscriptionError.STALE_BROKER_EPOCH
        if event.broker_epoch == follower.broker_epoch and event.session <= (follower.session or 0):
            return SubscriptionError.SUPERSEDED
        if not 0 <= event.flushed_offset <= event.log_end_offset:
            return SubscriptionError.INVALID_ACK
        return None

    def _counted(self, follower: FollowerProgress) -> int | None:
        return follower.counted_offset(is_flush_counted=self._log.is_flush_counted)

    def _note_counted(self, follower: FollowerProgress, now_ms: int) -> None:
        counted = self._counted(follower)
        assert counted is not None, f"follower {follower.node_id} has said nothing"
        follower.note_counted(counted, log_end_offset=self._log.log_end_offset, now_ms=now_ms)

    def _least(self, own_offset: int, *, is_flush_counted: bool) -> int | None:
        """Return the smallest offset over the maximal in-sync replicas; None if one of them is unknown."""
        least = own_offset
        for node_id in self.isr.maximal:
            if node_id == self._node_id:
                continue
            offset = self.followers[node_id].counted_offset(is_flush_counted=is_flush_counted)
            if offset is None:
                return None
            least = min(least, offset)
        return least

    def _lags(self, follower: FollowerProgress, since_ms: int) -> bool:
        is_behind = self._counted(follower) != self._log.log_end_offset
        return follower.node_id in self.isr.partition.isr and is_behind and follower.behind_since_ms < since_ms

    def _may_join(self, follower: FollowerProgress, since_ms: int) -> bool:
        if follower.node_id in self.isr.partition.isr or not follower.is_subscribed:
            return False
        broker, counted = self._brokers.get(follower.node_id), self._counted(follower)
        if broker is None or not broker.can_lead or broker.broker_epoch != follower.broker_epoch:
            return False
        if counted is None or counted < max(self._log.high_watermark, self.epoch_start_offset):
            return False
        # Below min ISR nothing is committed although the log may grow, so a follower at the high watermark may be far
        # behind.
        return not self.isr.is_below_min or follower.has_caught_up(
            counted, log_end_offset=self._log.log_end_offset, since_ms=since_ms
        )

    def _is_fit(self, node_id: int) -> bool:
        broker = self._brokers.get(node_id)
        return broker is not None and broker.can_lead

    def _end(self, follower: FollowerProgress, error: SubscriptionError) -> list[Effect]:
        if not follower.is_subscribed or follower.session is None or follower.broker_epoch is None:
            return []
        follower.is_subscribed = False
        return [
            EndSubscription(
                node_id=follower.node_id, broker_epoch=follower.broker_epoch, session=follower.session, error=error
            )
        ]


def _refused(event: FollowerSubscribed, error: SubscriptionError) -> EndSubscription:
    return EndSubscription(node_id=event.node_id, broker_epoch=event.broker_epoch, session=event.session, error=error)
