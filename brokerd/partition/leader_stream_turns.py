# SPDX-License-Identifier: Apache-2.0
"""Whose turn it is on one stream: three queues of routes with something to send, two credits, two rates.

Routes of followers that are in sync go first, one chunk a turn each. The others are served while nobody of the first has
both something to send and credit, and one `CATCH_UP_TURN_BYTES` after each `CATCH_UP_EVERY_BYTES` of the first, so that
they never stop. Among the others, those that catch up and those that move alternate; what a rate holds back is passed over.
Credit is spent by the bytes really sent: while any is left, a message may take more.

Law: a route without anything to send is in no queue and costs nothing.
Source: docs/replication.md, "Credits", "Fairness" and "Rates".
"""

from __future__ import annotations

from collections import OrderedDict

from brokerd.limits import CATCH_UP_EVERY_BYTES, CATCH_UP_TURN_BYTES, MAX_CREDIT_BYTES, REPLICA_CHUNK_BYTES
from brokerd.partition.leader_stream_rate import ByteRate, PushRates
from brokerd.partition.leader_stream_traffic import Traffic


class Turns:
    """See the module docstring.

    Args:
        rates: of what goes to followers that are out of sync, shared by all streams of the leader.
    """

    __slots__ = (
        "_catch_up_credit_bytes",
        "_held_by",
        "_in_sync_credit_bytes",
        "_is_move_next",
        "_owed_bytes",
        "_queues",
        "_rates",
        "_since_turn_bytes",
    )

    def __init__(self, rates: PushRates) -> None:
        self._rates = rates
        # By kind of traffic.
        self._queues: tuple[OrderedDict[int, None], ...] = tuple(OrderedDict() for _ in Traffic)
        self._in_sync_credit_bytes = 0
        self._catch_up_credit_bytes = 0
        self._since_turn_bytes = 0
        # What is left of the turn that catch-up routes have earned, before in-sync routes are looked at again.
        self._owed_bytes = 0
        self._is_move_next = False
        # The bucket that held a route back when its turn had come.
        self._held_by: ByteRate | None = None

    @property
    def is_anybody_waiting(self) -> bool:
        """True while a route has something to send, whether it may or not."""
        return any(self._queues)

    def credit_bytes(self, *, is_in_sync: bool) -> int:
        """Return what may still be sent of a class; below zero after a message that took more than was left."""
        return self._in_sync_credit_bytes if is_in_sync else self._catch_up_credit_bytes

    def grant(self, *, in_sync_bytes: int, catch_up_bytes: int) -> bool:
        """Take up credit; False, and nothing changes, if it is below zero or brings a sum over the limit."""
        in_sync = self._in_sync_credit_bytes + in_sync_bytes
        catch_up = self._catch_up_credit_bytes + catch_up_bytes
        if in_sync_bytes < 0 or catch_up_bytes < 0 or max(in_sync, catch_up) > MAX_CREDIT_BYTES:
            return False
        self._in_sync_credit_bytes, self._catch_up_credit_bytes = in_sync, catch_up
        return True

    def add(self, route: int, traffic: Traffic) -> None:
        """Put a route at the end of its queue, unless it waits there."""
        self._queues[traffic][route] = None

    def remove(self, route: int, traffic: Traffic) -> None:
        """Take a route out of its queue, if it waits there."""
        self._queues[traffic].pop(route, None)

    def move(self, route: int, traffic: Traffic) -> None:
        """Let a route wait in another queue from now on, if it waits."""
        for queue in self._queues:
            if queue.pop(route, 0) is None:
                self.add(route, traffic)
                return

    def take(self, now_ms: int) -> int | None:
        """Take the route whose turn it is out of its queue; None: nobody may send."""
        in_sync = self._queues[Traffic.IN_SYNC]
        can_send_in_sync = bool(in_sync) and self._in_sync_credit_bytes > 0
        if can_send_in_sync and self._owed_bytes <= 0:
            return in_sync.popitem(last=False)[0]
        if self._catch_up_credit_bytes > 0:
            queue = self._next_queue(now_ms)
            if queue is not None:
                return queue.popitem(last=False)[0]
        return in_sync.popitem(last=False)[0] if can_send_in_sync else None

    def message_bytes(self, traffic: Traffic) -> int:
        """Return how large the next message of a route should be at most."""
        return self._rates.message_bytes(traffic, REPLICA_CHUNK_BYTES)

    def spend(self, size_bytes: int, traffic: Traffic) -> None:
        """Take what was sent off the credit of its class, and out of the buckets."""
        if traffic is not Traffic.IN_SYNC:
            self._catch_up_credit_bytes -= size_bytes
            self._owed_bytes = max(self._owed_bytes - size_bytes, 0)
            self._rates.spend(size_bytes, traffic)
            return
        self._in_sync_credit_bytes -= size_bytes
        self._since_turn_bytes += size_bytes
        if self._since_turn_bytes >= CATCH_UP_EVERY_BYTES:
            self._since_turn_bytes = 0
            self._owed_bytes = CATCH_UP_TURN_BYTES

    def look(self, now_ms: int) -> None:
        """Look whether a rate still holds a route back."""
        if self._held_by is not None and self._held_by.is_open(now_ms):
            self._held_by = None

    def deadline_ms(self) -> int | None:
        """Return when to `look` at what a rate alone holds back; None: time alone changes nothing."""
        is_waiting = bool(self._queues[Traffic.CATCH_UP] or self._queues[Traffic.MOVING])
        if self._held_by is None or not is_waiting or self._catch_up_credit_bytes <= 0:
            return None
        return self._held_by.due_ms()

    def _next_queue(self, now_ms: int) -> OrderedDict[int, None] | None:
        """Return the queue out of sync whose turn it is; the two alternate. None: nobody waits, or the rates hold all of them."""
        self._held_by = None
        kinds = (Traffic.MOVING, Traffic.CATCH_UP) if self._is_move_next else (Traffic.CATCH_UP, Traffic.MOVING)
        for traffic in kinds:
            queue = self._queues[traffic]
            if queue:
                held_by = self._rates.held_by(traffic, now_ms)
                if held_by is None:
                    self._is_move_next = traffic is Traffic.CATCH_UP
                    return queue
                self._held_by = held_by
        return None
