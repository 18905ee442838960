# SPDX-License-Identifier: Apache-2.0
"""What bounds a `Replicate` stream, by name and unit. Both cores of a stream are given one value of it, and so are their shells.

Source: docs/replication.md, "The stream".
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamLimits:
    """The limits and times of a stream; those of production, unless told otherwise."""

    max_routes: int = 1_000_000
    """Subscriptions over the life of one stream, and its highest route number plus one; more end with OVERLOADED."""

    subscribes_per_message: int = 2_000
    """Most subscriptions, or ends of them, in one message to a leader."""

    acks_per_message: int = 2_000
    """Most acknowledgements in one message to a leader."""

    marks_per_message: int = 2_000
    """Most high watermarks in one message to a follower."""

    max_waiting_answers: int = 4_096
    """Answers of a leader that wait to be written; above it the leader stops reading the stream."""

    chunk_bytes: int = 1024 * 1024
    """Bytes of batches in one message to a follower; a single larger batch is still sent."""

    in_sync_credit_bytes: int = 16 * 1024 * 1024
    """Bytes to in-sync replicas that a follower lets one leader have under way."""

    catch_up_credit_bytes: int = 4 * 1024 * 1024
    """The same to replicas that are not in sync."""

    max_credit_bytes: int = 1 << 40
    """Most unspent credit of one class; more is an invalid request."""

    catch_up_turn_bytes: int = 1024 * 1024
    """Bytes sent to replicas that are not in sync when in-sync ones never leave them a turn."""

    catch_up_every_bytes: int = 16 * 1024 * 1024
    """Bytes sent to in-sync replicas after which the others get one `catch_up_turn_bytes`."""

    acks_coalesce_ms: int = 1
    """Milliseconds between two messages of acknowledgements. It is added to acks=all when records come faster."""

    marks_coalesce_ms: int = 2
    """Milliseconds between two messages of high watermarks."""

    open_ms: int = 2_000
    """Milliseconds that either side of a new stream waits for the other's first message."""

    idle_ms: int = 1_000
    """Milliseconds without another message after which either side sends a heartbeat."""

    silence_ms: int = 3_000
    """Milliseconds without any message after which either side ends the stream."""

    connect_ms: int = 800
    """Milliseconds that a connection to a leader may take; the follower gives up one whose packets are lost, and dials again."""

    retry_min_ms: int = 50
    """Milliseconds before a follower opens a broken stream again; doubles each time, plus up to a quarter at random."""

    retry_max_ms: int = 800
    """Most milliseconds between two attempts to open a stream, besides the random part."""

    retry_reset_ms: int = 10_000
    """Milliseconds of life after which the next break of a stream begins at the shortest pause again."""

    news_ms: int = 50
    """Milliseconds between the beginnings of two attempts at least, and after news of the leader at most."""

    pause_max_ms: int = 1_000
    """Most milliseconds that a follower lets pass between two attempts to open a stream."""
