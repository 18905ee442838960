# SPDX-License-Identifier: Apache-2.0
"""Times and limits of the Raft core. Knows no defaults of deployments beyond those of the design (architecture 7)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RaftConfig:
    """Times in milliseconds, sizes in bytes.

    Attributes:
        election_timeout_ms: a voter without a leader waits from this (inclusive) to twice this (exclusive).
        fetch_timeout_ms: a follower without a valid answer of its leader for so long starts an election.
        leader_gone_ms: the same once the leader refused or said that it resigns: from half of this (inclusive) to
            one and a half times this (exclusive), drawn at random.
        fetch_wait_ms: how long a fetch asks the leader to wait for something to send.
        fetch_wait_ms_max: longest time that a leader parks a fetch, whatever was asked.
        fetch_retry_wait_ms: the same for a fetch after one that failed: it is to show soon whether the leader is there.
        commit_news_ms: a voter with nothing to fetch hears at the latest so long afterwards that the high watermark moved, and an
            observer that keeps up hears of commits in a row at most so often.
        crowd_size: a round of so many proposals (or more) shows that many ask at once; the next one then waits for as many,
            or for some more.
        crowd_wait_ms: but no longer than this after the commit of the last one.
        crowd_hold_rounds: rounds after one that waited for more in vain before more is waited for again.
        spare_wait_ms: a voter that keeps up and that a commit does not need is given the round under way so much later.
        request_timeout_ms: a request without an answer for so long is sent again, a fetch so long after the wait that it asked for; a
            late answer counts until the fetch timeout.
        retry_backoff_ms: first pause after a failed request; doubles up to `retry_backoff_ms_max`.
        retry_backoff_ms_max: longest pause after a failed request.
        shutdown_grace_ms: a stopping leader waits at most so long for its voters to hear of it.
        observer_session_ms: an observer that has not fetched for so long is forgotten.
        max_fetch_bytes: most bytes of batches in one fetch answer; the first batch is sent whatever its size.
        max_batch_bytes: most bytes of one appended batch.
        max_uncommitted_bytes: most bytes that a leader appends beyond the high watermark.
        max_uncommitted_batches: most batches that a leader appends beyond the high watermark.
        max_parked_fetches: most fetches that a leader parks; further ones are answered at once.
        max_observers: most observers that a leader keeps progress of.
        max_held_messages: most messages that wait for the disk; beyond it the oldest is dropped, as a network may drop it.
        max_late_requests: requests of one call without an answer whose late answer still counts; the oldest is forgotten for a new one.
        max_pending_reads: most linearizable reads that a leader keeps waiting; further ones are rejected.
        max_voters: most voters; every one of them is asked for every vote.
        recent_fetch_ms: a replica that fetched within this time (inclusive) counts as reachable when voters change.
        caught_up_ms_max: it counts as caught up when it had everything within this time (inclusive).
        transfer_timeout_ms: a leader that hands over waits at most so long for its successor, and takes no proposals.
        kept_snapshots: newest snapshots that are kept, at least 1; once there are so many, the log begins at the oldest.
    """

    election_timeout_ms: int = 500
    fetch_timeout_ms: int = 1_000
    leader_gone_ms: int = 200
    fetch_wait_ms: int = 400
    fetch_wait_ms_max: int = 400
    fetch_retry_wait_ms: int = 10
    commit_news_ms: int = 10
    crowd_size: int = 4
    crowd_wait_ms: int = 10
    crowd_hold_rounds: int = 16
    spare_wait_ms: int = 20
    request_timeout_ms: int = 150
    retry_backoff_ms: int = 20
    retry_backoff_ms_max: int = 400
    shutdown_grace_ms: int = 1_000
    observer_session_ms: int = 300_000
    max_fetch_bytes: int = 1024 * 1024
    max_batch_bytes: int = 8 * 1024 * 1024
    max_uncommitted_bytes: int = 32 * 1024 * 1024
    max_uncommitted_batches: int = 100_000
    max_parked_fetches: int = 10_000
    max_observers: int = 10_000
    max_held_messages: int = 10_000
    max_late_requests: int = 8
    max_pending_reads: int = 10_000
    max_voters: int = 9
    recent_fetch_ms: int = 1_500
    caught_up_ms_max: int = 5_000
    transfer_timeout_ms: int = 2_000
    kept_snapshots: int = 2

    @property
    def check_quorum_timeout_ms(self) -> int:
        """A leader whose majority has not fetched for so long resigns: 1.5 times the fetch timeout."""
        return self.fetch_timeout_ms * 3 // 2

    @property
    def update_voter_every_ms(self) -> int:
        """A voter tells its address again after twice the fetch timeout. Source: KIP-853 "UpdateRaftVoter"."""
        return self.fetch_timeout_ms * 2

    @property
    def begin_quorum_epoch_after_ms(self) -> int:
        """A leader reminds a voter that has not fetched for so long: half of the fetch timeout."""
        return self.fetch_timeout_ms // 2
