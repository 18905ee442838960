# SPDX-License-Identifier: Apache-2.0
"""The last read of each replica for its followers in sync, shared by their streams.

The followers of a partition are sent the same batches one right after the other; reading them once is half of the reads with
three replicas. Owns bytes that were read, within `RECENT_READS_BYTES`; must not know routes or streams.

Law: nothing is kept of a replica behind the end of any route to it. A replica is cut only after its leadership, and that
ends all its routes first; so what is found here is what the log has.
"""

from __future__ import annotations

from collections import OrderedDict

from brokerd.limits import RECENT_READS_BYTES
from brokerd.replica.replica import Replica
from brokerd.replica.replication_border import FollowerRead


class RecentReads:
    """See the module docstring."""

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
        """Give what `read_for_follower` gives, or gave last for the same offset.

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
        """Keep nothing of a replica."""
        forgotten = self._reads.pop(replica, None)
        if forgotten is not None:
            self._size_bytes -= len(forgotten.data)
