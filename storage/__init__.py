# SPDX-License-Identifier: Apache-2.0
"""The log engine: partition logs over the `Disk` interface, and the data directories that hold the logs of a server.

Start at `log.partition_log.PartitionLog` (what a log does), `files.disk` (what a disk guarantees) and
docs/storage_format.md (every byte).
The package imports `lograft.wire` and nothing else of the project.
"""

from __future__ import annotations
