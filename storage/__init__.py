# SPDX-License-Identifier: Apache-2.0
"""The log engine: one partition log over the `Disk` interface, and the data directory that holds the logs of a server.

Start at `log.partition_log.PartitionLog` (what a log does), `files.disk` (what a disk promises) and docs/storage_format.md
(every byte).
Imports `lograft.wire` and nothing else of the project.
"""

from __future__ import annotations
