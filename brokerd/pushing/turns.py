# SPDX-License-Identifier: Apache-2.0
"""Whose turn it is on one stream: two queues of routes with something to send, two credits, one rate.

Routes of followers that are in sync go first, one chunk a turn each. The others are served while nobody of the first has
both something to send and credit, and one `CATCH_UP_TURN_BYTES` after each `CATCH_UP_EVERY_BYTES` of the first, so that
they never stop. Credit is spent by the bytes really sent: while any is left, a message may take more.

Law: a route without anything to send is in no queue and costs nothing.
Source: docs/replication.md, "Credits" and "Fairness".
"""

from __future__ import annotations

from collections import OrderedDict

from brokerd.limits import CATCH_UP_EVERY_BYTES, CATCH_UP_TURN_BYTES, MAX_CREDIT_BYTES
from brokerd.pushing.rate import CatchUpRate


class Turns:
    """See the module docstring.

    Args:
        rate: of catch-up traffic, shared by all streams of the leader.
    """

    __slots__ = (
        "_catch_up",
        "_catch_up_credit_bytes",
        "_in_sync",
        "_in_sync_credit_bytes",
        "_is_held",
        "_owed_bytes",
        "_rate",
        "_since_turn_bytes",
    )

    def __init__(self, rate: CatchUpRate) -> None:
        self._rate = rate
        self._in_sync: OrderedDict[int, None] = OrderedDict()
        self._catch_up: OrderedDict[int, None] = OrderedDict()
        self._in_sync_credit_bytes = 0
        self._catch_up_credit_bytes = 0
        self._since_turn_bytes = 0
        # What is left of the turn that catch-up routes have earned, before in-sync routes are looked at again.
        self._owed_bytes = 0
        # True after the rate alone held a catch-up route back.
        self._is_held = False

    @property
    def is_anybody_waiting(self) -> bool:
        """True while a route has something to send, whether it may or not."""
        return bool(self._in_sync or self._catch_up)

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

    def add(self, route: int, *, is_in_sync: bool) -> None:
        """Put a route at the end of its queue, unless it waits there."""
        (self._in_sync if is_in_sync else self._catch_up)[route] = None

    def remove(self, route: int, *, is_in_sync: bool) -> None:
        """Take a route out of its queue, if it waits there."""
        (self._in_sync if is_in_sync else self._catch_up).pop(route, None)

    def move(self, route: int, *, is_in_sync: bool) -> None:
        """Let a route wait in the queue of the other class, if it waits."""
        if (self._catch_up if is_in_sync else self._in_sync).pop(route, 0) is None:
            self.add(route, is_in_sync=is_in_sync)

    def take(self, now_ms: int) -> int | None:
        """Take the route whose turn it is out of its queue; None: nobody may send."""
        can_send_in_sync = bool(self._in_sync) and self._in_sync_credit_bytes > 0
        if can_send_in_sync and self._owed_bytes <= 0:
            return self._in_sync.popitem(last=False)[0]
        if self._catch_up and self._catch_up_credit_bytes > 0:
            self._is_held = not self._rate.is_open(now_ms)
            if not self._is_held:
                return self._catch_up.popitem(last=False)[0]
        return self._in_sync.popitem(last=False)[0] if can_send_in_sync else None

    def spend(self, size_bytes: int, *, is_in_sync: bool) -> None:
        """Take what was sent off the credit of its class."""
        if not is_in_sync:
            self._catch_up_credit_bytes -= size_bytes
            self._owed_bytes = max(self._owed_bytes - size_bytes, 0)
            self._rate.spend(size_bytes)
            return
        self._in_sync_credit_bytes -= size_bytes
        self._since_turn_bytes += size_bytes
        if self._since_turn_bytes >= CATCH_UP_EVERY_BYTES:
            self._since_turn_bytes = 0
            self._owed_bytes = CATCH_UP_TURN_BYTES

    def look(self, now_ms: int) -> None:
        """Look whether the rate still holds a route back."""
        self._is_held = self._is_held and not self._rate.is_open(now_ms)

    def deadline_ms(self) -> int | None:
        """Return when to `look` at what the rate alone holds back; None: time alone changes nothing."""
        can_be_held = bool(self._catch_up) and self._catch_up_credit_bytes > 0
        return self._rate.due_ms() if self._is_held and can_be_held else None
