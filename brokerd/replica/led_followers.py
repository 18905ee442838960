# SPDX-License-Identifier: Apache-2.0
"""The followers of one replica that leads, as their streams see it (`LedReplica`).

Owns the way from (follower, its process, its session) to the route, and what of the log the followers read. Must not decide
anything: the core does.
"""

from __future__ import annotations

from typing import Protocol

from lograft.wire.header import read_header

from brokerd.failure import Failure, RefusedError
from brokerd.partition.effects import AcceptSubscription, DivergeSubscription, EndSubscription
from brokerd.partition.events import Event
from brokerd.partition.leader_events import FollowerAcked, FollowerLost, FollowerSubscribed
from brokerd.partition.reconciliation import EpochEnd
from brokerd.replica.follower_route import FollowerRead, FollowerRequest, FollowerRoute
from brokerd.replica.listening import client_text
from storage.errors import StorageError
from storage.log.partition_log import PartitionLog

SubscriptionAnswer = AcceptSubscription | DivergeSubscription | EndSubscription
"""What a leader's core says about a subscription."""

_Key = tuple[int, int, int]


class FollowersOwner(Protocol):
    """The hosted replica; `str` names the partition."""

    @property
    def log(self) -> PartitionLog:
        """The log."""
        ...

    @property
    def high_watermark(self) -> int:
        """End (exclusive) of what is committed."""
        ...

    @property
    def in_sync(self) -> tuple[int, ...]:
        """Node ids of the maximal in-sync replicas; another object after every change."""
        ...

    def take_event(self, event: Event) -> None:
        """Give an event to the core."""
        ...


class LedFollowers:
    """See the module docstring; made with the first subscription, so that an idle replica does not pay for it."""

    __slots__ = ("_accepted", "_are_in_sync", "_asking", "_in_sync", "_owner")

    def __init__(self, owner: FollowersOwner) -> None:
        self._owner = owner
        self._asking: dict[_Key, FollowerRoute] = {}
        self._accepted: dict[_Key, FollowerRoute] = {}
        # What the routes know: of each one, and the core's tuple from which that is.
        self._are_in_sync: dict[_Key, bool] = {}
        self._in_sync: tuple[int, ...] = ()

    def __len__(self) -> int:
        return len(self._asking) + len(self._accepted)

    @property
    def log_start_offset(self) -> int:
        """First offset of the log (inclusive)."""
        return self._owner.log.log_start_offset

    @property
    def log_end_offset(self) -> int:
        """End of the log (exclusive)."""
        return self._owner.log.log_end_offset

    @property
    def high_watermark(self) -> int:
        """End (exclusive) of what is committed."""
        return self._owner.high_watermark

    def subscribe_follower(self, route: FollowerRoute, request: FollowerRequest) -> None:
        """Take a subscription; the route is answered, before this returns or later, by accepted, diverged or ended."""
        log = self._owner.log
        self._asking[_key(route)] = route
        known = None if request.last_epoch is None else log.end_offset_for_epoch(request.last_epoch)
        self._owner.take_event(
            FollowerSubscribed(
                node_id=route.node_id,
                broker_epoch=route.broker_epoch,
                session=route.session,
                leader_epoch=request.leader_epoch,
                log_end_offset=request.log_end_offset,
                flushed_offset=request.flushed_offset,
                last_epoch=request.last_epoch,
                epoch_end=None if known is None else EpochEnd(known.epoch, known.end_offset),
                hidden_from=None if known is None else log.hidden_from(known.end_offset),
                log_start_offset=log.log_start_offset,
            )
        )

    def ack_follower(self, route: FollowerRoute, *, appended_offset: int, flushed_offset: int) -> None:
        """Learn what the follower holds; passed over for a route that is over."""
        if self._accepted.get(_key(route)) is route:
            self._owner.take_event(
                FollowerAcked(
                    node_id=route.node_id,
                    broker_epoch=route.broker_epoch,
                    session=route.session,
                    appended_offset=appended_offset,
                    flushed_offset=flushed_offset,
                )
            )

    def lose_follower(self, route: FollowerRoute) -> None:
        """Learn that the route is over from the follower's side, or that its stream broke; the route is told nothing more."""
        key = _key(route)
        for routes in (self._asking, self._accepted):
            if routes.get(key) is route:
                del routes[key]
                self._are_in_sync.pop(key, None)
                lost = FollowerLost(node_id=route.node_id, broker_epoch=route.broker_epoch, session=route.session)
                self._owner.take_event(lost)

    def read_for_follower(self, offset: int, max_bytes: int) -> FollowerRead:
        """Read from the batch that begins at `offset` on, up to the log end, of one leader epoch; at least one batch.

        Raises:
            RefusedError: out of range, damaged, or the disk does not give the bytes.
        """
        log = self._owner.log
        try:
            found = log.read(offset, max_bytes, end_offset=log.epoch_end_at(offset))
            leader_epoch = log.epoch_at(offset)
            if leader_epoch is None:
                # All of it was damaged and came back: the headers alone tell, and one may differ from the next.
                found = log.read(offset, 1, end_offset=log.log_end_offset)
                leader_epoch = read_header(found.data).leader_epoch
        except StorageError as error:
            raise RefusedError(Failure(code=error.code, message=client_text(error))) from error
        return FollowerRead(
            data=found.data, base_offset=offset, next_offset=found.next_offset, leader_epoch=leader_epoch
        )

    def answer(self, effect: SubscriptionAnswer) -> None:
        """Hand on what the core says about a subscription; nothing happens when its route is gone."""
        key = (effect.node_id, effect.broker_epoch, effect.session)
        log_start_offset = self._owner.log.log_start_offset
        if isinstance(effect, AcceptSubscription):
            route = self._asking.pop(key, None)
            if route is not None:
                self._accepted[key] = route
                self._are_in_sync[key] = is_in_sync = effect.node_id in self._owner.in_sync
                route.on_accepted(
                    high_watermark=effect.high_watermark, log_start_offset=log_start_offset, is_in_sync=is_in_sync
                )
            return
        route = self._asking.pop(key, None) or self._accepted.pop(key, None)
        self._are_in_sync.pop(key, None)
        if route is None:
            return
        if isinstance(effect, DivergeSubscription):
            route.on_diverged(effect.leader_end)
        else:
            route.on_ended(effect.error, log_start_offset=log_start_offset)

    def tell_growth(self, log_end_offset: int) -> None:
        """Tell every follower that there is more to send."""
        for route in self._accepted.values():
            route.on_log_grown(log_end_offset)

    def tell_marks(self) -> None:
        """Tell every follower what is committed, and where the log begins."""
        high_watermark, log_start_offset = self.high_watermark, self.log_start_offset
        for route in self._accepted.values():
            route.on_marks(high_watermark=high_watermark, log_start_offset=log_start_offset)

    def tell_in_sync(self) -> None:
        """Tell the followers which class their traffic has, if that may have changed."""
        in_sync = self._owner.in_sync
        if in_sync is self._in_sync:
            return
        self._in_sync = in_sync
        for key, route in self._accepted.items():
            is_in_sync = route.node_id in in_sync
            if is_in_sync is not self._are_in_sync[key]:
                self._are_in_sync[key] = is_in_sync
                route.on_traffic(is_in_sync=is_in_sync)


def _key(route: FollowerRoute) -> _Key:
    return route.node_id, route.broker_epoch, route.session
