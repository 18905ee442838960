# SPDX-License-Identifier: Apache-2.0
"""The limits of a `Replicate` stream, by name and unit. Both cores of a stream and their shells share one value.

Source: docs/replication.md, "The stream".
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamLimits:
    """The limits and times of a stream; the defaults are those of production."""

    max_routes: int = 1_000_000
    """Most subscriptions over the life of one stream, and its highest route number plus one; more end with OVERLOADED."""

    subscribes_per_message: int = 2_000
    """Most subscriptions, or ends of them, in one message to a leader."""

    acks_per_message: int = 2_000
    """Most acknowledgements in one message to a leader."""

    marks_per_message: int = 2_000
    """Most high watermarks in one message to a follower."""

    max_waiting_answers: int = 4_096
    """Answers of a leader that may wait to be written; at this number the leader stops reading the stream."""

    chunk_bytes: int = 1024 * 1024
    """Bytes of batches in one message to a follower; a single larger batch is sent alone."""

    in_sync_credit_bytes: int = 16 * 1024 * 1024
    """Bytes to in-sync replicas that a follower allows one leader to have under way."""

    catch_up_credit_bytes: int = 4 * 1024 * 1024
    """Bytes to replicas out of sync that a follower allows one leader to have under way."""

    max_credit_bytes: int = 1 << 40
    """Most unspent credit of one class; more is an invalid request."""

    catch_up_turn_bytes: int = 1024 * 1024
    """Bytes of a turn for replicas out of sync, while in-sync replicas would leave them none."""

    catch_up_every_bytes: int = 16 * 1024 * 1024
    """Bytes to in-sync replicas after which the others get one turn of `catch_up_turn_bytes`."""

    acks_coalesce_ms: int = 1
    """Milliseconds between two messages of acknowledgements. This adds to the latency of acks=all when records come faster."""

    marks_coalesce_ms: int = 2
    """Milliseconds between two messages of high watermarks."""

    open_ms: int = 2_000
    """Milliseconds that either side of a new stream waits for the other's first message."""

    idle_ms: int = 1_000
    """Milliseconds without another message after which either side sends a heartbeat."""

    silence_ms: int = 3_000
    """Milliseconds without any message after which either side ends the stream."""

    connect_ms: int = 800
    """Milliseconds to connect to a leader; then the follower ends the attempt (packets may be lost) and connects again."""

    retry_min_ms: int = 50
    """Milliseconds before a follower reopens a broken stream; doubles each time, plus up to a quarter at random."""

    retry_max_ms: int = 800
    """Most milliseconds between two attempts to open a stream, without the random part."""

    retry_reset_ms: int = 10_000
    """A stream that lived for this many milliseconds resets the pause to the shortest."""

    news_ms: int = 50
    """Least milliseconds between the starts of two attempts; also the most after a leader change."""

    pause_max_ms: int = 1_000
    """Most milliseconds between two attempts of a follower to open a stream, including the random part."""
