# SPDX-License-Identifier: Apache-2.0
"""The base of every client: channels to brokers, the view of the cluster, the background thread, and the handling of forks.

Pure modules (no clock, no I/O, no randomness of their own, no asyncio, gRPC or protobuf): `backoff`, `first_words`,
`metadata`.
"""

from __future__ import annotations
