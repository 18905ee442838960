# SPDX-License-Identifier: Apache-2.0
"""Who reads a replica that follows: fetch routes and waiting reads that may be served by a follower.

Owns their list, and tells them how far they may read and when that ends. Must not decide it: the core does (`followed_end`).

Laws: nobody is told of an end beyond what the leader of the present epoch has told; the service ends with the step of the core
in which the leader is not heard any more, so before anything is cut.
"""

from __future__ import annotations

from collections.abc import Callable

from brokerd.failure import Failure
from brokerd.partition.replica import PartitionReplica
from brokerd.replica.replica_listeners import ReplicaListeners


class FollowerReaders:
    """See the module docstring.

    Args:
        core: the core of the replica.
        refusal: says who is to be asked instead.

    Attributes:
        listeners: those who read.
    """

    __slots__ = ("_core", "_end_offset", "_refusal", "listeners")

    def __init__(self, core: PartitionReplica, refusal: Callable[[], Failure]) -> None:
        self._core = core
        self._refusal = refusal
        self._end_offset = core.followed_end
        self.listeners = ReplicaListeners()

    def note_step(self) -> None:
        """Learn that the core took an event."""
        end_offset = self._core.followed_end
        if end_offset == self._end_offset:
            return
        self._end_offset = end_offset
        if end_offset is None:
            self.listeners.end_service(self._refusal())
        else:
            self.listeners.tell_high_watermark(end_offset)
