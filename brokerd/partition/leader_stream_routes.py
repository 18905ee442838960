# SPDX-License-Identifier: Apache-2.0
"""The routes of one stream: which numbers are bound, to which partitions, and how far each was sent.

Law: a number is bound once in the life of a stream; a partition has one route at a time, the newest.
"""

from __future__ import annotations

from brokerd.limits import MAX_ROUTES_PER_REPLICATE_STREAM
from brokerd.partition.leader_stream_events import Subscription
from brokerd.partition.leader_stream_traffic import Traffic


class PushRoute:
    """A route that is bound.

    Attributes:
        key: topic id and partition.
        acked_offset: everything below is in the follower's log, as it said last (exclusive).
        flushed_offset: everything below is on its stable storage, as it said last (exclusive).
        next_offset: where the next message begins; everything below was sent, or was there (exclusive).
        log_end_offset: of the leader (exclusive).
        high_watermark: of the leader (exclusive).
        log_start_offset: of the leader (inclusive).
        is_accepted: True once the replica has accepted the subscription.
        traffic: what it is for, and so whose credit it spends.
    """

    __slots__ = (
        "acked_offset",
        "flushed_offset",
        "high_watermark",
        "is_accepted",
        "key",
        "log_end_offset",
        "log_start_offset",
        "next_offset",
        "traffic",
    )

    def __init__(self, subscription: Subscription) -> None:
        self.key = (subscription.topic_id, subscription.partition)
        self.acked_offset = self.next_offset = subscription.log_end_offset
        self.flushed_offset = subscription.flushed_offset
        self.log_end_offset = 0
        self.high_watermark = 0
        self.log_start_offset = 0
        self.is_accepted = False
        self.traffic = Traffic.CATCH_UP

    def take_ack(self, appended_offset: int, flushed_offset: int) -> bool:
        """Take what the follower says it holds; False: it cannot be, as it was not sent that much, or it held more before."""
        is_sound = (
            self.acked_offset <= appended_offset <= self.next_offset
            and self.flushed_offset <= flushed_offset <= appended_offset
        )
        if is_sound:
            self.acked_offset, self.flushed_offset = appended_offset, flushed_offset
        return is_sound

    @property
    def is_ready(self) -> bool:
        """True while there is something to send."""
        return self.is_accepted and self.next_offset < self.log_end_offset


class RouteTable:
    """The routes by number and by partition, and the numbers that were used."""

    __slots__ = ("_by_key", "_routes", "_used")

    def __init__(self) -> None:
        self._routes: dict[int, PushRoute] = {}
        self._by_key: dict[tuple[bytes, int], int] = {}
        # One bit for each number, as far as the highest one.
        self._used = bytearray()

    def __len__(self) -> int:
        return len(self._routes)

    def get(self, number: int) -> PushRoute | None:
        """Return the route of a number, if it is bound."""
        return self._routes.get(number)

    def number_of(self, topic_id: bytes, partition: int) -> int | None:
        """Return the number that a partition is bound to."""
        return self._by_key.get((topic_id, partition))

    def use(self, number: int) -> bool:
        """Use up a number below the limit; False if it was used before."""
        assert 0 <= number < MAX_ROUTES_PER_REPLICATE_STREAM, f"route {number}"
        place, bit = number >> 3, 1 << (number & 7)
        if place >= len(self._used):
            self._used.extend(bytes(place + 1 - len(self._used)))
        if self._used[place] & bit:
            return False
        self._used[place] |= bit
        return True

    def bind(self, number: int, route: PushRoute) -> None:
        """Bind a number to a route whose partition has no other."""
        assert route.key not in self._by_key, f"route {self._by_key.get(route.key)} has the partition of route {number}"
        self._routes[number] = route
        self._by_key[route.key] = number

    def pop(self, number: int) -> PushRoute | None:
        """Take out the route of a number, if it is bound."""
        route = self._routes.pop(number, None)
        if route is not None:
            del self._by_key[route.key]
        return route
