# SPDX-License-Identifier: Apache-2.0
"""A server that sends requests over the carrier and answers none, for tests that play a peer or a broker."""

from __future__ import annotations

from types import TracebackType
from typing import Final, TypeVar

from google.protobuf.message import Message
from lograft.internal.v1 import controller_pb2
from lograft.internal.v1 import quorum_pb2 as pb

from metaquorum.net.carrier import Carrier
from metaquorum.net.link import RefusedByPeerError, Stream
from metaquorum.net.methods import Method
from metaquorum.net.peers import Peers
from metaquorum.net.service import decode_refusal

TIMEOUT_MS: Final = 30_000
WINDOW_BYTES: Final = 1024 * 1024

ResponseT = TypeVar("ResponseT", bound=Message)


class PeerClient:
    """Sends requests to servers of one cluster, as a node of it.

        async with PeerClient("cluster") as client:
            vote = await client.ask("127.0.0.1:9192", Method.VOTE, pb.VoteRequest(), pb.VoteResponse)

    Args:
        cluster_id: cluster that its HELLO names.
        node_id: node id that its HELLO names.
    """

    def __init__(self, cluster_id: str, *, node_id: int = 900) -> None:
        self._carrier = Carrier(cluster_id=cluster_id, node_id=node_id)

        self._is_open = False

    @property
    def peers(self) -> Peers:
        """The connections of the client."""
        return self._carrier.peers

    async def open(self) -> None:
        """Start the carrier. Idempotent."""
        if not self._is_open:
            self._is_open = True
            await self._carrier.start(None)

    async def close(self) -> None:
        """Close all connections. Idempotent."""
        await self._carrier.close()

    async def __aenter__(self) -> PeerClient:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def ask(
        self,
        address: str,
        method: int,
        request: Message,
        response_type: type[ResponseT],
        *,
        timeout_ms: int = TIMEOUT_MS,
    ) -> ResponseT:
        """Send a request and return the response.

        Raises:
            RefusalError: the other side refuses.
            CallError: no answer came.
        """
        try:
            answer = await self._carrier.peers.ask(address, method, request.SerializeToString(), timeout_ms=timeout_ms)
        except RefusedByPeerError as error:
            raise decode_refusal(error.failure) from error
        return response_type.FromString(answer)

    async def open_snapshot(self, address: str, request: pb.FetchSnapshotRequest) -> Stream:
        """Start to fetch a snapshot.

        Raises:
            CallError: there is no connection.
        """
        return await self._carrier.peers.open(
            address,
            Method.FETCH_SNAPSHOT,
            request.SerializeToString(),
            window_bytes=WINDOW_BYTES,
            timeout_ms=TIMEOUT_MS,
        )

    async def fetch_snapshot(self, address: str, request: pb.FetchSnapshotRequest) -> list[pb.FetchSnapshotResponse]:
        """Fetch a snapshot and return all messages of the stream.

        Raises:
            CallError: the stream failed.
        """
        stream = await self.open_snapshot(address, request)
        messages: list[pb.FetchSnapshotResponse] = []
        while (message := await stream.read()) is not None:
            messages.append(pb.FetchSnapshotResponse.FromString(message))
        stream.give_up()
        return messages


class ControllerCalls:
    """Requests of brokers to one node of the quorum. Each raises `RefusalError` for a refusal.

    Args:
        client: client that sends them.
        address: `host:port` of the node.
    """

    def __init__(self, client: PeerClient, address: str) -> None:
        self._client = client
        self._address = address

    async def register(
        self, request: controller_pb2.RegisterBrokerRequest, *, timeout_ms: int = TIMEOUT_MS
    ) -> controller_pb2.RegisterBrokerResponse:
        """Register a broker process."""
        return await self._ask(Method.REGISTER_BROKER, request, controller_pb2.RegisterBrokerResponse, timeout_ms)

    async def heartbeat(
        self, request: controller_pb2.HeartbeatRequest, *, timeout_ms: int = TIMEOUT_MS
    ) -> controller_pb2.HeartbeatResponse:
        """Send a heartbeat."""
        return await self._ask(Method.HEARTBEAT, request, controller_pb2.HeartbeatResponse, timeout_ms)

    async def allocate_producer_ids(
        self, request: controller_pb2.AllocateProducerIdsRequest, *, timeout_ms: int = TIMEOUT_MS
    ) -> controller_pb2.AllocateProducerIdsResponse:
        """Ask for a block of producer ids."""
        return await self._ask(
            Method.ALLOCATE_PRODUCER_IDS, request, controller_pb2.AllocateProducerIdsResponse, timeout_ms
        )

    async def alter_partition(
        self, request: controller_pb2.AlterPartitionRequest, *, timeout_ms: int = TIMEOUT_MS
    ) -> controller_pb2.AlterPartitionResponse:
        """Propose in-sync replicas."""
        return await self._ask(Method.ALTER_PARTITION, request, controller_pb2.AlterPartitionResponse, timeout_ms)

    async def resign_leadership(
        self, request: controller_pb2.ResignLeadershipRequest, *, timeout_ms: int = TIMEOUT_MS
    ) -> controller_pb2.ResignLeadershipResponse:
        """Resign the leadership of partitions."""
        return await self._ask(Method.RESIGN_LEADERSHIP, request, controller_pb2.ResignLeadershipResponse, timeout_ms)

    async def _ask(
        self, method: Method, request: Message, response_type: type[ResponseT], timeout_ms: int
    ) -> ResponseT:
        return await self._client.ask(self._address, method, request, response_type, timeout_ms=timeout_ms)


class QuorumCalls:
    """Requests of peers to one quorum node.

    Args:
        client: client that sends them.
        address: `host:port` of the node.
    """

    def __init__(self, client: PeerClient, address: str) -> None:
        self._client = client
        self._address = address

    async def probe(self, request: pb.ProbeRequest) -> pb.ProbeResponse:
        """Ask for its identity and state."""
        return await self._client.ask(self._address, Method.PROBE, request, pb.ProbeResponse)

    async def vote(self, request: pb.VoteRequest) -> pb.VoteResponse:
        """Ask for its vote."""
        return await self._client.ask(self._address, Method.VOTE, request, pb.VoteResponse)

    async def begin(self, request: pb.BeginQuorumEpochRequest) -> pb.BeginQuorumEpochResponse:
        """Announce a leader."""
        return await self._client.ask(self._address, Method.BEGIN_QUORUM_EPOCH, request, pb.BeginQuorumEpochResponse)

    async def end(self, request: pb.EndQuorumEpochRequest) -> pb.EndQuorumEpochResponse:
        """Announce the end of an epoch."""
        return await self._client.ask(self._address, Method.END_QUORUM_EPOCH, request, pb.EndQuorumEpochResponse)

    async def fetch(self, request: pb.FetchQuorumRequest) -> pb.FetchQuorumResponse:
        """Fetch from its log."""
        return await self._client.ask(self._address, Method.FETCH_QUORUM, request, pb.FetchQuorumResponse)

    async def update(self, request: pb.UpdateVoterRequest) -> pb.UpdateVoterResponse:
        """Report the address of a voter."""
        return await self._client.ask(self._address, Method.UPDATE_VOTER, request, pb.UpdateVoterResponse)
