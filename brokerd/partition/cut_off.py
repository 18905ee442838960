# SPDX-License-Identifier: Apache-2.0
"""Whether a leader is cut off from followers that live, and when it asks that another replica leads.

Theory of operation. A leader that reaches the controller but not its followers leads on as far as the controller is concerned,
and can commit nothing once they have left the in-sync replicas. They are alive for the controller and eligible, and may reach
each other. So the leader that is *deserted* (too few have a subscription, and one without could lead) for `RESIGN_AFTER_MS`, with too
few in sync, asks for another leader, and again every `RESIGN_RETRY_MS` while that holds.

Laws
    A leader resigns only if enough followers reached it once in this leadership: the next one has to show first that it is of
    more use, and the leadership does not go round where nobody reaches anybody, or followers take long to subscribe.
    It does not while records that it alone acknowledged (acks=1) are not committed: they would go with it.
Source: docs/replication.md section "Stepping down".
"""

from __future__ import annotations

from brokerd.limits import RESIGN_AFTER_MS, RESIGN_RETRY_MS


class CutOff:
    """See the module docstring; of one leadership.

    Attributes:
        since_ms: since when the leader is deserted; None: it is not.
        had_company: True once enough followers had a subscription.
    """

    __slots__ = ("_retry_after_ms", "had_company", "since_ms")

    def __init__(self) -> None:
        self.since_ms: int | None = None
        self.had_company = False
        self._retry_after_ms = 0

    def note(self, *, is_deserted: bool, now_ms: int) -> None:
        """Learn whether the leader is deserted."""
        if not is_deserted:
            self.since_ms = None
        elif self.since_ms is None:
            self.since_ms = now_ms

    def due_ms(self) -> int | None:
        """Return when another leader is to be asked for, if nothing else speaks against it; None: not for now."""
        if self.since_ms is None or not self.had_company:
            return None
        return max(self.since_ms + RESIGN_AFTER_MS, self._retry_after_ms)

    def note_asked(self, now_ms: int) -> None:
        """Learn that another leader was asked for."""
        self._retry_after_ms = now_ms + RESIGN_RETRY_MS
