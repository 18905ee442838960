# SPDX-License-Identifier: Apache-2.0
"""Times and limits of the Raft core, with their defaults."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RaftConfig:
    """Times in milliseconds, sizes in bytes.

    Attributes:
        election_timeout_ms: a voter without a leader waits from this (inclusive) to twice this (exclusive).
        fetch_timeout_ms: a follower without a valid answer of its leader for this long starts an election.
        leader_gone_ms: the same once the leader refused or resigned: a random time from half of this (inclusive) to one and a half
            times this (exclusive).
        fetch_wait_ms: how long a fetch asks the leader to wait for something to send.
        fetch_wait_ms_max: longest time that a leader delays a fetch, whatever it asks for.
        fetch_retry_wait_ms: how long a fetch after a failed one asks the leader to wait: its answer must show soon whether the leader
            is there.
        commit_news_ms: longest time until a voter with nothing to fetch learns that the high watermark moved; also the shortest time
            between two such answers to an observer that keeps up.
        crowd_size: a round of at least this many proposals shows that many clients are active; the next round then waits for as many,
            or for some more.
        crowd_wait_ms: longest such wait, from the time at which the next round would otherwise begin.
        crowd_hold_rounds: rounds after one that waited in vain before a round waits for more again.
        spare_wait_ms: how much later a deferred voter gets the round under way.
        request_timeout_ms: a request without an answer for this long is sent again; a fetch this long after the wait that it asked
            for. A late answer counts until the fetch timeout.
        retry_backoff_ms: first pause after a failed request; it doubles up to `retry_backoff_ms_max`.
        retry_backoff_ms_max: longest pause after a failed request.
        shutdown_grace_ms: longest time that a stopping leader waits for its voters to learn of it.
        observer_session_ms: an observer that has not fetched for this long is forgotten.
        max_fetch_bytes: bytes of batches in one fetch answer; the first batch may be larger.
        max_batch_bytes: bytes of one appended batch.
        max_uncommitted_bytes: bytes that a leader appends beyond the high watermark.
        max_uncommitted_batches: batches that a leader appends beyond the high watermark.
        max_parked_fetches: fetches that a leader delays; further ones are answered at once.
        max_observers: observers whose progress a leader keeps.
        max_held_messages: messages that wait for the disk; beyond it the oldest is dropped, as a network may drop it.
        max_late_requests: unanswered requests of one call whose late answers still count; the oldest is forgotten for a new one.
        max_pending_reads: linearizable reads that wait at a leader; further ones are rejected.
        max_voters: voters; each one of them is asked in every election.
        recent_fetch_ms: a replica that fetched within this time (inclusive) counts as reachable when voters change.
        caught_up_ms_max: it counts as caught up if it had everything within this time (inclusive).
        transfer_timeout_ms: longest time that a transferring leader waits for its successor, and takes no proposals.
        kept_snapshots: number of newest snapshots that are kept, at least 1; once there are that many, the log begins at the oldest.
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
        """A leader resigns if no majority has fetched for this long: 1.5 times the fetch timeout."""
        return self.fetch_timeout_ms * 3 // 2

    @property
    def update_voter_every_ms(self) -> int:
        """Time after which a voter sends its address again: twice the fetch timeout. Source: KIP-853 "UpdateRaftVoter"."""
        return self.fetch_timeout_ms * 2

    @property
    def begin_quorum_epoch_after_ms(self) -> int:
        """Time without a fetch after which a leader reminds a voter: half of the fetch timeout."""
        return self.fetch_timeout_ms // 2
