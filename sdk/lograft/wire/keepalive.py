# SPDX-License-Identifier: Apache-2.0
"""HTTP/2 pings by which the two ends of a connection find out that it is dead, as options of gRPC channels and servers.

Owns the options, and how often a server lets itself be pinged. Must not know who connects to whom.
Source: ADR 15; gRPC's doc/keepalive.md.
"""

from __future__ import annotations

from typing import Final

QUIET_SHARE: Final = 4
"""A connection is pinged after this part of the liveness bound; the answer, which may wait behind megabytes of data, has the rest."""

LIVENESS_RANGE_MS: Final = (4_000, 60_000)
"""Least and largest value of a client's liveness bound, inclusive. gRPC sends no two pings within a second; and a NAT or a load
balancer that forgets what is silent for a minute must hear of every connection well before."""

MIN_PING_INTERVAL_MS: Final = 500
"""Milliseconds between two pings below which a server counts one as abuse; it ends the connection after three such. Half of what
the lowest liveness bound makes, for pings that were held up may come close together."""

RECEIVE_WINDOW_BYTES: Final = 4 * 1024 * 1024
"""Bytes of one stream that a client lets come ahead of what it has read. gRPC's own choice needs pings while data comes."""

Options = tuple[tuple[str, int], ...]


def client_options(liveness_ms: int) -> Options:
    """Return the options of a channel whose connections are given up when nothing comes back for `liveness_ms`, from 4,000 on.

    After a quarter of that without a byte the client pings, with or without a call under way; without an answer in the rest the
    connection has failed, and with it all calls on it (UNAVAILABLE).
    """
    quiet_ms = liveness_ms // QUIET_SHARE
    return (
        ("grpc.keepalive_time_ms", quiet_ms),
        *_ping_timeout(liveness_ms - quiet_ms),
        ("grpc.keepalive_permit_without_calls", 1),
        # gRPC also pings to measure the link while data comes. The answer waits behind that data, so that a slow link would look dead.
        ("grpc.http2.bdp_probe", 0),
        ("grpc.http2.lookahead_bytes", RECEIVE_WINDOW_BYTES),
        # By default gRPC sends two pings and no more until it has other bytes to send.
        ("grpc.http2.max_pings_without_data", 0),
    )


def server_options(*, quiet_ms: int, timeout_ms: int) -> Options:
    """Return the options of a server that lets clients ping, and itself pings who was silent for `quiet_ms`.

    A client that does not answer within `timeout_ms` loses its connection.
    """
    return (
        ("grpc.keepalive_time_ms", quiet_ms),
        *_ping_timeout(timeout_ms),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.http2.min_ping_interval_without_data_ms", MIN_PING_INTERVAL_MS),
        ("grpc.http2.max_ping_strikes", 2),
    )


def _ping_timeout(timeout_ms: int) -> Options:
    # gRPC's C core (up to 1.85, of which this was measured) never starts the timer of the first one: its second one, which is a
    # minute by default, alone ends a connection. See https://github.com/grpc/grpc/pull/39239.
    return (("grpc.keepalive_timeout_ms", timeout_ms), ("grpc.http2.ping_timeout_ms", timeout_ms))
