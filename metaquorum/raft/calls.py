# SPDX-License-Identifier: Apache-2.0
"""One repeated call to one peer.

Owns the times of such a call: the deadline of the request under way, the pause after failures, which grows, and the late requests.
Knows neither peer nor request.
A late request is sent again, and the first answer to any of them counts. The deadline only says when to repeat a request, because it
may be lost; a late answer is still useful, because peer and network may be slow.
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
        """When the request under way is late, or the next one may be sent, in milliseconds."""
        return self.ready_at_ms if self.request_id is None else self._expires_at_ms

    @property
    def failure_count(self) -> int:
        """Number of consecutive requests until now that failed or are late."""
        return self._failures

    def is_ready(self, now_ms: int) -> bool:
        """Return whether a request may be sent now."""
        return self.request_id is None and now_ms >= self.ready_at_ms

    def awaits(self, request_id: int) -> bool:
        """Return whether an answer to this request counts: it is under way, or late."""
        return request_id == self.request_id or request_id in self._late

    def start(self, request_id: int, *, now_ms: int, timeout_ms: int) -> None:
        """Note that a request was sent. It is late after `timeout_ms`."""
        assert self.request_id is None, f"request {request_id} while {self.request_id} is under way"
        self.request_id = request_id
        self._expires_at_ms = now_ms + timeout_ms

    def succeed(self, *, ready_at_ms: int) -> None:
        """Note an answer. The next request may be sent from `ready_at_ms` on; other answers no longer count."""
        self.request_id = None
        self._late.clear()
        self.ready_at_ms = ready_at_ms
        self._failures = 0

    def poll(self, *, now_ms: int, config: RaftConfig) -> None:
        """Allow the next request if the one under way is late."""
        if self.request_id is not None and now_ms >= self._expires_at_ms:
            self._late = [*self._late, self.request_id][-config.max_late_requests :]
            self._pause(now_ms, config)

    def fail(self, request_id: int | None, *, now_ms: int, config: RaftConfig) -> None:
        """Note a failure. The next request may be sent after a pause that doubles each time, within bounds.

        A failure of a late request changes nothing else. None: the request was answered, but what followed from the answer failed.
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
