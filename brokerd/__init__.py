# SPDX-License-Identifier: Apache-2.0
"""The broker: hosts partition logs and serves them over gRPC.

Layers, top down: `process` (composition) -> `api` (the public services) -> `replication` (streams between brokers) -> `replica`
(logs and their cores) -> `controller_client` -> `partition` (pure cores). Imports go down only.
"""

from __future__ import annotations
