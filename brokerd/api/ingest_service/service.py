# SPDX-License-Identifier: Apache-2.0
"""IngestService: the table of its methods."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import grpc
from lograft.v1 import ingest_pb2 as pb

from brokerd.api.calls import raw_unary, serialized, unary
from brokerd.api.forward import ForwardedMethod, Forwarder
from brokerd.api.ingest_service.calls import LIST_METHOD, IngestServiceCalls
from brokerd.api.parts import BrokerParts
from brokerd.ingests.coordinator_calls import IngestCalls
from brokerd.ingests.coordinators import IngestCoordinators
from brokerd.ingests.steps import IngestSteps

SERVICE: Final = "lograft.v1.IngestService"


class IngestService:
    """IngestService of one broker.

    Attributes:
        forwarded: the methods that brokers ask each other for, by name.
    """

    def __init__(
        self,
        parts: BrokerParts,
        coordinators: IngestCoordinators,
        steps: IngestSteps,
        questions: IngestCalls,
        forwarder: Forwarder,
    ) -> None:
        self._calls = IngestServiceCalls(parts, coordinators, steps, questions, forwarder)
        self.forwarded: Mapping[str, ForwardedMethod] = {
            LIST_METHOD: serialized(pb.ListIngestsRequest, self._calls.list_ingests)
        }

    def handler(self) -> grpc.GenericRpcHandler:
        """Return the method handlers for a gRPC server."""
        calls = self._calls
        return grpc.method_handlers_generic_handler(
            SERVICE,
            {
                "FindIngestCoordinator": unary(pb.FindIngestCoordinatorRequest, calls.find_coordinator),
                "OpenIngest": unary(pb.OpenIngestRequest, calls.open_ingest),
                "OpenAttempt": unary(pb.OpenAttemptRequest, calls.open_attempt),
                "SealAttempt": unary(pb.SealAttemptRequest, calls.seal_attempt),
                "CommitIngest": unary(pb.CommitIngestRequest, calls.commit_ingest),
                "AbortIngest": unary(pb.AbortIngestRequest, calls.abort_ingest),
                "TouchIngest": unary(pb.TouchIngestRequest, calls.touch_ingest),
                "DescribeIngest": unary(pb.DescribeIngestRequest, calls.describe_ingest),
                **{name: raw_unary(call) for name, call in self.forwarded.items()},
                "GetPublished": unary(pb.GetPublishedRequest, calls.get_published),
            },
        )
