# SPDX-License-Identifier: Apache-2.0
"""What every client has: channels to brokers, the view of the cluster, the background thread, and what a fork leaves of them.

Pure (no clock, I/O, randomness of their own, asyncio, gRPC, protobuf): `backoff`, `first_words`, `grpc_wire`, `http2`, `metadata`.
"""

from __future__ import annotations
