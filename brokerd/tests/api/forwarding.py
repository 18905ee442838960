# SPDX-License-Identifier: Apache-2.0
"""Another server of a cluster that forwards client calls to a broker over the carrier, whether that broker leads or not."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TypeVar

from google.protobuf.message import Message

from brokerd.api.forward import Forwarder
from brokerd.failure import LeaderPlace
from brokerd.process.server import BrokerServer
from brokerd.tests.support import WAIT_S
from metaquorum.net.carrier import Carrier

PASSER_ID = 901
"""Node id of the forwarding server."""

ResponseT = TypeVar("ResponseT", bound=Message)


class Passer:
    """Forwards calls to one broker.

    Args:
        forwarder: forwards the calls.
        broker_id: the broker.
    """

    def __init__(self, forwarder: Forwarder, broker_id: int) -> None:
        self._forwarder = forwarder
        self._place = LeaderPlace(leader_id=broker_id, leader_epoch=0, host="unused", port=1)

    async def call(self, method: str, request: Message, response_type: type[ResponseT]) -> ResponseT:
        """Forward a call and return the answer. Raises `RefusedError`."""
        return await self._forwarder.call(
            self._place, method, request, response_type, timeout_ms=int(WAIT_S * 1000), is_read_only=True
        )


@asynccontextmanager
async def passing_on(server: BrokerServer, broker_id: int) -> AsyncIterator[Passer]:
    """Run a server that has the broker's metadata and forwards calls to it."""
    carrier = Carrier(cluster_id=server.cluster_id, node_id=PASSER_ID)
    await carrier.start(None)
    try:
        yield Passer(Forwarder(carrier.peers, server.observer), broker_id)
    finally:
        await carrier.close()
