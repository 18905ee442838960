# SPDX-License-Identifier: Apache-2.0
"""HTTP/2 pings with which both ends of a connection find out that it is dead, as options of gRPC channels and servers.

This module owns the options, and how often a server lets clients ping. It must not know who connects to whom.
Source: ADR 15; gRPC's doc/keepalive.md.
"""

from __future__ import annotations

from typing import Final

QUIET_SHARE: Final = 4
"""A quiet connection is pinged after the liveness bound divided by this. The answer has the rest; it may wait behind megabytes."""

LIVENESS_RANGE_MS: Final = (4_000, 60_000)
"""Smallest and largest liveness bound of a client, both inclusive. gRPC sends at most one ping a second. And a NAT or load balancer
that forgets a connection after a silent minute must see traffic well before."""

MIN_PING_INTERVAL_MS: Final = 500
"""Milliseconds between two pings below which a server counts a ping as abuse. It ends the connection after three of them. This is half
of what the lowest liveness bound produces, because delayed pings may arrive close together."""

RECEIVE_WINDOW_BYTES: Final = 4 * 1024 * 1024
"""Bytes of one stream that a client accepts ahead of its reads. To choose the window itself, gRPC would need pings while data comes."""

MAX_FRAME_BYTES: Final = 1024 * 1024
"""Largest payload of an HTTP/2 frame that clients and servers accept; 16 KiB is HTTP/2's default. Each frame costs processor time,
most of all in Python. The stream's window bounds the bytes in flight; the frame size only bounds their pieces."""

Options = tuple[tuple[str, int], ...]


def client_options(liveness_ms: int) -> Options:
    """Return the options of a channel whose connections fail when nothing comes back for `liveness_ms`, at least 4,000.

    After a quarter of that time without a byte the client sends a ping, with or without a call under way. Without an answer in
    the rest of the time the connection has failed, and all calls on it (UNAVAILABLE).
    """
    quiet_ms = liveness_ms // QUIET_SHARE
    return (
        ("grpc.keepalive_time_ms", quiet_ms),
        *_ping_timeout(liveness_ms - quiet_ms),
        ("grpc.keepalive_permit_without_calls", 1),
        # gRPC also pings to measure the bandwidth while data comes. The answer waits behind that data, so a slow link would
        # look dead.
        ("grpc.http2.bdp_probe", 0),
        ("grpc.http2.lookahead_bytes", RECEIVE_WINDOW_BYTES),
        ("grpc.http2.max_frame_size", MAX_FRAME_BYTES),
        # By default gRPC sends only two pings until it has other bytes to send.
        ("grpc.http2.max_pings_without_data", 0),
    )


def server_options(*, quiet_ms: int, timeout_ms: int) -> Options:
    """Return the options of a server that lets clients ping, and that pings a client after `quiet_ms` of silence.

    A client that does not answer within `timeout_ms` loses its connection.
    """
    return (
        ("grpc.keepalive_time_ms", quiet_ms),
        *_ping_timeout(timeout_ms),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.http2.min_ping_interval_without_data_ms", MIN_PING_INTERVAL_MS),
        ("grpc.http2.max_ping_strikes", 2),
        ("grpc.http2.max_frame_size", MAX_FRAME_BYTES),
    )


def _ping_timeout(timeout_ms: int) -> Options:
    # gRPC's C core (measured up to 1.85) never starts the timer of the first option. Only the second one, a minute by default,
    # ends a connection. See https://github.com/grpc/grpc/pull/39239.
    return (("grpc.keepalive_timeout_ms", timeout_ms), ("grpc.http2.ping_timeout_ms", timeout_ms))
