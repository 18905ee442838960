# SPDX-License-Identifier: Apache-2.0
"""The broker: hosts partition logs and serves them over gRPC.

Layers, top down: `server` and `__main__` (composition) -> `rpc` (protobuf in and out) -> `following` (streams to other
brokers) -> `replication` and `metadata` (shells with tasks, logs and peers) -> `partition`, `produce`, `fetch` and
`pushing` (pure cores). Imports go down only.
"""

from __future__ import annotations
