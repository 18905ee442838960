# SPDX-License-Identifier: Apache-2.0
"""What a repair asks of other servers: batches of other replicas.

Owns the calls. Must not decide what is repaired, or when. Everything runs on the event loop thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from lograft.internal.v1 import replication_pb2

from brokerd.addresses import internal_address
from brokerd.limits import REPAIR_CALL_MS
from brokerd.replica.damage_reports import DamageReports
from brokerd.replica.replication_border import RepairCallError
from brokerd.replication.connecting import StreamError, StreamRefusedError, fetch_range
from metaquorum.metadata.loader import MetadataLoader
from metaquorum.net.peers import Peers


class RepairCalls:
    """See the module docstring.

    Args:
        observer: the metadata.
        peers: connections of this process to other servers.
        cluster_id: the cluster.
        node_id: this broker.
        incarnation_id: of this process.
        broker_epoch: gives the epoch of its registration; None while there is none.

    Attributes:
        reports: what reads met, and what could not be repaired.
    """

    def __init__(
        self,
        observer: MetadataLoader,
        peers: Peers,
        *,
        cluster_id: str,
        node_id: int,
        incarnation_id: bytes,
        broker_epoch: Callable[[], int | None],
    ) -> None:
        self._observer = observer
        self._peers = peers
        self._cluster_id = cluster_id
        self._node_id = node_id
        self._incarnation_id = incarnation_id
        self._broker_epoch = broker_epoch
        self.reports = DamageReports()

    def sources(self, topic_id: bytes, partition: int) -> list[int]:
        """Return the other brokers that have a replica: the leader first, then those in sync, then the others."""
        topic = self._observer.image.topic_by_id(topic_id)
        if topic is None or partition >= len(topic.partitions):
            return []
        image = topic.partitions[partition]
        others = [broker_id for broker_id in image.replicas if broker_id != self._node_id]
        return sorted(others, key=lambda broker_id: (broker_id != image.leader_id, broker_id not in image.isr))

    async def fetch(self, broker_id: int, topic_id: bytes, partition: int, wanted: range) -> bytes:
        """Return the first batches of a range as another replica has them.

        Raises:
            RepairCallError: it has not, or does not answer within `REPAIR_CALL_MS`.
        """
        address = internal_address(self._observer.image, broker_id)
        if address is None:
            raise RepairCallError(f"broker {broker_id} is not registered")
        own_epoch = self._broker_epoch()
        if own_epoch is None:
            raise RepairCallError("this broker is not registered")
        request = replication_pb2.FetchRangeRequest(
            cluster_id=self._cluster_id,
            broker_id=broker_id,
            topic_id=topic_id,
            partition=partition,
            base_offset=wanted.start,
            end_offset=wanted.stop,
            replica_id=self._node_id,
            broker_epoch=own_epoch,
            incarnation_id=self._incarnation_id,
        )
        try:
            async with asyncio.timeout(REPAIR_CALL_MS / 1000):
                return (await fetch_range(self._peers, address, request)).batches
        except StreamRefusedError as error:
            raise RepairCallError(f"broker {broker_id}: {error.code.name} {error}") from error
        except (StreamError, TimeoutError) as error:
            raise RepairCallError(f"broker {broker_id}: {error!r}") from error
