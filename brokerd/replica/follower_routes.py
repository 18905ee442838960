# SPDX-License-Identifier: Apache-2.0
"""The routes of a leader's followers: those that wait for the answer to their subscription, and the accepted ones.

Owns the look-up of a route by (follower, broker epoch, session), and what each accepted route knows of its traffic
class. Only the methods here write this state. Decides nothing: the core does.
"""

from __future__ import annotations

from brokerd.replica.replication_border import FollowerRoute

RouteKey = tuple[int, int, int]
"""Follower, broker epoch of its process, number of its subscription."""


class FollowerRoutes:
    """The routes of one replica; made with the first subscription, so that an idle replica needs no memory for it."""

    __slots__ = ("_accepted", "_are_in_sync", "_asking", "_in_sync")

    def __init__(self) -> None:
        self._asking: dict[RouteKey, FollowerRoute] = {}
        self._accepted: dict[RouteKey, FollowerRoute] = {}
        # The class that each route was told, and the core's tuple that it came from.
        self._are_in_sync: dict[RouteKey, bool] = {}
        self._in_sync: tuple[int, ...] = ()

    def __len__(self) -> int:
        return len(self._asking) + len(self._accepted)

    def ask(self, route: FollowerRoute) -> None:
        """Add a route that waits for the answer to its subscription."""
        self._asking[_key(route)] = route

    def accept(self, key: RouteKey, *, high_watermark: int, log_start_offset: int, is_in_sync: bool) -> None:
        """Accept a subscription; does nothing if its route is gone."""
        route = self._asking.pop(key, None)
        if route is not None:
            self._accepted[key] = route
            self._are_in_sync[key] = is_in_sync
            route.on_accepted(high_watermark=high_watermark, log_start_offset=log_start_offset, is_in_sync=is_in_sync)

    def is_accepted(self, route: FollowerRoute) -> bool:
        """Tell whether a route was accepted and is not over."""
        return self._accepted.get(_key(route)) is route

    def pop(self, key: RouteKey) -> FollowerRoute | None:
        """Remove and return the route of a subscription; None if it is gone."""
        route = self._asking.pop(key, None) or self._accepted.pop(key, None)
        self._are_in_sync.pop(key, None)
        return route

    def discard(self, route: FollowerRoute) -> bool:
        """Remove a route; tell whether it existed."""
        key = _key(route)
        for routes in (self._asking, self._accepted):
            if routes.get(key) is route:
                del routes[key]
                self._are_in_sync.pop(key, None)
                return True
        return False

    def tell_growth(self, log_end_offset: int) -> None:
        """Tell every follower that the log has grown."""
        for route in self._accepted.values():
            route.on_log_grown(log_end_offset)

    def tell_marks(self, *, high_watermark: int, log_start_offset: int) -> None:
        """Tell every follower the high watermark and the log start."""
        for route in self._accepted.values():
            route.on_marks(high_watermark=high_watermark, log_start_offset=log_start_offset)

    def tell_in_sync(self, in_sync: tuple[int, ...]) -> None:
        """Tell the followers the class of their traffic, if it may have changed.

        Args:
            in_sync: node ids of the maximal in-sync replicas; another object after every change.
        """
        if in_sync is self._in_sync:
            return
        self._in_sync = in_sync
        for key, route in self._accepted.items():
            is_in_sync = route.node_id in in_sync
            if is_in_sync is not self._are_in_sync[key]:
                self._are_in_sync[key] = is_in_sync
                route.on_traffic(is_in_sync=is_in_sync)


def _key(route: FollowerRoute) -> RouteKey:
    return route.node_id, route.broker_epoch, route.session
