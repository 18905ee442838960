# SPDX-License-Identifier: Apache-2.0
"""The gRPC server of a broker: options, services, binding. Composition only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import grpc
import grpc.aio
from grpc_reflection.v1alpha import reflection
from lograft.wire.keepalive import server_options
from lograft.wire.limits import MAX_GRPC_MESSAGE_BYTES

from brokerd.api.health import SERVICE_NAMES, Health
from brokerd.errors import AddressInUseError
from brokerd.limits import (
    KEEPALIVE_MS,
    KEEPALIVE_TIMEOUT_MS,
    MAX_CONCURRENT_RPCS,
    MAX_CONCURRENT_RPCS_PER_CONNECTION,
)
from metaquorum.controller_service.decoding import add_reflection
from metaquorum.process.settings import Address

OPTIONS: Final = (
    ("grpc.max_send_message_length", MAX_GRPC_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_GRPC_MESSAGE_BYTES),
    ("grpc.max_concurrent_streams", MAX_CONCURRENT_RPCS_PER_CONNECTION),
    *server_options(quiet_ms=KEEPALIVE_MS, timeout_ms=KEEPALIVE_TIMEOUT_MS),
    # Otherwise two processes on one port would each get half of the connections.
    ("grpc.so_reuseport", 0),
    # Nothing reads channelz, and its data about each connection would outlive the connection.
    ("grpc.enable_channelz", 0),
)


async def make_server(
    handlers: Sequence[grpc.GenericRpcHandler], health: Health, listen: Address
) -> tuple[grpc.aio.Server, Address]:
    """Create a server that has not started yet, and bind it.

    Returns:
        The server and its address with the real port.

    Raises:
        AddressInUseError: the port is taken, or the address is not one of this machine.
    """
    server = grpc.aio.server(options=OPTIONS, maximum_concurrent_rpcs=MAX_CONCURRENT_RPCS)
    server.add_generic_rpc_handlers(tuple(handlers))
    await health.add_to(server)
    names = (*SERVICE_NAMES, "grpc.health.v1.Health", reflection.SERVICE_NAME)
    add_reflection(names, server)
    try:
        port = server.add_insecure_port(str(listen))
    except RuntimeError as error:
        port = 0
        reason: Exception | None = error
    else:
        reason = None
    if port == 0:
        await server.stop(None)
        raise AddressInUseError(
            f"cannot listen on {listen}: the port is in use, or the address is not of this machine"
        ) from reason
    return server, Address(host=listen.host, port=port)
