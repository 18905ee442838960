# SPDX-License-Identifier: Apache-2.0
"""What one broker needs for replication: streams to leaders, requests to the controller. Composition only."""

from __future__ import annotations

from collections.abc import Callable

from brokerd.addresses import internal_address
from brokerd.controller_client.controller_calls import ControllerCalls
from brokerd.controller_client.partition_requests import PartitionRequests
from brokerd.replica.replica_peers import ReplicaPeers
from brokerd.replication.follower_stream import FollowerIdentity, ReplicaFetchers
from brokerd.replication.repair import RepairCalls
from metaquorum.metadata.loader import MetadataLoader
from metaquorum.net.peers import Peers
from metaquorum.process.settings import Address


class Replication:
    """The replication parts of one broker, connected to each other.

    Args:
        calls: calls to the controller.
        observer: the metadata.
        peers: connections of this process to other servers.
        cluster_id: id of the cluster.
        node_id: id of this broker.
        incarnation_id: random id of this process.
        broker_epoch: returns the epoch of the broker's registration; None before the first.

    Attributes:
        peers: what the replicas use to reach leaders and the controller.
        repairs: what the repair of damaged ranges uses to reach other replicas.
    """

    def __init__(
        self,
        calls: ControllerCalls,
        observer: MetadataLoader,
        peers: Peers,
        *,
        cluster_id: str,
        node_id: int,
        incarnation_id: bytes,
        broker_epoch: Callable[[], int | None],
    ) -> None:
        self._observer = observer
        self._fetchers = ReplicaFetchers(
            FollowerIdentity(
                peers=peers,
                cluster_id=cluster_id,
                node_id=node_id,
                incarnation_id=incarnation_id,
                broker_epoch=broker_epoch,
                address_of=self._address_of,
            )
        )
        self._requests = PartitionRequests(
            calls, observer, cluster_id=cluster_id, node_id=node_id, broker_epoch=broker_epoch
        )
        self.repairs = RepairCalls(
            observer,
            peers,
            cluster_id=cluster_id,
            node_id=node_id,
            incarnation_id=incarnation_id,
            broker_epoch=broker_epoch,
        )
        self.peers = ReplicaPeers(
            leader_streams=self._fetchers,
            requests=self._requests,
            repairs=self.repairs,
        )

    def note_registration(self) -> None:
        """Note that this broker's own registration may have changed."""
        self._fetchers.note_registration()

    async def close(self) -> None:
        """End the streams and send no more requests. Idempotent."""
        await self._requests.close()
        await self._fetchers.close()

    def _address_of(self, broker_id: int) -> Address | None:
        return internal_address(self._observer.image, broker_id)
