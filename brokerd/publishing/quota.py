# SPDX-License-Identifier: Apache-2.0
"""How many bytes clients may stage at this broker, over all staging partitions that it leads.

What the logs hold is measured every `STAGING_SWEEP_MS`; in between, what is admitted counts on top. Segments that are removed and kept
for `file.delete.delay.ms` do not count.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from lograft.wire.codes import ErrorCode

from brokerd.failure import refused
from brokerd.limits import REPLICA_SLICE
from brokerd.publishing.limits import QUOTA_RETRY_MS, STAGING_QUOTA_SHARE
from brokerd.replica.replica import Replica
from metaquorum.metadata.topic_names import STAGING_PREFIX


def default_limit_bytes(directories: Iterable[Path]) -> int:
    """Return the default of the quota: a share of the disks that hold the log directories. They must exist."""
    by_device = {os.stat(each).st_dev: shutil.disk_usage(each).total for each in directories}
    return sum(by_device.values()) // STAGING_QUOTA_SHARE


def staging_partitions(replicas: Iterable[Replica]) -> Iterator[Replica]:
    """Return the staging partitions among replicas that this broker leads."""
    return (each for each in replicas if each.topic.startswith(STAGING_PREFIX) and each.is_leader)


def log_bytes(replica: Replica) -> int:
    """Return the bytes of the batches in a log, those below the log start in its first segment included."""
    return sum(each.size_bytes for each in replica.log.segments)


class StagingQuota:
    """The quota of one broker. Only its own methods write it.

    Args:
        limit_bytes: the quota.
        replicas: returns the open replicas.

    Attributes:
        limit_bytes: as above.
        used_bytes: bytes in the staging partitions, as far as known.
    """

    def __init__(self, limit_bytes: int, replicas: Callable[[], Iterable[Replica]]) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self._replicas = replicas
        self._admitted_bytes = 0

    def admit(self, size_bytes: int) -> None:
        """Count a batch that is about to be staged.

        Raises:
            RefusedError: LIMIT_EXCEEDED, it exceeds the quota.
        """
        if self.used_bytes + size_bytes > self.limit_bytes:
            raise refused(
                ErrorCode.LIMIT_EXCEEDED,
                f"{self.used_bytes} bytes are staged at this broker, it takes {self.limit_bytes} (ingest.staging.max.bytes): "
                "nothing was appended; commit or abort what is open, or raise the limit",
                retry_after_ms=QUOTA_RETRY_MS,
            )
        self.used_bytes += size_bytes
        self._admitted_bytes += size_bytes

    async def measure(self) -> None:
        """Look at the logs."""
        self._admitted_bytes = 0
        measured_bytes = 0
        for count, replica in enumerate(list(self._replicas()), start=1):
            if replica.topic.startswith(STAGING_PREFIX) and replica.is_leader:
                measured_bytes += log_bytes(replica)
            if count % REPLICA_SLICE == 0:
                await asyncio.sleep(0)
        # What came in the meantime may be in the sum already; the next look corrects it.
        self.used_bytes = measured_bytes + self._admitted_bytes
