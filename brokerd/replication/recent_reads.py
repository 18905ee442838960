# SPDX-License-Identifier: Apache-2.0
"""The last read of each replica for its in-sync followers, shared by their streams.

A leader sends the followers of a partition the same batches one right after the other. With three replicas, reading them once halves
the reads. Owns the bytes of these reads, within `RECENT_READS_BYTES`. Does not know routes or streams.

Law: the end of any route to a replica removes its read. A log is truncated only after its leadership, which first ends all routes. So
a read that is found here equals the log.
"""

from __future__ import annotations

from collections import OrderedDict

from brokerd.limits import RECENT_READS_BYTES
from brokerd.replica.replica import Replica
from brokerd.replica.replication_border import FollowerRead


class RecentReads:
    """The last read of each replica, within `RECENT_READS_BYTES`."""

    def __init__(self) -> None:
        self._reads: OrderedDict[Replica, FollowerRead] = OrderedDict()
        self._size_bytes = 0

    def __len__(self) -> int:
        return len(self._reads)

    @property
    def size_bytes(self) -> int:
        """Bytes that are kept."""
        return self._size_bytes

    def read(self, replica: Replica, offset: int, max_bytes: int) -> FollowerRead:
        """Return the result of `read_for_follower`, or the kept result of the last one for the same offset.

        Raises:
            RefusedError: as `read_for_follower`.
        """
        found = self._reads.get(replica)
        if found is not None and found.base_offset == offset:
            return found
        read = replica.read_for_follower(offset, max_bytes)
        self.forget(replica)
        self._reads[replica] = read
        self._size_bytes += len(read.data)
        while self._size_bytes > RECENT_READS_BYTES:
            self._size_bytes -= len(self._reads.popitem(last=False)[1].data)
        return read

    def forget(self, replica: Replica) -> None:
        """Remove the read of a replica."""
        forgotten = self._reads.pop(replica, None)
        if forgotten is not None:
            self._size_bytes -= len(forgotten.data)
