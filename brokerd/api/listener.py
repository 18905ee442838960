# SPDX-License-Identifier: Apache-2.0
"""The gRPC server of a broker: limits, services, binding. Composition only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import grpc
from grpc_reflection.v1alpha import reflection

from brokerd.api.health import SERVICE_NAMES, Health
from brokerd.errors import AddressInUseError
from brokerd.limits import (
    KEEPALIVE_MS,
    KEEPALIVE_TIMEOUT_MS,
    MAX_CONCURRENT_RPCS,
    MAX_CONCURRENT_RPCS_PER_CONNECTION,
)
from metaquorum.controller_service.decoding import add_reflection
from metaquorum.grpc_server.server import GrpcServer, ServerLimits
from metaquorum.process.settings import Address

LIMITS: Final = ServerLimits(
    max_calls=MAX_CONCURRENT_RPCS,
    max_connection_calls=MAX_CONCURRENT_RPCS_PER_CONNECTION,
    quiet_ms=KEEPALIVE_MS,
    timeout_ms=KEEPALIVE_TIMEOUT_MS,
)


async def add_services(server: GrpcServer, handlers: Sequence[grpc.GenericRpcHandler], health: Health) -> None:
    """Add the services of a broker to a server that has not started, with health and reflection."""
    server.add_generic_rpc_handlers(handlers)
    await health.add_to(server)
    add_reflection((*SERVICE_NAMES, "grpc.health.v1.Health", reflection.SERVICE_NAME), server)


def bind(server: GrpcServer, listen: Address) -> Address:
    """Take the public address, and return it with the real port.

    Raises:
        AddressInUseError: the port is taken, or the address is not one of this machine.
    """
    try:
        port = server.bind(listen.host, listen.port)
    except OSError as error:
        raise AddressInUseError(f"cannot listen on {listen}: {error.strerror}; give another address or port") from error
    return Address(host=listen.host, port=port)
