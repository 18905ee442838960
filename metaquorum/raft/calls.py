# SPDX-License-Identifier: Apache-2.0
"""One repeated call to one peer.

Owns the times of such a call: a time limit for the request under way, a growing pause after failures in a row, and the requests
whose time has passed. Knows neither peer nor request.
A request that is late is sent again, and the first answer to any of them counts: its time says when to repeat it, for it may be
lost, and not that its answer is of no use, for peer and network may be slow.
"""

from __future__ import annotations

from metaquorum.raft.config import RaftConfig

_MAX_DOUBLINGS = 16


class PeerCall:
    """State of one repeated call."""

    __slots__ = ("_expires_at_ms", "_failures", "_late", "ready_at_ms", "request_id")

    def __init__(self, ready_at_ms: int) -> None:
        self.request_id: int | None = None
        self.ready_at_ms = ready_at_ms
        self._expires_at_ms = ready_at_ms
        self._failures = 0
        self._late: list[int] = []

    @property
    def deadline_ms(self) -> int:
        """When something is due: the request under way expires, or the next may be sent."""
        return self.ready_at_ms if self.request_id is None else self._expires_at_ms

    @property
    def failure_count(self) -> int:
        """Requests in a row, up to now, that were of no use or are late."""
        return self._failures

    def is_ready(self, now_ms: int) -> bool:
        """Whether a request may be sent."""
        return self.request_id is None and now_ms >= self.ready_at_ms

    def awaits(self, request_id: int) -> bool:
        """Whether the answer to this request counts: it is under way, or late."""
        return request_id == self.request_id or request_id in self._late

    def start(self, request_id: int, *, now_ms: int, timeout_ms: int) -> None:
        """A request is under way, and is late after timeout_ms."""
        assert self.request_id is None, f"request {request_id} while {self.request_id} is under way"
        self.request_id = request_id
        self._expires_at_ms = now_ms + timeout_ms

    def succeed(self, *, ready_at_ms: int) -> None:
        """A request was answered; the next may be sent from ready_at_ms on. Other answers count no more."""
        self.request_id = None
        self._late.clear()
        self.ready_at_ms = ready_at_ms
        self._failures = 0

    def poll(self, *, now_ms: int, config: RaftConfig) -> None:
        """Have the request under way repeated if it is late."""
        if self.request_id is not None and now_ms >= self._expires_at_ms:
            self._late = [*self._late, self.request_id][-config.max_late_requests :]
            self._pause(now_ms, config)

    def fail(self, request_id: int | None, *, now_ms: int, config: RaftConfig) -> None:
        """A request was of no use; the next may be sent after a pause that doubles each time, within bounds.

        Of one that is late already nothing more is expected, and nothing else changes. None: what came after the answer was of
        no use.
        """
        if request_id in self._late:
            self._late.remove(request_id)
        else:
            assert request_id in (None, self.request_id), f"request {request_id} is not under way"
            self._pause(now_ms, config)

    def _pause(self, now_ms: int, config: RaftConfig) -> None:
        self.request_id = None
        pause_ms = config.retry_backoff_ms << min(self._failures, _MAX_DOUBLINGS)
        self.ready_at_ms = now_ms + min(pause_ms, config.retry_backoff_ms_max)
        self._failures += 1
