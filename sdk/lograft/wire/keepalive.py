# SPDX-License-Identifier: Apache-2.0
"""Sizes and times of the HTTP/2 connections between clients and servers, for both sides.

Source: ADR 15, ADR 30.
"""

from __future__ import annotations

from typing import Final

QUIET_SHARE: Final = 4
"""A quiet connection is pinged after the liveness bound divided by this. The answer has the rest; it may wait behind megabytes."""

LIVENESS_RANGE_MS: Final = (4_000, 60_000)
"""Smallest and largest liveness bound of a client, both inclusive. One ping a second is enough. And a NAT or load balancer that forgets
a connection after a silent minute must see traffic well before."""

RECEIVE_WINDOW_BYTES: Final = 4 * 1024 * 1024
"""Bytes of one stream that either side accepts ahead of its reads."""

MAX_FRAME_BYTES: Final = 1024 * 1024
"""Largest payload of an HTTP/2 frame that clients and servers accept; 16 KiB is HTTP/2's default. Each frame costs processor time,
most of all in Python. The stream's window bounds the bytes in flight; the frame size only bounds their pieces."""
