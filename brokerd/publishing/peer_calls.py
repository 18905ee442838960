# SPDX-License-Identifier: Apache-2.0
"""Calls between brokers about publications and ingests: who asks whom, and the meaning of a broken call. Both ends of the hop.

Every such call may be repeated, so a lost answer is no unknown outcome.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from google.protobuf.message import DecodeError, Message
from lograft.internal.v1 import publication_pb2 as pb
from lograft.wire.codes import ErrorCode

from brokerd.addresses import internal_address
from brokerd.failure import Failure, RefusedError, refused
from brokerd.membership import check_named_cluster, check_registered
from brokerd.publishing.limits import RETRY_MS
from metaquorum.metadata.loader import MetadataLoader
from metaquorum.net.connection import Loss
from metaquorum.net.link import CallError, RefusedByPeerError, UnansweredError
from metaquorum.net.methods import Method
from metaquorum.net.peers import Peers
from metaquorum.net.service import RefusalError, decode_refusal

ResponseT = TypeVar("ResponseT", bound=Message)


# The broker that asks.


class PeerCalls:
    """Asks other brokers.

    Args:
        peers: connections of this process to other servers.
        observer: the metadata of this broker.
        cluster_id: id of the cluster.
        node_id: this broker.
        incarnation_id: random id of this process.
        broker_epoch: returns the epoch of the broker's registration; None before the first.
    """

    def __init__(
        self,
        peers: Peers,
        observer: MetadataLoader,
        *,
        cluster_id: str,
        node_id: int,
        incarnation_id: bytes,
        broker_epoch: Callable[[], int | None],
    ) -> None:
        self._peers = peers
        self._observer = observer
        self._cluster_id = cluster_id
        self._node_id = node_id
        self._incarnation_id = incarnation_id
        self._broker_epoch = broker_epoch

    def names(self, broker_id: int) -> pb.PublicationPeers:
        """Return who asks whom, for a request.

        Raises:
            RefusedError: LEADER_NOT_AVAILABLE, this broker is not registered.
        """
        own_epoch = self._broker_epoch()
        if own_epoch is None:
            raise refused(ErrorCode.LEADER_NOT_AVAILABLE, "this broker is not registered", retry_after_ms=RETRY_MS)
        return pb.PublicationPeers(
            cluster_id=self._cluster_id,
            broker_id=broker_id,
            sender_id=self._node_id,
            broker_epoch=own_epoch,
            incarnation_id=self._incarnation_id,
        )

    async def ask(
        self, broker_id: int, method: Method, request: Message, response_type: type[ResponseT], *, timeout_ms: int
    ) -> ResponseT:
        """Send a request once, and return the answer.

        Raises:
            RefusedError: the other broker's refusal; LEADER_NOT_AVAILABLE, it could not be reached; TIMED_OUT.
        """
        address = internal_address(self._observer.image, broker_id)
        if address is None:
            message = f"broker {broker_id} is not registered"
            raise refused(ErrorCode.LEADER_NOT_AVAILABLE, message, retry_after_ms=RETRY_MS)
        try:
            answer = await self._peers.ask(
                str(address), method, request.SerializeToString(), timeout_ms=timeout_ms, node_id=broker_id
            )
            return response_type.FromString(answer)
        except RefusedByPeerError as error:
            refusal = decode_refusal(error.failure)
            text = f"broker {broker_id}: {refusal.message}"
            raise RefusedError(
                Failure(code=refusal.code, message=text, retry_after_ms=refusal.retry_after_ms)
            ) from error
        except CallError as error:
            is_late = isinstance(error, UnansweredError) and error.loss is Loss.TIMED_OUT
            code = ErrorCode.TIMED_OUT if is_late else ErrorCode.LEADER_NOT_AVAILABLE
            raise refused(code, f"broker {broker_id}: {error}", retry_after_ms=RETRY_MS) from error
        except DecodeError as error:
            raise refused(ErrorCode.INTERNAL, f"the answer of broker {broker_id} cannot be decoded") from error


# The broker that is asked.


def check_peers(peers: pb.PublicationPeers, observer: MetadataLoader, *, cluster_id: str, node_id: int) -> None:
    """Refuse a request that is not for this broker, or not from a broker of the cluster.

    Raises:
        RefusedError: WRONG_CLUSTER; INVALID_REQUEST; METADATA_NOT_REACHED, STALE_BROKER_EPOCH, as `check_registered`.
    """
    check_named_cluster(peers.cluster_id, cluster_id)
    if peers.broker_id != node_id:
        raise refused(ErrorCode.INVALID_REQUEST, f"this is broker {node_id}, not {peers.broker_id}")
    check_registered(
        observer.image, peers.sender_id, broker_epoch=peers.broker_epoch, incarnation_id=peers.incarnation_id
    )


def refusal_of(error: RefusedError) -> RefusalError:
    """Return a refusal as the answer to a request."""
    failure = error.failure
    return RefusalError(failure.code, failure.message, retry_after_ms=failure.retry_after_ms)
