# SPDX-License-Identifier: Apache-2.0
"""Pure cores of the clients: no clock, I/O, randomness of their own, asyncio, gRPC, protobuf or logging."""

from __future__ import annotations
