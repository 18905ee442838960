# SPDX-License-Identifier: Apache-2.0
"""Who may open a `Replicate` stream at this leader, and which stream of a follower counts.

Owns the checks of `ReplicateOpen` and the register by follower. Must not know routes.
Law: a follower has one stream here, the newest of its newest process.
Source: docs/replication.md, "Handshake".
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Protocol

from lograft.internal.v1 import replication_pb2 as pb
from lograft.wire.codes import ErrorCode
from lograft.wire.limits import MAGIC

from brokerd.api.calls import check_named_cluster
from brokerd.api.parts import StreamRegister
from brokerd.api.recent_reads import RecentReads
from brokerd.api.registered import UNREGISTERED_RETRY_MS, check_registered, stale
from brokerd.failure import Failure, refused
from brokerd.partition.leader_stream_rate import PushRates
from brokerd.partition.leader_stream_traffic import Traffic
from brokerd.replica.replica import Replica
from brokerd.replication.fetch_range import FetchRangeCalls
from metaquorum.metadata.loader import MetadataLoader

REFUSAL_LOG_MS: Final = 1_000
"""Milliseconds in which at most one line of the log is about followers that say what cannot be."""

logger = logging.getLogger(__name__)


class FollowerStream(Protocol):
    """A stream that has been opened."""

    @property
    def follower_id(self) -> int:
        """Node id of the follower."""
        ...

    @property
    def follower_epoch(self) -> int:
        """Epoch of the follower's registration."""
        ...

    def supersede(self, failure: Failure) -> None:
        """End the stream: another one of the follower counts from now on."""
        ...


class FollowerStreams:
    """The streams by follower, numbered in the order in which they were opened."""

    def __init__(self) -> None:
        self._streams: dict[int, FollowerStream] = {}
        self._opened_count = 0

    def __len__(self) -> int:
        return len(self._streams)

    def enter(self, stream: FollowerStream) -> int:
        """Let a stream count; an older one of the same follower ends. Returns its number, from 0.

        Raises:
            RefusedError: STALE_BROKER_EPOCH: the older one belongs to a newer process.
        """
        follower_id, epoch = stream.follower_id, stream.follower_epoch
        older = self._streams.get(follower_id)
        if older is not None:
            if epoch < older.follower_epoch:
                raise refused(ErrorCode.STALE_BROKER_EPOCH, stale(follower_id, epoch, older.follower_epoch))
            message = f"broker {follower_id} has opened another stream"
            older.supersede(Failure(code=ErrorCode.STALE_BROKER_EPOCH, message=message))
        self._streams[follower_id] = stream
        self._opened_count += 1
        return self._opened_count - 1

    def leave(self, stream: FollowerStream) -> None:
        """Forget a stream that is over; nothing happens when another one took its place."""
        if self._streams.get(stream.follower_id) is stream:
            del self._streams[stream.follower_id]


class RefusalLog:
    """Lines of the log about followers that say what cannot be: at most one within `REFUSAL_LOG_MS`, so that nobody fills a disk."""

    __slots__ = ("_unwritten", "_written_ms")

    def __init__(self) -> None:
        self._written_ms: int | None = None
        self._unwritten = 0

    def note(self, follower_id: int, follower_epoch: int, message: str, now_ms: int) -> None:
        """Write a line, or count that there was none."""
        self._unwritten += 1
        if self._written_ms is not None and now_ms - self._written_ms < REFUSAL_LOG_MS:
            return
        logger.warning(
            "stream of a follower refused: node_id=%d broker_epoch=%d count=%d reason=%s",
            follower_id,
            follower_epoch,
            self._unwritten,
            message,
        )
        self._written_ms, self._unwritten = now_ms, 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Leader:
    """This broker, as the streams of its followers see it.

    Attributes:
        cluster_id: cluster id.
        node_id: node id.
        observer: the metadata.
        broker_epoch: gives the epoch of the own registration; None: not registered yet.
        find: gives the open replica of a topic id and partition.
        ranges: gives ranges to other replicas.
        streams: register of all streams, for the limit and the stop.
        rates: how fast may go what is sent to followers out of sync, over all streams.
        followers: the streams that were opened.
        reads: what was read for followers in sync.
        refusals: the log of followers that say what cannot be.
    """

    cluster_id: str
    node_id: int
    observer: MetadataLoader
    broker_epoch: Callable[[], int | None]
    find: Callable[[bytes, int], Replica | None]
    ranges: FetchRangeCalls
    streams: StreamRegister
    rates: PushRates
    followers: FollowerStreams = field(default_factory=FollowerStreams)
    reads: RecentReads = field(default_factory=RecentReads)
    refusals: RefusalLog = field(default_factory=RefusalLog)

    def traffic(self, topic_id: bytes, partition: int, follower_id: int, *, is_in_sync: bool) -> Traffic:
        """Return what a route to a follower is for."""
        if is_in_sync:
            return Traffic.IN_SYNC
        topic = self.observer.image.topic_by_id(topic_id)
        if topic is None or partition >= len(topic.partitions):
            return Traffic.CATCH_UP
        # Good as long as the route: a reassignment that adds a follower ends together with the leader epoch.
        return Traffic.MOVING if follower_id in topic.partitions[partition].adding else Traffic.CATCH_UP

    def is_registered(self, follower_id: int) -> bool:
        """Tell whether the metadata still has the broker, in whatever process; the cores know which."""
        return follower_id in self.observer.image.brokers

    def check_open(self, request: pb.ReplicateOpen) -> int:
        """Check who comes; return the broker epoch of this leader.

        Raises:
            RefusedError: WRONG_CLUSTER, INVALID_REQUEST, OVERLOADED, and as `check_registered`.
        """
        check_named_cluster(request.cluster_id, self.cluster_id)
        follower_id, epoch = request.follower_id, request.broker_epoch
        if request.leader_id != self.node_id:
            message = f"this is broker {self.node_id}, not {request.leader_id}: look up its address again"
            raise refused(ErrorCode.INVALID_REQUEST, message)
        if follower_id < 0 or follower_id == self.node_id or epoch < 0:
            message = f"follower {follower_id} of broker epoch {epoch} cannot follow broker {self.node_id}"
            raise refused(ErrorCode.INVALID_REQUEST, message)
        if request.formats and MAGIC not in request.formats:
            message = f"batch formats {sorted(request.formats)[:16]} do not hold {MAGIC}, which the logs here have"
            raise refused(ErrorCode.INVALID_REQUEST, message)
        check_registered(self.observer.image, follower_id, broker_epoch=epoch, incarnation_id=request.incarnation_id)
        own_epoch = self.broker_epoch()
        if own_epoch is None:
            message = f"broker {self.node_id} is not registered yet: try again"
            raise refused(ErrorCode.OVERLOADED, message, retry_after_ms=UNREGISTERED_RETRY_MS)
        return own_epoch
