# SPDX-License-Identifier: Apache-2.0
"""One repeated call to one peer.

Owns the times of such a call: at most one request under way, a time limit for it, a growing pause after failures.
Knows neither peer nor request.
"""

from __future__ import annotations

from metaquorum.raft.config import RaftConfig

_MAX_DOUBLINGS = 16


class PeerCall:
    """State of one repeated call."""

    __slots__ = ("_expires_at_ms", "_failures", "ready_at_ms", "request_id")

    def __init__(self, ready_at_ms: int) -> None:
        self.request_id: int | None = None
        self.ready_at_ms = ready_at_ms
        self._expires_at_ms = ready_at_ms
        self._failures = 0

    @property
    def deadline_ms(self) -> int:
        """When something is due: the request under way expires, or the next may be sent."""
        return self.ready_at_ms if self.request_id is None else self._expires_at_ms

    def is_ready(self, now_ms: int) -> bool:
        """Whether a request may be sent."""
        return self.request_id is None and now_ms >= self.ready_at_ms

    def is_expired(self, now_ms: int) -> bool:
        """Whether the request under way has had no answer for too long."""
        return self.request_id is not None and now_ms >= self._expires_at_ms

    def start(self, request_id: int, *, now_ms: int, config: RaftConfig) -> None:
        """A request is under way."""
        assert self.request_id is None, f"request {request_id} while {self.request_id} is under way"
        self.request_id = request_id
        self._expires_at_ms = now_ms + config.request_timeout_ms

    def succeed(self, *, ready_at_ms: int) -> None:
        """The request was answered; the next may be sent from ready_at_ms on."""
        self.request_id = None
        self.ready_at_ms = ready_at_ms
        self._failures = 0

    def fail(self, *, now_ms: int, config: RaftConfig) -> None:
        """The request was of no use; the next may be sent after a pause that doubles each time, within bounds."""
        self.request_id = None
        pause_ms = config.retry_backoff_ms << min(self._failures, _MAX_DOUBLINGS)
        self.ready_at_ms = now_ms + min(pause_ms, config.retry_backoff_ms_max)
        self._failures += 1
