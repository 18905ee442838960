# SPDX-License-Identifier: Apache-2.0
"""Detects an isolated leader, and decides when it resigns.

Theory of operation. A leader that reaches the controller but not its followers keeps the leadership, because the
controller trusts it. Once its followers have left the in-sync replicas, it can commit nothing. For the controller the
followers are alive and eligible, and they may reach each other. A leader is *isolated* when too few
followers have a subscription and one without a subscription could lead. If it is isolated for `RESIGN_AFTER_MS` and too
few replicas are in sync, it resigns, and again every `RESIGN_RETRY_MS` while that holds.

Laws
    A leader resigns only if enough followers were subscribed at least once in this leadership. So the next leader must
    first show that it is of more use. Otherwise the leadership would circulate where no broker reaches another, or
    where followers take long to subscribe.
    A leader does not resign while records that it alone acknowledged (acks=1) are uncommitted, because they would be
    lost.
Source: docs/replication.md section "Stepping down".
"""

from __future__ import annotations

from brokerd.limits import RESIGN_AFTER_MS, RESIGN_RETRY_MS


class CutOff:
    """The state of the isolation check, for one leadership.

    Attributes:
        since_ms: time since which the leader is isolated; None: it is not.
        had_company: True once enough followers had a subscription.
    """

    __slots__ = ("_retry_after_ms", "had_company", "since_ms")

    def __init__(self) -> None:
        self.since_ms: int | None = None
        self.had_company = False
        self._retry_after_ms = 0

    def note(self, *, is_isolated: bool, now_ms: int) -> None:
        """Note whether the leader is isolated."""
        if not is_isolated:
            self.since_ms = None
        elif self.since_ms is None:
            self.since_ms = now_ms

    def due_ms(self) -> int | None:
        """Return when the leader may resign, if no other rule forbids it; None: not now."""
        if self.since_ms is None or not self.had_company:
            return None
        return max(self.since_ms + RESIGN_AFTER_MS, self._retry_after_ms)

    def note_asked(self, now_ms: int) -> None:
        """Note that the leader has resigned."""
        self._retry_after_ms = now_ms + RESIGN_RETRY_MS
