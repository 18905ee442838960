# SPDX-License-Identifier: Apache-2.0
"""Publications and checks that other brokers ask of this one, over the carrier.

    service = PublicationService(table)      # refuses until it is attached
    service.attach(local)

`LocalPublications` is this broker as the one that leads: for this service, and for coordinators in the same process.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from lograft.internal.v1 import publication_pb2 as pb
from lograft.wire.codes import ErrorCode

from brokerd.failure import RefusedError, refused
from brokerd.publishing.checks import StagedChecks
from brokerd.publishing.messages import read_part, read_slices
from brokerd.publishing.peer_calls import check_peers, refusal_of
from brokerd.publishing.publisher import Publisher, RecordsLostError
from metaquorum.metadata.loader import MetadataLoader
from metaquorum.net.link import ServedCall
from metaquorum.net.methods import Method
from metaquorum.net.service import ServiceTable

NOT_READY_RETRY_MS: Final = 100
"""`retry_after_ms` for a broker that asks before this one is ready."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalPublications:
    """What this broker does as the leader of partitions.

    Attributes:
        cluster_id: cluster id.
        node_id: node id.
        observer: the metadata.
        publisher: publishes parts.
        checks: checks what is staged.
    """

    cluster_id: str
    node_id: int
    observer: MetadataLoader
    publisher: Publisher
    checks: StagedChecks


class PublicationService:
    """Answers `PublishPart` and `CheckStaged`.

    Args:
        table: the table of carrier methods to which it adds itself.
    """

    def __init__(self, table: ServiceTable) -> None:
        self._local: LocalPublications | None = None
        table.add_waiting(Method.PUBLISH_PART, pb.PublishPartRequest, self._publish)
        table.add_waiting(Method.CHECK_STAGED, pb.CheckStagedRequest, self._check)

    def attach(self, local: LocalPublications) -> None:
        """Answer requests from now on."""
        self._local = local

    async def close(self) -> None:
        """Refuse every request from now on, and stop publishing. Idempotent."""
        local, self._local = self._local, None
        if local is not None:
            await local.publisher.close()

    async def _publish(self, request: pb.PublishPartRequest, _call: ServedCall) -> pb.PublishPartResponse:
        try:
            published = await self._checked(request.peers).publisher.publish(read_part(request))
        except RecordsLostError as error:
            return pb.PublishPartResponse(lost_records=error.records)
        except RefusedError as error:
            raise refusal_of(error) from error
        return pb.PublishPartResponse(first_offset=published.first_offset, end_offset=published.end_offset)

    async def _check(self, request: pb.CheckStagedRequest, _call: ServedCall) -> pb.CheckStagedResponse:
        try:
            checks = self._checked(request.peers).checks
            missing = await checks.check(request.topic_id, request.partition, read_slices(request.slices))
        except RefusedError as error:
            raise refusal_of(error) from error
        found = [pb.StagedMissing(index=each.index, reason=each.gap.value) for each in missing]
        return pb.CheckStagedResponse(missing=found)

    def _checked(self, peers: pb.PublicationPeers) -> LocalPublications:
        """Return this broker, if the request is for it and from a broker of the cluster.

        Raises:
            RefusedError: OVERLOADED, it is starting or stopping; as `check_peers`.
        """
        local = self._local
        if local is None:
            message = "this broker is starting or stopping"
            raise refused(ErrorCode.OVERLOADED, message, retry_after_ms=NOT_READY_RETRY_MS)
        check_peers(peers, local.observer, cluster_id=local.cluster_id, node_id=local.node_id)
        return local
