# SPDX-License-Identifier: Apache-2.0
"""The health service grpc.health.v1: SERVING only while this broker may serve.

Owns the status of every service name. The empty name has the status of the process.
"""

from __future__ import annotations

from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as health_aio

from metaquorum.controller_service.decoding import decoding
from metaquorum.grpc_server.server import GrpcServer

SERVICE_NAMES = (
    "lograft.v1.LogService",
    "lograft.v1.MetadataService",
    "lograft.v1.AdminService",
    "lograft.v1.GroupService",
    "lograft.v1.IngestService",
)
"""Services that have a health status, in addition to the empty name."""

LIVENESS = "liveness"
"""A name that is SERVING as long as the process listens, with or without a quorum. A liveness probe of it restarts only a process
that hangs."""


class Health:
    """Health of one server."""

    def __init__(self) -> None:
        self._servicer = health_aio.HealthServicer()
        self._is_serving = False

    @property
    def is_serving(self) -> bool:
        """True while the answer is SERVING."""
        return self._is_serving

    async def add_to(self, server: GrpcServer) -> None:
        """Register with a server that has not started. The answer is NOT_SERVING until `set_serving`."""
        health_pb2_grpc.add_HealthServicer_to_server(self._servicer, decoding(server))
        await self._servicer.set(LIVENESS, health_pb2.HealthCheckResponse.SERVING)
        await self._publish(False)

    async def set_serving(self, is_serving: bool) -> None:
        """Set the answer and tell watchers of a change."""
        if is_serving != self._is_serving:
            await self._publish(is_serving)

    async def _publish(self, is_serving: bool) -> None:
        self._is_serving = is_serving
        serving, not_serving = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING
        for name in ("", *SERVICE_NAMES):
            await self._servicer.set(name, serving if is_serving else not_serving)
