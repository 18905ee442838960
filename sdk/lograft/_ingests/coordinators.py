# SPDX-License-Identifier: Apache-2.0
"""Who coordinates which ingest. The attempts of a call and their pauses are those for groups."""

from __future__ import annotations

from collections.abc import Sequence

from lograft._client.stubs import ingest_service
from lograft._groups.coordinators import Coordinators, Found, checked, found_in
from lograft.v1 import ingest_pb2


class IngestCoordinators(Coordinators):
    """The coordinators of ingests, as far as they are known. Belongs to one event loop."""

    async def _find(self, group_ids: Sequence[str], *, timeout_ms: int) -> list[Found]:
        """Ask any broker for the coordinators of ingests."""
        request = ingest_pb2.FindIngestCoordinatorRequest(cluster_id=self._cluster.cluster_id, ingest_ids=group_ids)
        response = await self._cluster.ask(
            lambda channel: ingest_service(channel).FindIngestCoordinator, request, timeout_ms=timeout_ms
        )
        return checked(group_ids, [found_in(each) for each in response.coordinators])
